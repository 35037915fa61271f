/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the decoders of the instruction groups share. */
#ifndef CSD_DECODE_H
#define CSD_DECODE_H

#include "core.h"

/* Bits `high` to `low` of a word. */
static inline uint32_t bits(uint32_t word, unsigned high, unsigned low)
{
    return word >> low & (0xffffffffu >> (31 - (high - low)));
}

static inline bool bit(uint32_t word, unsigned place) { return word >> place & 1; }

/* Register 31 is zero in most places; where it is the stack pointer the number is taken as it is. */
static inline unsigned general(unsigned number) { return number == 31 ? REG_NONE : number; }
static inline unsigned vector(unsigned number) { return REG_VECTOR + (number & 31); }

static inline void reads(struct operation *o, unsigned reg, unsigned use)
{
    if (reg == REG_NONE || o->sources == MOST_SOURCES) return;
    o->source[o->sources] = (uint8_t)reg;
    o->use[o->sources++] = (uint8_t)use;
}

static inline void writes(struct operation *o, unsigned reg, unsigned latency, unsigned producer)
{
    if (reg == REG_NONE || o->results == MOST_RESULTS) return;
    o->result[o->results] = (uint8_t)reg;
    o->latency[o->results] = (uint8_t)latency;
    o->producer[o->results++] = (uint8_t)producer;
}

void decode_memory(uint32_t word, struct operation *operation);
void decode_vector(uint32_t word, struct operation *operation);

#endif
