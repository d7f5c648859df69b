/*
 * paired.c: kinds that cut each sequence into 2*cp blocks and give every rank
 * a light and a heavy one, j and 2*cp-1-j, so that causal work is the same on
 * all ranks. They differ in who gets which pair and in the order of the two.
 *
 * With lengths that are multiples of 2*cp, sequence i fills the slots
 * cu[i]/cp .. cu[i+1]/cp of every rank: slot x lies in the sequence that holds
 * position x*cp.
 */
#include <inttypes.h>

#include "layout.h"

static cpl_status check(const char *kind, const cpl_stream *stream, int cp)
{
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        int64_t length = stream->cu[i + 1] - stream->cu[i];
        if (length % (2 * (int64_t)cp) != 0)
            return cpli_fail(CPL_INVALID,
                             "layout.%s: sequence %" PRId64 " has %" PRId64
                             " tokens, not a multiple of 2*cp = %" PRId64,
                             kind, i, length, 2 * (int64_t)cp);
    }
    return CPL_OK;
}

static cpli_piece piece(const cpl_layout *layout, int64_t sequence, int rank,
                        int half, int block)
{
    const int64_t *cu = layout->stream->cu;
    int64_t length = (cu[sequence + 1] - cu[sequence]) / (2 * layout->cp);
    return (cpli_piece){
        .rank = rank,
        .start = cu[sequence] + block * length,
        .slot = cu[sequence] / layout->cp + half * length,
        .length = length,
    };
}

static cpli_piece at_position(const cpl_layout *layout, int64_t position,
                              int64_t *hint)
{
    int64_t i = cpli_stream_find(layout->stream, position, hint);
    const int64_t *cu = layout->stream->cu;
    int64_t length = (cu[i + 1] - cu[i]) / (2 * layout->cp);
    int block = (int)((position - cu[i]) / length);
    int half;
    int rank = layout->kind->owner(layout->cp, block, &half);
    return piece(layout, i, rank, half, block);
}

static cpli_piece at_slot(const cpl_layout *layout, int cp_rank, int64_t slot,
                          int64_t *hint)
{
    int64_t i = cpli_stream_find(layout->stream, slot * layout->cp, hint);
    const int64_t *cu = layout->stream->cu;
    int64_t length = (cu[i + 1] - cu[i]) / (2 * layout->cp);
    int half = slot - cu[i] / layout->cp >= length;
    int block = layout->kind->block(layout->cp, cp_rank, half);
    return piece(layout, i, cp_rank, half, block);
}

/* ---- zigzag: rank r holds blocks r and 2*cp-1-r -------------------------- */

static cpl_status zigzag_check(const cpl_stream *stream, int cp)
{
    return check("zigzag", stream, cp);
}

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
    .check = zigzag_check,
    .at_position = at_position,
    .at_slot = at_slot,
    .block = zigzag_block,
    .owner = zigzag_owner,
};

/* ---- mirror: rank r holds blocks 2r and 2*cp-1-2r, in that order ----------
 */

static cpl_status mirror_check(const cpl_stream *stream, int cp)
{
    return check("mirror", stream, cp);
}

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
    .check = mirror_check,
    .at_position = at_position,
    .at_slot = at_slot,
    .block = mirror_block,
    .owner = mirror_owner,
};
