/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The core model as a plugin of QEMU. It counts instructions always, and cycles between two marks.
 *
 * A mark is `movz xzr, #0xC5D0+n`, a no-operation on any ARMv8 core. Mark 15 switches the model on, mark 14 off; in
 * between each block that runs is scheduled with the addresses of its loads and stores. At every mark one JSON object
 * with all counters of each core, the mark itself included, goes to the file of the option `out`, that of the core
 * which executed it first, at most MOST_LINES of them: the guest is not trusted. Options: out=FILE, and the parameters
 * of the core, name=value. Cores must take turns, as they do under -icount.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core_model/core.h"
#include "qemu_api.h"

EXPORT int qemu_plugin_version = API_VERSION;

enum { MOST_CORES = 64, MOST_ACCESSES = 8192, MOST_LINES = 1 << 16 };
enum { MARK_OFF = 14, MARK_ON = 15 };
#define IS_MARK(word) (((word) & 0xfffffe1fu) == (0xd2800000u | 0xc5d0u << 5 | 31))

/* A translated block; all are in one list until QEMU throws its translations away. */
struct translation { struct block block; struct translation *next; struct operation operations[]; };

/*
 * A core, and the block under way: it runs, and is scheduled when the next one begins and its branch is known. Of a
 * block with marks the instructions up to each are scheduled at the mark.
 */
struct running {
    struct core *core;
    const struct block *block;
    uint32_t scheduled; /* instructions of the block, by marks in it */
    uint64_t instructions; /* of a machine of several cores */
    size_t count;
    struct access accesses[MOST_ACCESSES];
};

static qemu_plugin_id_t plugin;
static qemu_plugin_u64 instructions;
static struct parameters parameters;
static struct running *cores[MOST_CORES];
static struct translation *translations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static unsigned lines;
static bool on, several;

static void hooks(qemu_plugin_id_t id);

static void forget_translations(void)
{
    for (int i = 0; i < MOST_CORES; i++) if (cores[i]) cores[i]->block = NULL;
    while (translations) {
        struct translation *next = translations->next;
        free(translations);
        translations = next;
    }
}

/* Schedule what has run of the block under way: its instructions before `end`. Then the core is at `next`. */
static void schedule(struct running *r, uint32_t end, uint64_t next)
{
    uint32_t begin = r->scheduled;
    struct block part = { r->block->start + 4 * (uint64_t)begin, end - begin, r->block->operations + begin };
    if (begin < end) run_block(r->core, &part, r->accesses, r->count, next);
    r->scheduled = end;
    r->count = 0;
}

/* Of several cores: QEMU 10.0 fails as soon as a second core begins, if instructions are counted inline. */
static void count_block(unsigned core, void *count) { cores[core]->instructions += (uintptr_t)count; }

static void begin_block(unsigned core, void *data)
{
    struct running *r = cores[core];
    const struct block *block = data;
    if (r->block) schedule(r, r->block->instructions, block->start);
    r->block = block;
    r->scheduled = 0;
    r->count = 0;
}

static void note_access(unsigned core, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    struct running *r = cores[core];
    uint32_t instruction = (uint32_t)(uintptr_t)data;
    if (!r->block || r->count == MOST_ACCESSES || instruction < r->scheduled) return;
    uint32_t bytes = qemu_plugin_mem_is_store(info) ? 1u << qemu_plugin_mem_size_shift(info) : 0;
    r->accesses[r->count++] = (struct access){ address, instruction - r->scheduled, bytes };
}

/* A line of counters; of the instructions that were counted at the block's beginning `ahead` are still to come. */
static void write_line(unsigned core, unsigned mark, uint32_t ahead)
{
    const struct counters *c = &cores[core]->core->counters;
    uint64_t executed = several ? cores[core]->instructions : qemu_plugin_u64_get(instructions, core);
    if (lines == MOST_LINES) return;
    lines++;
    fprintf(out, "{\"mark\":%u,\"core\":%u,\"instructions\":%" PRIu64 ",\"detail_instructions\":%" PRIu64, mark, core,
            executed - ahead, c->instructions);
    fprintf(out, ",\"cycles\":%" PRIu64 ",\"dram_bytes\":%" PRIu64 ",\"loads\":%" PRIu64 ",\"stores\":%" PRIu64,
            c->cycles, c->dram_bytes, c->loads, c->stores);
    fprintf(out, ",\"l1_misses\":%" PRIu64 ",\"l2_misses\":%" PRIu64 ",\"tlb_misses\":%" PRIu64,
            c->l1_misses, c->l2_misses, c->tlb_misses);
    fprintf(out, ",\"instruction_misses\":%" PRIu64 ",\"prefetches\":%" PRIu64 ",\"branches\":%" PRIu64
            ",\"mispredicted\":%" PRIu64 "}\n", c->instruction_misses, c->prefetches, c->branches, c->mispredicted);
}

