/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A64 words of the floating-point and vector groups. Two slots of 64 bits per cycle; a 128-bit operation takes both. */
#include "decode.h"

/* Cycles: GCC's description, with LLVM's where it says more. A multiply-add hands its accumulator on after 4 of its 8.
 * Permutes and moves between register files are guesses within the sources' bands. */
enum { LOGIC = 2, INTEGER = 3, ARITHMETIC = 4, MULTIPLY_ADD = 8, ACROSS = 8, MOVE = 2, INSERT = 3, CONVERT = 4 };
enum { DIVIDE_32 = 18, DIVIDE_64 = 33, ROOT_32 = 17, ROOT_64 = 32, TO_ISSUE = 4 };

static void slots(struct operation *o, bool wide)
{
    o->unit = UNIT_VECTOR;
    o->slots = wide ? 2 : 1;
}

static void two(struct operation *o, uint32_t w)
{
    reads(o, vector(bits(w, 9, 5)), USE_ALU);
    reads(o, vector(bits(w, 20, 16)), USE_ALU);
}

static void result(struct operation *o, uint32_t w, unsigned latency, unsigned producer)
{
    writes(o, vector(bits(w, 4, 0)), latency, producer);
}

static void multiply_add(struct operation *o, uint32_t w, unsigned accumulator)
{
    reads(o, vector(accumulator), USE_ACCUMULATOR);
    result(o, w, MULTIPLY_ADD, BY_MULTIPLY_ADD);
    o->flags |= IS_MULTIPLY_ADD;
}

/* Division and square root hold their unit all but the last cycles; a whole vector does both halves in turn. */
static void divide(struct operation *o, uint32_t w, unsigned latency, unsigned halves)
{
    o->flags |= IS_VECTOR_DIVIDE;
    o->occupies = (uint8_t)((latency - TO_ISSUE) * halves);
    result(o, w, o->occupies + TO_ISSUE, BY_OTHER);
}

/* ------------------------------------------------------------------------------------------------ scalar */
static void between_files(uint32_t w, struct operation *o)
{
    unsigned form = bits(w, 18, 16);
    if (form == 2 || form == 3 || form == 7) { /* scvtf, ucvtf, fmov */
        reads(o, general(bits(w, 9, 5)), USE_ALU);
        result(o, w, form == 7 ? INSERT : CONVERT, BY_OTHER);
    } else {
        reads(o, vector(bits(w, 9, 5)), USE_ALU);
        writes(o, general(bits(w, 4, 0)), form == 6 ? MOVE : CONVERT, BY_OTHER);
    }
}

static void scalar_one_source(uint32_t w, struct operation *o, bool whole)
{
    unsigned form = bits(w, 20, 15);
    reads(o, vector(bits(w, 9, 5)), USE_ALU);
    if (form == 3) divide(o, w, whole ? ROOT_64 : ROOT_32, 1);
    else result(o, w, form < 3 ? LOGIC : ARITHMETIC, BY_OTHER); /* fmov, fabs, fneg; conversions and rounding */
}

static void scalar(uint32_t w, struct operation *o)
{
    bool whole = bits(w, 23, 22) == 1;
    slots(o, false);
    if (bits(w, 28, 24) == 0x1f) { two(o, w); multiply_add(o, w, bits(w, 14, 10)); return; } /* fmadd */
    if (!bit(w, 21) || bits(w, 15, 10) == 0) { between_files(w, o); return; }
    if (bits(w, 13, 10) == 8) { /* fcmp */
        reads(o, vector(bits(w, 9, 5)), USE_ALU);
        if (!bit(w, 3)) reads(o, vector(bits(w, 20, 16)), USE_ALU);
        writes(o, REG_FLAGS, ARITHMETIC, BY_OTHER);
        return;
    }
    if (bits(w, 12, 10) == 4) { result(o, w, MOVE, BY_OTHER); return; } /* fmov of an immediate */
    if (bits(w, 14, 10) == 16) { scalar_one_source(w, o, whole); return; }
    two(o, w);
    if (bits(w, 11, 10) == 2) {
        if (bits(w, 15, 12) == 1) divide(o, w, whole ? DIVIDE_64 : DIVIDE_32, 1);
        else result(o, w, ARITHMETIC, BY_OTHER);
        return;
    }
    reads(o, REG_FLAGS, USE_ALU);
    if (bits(w, 11, 10) == 1) writes(o, REG_FLAGS, ARITHMETIC, BY_OTHER); /* fccmp */
    else result(o, w, MOVE, BY_OTHER);                                    /* fcsel */
}

/* ------------------------------------------------------------------------------------------------ vectors */
static void by_element(uint32_t w, struct operation *o)
{
    unsigned form = bits(w, 15, 12);
    bool other = bit(w, 29), fused = !other && (form == 1 || form == 5);
    bool adds = (other && (form == 0 || form == 4)) || form == 2 || form == 6 || form == 3 || form == 7;
    reads(o, vector(bits(w, 9, 5)), USE_ALU);
    reads(o, vector(bits(w, 23, 22) == 1 ? bits(w, 19, 16) : bits(w, 20, 16)), USE_ALU);
    if (fused) { multiply_add(o, w, bits(w, 4, 0)); return; }
    if (adds) reads(o, vector(bits(w, 4, 0)), USE_ACCUMULATOR);
    result(o, w, ARITHMETIC, adds ? BY_MULTIPLY : BY_OTHER);
}

