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

/* The n-th block of the stream. */
static void fill(const cpl_layout *layout, int64_t n, cpli_holding *out)
{
    out->rank = (int)(n % layout->cp);
    out->start = n * layout->block;
    out->slot = n / layout->cp * layout->block;
    out->length = layout->block;
}

static void at_position(const cpl_layout *layout, int64_t position,
                        cpli_cursor *at, cpli_holding *out)
{
    (void)at;
    fill(layout, position / layout->block, out);
}

static void at_slot(const cpl_layout *layout, int cp_rank, int64_t slot,
                    cpli_cursor *at, cpli_holding *out)
{
    (void)at;
    fill(layout, slot / layout->block * layout->cp + cp_rank, out);
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
    .at_position = at_position,
    .at_slot = at_slot,
};
