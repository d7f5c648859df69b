/*
 * paired.c: kinds that cut each sequence into 2*cp blocks and give every rank
 * a light and a heavy one, j and 2*cp-1-j, so that causal work is the same on
 * all ranks. They differ in who gets which pair and in the order of the two.
 * Snake does so with the whole stream at once, as if it were one sequence.
 *
 * With lengths that are multiples of 2*cp, sequence i fills the slots
 * cu[i]/cp .. cu[i+1]/cp of every rank: slot x lies in the sequence that holds
 * position x*cp.
 */
#include <inttypes.h>

#include "layout.h"

static cpl_status check_sequences(const cpl_layout *layout)
{
    const cpl_stream *stream = layout->stream;
    int64_t blocks = 2 * (int64_t)layout->cp;
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        int64_t length = stream->cu[i + 1] - stream->cu[i];
        if (length % blocks != 0)
            return cpli_fail(CPL_INVALID,
                             "layout.%s: sequence %" PRId64 " has %" PRId64
                             " tokens, not a multiple of 2*cp = %" PRId64,
                             layout->kind->name, i, length, blocks);
    }
    return CPL_OK;
}

/* The block in half 0 or 1 of a rank; and whose, and which half, a block is. */
typedef int (*block_of)(int cp, int rank, int half);
typedef int (*owner_of)(int cp, int block, int *half);

/* What the holdings in a sequence have in common. Divisions are what a walk
 * would spend its time on: from sequence to sequence there is one. */
static int64_t enter(const cpl_layout *layout, int64_t position,
                     cpli_cursor *at)
{
    const int64_t *cu = layout->stream->cu;
    int64_t i = cpli_stream_find(layout->stream, position, at);
    if (at->known == i + 1)
        return cu[i];
    at->first_slot = at->known > 0 && cu[i] == at->end
                         ? at->first_slot + 2 * at->block_length
                         : cu[i] / layout->cp;
    at->known = i + 1;
    at->end = cu[i + 1];
    at->block_length = (cu[i + 1] - cu[i]) / (2 * (int64_t)layout->cp);
    return cu[i];
}

static inline void fill(const cpli_cursor *at, int64_t start, int rank,
                        int block, int half, cpli_holding *out)
{
    out->rank = rank;
    out->start = start + block * at->block_length;
    out->slot = at->first_slot + half * at->block_length;
    out->length = at->block_length;
}

static inline int by_position(const cpl_layout *layout, int64_t position,
                              cpli_cursor *at, cpli_holding *out, int max,
                              owner_of owner)
{
    int cp = layout->cp, n = 0;
    int64_t n_positions = cpl_stream_n_positions(layout->stream);
    int64_t start = enter(layout, position, at);
    int block = (int)((position - start) / at->block_length);
    for (;;) {
        int half, rank = owner(cp, block, &half);
        fill(at, start, rank, block, half, &out[n++]);
        if (n == max)
            return n;
        if (++block < 2 * cp)
            continue;
        if (at->end == n_positions)
            return n;
        start = enter(layout, at->end, at);
        block = 0;
    }
}

static inline int by_slot(const cpl_layout *layout, int rank, int64_t slot,
                          cpli_cursor *at, cpli_holding *out, int max,
                          block_of block)
{
    int cp = layout->cp, n = 0;
    int64_t n_positions = cpl_stream_n_positions(layout->stream);
    int64_t start = enter(layout, slot * cp, at);
    int half = slot - at->first_slot >= at->block_length;
    for (;;) {
        fill(at, start, rank, block(cp, rank, half), half, &out[n++]);
        if (n == max)
            return n;
        if (++half < 2)
            continue;
        if (at->end == n_positions)
            return n;
        start = enter(layout, at->end, at);
        half = 0;
    }
}

/* The two functions of a kind, made for its own pairs. */
#define DEFINE_LISTS(kind)                                                     \
    static int kind##_by_position(const cpl_layout *layout, int64_t position,  \
                                  cpli_cursor *at, cpli_holding *out, int max) \
    {                                                                          \
        return by_position(layout, position, at, out, max, kind##_owner);      \
    }                                                                          \
    static int kind##_by_slot(const cpl_layout *layout, int rank,              \
                              int64_t slot, cpli_cursor *at,                   \
                              cpli_holding *out, int max)                      \
    {                                                                          \
        return by_slot(layout, rank, slot, at, out, max, kind##_block);        \
    }

/* ---- zigzag: rank r holds blocks r and 2*cp-1-r ---- */

static inline int zigzag_block(int cp, int rank, int half)
{
    return half == 0 ? rank : 2 * cp - 1 - rank;
}

static inline int zigzag_owner(int cp, int block, int *half)
{
    *half = block >= cp;
    return *half == 0 ? block : 2 * cp - 1 - block;
}

DEFINE_LISTS(zigzag)

const cpli_kind cpli_zigzag = {
    .name = "zigzag",
    .check = check_sequences,
    .by_position = zigzag_by_position,
    .by_slot = zigzag_by_slot,
};

/* ---- snake: rank r holds blocks r and 2*cp-1-r of the stream ---- */

static cpl_status check_stream(const cpl_layout *layout)
{
    int64_t n = cpl_stream_n_positions(layout->stream);
    int64_t blocks = 2 * (int64_t)layout->cp;
    if (n % blocks != 0)
        return cpli_fail(CPL_INVALID,
                         "layout.snake: the stream has %" PRId64
                         " positions, not a multiple of 2*cp = %" PRId64,
                         n, blocks);
    return CPL_OK;
}

static int snake_holding(const cpl_layout *layout, int rank, int half,
                         cpli_holding *out)
{
    int64_t length = layout->cp_local / 2;
    out->rank = rank;
    out->start = zigzag_block(layout->cp, rank, half) * length;
    out->slot = half * length;
    out->length = length;
    return 1;
}

static int snake_by_position(const cpl_layout *layout, int64_t position,
                             cpli_cursor *at, cpli_holding *out, int max)
{
    (void)at;
    (void)max;
    int half, block = (int)(position / (layout->cp_local / 2));
    int rank = zigzag_owner(layout->cp, block, &half);
    return snake_holding(layout, rank, half, out);
}

static int snake_by_slot(const cpl_layout *layout, int rank, int64_t slot,
                         cpli_cursor *at, cpli_holding *out, int max)
{
    (void)at;
    (void)max;
    return snake_holding(layout, rank, slot >= layout->cp_local / 2, out);
}

const cpli_kind cpli_snake = {
    .name = "snake",
    .check = check_stream,
    .by_position = snake_by_position,
    .by_slot = snake_by_slot,
};

/* ---- mirror: rank r holds blocks 2r and 2*cp-1-2r, in that order ---- */

static inline int mirror_block(int cp, int rank, int half)
{
    return half == 0 ? 2 * rank : 2 * cp - 1 - 2 * rank;
}

static inline int mirror_owner(int cp, int block, int *half)
{
    *half = block % 2;
    return *half == 0 ? block / 2 : (2 * cp - 1 - block) / 2;
}

DEFINE_LISTS(mirror)

const cpli_kind cpli_mirror = {
    .name = "mirror",
    .check = check_sequences,
    .by_position = mirror_by_position,
    .by_slot = mirror_by_slot,
};
