/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A64 words of the integer and branch groups, and the choice of the group (ARM's architecture manual, chapter C4). */
#include <string.h>

#include "decode.h"

/* Cycles: GCC and LLVM agree but for the divider, whose time depends on the data; these are middle values. */
enum { ALU = 1, MULTIPLY = 3, MULTIPLY_HIGH = 5, DIVIDE_32 = 8, DIVIDE_64 = 12, CRC = 2, READ_SYSTEM = 4 };
enum { BARRIER = 6, SYSTEM = 2 };

static void immediate(uint32_t w, struct operation *o)
{
    unsigned rd = bits(w, 4, 0), rn = bits(w, 9, 5), variant = bits(w, 30, 29);
    o->unit = UNIT_ALU;
    switch (bits(w, 25, 23)) {
    case 0: case 1: /* adr */
        writes(o, general(rd), ALU, BY_ALU);
        return;
    case 2: case 3: /* add, sub */
        reads(o, rn, USE_ALU);
        writes(o, bit(w, 29) ? general(rd) : rd, ALU, BY_ALU);
        if (bit(w, 29)) writes(o, REG_FLAGS, ALU, BY_ALU);
        return;
    case 4: /* and, orr, eor, ands */
        reads(o, general(rn), USE_ALU);
        writes(o, variant == 3 ? general(rd) : rd, ALU, BY_ALU);
        if (variant == 3) writes(o, REG_FLAGS, ALU, BY_ALU);
        return;
    case 5: /* movn, movz, movk */
        if (variant == 3) reads(o, general(rd), USE_ALU);
        break;
    case 6: /* sbfm, bfm, ubfm */
        reads(o, general(rn), USE_SHIFT);
        if (variant == 1) reads(o, general(rd), USE_ALU);
        break;
    default: /* extr */
        reads(o, general(rn), USE_SHIFT);
        reads(o, general(bits(w, 20, 16)), USE_SHIFT);
    }
    writes(o, general(rd), ALU, BY_ALU);
}

static void logical_or_add(uint32_t w, struct operation *o)
{
    unsigned rd = bits(w, 4, 0), rn = bits(w, 9, 5);
    bool adds = bit(w, 24), extended = adds && bit(w, 21), shifted = extended || bits(w, 15, 10);
    bool sets_flags = adds ? bit(w, 29) : bits(w, 30, 29) == 3;
    reads(o, extended ? rn : general(rn), USE_ALU);
    reads(o, general(bits(w, 20, 16)), shifted ? USE_SHIFT : USE_ALU);
    writes(o, extended && !sets_flags ? rd : general(rd), ALU, BY_ALU);
    if (sets_flags) writes(o, REG_FLAGS, ALU, BY_ALU);
}

static void one_or_two_sources(uint32_t w, struct operation *o)
{
    unsigned rd = general(bits(w, 4, 0));
    reads(o, general(bits(w, 9, 5)), USE_SHIFT);
    if (!bit(w, 30)) {
        reads(o, general(bits(w, 20, 16)), USE_SHIFT);
        if (bits(w, 15, 11) == 1) { /* udiv, sdiv */
            o->unit = UNIT_DIVIDE;
            o->occupies = bit(w, 31) ? DIVIDE_64 : DIVIDE_32;
            writes(o, rd, o->occupies + 1u, BY_MULTIPLY);
            return;
        }
        if (bits(w, 15, 13) == 2) { o->unit = UNIT_MULTIPLY; writes(o, rd, CRC, BY_MULTIPLY); return; }
    }
    writes(o, rd, ALU, BY_ALU);
}

static void three_sources(uint32_t w, struct operation *o)
{
    bool high = bits(w, 23, 21) == 2 || bits(w, 23, 21) == 6, whole = bit(w, 31) && bits(w, 23, 21) == 0;
    o->unit = UNIT_MULTIPLY;
    reads(o, general(bits(w, 9, 5)), USE_SHIFT);
    reads(o, general(bits(w, 20, 16)), USE_SHIFT);
    reads(o, general(bits(w, 14, 10)), USE_ACCUMULATOR);
    o->occupies = high ? 3 : whole ? 2 : 1; /* a product of 64 bits takes the multiplier twice */
    writes(o, general(bits(w, 4, 0)), high ? MULTIPLY_HIGH : MULTIPLY - 1u + o->occupies, BY_MULTIPLY);
}

static void registers(uint32_t w, struct operation *o)
{
    unsigned rd = general(bits(w, 4, 0)), rn = general(bits(w, 9, 5)), rm = general(bits(w, 20, 16));
    o->unit = UNIT_ALU;
    if (!bit(w, 28)) { logical_or_add(w, o); return; }
    switch (bits(w, 24, 21)) {
    case 0: case 4: /* adc, sbc; csel and its kin */
        reads(o, rn, USE_ALU);
        reads(o, rm, USE_ALU);
        reads(o, REG_FLAGS, USE_ALU);
        writes(o, rd, ALU, BY_ALU);
        if (!bit(w, 23) && bit(w, 29)) writes(o, REG_FLAGS, ALU, BY_ALU);
        return;
    case 2: /* ccmn, ccmp */
        reads(o, rn, USE_ALU);
        if (!bit(w, 11)) reads(o, rm, USE_ALU);
        reads(o, REG_FLAGS, USE_ALU);
        writes(o, REG_FLAGS, ALU, BY_ALU);
        return;
    case 6: one_or_two_sources(w, o); return;
    default: three_sources(w, o);
    }
}

static void system(uint32_t w, struct operation *o)
{
    if (bits(w, 31, 12) == 0xd5032) { o->unit = UNIT_ALU; return; } /* hints */
    o->unit = UNIT_MEMORY;
    if ((w & 0xffffffe0) == 0xd50b7420) { /* dc zva */
        o->flags |= ZEROES_LINE;
        reads(o, general(bits(w, 4, 0)), USE_ADDRESS);
        return;
    }
    o->flags |= ISSUES_ALONE;
    o->occupies = bits(w, 31, 12) == 0xd5033 ? BARRIER : SYSTEM;
    if (bits(w, 31, 20) == 0xd53) writes(o, general(bits(w, 4, 0)), READ_SYSTEM, BY_OTHER); /* mrs */
}

static void branch(uint32_t w, struct operation *o)
{
    o->unit = UNIT_BRANCH;
    o->flags = IS_BRANCH;
    if (bits(w, 30, 26) == 5) { /* b, bl */
        if (bit(w, 31)) { writes(o, 30, ALU, BY_ALU); o->flags |= IS_CALL; }
    } else if (bits(w, 30, 26) == 0xd) { /* cbz, cbnz, tbz, tbnz */
        reads(o, general(bits(w, 4, 0)), USE_ALU);
        o->flags |= IS_CONDITIONAL;
    } else if (bits(w, 31, 24) == 0x54) { /* b.cond */
        reads(o, REG_FLAGS, USE_ALU);
        o->flags |= IS_CONDITIONAL;
    } else if (bits(w, 31, 25) == 0x6b) { /* br, blr, ret */
        reads(o, general(bits(w, 9, 5)), USE_ALU);
        o->flags |= IS_INDIRECT;
        if (bits(w, 24, 21) == 1) { writes(o, 30, ALU, BY_ALU); o->flags |= IS_CALL; }
        if (bits(w, 24, 21) == 2) o->flags |= IS_RETURN;
    } else {
        o->flags = 0;
        system(w, o);
    }
}

void decode(uint32_t w, struct operation *o)
{
    memset(o, 0, sizeof *o);
    o->occupies = 1;
    unsigned group = bits(w, 28, 25);
    if ((group & 14) == 8) immediate(w, o);
    else if ((group & 14) == 10) branch(w, o);
    else if ((group & 5) == 4) decode_memory(w, o);
    else if ((group & 7) == 5) registers(w, o);
    else if ((group & 7) == 7) decode_vector(w, o);
    else o->flags = ISSUES_ALONE;
}