/* Translations with and without the model's callbacks differ: all are thrown away, and hooks are set anew. */
static void restarted(qemu_plugin_id_t id)
{
    forget_translations();
    hooks(id);
}

/* What a mark's callback is given: the mark, its place in the block, and how many instructions follow there. */
enum { PLACE_BITS = 14, PLACE_MASK = (1 << PLACE_BITS) - 1 };

static void *packed_mark(uint32_t word, size_t place, size_t count)
{
    return (void *)((word >> 5 & 15) | (uintptr_t)place << 4 | (uintptr_t)(count - place - 1) << (4 + PLACE_BITS));
}

static void note_mark(unsigned core, void *data)
{
    uintptr_t packed = (uintptr_t)data;
    unsigned mark = packed & 15;
    uint32_t end = (packed >> 4 & PLACE_MASK) + 1;
    pthread_mutex_lock(&lock);
    struct running *r = cores[core];
    if (r->block && end <= r->block->instructions) schedule(r, end, r->block->start + 4 * (uint64_t)end);
    write_line(core, mark, (uint32_t)(packed >> (4 + PLACE_BITS)));
    for (unsigned other = 0; other < MOST_CORES; other++) if (other != core && cores[other]) write_line(other, mark, 0);
    fflush(out);
    bool wanted = mark == MARK_ON || (on && mark != MARK_OFF), changes = wanted != on && lines < MOST_LINES;
    if (changes) on = wanted;
    pthread_mutex_unlock(&lock);
    if (changes) qemu_plugin_reset(plugin, restarted);
}

static void translate_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(tb);
    struct translation *t = on ? malloc(sizeof *t + count * sizeof *t->operations) : NULL;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(tb, i);
        uint32_t word = 0;
        qemu_plugin_insn_data(instruction, &word, sizeof word);
        if (IS_MARK(word))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, note_mark, CALLBACK_WITHOUT_REGISTERS,
                                                   packed_mark(word, i, count));
        if (!t) continue;
        decode(word, &t->operations[i]);
        if (t->operations[i].flags & (IS_LOAD | IS_STORE))
            qemu_plugin_register_vcpu_mem_cb(instruction, note_access, CALLBACK_WITHOUT_REGISTERS, READS_AND_WRITES,
                                             (void *)(uintptr_t)i);
    }
    if (several) qemu_plugin_register_vcpu_tb_exec_cb(tb, count_block, CALLBACK_WITHOUT_REGISTERS, (void *)count);
    else qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, INLINE_ADD, instructions, count);
    if (!t) return;
    t->block = (struct block){ qemu_plugin_tb_vaddr(tb), (uint32_t)count, t->operations };
    qemu_plugin_register_vcpu_tb_exec_cb(tb, begin_block, CALLBACK_WITHOUT_REGISTERS, &t->block);
    pthread_mutex_lock(&lock);
    t->next = translations;
    translations = t;
    pthread_mutex_unlock(&lock);
}

static void flushed(qemu_plugin_id_t id) { (void)id; forget_translations(); }

static void begin_core(qemu_plugin_id_t id, unsigned core)
{
    (void)id;
    if (core >= MOST_CORES) { fprintf(stderr, "core model: %d cores at most\n", MOST_CORES); exit(1); }
    if (cores[core]) return;
    cores[core] = calloc(1, sizeof *cores[core]);
    if (cores[core]) cores[core]->core = core_new(&parameters);
    if (cores[core] && cores[core]->core) return;
    fprintf(stderr, "core model: no memory for core %u\n", core);
    exit(1);
}

static void hooks(qemu_plugin_id_t id)
{
    qemu_plugin_register_vcpu_init_cb(id, begin_core);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate_block);
    qemu_plugin_register_flush_cb(id, flushed);
}

/* ------------------------------------------------------------------------------------------------ options */
static bool take_option(const char *option)
{
    const char *value = strchr(option, '=');
    if (!value) return false;
    size_t characters = (size_t)(value++ - option), digits = strspn(value, "0123456789");
    if (characters == 3 && !strncmp(option, "out", 3)) {
        if (out) fclose(out);
        out = fopen(value, "w");
        return out != NULL;
    }
    if (!digits || digits > 9 || value[digits]) return false;
    return set_parameter(&parameters, option, characters, (unsigned)strtoul(value, NULL, 10));
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
    plugin = id;
    several = info->most_cores > 1;
    parameters = DEFAULT_PARAMETERS;
    for (int i = 0; i < argc; i++) {
        if (take_option(argv[i])) continue;
        fprintf(stderr, "core model: option %s cannot be used\n", argv[i]);
        return -1;
    }
    const char *wrong = out ? parameters_problem(&parameters) : "out=FILE is missing";
    if (wrong) { fprintf(stderr, "core model: %s\n", wrong); return -1; }
    instructions = (qemu_plugin_u64){ qemu_plugin_scoreboard_new(sizeof(uint64_t)), 0 };
    hooks(id);
    return 0;
}
