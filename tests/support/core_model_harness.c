/* The core model for tests: blocks of words with an address for each load and store. */
#include <stdlib.h>

#include "core.h"

/* Run a block and return all cycles so far; `addresses` has one for each word, 0 for none. */
uint64_t harness_run(struct core *core, const uint32_t *words, uint32_t count, uint64_t start, const uint64_t *addresses,
                     uint64_t next)
{
    struct operation *operations = calloc(count, sizeof *operations);
    struct access *accesses = calloc(count, sizeof *accesses);
    size_t made = 0;
    for (uint32_t i = 0; i < count; i++) {
        decode(words[i], operations + i);
        if (!addresses[i] || !(operations[i].flags & (IS_LOAD | IS_STORE))) continue;
        accesses[made++] = (struct access){ addresses[i], i, operations[i].flags & IS_STORE ? 8 : 0 };
    }
    struct block block = { start, count, operations };
    run_block(core, &block, accesses, made, next);
    free(operations);
    free(accesses);
    return core->counters.cycles;
}

const struct counters *harness_counters(const struct core *core) { return &core->counters; }
