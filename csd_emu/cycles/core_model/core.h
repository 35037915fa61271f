/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A cycle model of an ARM Cortex-A53: operations, parameters and the state of one core.
 *
 * The model is pure: it knows nothing of QEMU, and all its state is in `struct core`. Sources of the figures: LLVM's
 * scheduler description (AArch64SchedA53.td), GCC's pipeline description (cortex-a53.md), ncnn's developer note on dual
 * issue of A53 and A55, and published summaries of ARM's technical reference manual (caches, TLBs, misses). Where they
 * disagree, the comment beside the figure says which one is taken.
 */
#ifndef CSD_CORE_H
#define CSD_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Registers of the model: 0 to 30 are X0 to X30, then SP, the 32 vector registers, and the flags. */
enum { REG_SP = 31, REG_VECTOR = 32, REG_FLAGS = 64, REGISTERS = 65, REG_NONE = 255 };

enum unit { UNIT_NONE, UNIT_ALU, UNIT_MULTIPLY, UNIT_DIVIDE, UNIT_MEMORY, UNIT_BRANCH, UNIT_VECTOR };

/* What a source register is used for: it decides when its value has to be there. */
enum use { USE_ALU, USE_SHIFT, USE_ADDRESS, USE_STORED, USE_ACCUMULATOR };

/* What produced a register: it decides how early a user can have the value. */
enum producer { BY_ALU, BY_LOAD, BY_MULTIPLY, BY_MULTIPLY_ADD, BY_OTHER };

enum flags {
    IS_LOAD = 1, IS_STORE = 2, IS_BRANCH = 4, IS_CONDITIONAL = 8, IS_INDIRECT = 16, IS_CALL = 32, IS_RETURN = 64,
    ISSUES_ALONE = 128, IS_VECTOR_LOAD = 256, IS_MULTIPLY_ADD = 512, IS_VECTOR_DIVIDE = 1024, ZEROES_LINE = 2048,
};

enum { MOST_SOURCES = 6, MOST_RESULTS = 5 };

/* One instruction as the pipeline sees it. */
struct operation {
    uint8_t unit, occupies;   /* which unit, and for how many cycles */
    uint8_t slots;            /* of the two 64-bit vector slots of a cycle */
    uint8_t sources, results;
    uint8_t source[MOST_SOURCES], use[MOST_SOURCES];
    uint8_t result[MOST_RESULTS], latency[MOST_RESULTS], producer[MOST_RESULTS];
    uint16_t flags;
};

struct parameters {
    unsigned clock_megahertz;
    unsigned l1_data_kibibytes, l1_instruction_kibibytes, l2_kibibytes;
    unsigned l2_cycles;                 /* beyond a hit of the first level */
    unsigned dram_nanoseconds;          /* beyond the second level */
    unsigned dram_megabytes_per_second; /* of the bus, for one core */
    unsigned line_fills;                /* misses under way at once */
    unsigned prefetch_streams, prefetch_lines;
    unsigned mispredict_cycles;
};
extern const struct parameters DEFAULT_PARAMETERS;

/* Set the parameter of a name of so many characters; return false if there is none. */
bool set_parameter(struct parameters *parameters, const char *name, size_t characters, unsigned value);

/* Return what is wrong with parameters, NULL for nothing. */
const char *parameters_problem(const struct parameters *parameters);

/* Decode one A64 word. Any word is decoded; one that no core has becomes an operation without a unit. */
void decode(uint32_t word, struct operation *operation);

/* ------------------------------------------------------------------------------------------------ pipeline */
struct pipeline {
    uint64_t now;                        /* cycle of the last issue */
    uint64_t ready[REGISTERS];           /* cycle from which a register's value is there */
    uint8_t producer[REGISTERS];
    uint64_t memory_free, multiply_free, divide_free, vector_free;
    uint8_t issued, vector_slots, branches, vector_loads, multiply_adds; /* in this cycle */
    bool closed;                         /* nothing more issues in this cycle */
    uint32_t recent_multiply_adds;       /* bit i: one was issued i cycles ago */
};

