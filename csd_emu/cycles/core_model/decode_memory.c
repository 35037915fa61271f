/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A64 words that load and store. L1 is read 64 bits per cycle and written 128; a load of 128 bits issues alone. */
#include "decode.h"

/* Cycles from a load to its use: an ALU 2, a vector unit 3, a whole vector 4 (GCC; LLVM has one more for the first). */
enum { TO_ALU = 2, TO_VECTOR = 3, TO_WIDE_VECTOR = 4, EXCLUSIVE_STATUS = 3 };

static void access(struct operation *o, unsigned bytes, bool loads, bool vectors)
{
    o->unit = UNIT_MEMORY;
    o->flags |= loads ? IS_LOAD : IS_STORE;
    o->occupies = (uint8_t)(loads ? (bytes + 7) / 8 : (bytes + 15) / 16);
    if (!o->occupies) o->occupies = 1;
    if (loads && bytes > 8) o->flags |= ISSUES_ALONE;
    if (loads && vectors) o->flags |= IS_VECTOR_LOAD;
}

static void moves(struct operation *o, unsigned number, unsigned bytes, bool vectors)
{
    unsigned reg = vectors ? vector(number) : general(number);
    if (!(o->flags & IS_LOAD)) reads(o, reg, USE_STORED);
    else writes(o, reg, !vectors ? TO_ALU : bytes > 8 ? TO_WIDE_VECTOR : TO_VECTOR, BY_LOAD);
}

/* ld1 to ld4, st1 to st4 of one lane, and ld1r to ld4r. */
static void lanes(uint32_t w, struct operation *o)
{
    unsigned rt = bits(w, 4, 0), size = bits(w, 15, 14);
    unsigned count = 1 + (bit(w, 13) << 1 | bit(w, 21));
    bool loads = bit(w, 22), replicates = size == 3 && loads;
    unsigned bytes = replicates ? 1u << bits(w, 11, 10) : size == 0 ? 1 : size == 1 ? 2 : bit(w, 10) ? 8 : 4;
    access(o, count * bytes, loads, true);
    for (unsigned i = 0; i < count; i++) {
        if (loads && !replicates) reads(o, vector(rt + i), USE_ALU);
        if (loads) writes(o, vector(rt + i), TO_WIDE_VECTOR, BY_LOAD);
        else reads(o, vector(rt + i), USE_STORED);
    }
}

/* ld1 to ld4, st1 to st4 of whole registers. */
static void structures(uint32_t w, struct operation *o)
{
    static const uint8_t registers[16] = { 4, 0, 4, 0, 3, 0, 3, 1, 2, 0, 2 };
    unsigned rt = bits(w, 4, 0), form = bits(w, 15, 12), bytes = bit(w, 30) ? 16 : 8;
    unsigned count = registers[form] ? registers[form] : 1;
    bool loads = bit(w, 22), interleaves = form == 0 || form == 4 || form == 8;
    access(o, count * bytes, loads, true);
    o->occupies += interleaves;
    for (unsigned i = 0; i < count; i++) {
        if (loads) writes(o, vector(rt + i), TO_WIDE_VECTOR + i * bytes / 8, BY_LOAD);
        else reads(o, vector(rt + i), USE_STORED);
    }
}

static void vectors(uint32_t w, struct operation *o)
{
    unsigned rn = bits(w, 9, 5), rm = bits(w, 20, 16);
    reads(o, rn, USE_ADDRESS);
    if (bit(w, 24)) lanes(w, o);
    else structures(w, o);
    if (!bit(w, 23)) return;
    if (rm != 31) reads(o, general(rm), USE_ALU); /* the base moves on */
    writes(o, rn, 1, BY_OTHER);
}

static void exclusive(uint32_t w, struct operation *o)
{
    reads(o, bits(w, 9, 5), USE_ADDRESS);
    access(o, 1u << bits(w, 31, 30), bit(w, 22), false);
    o->flags |= ISSUES_ALONE;
    o->occupies = 2;
    moves(o, bits(w, 4, 0), 8, false);
    if (!bit(w, 22) && !bit(w, 23)) writes(o, general(bits(w, 20, 16)), EXCLUSIVE_STATUS, BY_OTHER);
}

static void literal(uint32_t w, struct operation *o)
{
    bool to_vector = bit(w, 26);
    unsigned bytes = to_vector ? 4u << bits(w, 31, 30) : bit(w, 30) ? 8 : 4;
    access(o, bytes, true, to_vector);
    moves(o, bits(w, 4, 0), bytes, to_vector);
}

static void pair(uint32_t w, struct operation *o)
{
    bool of_vectors = bit(w, 26);
    unsigned bytes = of_vectors ? 4u << bits(w, 31, 30) : bit(w, 31) ? 8 : 4;
    reads(o, bits(w, 9, 5), USE_ADDRESS);
    access(o, 2 * bytes, bit(w, 22), of_vectors);
    moves(o, bits(w, 4, 0), bytes, of_vectors);
    moves(o, bits(w, 14, 10), bytes, of_vectors);
    if (o->results == 2 && bytes == 8) o->latency[1]++;
    if (bit(w, 23)) writes(o, bits(w, 9, 5), 1, BY_OTHER);
}

static void single(uint32_t w, struct operation *o)
{
    unsigned size = bits(w, 31, 30), variant = bits(w, 23, 22), bytes = 1u << size;
    bool of_vector = bit(w, 26), unscaled = !bit(w, 24), by_register = unscaled && bit(w, 21);
    bool loads = of_vector ? variant & 1 : variant != 0;
    if (of_vector && (variant & 2)) bytes = 16;
    reads(o, bits(w, 9, 5), USE_ADDRESS);
    if (by_register && bits(w, 11, 10) == 2) reads(o, general(bits(w, 20, 16)), USE_ADDRESS);
    if (!of_vector && size == 3 && variant == 2) { o->unit = UNIT_MEMORY; return; } /* prfm: QEMU tells no address */
    if (by_register && bits(w, 11, 10) == 0) { /* atomics, which this core has not */
        access(o, bytes, true, false);
        o->flags |= ISSUES_ALONE;
        reads(o, general(bits(w, 20, 16)), USE_ALU);
        moves(o, bits(w, 4, 0), bytes, false);
        return;
    }
    access(o, bytes, loads, of_vector);
    moves(o, bits(w, 4, 0), bytes, of_vector);
    if (unscaled && !bit(w, 21) && bit(w, 10)) writes(o, bits(w, 9, 5), 1, BY_OTHER); /* the base moves on */
}

void decode_memory(uint32_t w, struct operation *o)
{
    switch (bits(w, 29, 28)) {
    case 0:
        if (bit(w, 26)) vectors(w, o);
        else exclusive(w, o);
        return;
    case 1:
        if (!bit(w, 24)) { literal(w, o); return; }
        reads(o, bits(w, 9, 5), USE_ADDRESS);
        access(o, 8, true, bit(w, 26));
        moves(o, bits(w, 4, 0), 8, bit(w, 26));
        return;
    case 2: pair(w, o); return;
    default: single(w, o);
    }
}
