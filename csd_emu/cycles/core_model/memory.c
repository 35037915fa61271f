/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TLBs, caches, line fills, prefetcher, store buffer and DRAM of one core. Addresses are virtual. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* Ways, from ARM's manual. The first levels replace a random line, the second its least recently used one. */
enum { L1_DATA_WAYS = 4, L1_INSTRUCTION_WAYS = 2, L2_WAYS = 16 };
/* Cycles of a walk when the main TLB misses: its tables are in L2, mostly. */
enum { TLB_MISS = 20 };
/* A line of instructions that L2 has: some of its latency is hidden by fetching ahead. */
enum { FETCH_FROM_L2 = 8 };
/* Equal strides before a stream is prefetched, and the longest stride in lines. */
enum { TRAINING = 3, LONGEST_STRIDE = 8 };
/* Whole lines written in a row before lines are no longer read first. */
enum { LINES_TO_STREAMING = 16 };

static bool cache_init(struct cache *cache, unsigned kibibytes, unsigned ways)
{
    cache->ways = ways;
    cache->sets = kibibytes * 1024 / LINE_BYTES / ways;
    cache->lines = calloc((size_t)cache->sets * ways, sizeof *cache->lines);
    for (size_t i = 0; cache->lines && i < (size_t)cache->sets * ways; i++) cache->lines[i].tag = NO_TAG;
    return cache->lines != NULL;
}

bool memory_init(struct core *core)
{
    struct memory *m = &core->memory;
    const struct parameters *p = &core->parameters;
    memset(m->micro_tlb, 0xff, sizeof m->micro_tlb);
    memset(m->tlb, 0xff, sizeof m->tlb);
    m->instruction_page = NO_TAG;
    m->written_line = -2;
    m->zeroed_line = INT64_C(1) << 57;
    m->random = 2463534242u;
    m->dram_cycles = (unsigned)((uint64_t)p->dram_nanoseconds * p->clock_megahertz / 1000);
    unsigned bandwidth = p->dram_megabytes_per_second;
    m->line_cycles = (LINE_BYTES * p->clock_megahertz + bandwidth / 2) / bandwidth;
    return cache_init(&m->l1_data, p->l1_data_kibibytes, L1_DATA_WAYS) &&
           cache_init(&m->l1_instruction, p->l1_instruction_kibibytes, L1_INSTRUCTION_WAYS) &&
           cache_init(&m->l2, p->l2_kibibytes, L2_WAYS);
}

/* ------------------------------------------------------------------------------------------------ caches */
static struct line *set_of(struct cache *cache, uint64_t line)
{
    return cache->lines + (line & (cache->sets - 1)) * cache->ways;
}

static struct line *find(struct cache *cache, uint64_t line)
{
    struct line *set = set_of(cache, line);
    for (unsigned i = 0; i < cache->ways; i++)
        if (set[i].tag == line) { set[i].used = ++cache->tick; return set + i; }
    return NULL;
}

static struct line *random_victim(struct memory *m, struct cache *cache, uint64_t line)
{
    struct line *set = set_of(cache, line);
    for (unsigned i = 0; i < cache->ways; i++) if (set[i].tag == NO_TAG) return set + i;
    m->random ^= m->random << 13; /* xorshift: Marsaglia, Journal of Statistical Software 8 (14), 2003 */
    m->random ^= m->random >> 17;
    m->random ^= m->random << 5;
    return set + (m->random & (cache->ways - 1));
}

static struct line *oldest_victim(struct cache *cache, uint64_t line)
{
    struct line *set = set_of(cache, line), *oldest = set;
    for (unsigned i = 1; i < cache->ways; i++) if (set[i].used < oldest->used) oldest = set + i;
    return oldest;
}

/* Move one line over the bus, and return the cycle in which that begins. */
static uint64_t transfer(struct core *core, uint64_t cycle)
{
    struct memory *m = &core->memory;
    uint64_t start = cycle > m->bus_free ? cycle : m->bus_free;
    m->bus_free = start + m->line_cycles;
    core->counters.dram_bytes += LINE_BYTES;
    return start;
}

/* Read a line from L2 or DRAM, and return the cycle in which it is there. */
static uint64_t read_line(struct core *core, uint64_t line, uint64_t cycle)
{
    struct memory *m = &core->memory;
    struct line *entry = find(&m->l2, line);
    unsigned latency = core->parameters.l2_cycles;
    if (entry) return (entry->ready > cycle ? entry->ready : cycle) + latency;
    core->counters.l2_misses++;
    entry = oldest_victim(&m->l2, line);
    uint64_t start = transfer(core, cycle);
    if (entry->dirty) transfer(core, start);
    *entry = (struct line){ .tag = line, .used = ++m->l2.tick, .ready = start + m->dram_cycles };
    return entry->ready + latency;
}

