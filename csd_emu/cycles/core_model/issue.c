/* SPDX-License-Identifier: GPL-2.0-or-later */
/* In-order issue, two operations per cycle. */
#include "core.h"

/* A load of vectors waits while a multiply-add is so many cycles old: GCC has its accumulator in cycle 4, and ncnn's
 * kernels place loads so. ncnn's text read literally says 3. */
enum { MULTIPLY_ADD_BLOCKS = 4 };
/* From an ALU to an address, and from a load to one, counted from issue to issue (LLVM and GCC say 3 for the load; 2
 * for the ALU is a choice, both say 3). */
enum { ALU_TO_ADDRESS = 2, LOAD_TO_ADDRESS = 3, LOAD_TO_ALU = 2 };
/* How many cycles before its end the accumulator of a multiply-add, and of an integer one, is there for the next. */
enum { EARLY_MULTIPLY_ADD = 4, EARLY_VECTOR_MULTIPLY = 3, EARLY_MULTIPLY = 1 };

void advance(struct pipeline *p, uint64_t cycle)
{
    if (cycle <= p->now) return;
    uint64_t passed = cycle - p->now;
    p->recent_multiply_adds = passed > 31 ? 0 : p->recent_multiply_adds << passed;
    p->now = cycle;
    p->issued = p->vector_slots = p->branches = p->vector_loads = p->multiply_adds = 0;
    p->closed = false;
}

/* The cycle in which a source can be used. */
static uint64_t available(const struct pipeline *p, unsigned reg, unsigned use)
{
    uint64_t ready = p->ready[reg];
    unsigned producer = p->producer[reg], early = 0;
    switch (use) {
    case USE_SHIFT: /* shifted operands are read a stage earlier; vector registers have no such stage */
        return ready + (reg < REG_VECTOR && producer != BY_OTHER);
    case USE_ADDRESS:
        if (producer == BY_ALU) return ready + ALU_TO_ADDRESS - 1;
        if (producer == BY_LOAD) return ready + LOAD_TO_ADDRESS - LOAD_TO_ALU;
        return ready + (producer == BY_MULTIPLY);
    case USE_STORED: /* data of a store is needed a stage later */
        early = 1;
        break;
    case USE_ACCUMULATOR:
        if (producer == BY_MULTIPLY_ADD) early = EARLY_MULTIPLY_ADD;
        else if (producer == BY_MULTIPLY) early = reg >= REG_VECTOR ? EARLY_VECTOR_MULTIPLY : EARLY_MULTIPLY;
        break;
    }
    return ready > early ? ready - early : 0;
}

/* The cycle in which the unit of an operation can take it, no earlier than now; `now` for at once. */
static uint64_t unit_free(const struct pipeline *p, const struct operation *o)
{
    uint64_t next = p->now + 1;
    switch (o->unit) {
    case UNIT_MULTIPLY: return p->multiply_free;
    case UNIT_DIVIDE: return p->divide_free;
    case UNIT_BRANCH: return p->branches ? next : p->now;
    case UNIT_MEMORY:
        if (p->memory_free > p->now) return p->memory_free;
        if (!(o->flags & IS_VECTOR_LOAD)) return p->now;
        return p->multiply_adds || (p->recent_multiply_adds >> MULTIPLY_ADD_BLOCKS & 1) ? next : p->now;
    case UNIT_VECTOR:
        if ((o->flags & IS_MULTIPLY_ADD) && p->vector_loads) return next;
        if ((o->flags & IS_VECTOR_DIVIDE) && p->vector_free > p->now) return p->vector_free;
        return p->vector_slots + o->slots > 2 ? next : p->now;
    }
    return p->now;
}

static void occupy(struct pipeline *p, const struct operation *o)
{
    uint64_t until = p->now + o->occupies;
    switch (o->unit) {
    case UNIT_MULTIPLY: p->multiply_free = until; break;
    case UNIT_DIVIDE: p->divide_free = until; break;
    case UNIT_BRANCH: p->branches = 1; break;
    case UNIT_MEMORY: p->memory_free = until; break;
    case UNIT_VECTOR:
        if (o->flags & IS_VECTOR_DIVIDE) p->vector_free = until;
        p->vector_slots += o->slots;
        break;
    }
    p->issued++;
    if (o->flags & IS_VECTOR_LOAD) p->vector_loads = 1;
    if (o->flags & IS_MULTIPLY_ADD) { p->multiply_adds = 1; p->recent_multiply_adds |= 1; }
    if (o->flags & ISSUES_ALONE) p->closed = true;
}

uint64_t issue(struct pipeline *p, const struct operation *o)
{
    uint64_t cycle = p->now;
    for (unsigned i = 0; i < o->sources; i++) {
        uint64_t ready = available(p, o->source[i], o->use[i]);
        if (ready > cycle) cycle = ready;
    }
    for (unsigned i = 0; i < o->results; i++) { /* results are written in order: a load that is under way comes first */
        uint64_t pending = p->producer[o->result[i]] == BY_LOAD ? p->ready[o->result[i]] : 0;
        if (pending > cycle + o->latency[i]) cycle = pending - o->latency[i];
    }
    advance(p, cycle);
    for (;;) {
        bool full = p->issued == 2 || p->closed || (p->issued && (o->flags & ISSUES_ALONE));
        uint64_t free = full ? p->now + 1 : unit_free(p, o);
        if (free <= p->now) break;
        advance(p, free);
    }
    cycle = p->now;
    occupy(p, o);
    for (unsigned i = 0; i < o->results; i++) {
        p->ready[o->result[i]] = cycle + o->latency[i];
        p->producer[o->result[i]] = o->producer[i];
    }
    /* A wide load holds issue until its last cycle. */
    if ((o->flags & ISSUES_ALONE) && o->occupies > 1) { advance(p, cycle + o->occupies - 1); p->closed = true; }
    return cycle;
}
