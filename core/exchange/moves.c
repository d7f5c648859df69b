/*
 * moves.c: segments of rows as pieces of bytes, for one size of row, and the
 * buffer through which an exchange in place passes what it cannot swap.
 */
#include "exchange.h"

static cpl_status scale(const cpl_segment *segments, int64_t n,
                        int64_t row_bytes, cpli_pieces *out)
{
    CPL_TRY(CPL_ALLOC(n, &out->items));
    out->n = n;
    for (int64_t i = 0; i < n; i++)
        out->items[i] =
            (cpli_piece){.peer = segments[i].peer,
                         .offset = segments[i].slot * row_bytes,
                         .peer_offset = segments[i].peer_slot * row_bytes,
                         .bytes = segments[i].length * row_bytes};
    return CPL_OK;
}

/* The pieces one behind the other in a buffer of *bytes bytes. */
static cpl_status land(const cpli_pieces *pieces, int64_t *bytes,
                       cpli_pieces *out)
{
    CPL_TRY(CPL_ALLOC(pieces->n, &out->items));
    out->n = pieces->n;
    *bytes = 0;
    for (int64_t i = 0; i < pieces->n; i++) {
        out->items[i] = pieces->items[i];
        out->items[i].offset = *bytes;
        *bytes += pieces->items[i].bytes;
    }
    return CPL_OK;
}

static cpl_status prepare_in_place(const cpli_split *split, int64_t row_bytes,
                                   cpli_moves *moves)
{
    int64_t out_bytes;
    int64_t in_bytes;
    CPL_TRY(scale(split->swaps, split->n_swaps, row_bytes, &moves->swaps));
    CPL_TRY(scale(split->sends, split->n_sends, row_bytes, &moves->rest_out));
    CPL_TRY(
        scale(split->receives, split->n_receives, row_bytes, &moves->rest_in));
    CPL_TRY(land(&moves->rest_out, &out_bytes, &moves->landing_out));
    CPL_TRY(land(&moves->rest_in, &in_bytes, &moves->landing_in));
    return CPL_ALLOC(cpli_max(out_bytes, in_bytes), &moves->staging);
}

cpl_status cpli_moves_create(const cpl_route_part *part,
                             const cpli_split *split, int64_t row_bytes,
                             cpli_moves *out)
{
    CPL_TRY(scale(part->sends, part->n_sends, row_bytes, &out->out));
    CPL_TRY(scale(part->receives, part->n_receives, row_bytes, &out->in));
    if (split == NULL)
        return CPL_OK;
    return prepare_in_place(split, row_bytes, out);
}

void cpli_moves_destroy(cpli_moves *moves)
{
    cpli_pieces *lists[] = {&moves->out,       &moves->in,
                            &moves->swaps,     &moves->rest_out,
                            &moves->rest_in,   &moves->landing_out,
                            &moves->landing_in};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        cpli_free(lists[i]->items);
    cpli_free(moves->staging);
}
