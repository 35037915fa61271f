/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The part of QEMU's plugin interface, version 4 (QEMU 10.0), that the plugin uses. Symbols are QEMU's own. */
#ifndef CSD_QEMU_API_H
#define CSD_QEMU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { API_VERSION = 4 };

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;
struct qemu_info { const char *target; int oldest_version, version; bool whole_machine; int cores, most_cores; };
typedef struct { struct qemu_plugin_scoreboard *score; size_t offset; } qemu_plugin_u64;

enum { CALLBACK_WITHOUT_REGISTERS = 0, READS_AND_WRITES = 3, INLINE_ADD = 0 };

typedef void (*simple_callback)(qemu_plugin_id_t);
typedef void (*core_callback)(qemu_plugin_id_t, unsigned core);
typedef void (*translation_callback)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*execution_callback)(unsigned core, void *data);
typedef void (*memory_callback)(unsigned core, qemu_plugin_meminfo_t, uint64_t address, void *data);

void qemu_plugin_reset(qemu_plugin_id_t, simple_callback done);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, core_callback);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, translation_callback);
void qemu_plugin_register_flush_cb(qemu_plugin_id_t, simple_callback);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, execution_callback, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, execution_callback, int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, memory_callback, int flags, int which, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *, int operation, qemu_plugin_u64,
                                                       uint64_t);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t index);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *into, size_t bytes);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t bytes);
uint64_t qemu_plugin_u64_get(qemu_plugin_u64, unsigned core);

#endif
