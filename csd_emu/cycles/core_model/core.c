/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One core: blocks run through the pipeline with their fetches, accesses and branches. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* Cycles between a taken branch and the next instruction, unless the same branch was taken just before. */
enum { TAKEN_BRANCH = 1 };

const struct parameters DEFAULT_PARAMETERS = {
    .clock_megahertz = 1000, .l1_data_kibibytes = 32, .l1_instruction_kibibytes = 32, .l2_kibibytes = 512,
    .l2_cycles = 12, .dram_nanoseconds = 110, .dram_megabytes_per_second = 4000, .line_fills = 3,
    .prefetch_streams = 4, .prefetch_lines = 5, .mispredict_cycles = 8,
};

/* The range of each parameter, as in parameters.py; sizes of caches are powers of two besides. */
#define RANGE(name, low, high) \
    { #name, #name " is not " #low " to " #high, offsetof(struct parameters, name), low, high }
static const struct { const char *name, *problem; size_t offset; unsigned low, high; } RANGES[] = {
    RANGE(clock_megahertz, 100, 5000), RANGE(l1_data_kibibytes, 4, 64), RANGE(l1_instruction_kibibytes, 4, 64),
    RANGE(l2_kibibytes, 64, 4096), RANGE(l2_cycles, 1, 200), RANGE(dram_nanoseconds, 1, 2000),
    RANGE(dram_megabytes_per_second, 50, 100000), RANGE(line_fills, 1, 8), RANGE(prefetch_streams, 0, 8),
    RANGE(prefetch_lines, 1, 16), RANGE(mispredict_cycles, 0, 50),
};
enum { PARAMETERS = sizeof RANGES / sizeof *RANGES };

bool set_parameter(struct parameters *p, const char *name, size_t characters, unsigned value)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        if (strlen(RANGES[i].name) != characters || memcmp(name, RANGES[i].name, characters)) continue;
        memcpy((char *)p + RANGES[i].offset, &value, sizeof value);
        return true;
    }
    return false;
}

static bool power_of_two(unsigned number) { return !(number & (number - 1)); }

const char *parameters_problem(const struct parameters *p)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        unsigned value;
        memcpy(&value, (const char *)p + RANGES[i].offset, sizeof value);
        if (value < RANGES[i].low || value > RANGES[i].high) return RANGES[i].problem;
    }
    if (!power_of_two(p->l1_data_kibibytes)) return "l1_data_kibibytes is no power of two";
    if (!power_of_two(p->l1_instruction_kibibytes)) return "l1_instruction_kibibytes is no power of two";
    if (!power_of_two(p->l2_kibibytes)) return "l2_kibibytes is no power of two";
    return NULL;
}

struct core *core_new(const struct parameters *parameters)
{
    struct core *core = parameters_problem(parameters) ? NULL : calloc(1, sizeof *core);
    if (!core) return NULL;
    core->parameters = *parameters;
    memset(core->predictor.counters, 2, sizeof core->predictor.counters); /* taken, weakly */
    if (memory_init(core)) return core;
    core_free(core);
    return NULL;
}

void core_free(struct core *core)
{
    if (!core) return;
    free(core->memory.l1_data.lines);
    free(core->memory.l1_instruction.lines);
    free(core->memory.l2.lines);
    free(core);
}

/* ------------------------------------------------------------------------------------------------ branches */
static bool mispredicted(struct predictor *p, const struct operation *o, uint64_t address, uint64_t next, bool taken)
{
    if (o->flags & IS_CONDITIONAL) { /* a table indexed by address and history (gshare) */
        uint8_t *counter = p->counters + (((address >> 2) ^ p->history) & (HISTORY - 1));
        bool wrong = (*counter >= 2) != taken;
        if (taken && *counter < 3) ++*counter;
        else if (!taken && *counter) --*counter;
        p->history = (p->history << 1 | taken) & (HISTORY - 1);
        return wrong;
    }
    if (o->flags & IS_RETURN) {
        p->top = (p->top - 1) % RETURNS;
        return p->returns[p->top] != next;
    }
    if (!(o->flags & IS_INDIRECT)) return false;
    uint64_t *target = p->targets + (((address >> 2) ^ (address >> 10)) & (TARGETS - 1));
    bool wrong = *target != next;
    *target = next;
    return wrong;
}

