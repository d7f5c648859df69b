/*
 * striped.c: the padded stream is cut into blocks of equal length, which are
 * dealt round robin over the CP ranks, whatever sequences lie in them.
 */
#include <inttypes.h>

#include "layout.h"

static cpl_status check(const cpl_layout *layout)
{
    int64_t n = cpl_stream_n_positions(layout->stream);
    int64_t block = layout->block;
    if (block < 1)
        return cpli_fail(CPL_INVALID,
                         "layout.striped: block must be >= 1 (got %" PRId64 ")",
                         block);
    if (n % block != 0 || n / block % layout->cp != 0)
        return cpli_fail(CPL_INVALID,
                         "layout.striped: the stream has %" PRId64
                         " positions, not a multiple of cp = %d blocks of "
                         "%" PRId64 ": the last blocks would be uneven",
                         n, layout->cp, block);
    return CPL_OK;
}

/* Every `step`-th block of the stream from block i on. */
static int list(const cpl_layout *layout, int64_t i, int step,
                cpli_holding *out, int max)
{
    int64_t block = layout->block, cp = layout->cp;
    int64_t n_positions = cpl_stream_n_positions(layout->stream);
    if (cp == 1) { /* one run, not as many blocks as there may be */
        *out = (cpli_holding){0, 0, 0, n_positions};
        return 1;
    }
    int64_t n_blocks = n_positions / block;
    int rank = (int)(i % cp), n = 0;
    int64_t slot = i / cp * block;
    for (; n < max && i < n_blocks; n++, i += step) {
        out[n] = (cpli_holding){rank, i * block, slot, block};
        rank += step;
        if (rank >= cp) {
            rank -= (int)cp;
            slot += block;
        }
    }
    return n;
}

static int by_position(const cpl_layout *layout, int64_t position,
                       cpli_cursor *at, cpli_holding *out, int max)
{
    (void)at;
    return list(layout, position / layout->block, 1, out, max);
}

static int by_slot(const cpl_layout *layout, int rank, int64_t slot,
                   cpli_cursor *at, cpli_holding *out, int max)
{
    (void)at;
    int64_t i = slot / layout->block * layout->cp + rank;
    return list(layout, i, layout->cp, out, max);
}

/*
 * The block of a striped layout that could hold the same runs: rank 0 holds it
 * from its slot 0, cut into whole windows and a rest. Where there is no rest,
 * every rank holds one window, and the layout is contiguous in some order.
 */
static void fit(cpl_layout *guess, const cpl_layout *layout)
{
    int64_t n = cpl_stream_n_positions(layout->stream);
    cpli_cursor at = {0};
    cpli_holding run = {0};
    for (int64_t p = 0; p < n; p = run.start + run.length) {
        run = cpli_stretch(layout, p, n, &at);
        if (run.length < guess->window)
            break;
    }
    guess->block = run.start + run.length;
}

const cpli_kind cpli_striped = {
    .name = "striped",
    .check = check,
    .fit = fit,
    .by_position = by_position,
    .by_slot = by_slot,
};
