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

static void at_slot(const cpl_layout *layout, int cp_rank, int64_t slot,
                    cpli_cursor *at, cpli_holding *out)
{
    (void)slot;
    (void)at;
    out->rank = cp_rank;
    out->start = cp_rank * layout->cp_local;
    out->slot = 0;
    out->length = layout->cp_local;
}

static void at_position(const cpl_layout *layout, int64_t position,
                        cpli_cursor *at, cpli_holding *out)
{
    at_slot(layout, (int)(position / layout->cp_local), 0, at, out);
}

const cpli_kind cpli_contiguous = {
    .name = "contiguous",
    .check = check,
    .at_position = at_position,
    .at_slot = at_slot,
};
