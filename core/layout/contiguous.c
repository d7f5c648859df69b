/*
 * contiguous.c: rank r holds the r-th of cp equal intervals of the whole padded
 * stream, whatever sequences lie in it.
 */
#include <inttypes.h>

#include "layout.h"

static cpl_status check(const cpl_layout *layout)
{
    int64_t n = cpl_stream_n_positions(layout->stream);
    int cp = layout->cp;
    if (n % cp != 0)
        return cpli_fail(CPL_INVALID,
                         "layout.contiguous: the stream has %" PRId64
                         " positions, not a multiple of cp = %d",
                         n, cp);
    return CPL_OK;
}

static int by_slot(const cpl_layout *layout, int rank, int64_t slot,
                   cpli_cursor *at, cpli_holding *out, int max)
{
    (void)slot;
    (void)at;
    (void)max;
    out->rank = rank;
    out->start = rank * layout->cp_local;
    out->slot = 0;
    out->length = layout->cp_local;
    return 1;
}

static int by_position(const cpl_layout *layout, int64_t position,
                       cpli_cursor *at, cpli_holding *out, int max)
{
    int rank = (int)(position / layout->cp_local);
    return by_slot(layout, rank, 0, at, out, max);
}

const cpli_kind cpli_contiguous = {
    .name = "contiguous",
    .check = check,
    .by_position = by_position,
    .by_slot = by_slot,
};