static void shift_or_constant(uint32_t w, struct operation *o, bool constant)
{
    unsigned form = bits(w, 15, 11);
    if (constant) {
        if (bit(w, 12) && bits(w, 15, 12) < 12) reads(o, vector(bits(w, 4, 0)), USE_ALU);
        result(o, w, MOVE, BY_OTHER);
        return;
    }
    reads(o, vector(bits(w, 9, 5)), USE_ALU);
    if (form == 2 || form == 6 || (bit(w, 29) && (form == 10 || form == 8))) reads(o, vector(bits(w, 4, 0)), USE_ALU);
    result(o, w, form >= 28 ? CONVERT : INTEGER, BY_OTHER);
}

static void three_alike(uint32_t w, struct operation *o, bool wide)
{
    unsigned form = bits(w, 15, 11), old = vector(bits(w, 4, 0));
    bool other = bit(w, 29);
    two(o, w);
    if (form == 25 && !other) { multiply_add(o, w, bits(w, 4, 0)); return; } /* fmla, fmls */
    if (form == 31 && other) { divide(o, w, bit(w, 22) ? DIVIDE_64 : DIVIDE_32, wide ? 2 : 1); return; }
    if (form == 31) { result(o, w, MULTIPLY_ADD, BY_OTHER); return; } /* frecps, frsqrts */
    if (form >= 24 || form == 19) { result(o, w, ARITHMETIC, BY_OTHER); return; }
    if (form == 18) { reads(o, old, USE_ACCUMULATOR); result(o, w, ARITHMETIC, BY_MULTIPLY); return; } /* mla, mls */
    if ((form == 3 && other && bits(w, 23, 22)) || form == 15) reads(o, old, USE_ALU); /* bsl, bit, bif; saba */
    result(o, w, form == 16 || form == 3 || form == 0 || form == 4 ? LOGIC : INTEGER, BY_OTHER);
}

static void two_registers(uint32_t w, struct operation *o, bool wide)
{
    unsigned form = bits(w, 16, 12);
    reads(o, vector(bits(w, 9, 5)), USE_ALU);
    if (bits(w, 20, 17) == 8 && bit(w, 28)) { result(o, w, ARITHMETIC, BY_OTHER); return; } /* of a pair: faddp, addp */
    if (bits(w, 20, 17) == 8) { result(o, w, bits(w, 15, 14) == 3 ? ACROSS : INTEGER, BY_OTHER); return; }
    if (form == 31 && bit(w, 29) && bit(w, 23)) { divide(o, w, bit(w, 22) ? ROOT_64 : ROOT_32, wide ? 2 : 1); return; }
    if ((form == 18 || form == 22) && wide) reads(o, vector(bits(w, 4, 0)), USE_ALU); /* into the upper half */
    result(o, w, form >= 22 || form == 12 ? CONVERT : INTEGER, BY_OTHER);
}

static void three_different(uint32_t w, struct operation *o)
{
    unsigned form = bits(w, 15, 12);
    o->slots = 2; /* the result is a whole vector */
    two(o, w);
    bool adds = form == 5 || (form >= 8 && form <= 11);
    if (adds) reads(o, vector(bits(w, 4, 0)), USE_ACCUMULATOR);
    result(o, w, ARITHMETIC, adds ? BY_MULTIPLY : BY_OTHER);
}

static void copy(uint32_t w, struct operation *o)
{
    unsigned rn = bits(w, 9, 5);
    switch (bit(w, 29) ? 16 : bits(w, 14, 11)) {
    case 0: reads(o, vector(rn), USE_ALU); result(o, w, MOVE, BY_OTHER); return;     /* dup of an element */
    case 1: reads(o, general(rn), USE_ALU); result(o, w, INSERT, BY_OTHER); return;  /* dup of a general register */
    case 3:                                                                          /* ins of a general register */
        reads(o, general(rn), USE_ALU);
        reads(o, vector(bits(w, 4, 0)), USE_ALU);
        result(o, w, INSERT, BY_OTHER);
        o->slots = 1;
        return;
    case 16:                                                                         /* ins of an element */
        reads(o, vector(rn), USE_ALU);
        reads(o, vector(bits(w, 4, 0)), USE_ALU);
        result(o, w, MOVE, BY_OTHER);
        return;
    default: reads(o, vector(rn), USE_ALU); writes(o, general(bits(w, 4, 0)), INSERT, BY_OTHER); /* umov, smov */
    }
}

static void permute(uint32_t w, struct operation *o)
{
    two(o, w);
    if (!bit(w, 29) && bits(w, 11, 10) == 0) { /* tbl, tbx: a cycle more for each further table */
        o->occupies = (uint8_t)(1 + bits(w, 14, 13));
        reads(o, vector(bits(w, 4, 0)), USE_ALU);
    }
    result(o, w, INTEGER, BY_OTHER);
}

void decode_vector(uint32_t w, struct operation *o)
{
    unsigned top = bits(w, 28, 24);
    bool wide = bit(w, 30) && !bit(w, 28);
    if (!bit(w, 30) && (top == 0x1e || top == 0x1f)) { scalar(w, o); return; }
    slots(o, wide);
    if (top == 0x0f || top == 0x1f) {
        if (!bit(w, 10)) by_element(w, o);
        else shift_or_constant(w, o, !bit(w, 28) && bits(w, 22, 19) == 0);
    } else if (!bit(w, 21)) {
        if (!bit(w, 15) && bit(w, 10)) copy(w, o);
        else permute(w, o);
    } else if (bit(w, 10)) three_alike(w, o, wide);
    else if (bits(w, 11, 10) == 2) two_registers(w, o, wide);
    else three_different(w, o);
}