/* Put a line into the first level; what it displaces is written back into L2. */
static struct line *fill(struct core *core, uint64_t line, uint64_t ready)
{
    struct memory *m = &core->memory;
    struct line *entry = random_victim(m, &m->l1_data, line);
    if (entry->tag != NO_TAG && entry->dirty) {
        struct line *below = find(&m->l2, entry->tag);
        if (!below) {
            below = oldest_victim(&m->l2, entry->tag);
            if (below->dirty) transfer(core, m->bus_free);
            *below = (struct line){ .tag = entry->tag, .used = ++m->l2.tick };
        }
        below->dirty = true;
    }
    *entry = (struct line){ .tag = line, .ready = ready, .used = ++m->l1_data.tick };
    return entry;
}

static uint64_t *free_slot(uint64_t *slots, unsigned count)
{
    uint64_t *first = slots;
    for (unsigned i = 1; i < count; i++) if (slots[i] < *first) first = slots + i;
    return first;
}

/* ------------------------------------------------------------------------------------------------ prefetcher */
static struct stream *stream_of(struct core *core, int64_t line, bool *known)
{
    struct stream *oldest = core->memory.streams;
    *known = false;
    for (unsigned i = 0; i < core->parameters.prefetch_streams; i++) {
        struct stream *s = core->memory.streams + i;
        int64_t distance = line - s->last;
        bool near = s->used && distance && distance >= -LONGEST_STRIDE && distance <= LONGEST_STRIDE;
        bool fits = s->confidence < TRAINING || (s->stride && distance % s->stride == 0);
        *known = s->used && (!distance || (near && fits));
        if (*known) return s;
        if (s->used < oldest->used) oldest = s;
    }
    return oldest;
}

/*
 * Follow streams of equal strides, and read so many lines ahead of one, but not beyond its page. No more lines than
 * that are under way for all streams together (ARM's manual, CPUACTLR_EL1: outstanding prefetches).
 */
static void prefetch(struct core *core, int64_t line, uint64_t cycle)
{
    struct memory *m = &core->memory;
    bool known;
    if (!core->parameters.prefetch_streams) return;
    struct stream *s = stream_of(core, line, &known);
    int64_t distance = line - s->last;
    if (known && !distance) return;
    uint32_t used = ++m->stream_tick;
    if (!known) { *s = (struct stream){ .last = line, .ahead = line, .used = used }; return; }
    s->used = used;
    if (s->stride && distance % s->stride == 0 && distance / s->stride > 0) s->confidence++;
    else { s->stride = distance; s->confidence = 1; s->ahead = line; }
    s->last = line;
    if (s->confidence < TRAINING - 1) return;
    bool up = s->stride > 0;
    int64_t target = line + s->stride * (int64_t)core->parameters.prefetch_lines;
    if (up ? s->ahead < line : s->ahead > line) s->ahead = line;
    while (up ? s->ahead < target : s->ahead > target) {
        int64_t next = s->ahead + s->stride;
        if (next >> (PAGE_BITS - LINE_BITS) != line >> (PAGE_BITS - LINE_BITS)) break;
        bool there = find(&m->l1_data, (uint64_t)next);
        uint64_t *slot = free_slot(m->prefetches, core->parameters.prefetch_lines);
        if (!there && *slot > cycle) break;
        s->ahead = next;
        if (there) continue;
        *slot = read_line(core, (uint64_t)next, cycle);
        fill(core, (uint64_t)next, *slot)->prefetched = true;
        core->counters.prefetches++;
    }
}

/* ------------------------------------------------------------------------------------------------ accesses */
unsigned translate(struct core *core, uint64_t page)
{
    struct memory *m = &core->memory;
    for (unsigned i = 0; i < MICRO_TLB; i++) if (m->micro_tlb[i] == page) return 0;
    m->micro_tlb[m->micro_next] = page;
    m->micro_next = (m->micro_next + 1) % MICRO_TLB;
    unsigned set = page % TLB_SETS;
    for (unsigned i = 0; i < TLB_WAYS; i++) if (m->tlb[set][i] == page) return MICRO_TLB_MISS;
    core->counters.tlb_misses++;
    m->tlb[set][m->tlb_next[set]++ % TLB_WAYS] = page;
    return MICRO_TLB_MISS + TLB_MISS;
}

