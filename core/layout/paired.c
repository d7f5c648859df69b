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

/* Finds the sequence that holds a position and, once per sequence, what its
 * holdings have in common: divisions are what a walk would spend its time on.
 */
static int64_t enter(const cpl_layout *layout, int64_t position,
                     cpli_cursor *at)
{
    int64_t i = cpli_stream_find(layout->stream, position, at);
    if (at->cached == i + 1)
        return layout->stream->cu[i];
    const int64_t *cu = layout->stream->cu;
    at->cached = i + 1;
    at->block_length = (cu[i + 1] - cu[i]) / (2 * layout->cp);
    at->first_slot = cu[i] / layout->cp;
    return cu[i];
}

static void at_position(const cpl_layout *layout, int64_t position,
                        cpli_cursor *at, cpli_holding *out)
{
    int64_t start = enter(layout, position, at);
    int block = (int)((position - start) / at->block_length);
    int half;
    out->rank = layout->kind->owner(layout->cp, block, &half);
    out->start = start + block * at->block_length;
    out->slot = at->first_slot + half * at->block_length;
    out->length = at->block_length;
}

static void at_slot(const cpl_layout *layout, int cp_rank, int64_t slot,
                    cpli_cursor *at, cpli_holding *out)
{
    int64_t start = enter(layout, slot * layout->cp, at);
    int half = slot - at->first_slot >= at->block_length;
    int block = layout->kind->block(layout->cp, cp_rank, half);
    out->rank = cp_rank;
    out->start = start + block * at->block_length;
    out->slot = at->first_slot + half * at->block_length;
    out->length = at->block_length;
}

/* ---- zigzag: rank r holds blocks r and 2*cp-1-r ---- */

static int zigzag_block(int cp, int rank, int half)
{
    return half == 0 ? rank : 2 * cp - 1 - rank;
}

static int zigzag_owner(int cp, int block, int *half)
{
    *half = block >= cp;
    return *half == 0 ? block : 2 * cp - 1 - block;
}

const cpli_kind cpli_zigzag = {
    .name = "zigzag",
    .check = check_sequences,
    .at_position = at_position,
    .at_slot = at_slot,
    .block = zigzag_block,
    .owner = zigzag_owner,
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

static void snake_holding(const cpl_layout *layout, int rank, int half,
                          cpli_holding *out)
{
    int64_t length = layout->cp_local / 2;
    out->rank = rank;
    out->start = zigzag_block(layout->cp, rank, half) * length;
    out->slot = half * length;
    out->length = length;
}

static void snake_at_position(const cpl_layout *layout, int64_t position,
                              cpli_cursor *at, cpli_holding *out)
{
    (void)at;
    int half, block = (int)(position / (layout->cp_local / 2));
    int rank = zigzag_owner(layout->cp, block, &half);
    snake_holding(layout, rank, half, out);
}

static void snake_at_slot(const cpl_layout *layout, int cp_rank, int64_t slot,
                          cpli_cursor *at, cpli_holding *out)
{
    (void)at;
    snake_holding(layout, cp_rank, slot >= layout->cp_local / 2, out);
}

const cpli_kind cpli_snake = {
    .name = "snake",
    .check = check_stream,
    .at_position = snake_at_position,
    .at_slot = snake_at_slot,
};

/* ---- mirror: rank r holds blocks 2r and 2*cp-1-2r, in that order ---- */

static int mirror_block(int cp, int rank, int half)
{
    return half == 0 ? 2 * rank : 2 * cp - 1 - 2 * rank;
}

static int mirror_owner(int cp, int block, int *half)
{
    *half = block % 2;
    return *half == 0 ? block / 2 : (2 * cp - 1 - block) / 2;
}

const cpli_kind cpli_mirror = {
    .name = "mirror",
    .check = check_sequences,
    .at_position = at_position,
    .at_slot = at_slot,
    .block = mirror_block,
    .owner = mirror_owner,
};