/* Have the pipeline stand at a later cycle; an earlier one changes nothing. */
void advance(struct pipeline *pipeline, uint64_t cycle);

/* Issue an operation as soon as it can be, and return that cycle. */
uint64_t issue(struct pipeline *pipeline, const struct operation *operation);

/* ------------------------------------------------------------------------------------------------ memory */
enum { LINE_BITS = 6, LINE_BYTES = 1 << LINE_BITS, PAGE_BITS = 12 };
#define NO_TAG UINT64_MAX

struct line { uint64_t tag, ready; uint32_t used; bool dirty, prefetched; };
struct cache { struct line *lines; unsigned sets, ways; uint32_t tick; };
struct stream { int64_t last, stride, ahead; int confidence; uint32_t used; };

/* Cycles lost when the micro TLB misses (ARM's manual); a miss of the main one stalls the pipeline besides. */
enum { MICRO_TLB_MISS = 2 };
enum { MICRO_TLB = 10, TLB_SETS = 128, TLB_WAYS = 4, STORE_BUFFER = 6 };
enum { MOST_FILLS = 8, MOST_STREAMS = 8, MOST_PREFETCHES = 16 };

struct memory {
    struct cache l1_data, l1_instruction, l2;
    struct stream streams[MOST_STREAMS];
    uint32_t stream_tick;
    uint64_t micro_tlb[MICRO_TLB], tlb[TLB_SETS][TLB_WAYS], instruction_page;
    unsigned micro_next;
    uint8_t tlb_next[TLB_SETS];
    uint64_t fills[MOST_FILLS], prefetches[MOST_PREFETCHES]; /* cycle in which each line fill is free */
    uint64_t store_free[STORE_BUFFER], store_line[STORE_BUFFER];
    uint64_t bus_free;
    int64_t written_line;                                    /* read-allocate mode: the last line that missed */
    int written_bytes, whole_lines;
    bool streaming;
    int64_t zeroed_line;                                     /* stands for the lines of `dc zva` */
    uint32_t random;
    unsigned line_cycles, dram_cycles;                       /* of the bus for one line; of DRAM's latency */
};

/* ------------------------------------------------------------------------------------------------ core */
struct counters {
    uint64_t instructions, cycles, dram_bytes;
    uint64_t loads, stores, l1_misses, l2_misses, tlb_misses, instruction_misses, prefetches, branches, mispredicted;
};

enum { HISTORY = 4096, TARGETS = 256, RETURNS = 8 };

struct predictor {
    uint8_t counters[HISTORY];
    uint32_t history;
    uint64_t returns[RETURNS], targets[TARGETS], last_taken;
    unsigned top;
};

struct core {
    struct parameters parameters;
    struct pipeline pipeline;
    struct memory memory;
    struct predictor predictor;
    struct counters counters;
};

/* A load or store that an instruction of a block made. */
struct access { uint64_t address; uint32_t instruction; uint32_t stored_bytes; /* 0: a load */ };

/* A block of instructions that run one after the other, at the address `start`. */
struct block { uint64_t start; uint32_t instructions; struct operation *operations; };

/* Return a core with empty caches; NULL if there is no memory for it. */
struct core *core_new(const struct parameters *parameters);
void core_free(struct core *core);

/* Run a block with the accesses that it made, in order; then the core goes on at the address `next`. */
void run_block(struct core *core, const struct block *block, const struct access *accesses, size_t count,
               uint64_t next);

/* Memory, for `run_block`: each returns the cycle until which something has to wait, 0 for no wait. */
bool memory_init(struct core *core);
unsigned translate(struct core *core, uint64_t page);
uint64_t load_line(struct core *core, uint64_t line, uint64_t cycle);
uint64_t store_line(struct core *core, uint64_t line, unsigned bytes, uint64_t cycle);
uint64_t zero_line(struct core *core, uint64_t cycle);
void fetch(struct core *core, const struct block *block);

#endif