static void branch(struct core *core, const struct block *block, uint64_t next)
{
    const struct operation *o = block->operations + block->instructions - 1;
    struct predictor *p = &core->predictor;
    if (!(o->flags & IS_BRANCH)) return;
    uint64_t end = block->start + 4 * (uint64_t)block->instructions, address = end - 4;
    bool taken = next != end, wrong = mispredicted(p, o, address, next, taken);
    core->counters.branches++;
    if (o->flags & IS_CALL) { p->returns[p->top] = end; p->top = (p->top + 1) % RETURNS; }
    if (wrong) {
        core->counters.mispredicted++;
        advance(&core->pipeline, core->pipeline.now + core->parameters.mispredict_cycles);
    } else if (taken) {
        if (p->last_taken == address) core->pipeline.closed = true;
        else advance(&core->pipeline, core->pipeline.now + TAKEN_BRANCH + 1);
        p->last_taken = address;
    }
}

/* ------------------------------------------------------------------------------------------------ accesses */
static void load(struct core *core, const struct operation *o, uint64_t line, uint64_t cycle, unsigned wait)
{
    struct pipeline *p = &core->pipeline;
    core->counters.loads++;
    uint64_t ready = load_line(core, line, cycle);
    if (!ready && !wait) return;
    for (unsigned i = 0; i < o->results; i++) {
        uint64_t there = (ready > cycle ? ready : cycle) + o->latency[i];
        if (o->producer[i] == BY_LOAD && there > p->ready[o->result[i]]) p->ready[o->result[i]] = there;
    }
}

/* The accesses of one instruction that issued in `cycle`; those of one line are one access. */
static size_t run_accesses(struct core *core, const struct operation *o, uint64_t cycle,
                           const struct access *accesses, size_t count)
{
    struct pipeline *p = &core->pipeline;
    uint64_t seen = NO_TAG;
    size_t i;
    for (i = 0; i < count && accesses[i].instruction == accesses[0].instruction; i++) {
        uint64_t line = accesses[i].address >> LINE_BITS;
        if (line == seen && !accesses[i].stored_bytes) continue;
        unsigned wait = line == seen ? 0 : translate(core, accesses[i].address >> PAGE_BITS);
        seen = line;
        if (wait > MICRO_TLB_MISS) { advance(p, p->now + wait); cycle = p->now; }
        else cycle += wait;
        if (!accesses[i].stored_bytes) { load(core, o, line, cycle, wait); continue; }
        core->counters.stores++;
        advance(p, store_line(core, line, accesses[i].stored_bytes, cycle));
    }
    return i;
}

void run_block(struct core *core, const struct block *block, const struct access *accesses, size_t count, uint64_t next)
{
    struct pipeline *p = &core->pipeline;
    uint64_t first = p->now;
    fetch(core, block);
    for (uint32_t i = 0; i < block->instructions; i++) {
        const struct operation *o = block->operations + i;
        uint64_t cycle = issue(p, o);
        if (o->flags & ZEROES_LINE) advance(p, zero_line(core, cycle));
        while (count && accesses->instruction < i) { accesses++; count--; }
        if (!count || accesses->instruction != i || !(o->flags & (IS_LOAD | IS_STORE))) continue;
        size_t done = run_accesses(core, o, cycle, accesses, count);
        accesses += done;
        count -= done;
    }
    branch(core, block, next);
    core->counters.cycles += p->now - first;
    core->counters.instructions += block->instructions;
}