uint64_t load_line(struct core *core, uint64_t line, uint64_t cycle)
{
    struct memory *m = &core->memory;
    struct line *entry = find(&m->l1_data, line);
    if (entry) {
        uint64_t ready = entry->ready > cycle ? entry->ready : 0;
        if (entry->prefetched) { entry->prefetched = false; prefetch(core, (int64_t)line, cycle); }
        return ready;
    }
    core->counters.l1_misses++;
    uint64_t *slot = free_slot(m->fills, core->parameters.line_fills);
    uint64_t start = *slot > cycle ? *slot : cycle;
    advance(&core->pipeline, start); /* it waits in the pipeline for a line fill that is free */
    *slot = read_line(core, line, start);
    uint64_t ready = *slot;
    fill(core, line, ready);
    prefetch(core, (int64_t)line, start);
    return ready;
}

/* Take a slot of the store buffer for a line, and return the cycle in which it is free. */
static uint64_t take_slot(struct memory *m, uint64_t line, uint64_t cycle, uint64_t **slot)
{
    *slot = free_slot(m->store_free, STORE_BUFFER);
    m->store_line[*slot - m->store_free] = line;
    return **slot > cycle ? **slot : cycle;
}

/* Write a whole line without reading it first. */
static uint64_t write_through(struct core *core, uint64_t line, uint64_t cycle)
{
    uint64_t *slot, start = take_slot(&core->memory, line, cycle, &slot);
    struct line *entry = find(&core->memory.l2, line);
    if (entry) { entry->dirty = true; *slot = start + core->parameters.l2_cycles; }
    else *slot = transfer(core, start) + core->memory.line_cycles;
    return start > cycle ? start : 0;
}

/* Note that a line is written that L1 does not have, and return whether the core reads such lines no longer. */
static bool is_streaming(struct memory *m, int64_t line, unsigned bytes)
{
    if (line == m->written_line + 1 && m->written_bytes >= LINE_BYTES) m->whole_lines++;
    else if (line != m->written_line) m->whole_lines = 0;
    if (line != m->written_line) { m->written_line = line; m->written_bytes = (int)bytes; }
    m->streaming = m->whole_lines >= LINES_TO_STREAMING;
    return m->streaming;
}

uint64_t store_line(struct core *core, uint64_t line, unsigned bytes, uint64_t cycle)
{
    struct memory *m = &core->memory;
    if ((int64_t)line == m->written_line) {
        if (m->written_bytes < LINE_BYTES) m->written_bytes += (int)bytes;
        if (m->streaming) return 0;
    }
    struct line *entry = find(&m->l1_data, line);
    if (entry) { entry->dirty = true; entry->prefetched = false; return 0; }
    for (unsigned i = 0; i < STORE_BUFFER; i++) /* merges with a store that waits */
        if (m->store_line[i] == line && m->store_free[i] > cycle) return 0;
    core->counters.l1_misses++;
    if (is_streaming(m, (int64_t)line, bytes)) return write_through(core, line, cycle);
    uint64_t *slot, *slot_of_fill = free_slot(m->fills, core->parameters.line_fills);
    uint64_t start = take_slot(m, line, cycle, &slot);
    uint64_t ready = read_line(core, line, *slot_of_fill > start ? *slot_of_fill : start);
    fill(core, line, ready)->dirty = true;
    *slot = *slot_of_fill = ready;
    return start > cycle ? start : 0;
}

/* QEMU tells no address of `dc zva`: each stands for a line of its own. */
uint64_t zero_line(struct core *core, uint64_t cycle)
{
    return write_through(core, (uint64_t)core->memory.zeroed_line--, cycle);
}

void fetch(struct core *core, const struct block *block)
{
    struct memory *m = &core->memory;
    struct pipeline *p = &core->pipeline;
    uint64_t last = (block->start + 4 * (uint64_t)block->instructions - 1) >> LINE_BITS;
    for (uint64_t line = block->start >> LINE_BITS; line <= last; line++) {
        if (find(&m->l1_instruction, line)) continue;
        core->counters.instruction_misses++;
        *random_victim(m, &m->l1_instruction, line) = (struct line){ .tag = line };
        uint64_t ready = read_line(core, line, p->now);
        advance(p, ready > p->now + core->parameters.l2_cycles ? ready : p->now + FETCH_FROM_L2);
    }
    uint64_t page = block->start >> PAGE_BITS;
    if (page == m->instruction_page) return;
    m->instruction_page = page;
    unsigned wait = translate(core, page);
    if (wait > MICRO_TLB_MISS) advance(p, p->now + wait);
}
