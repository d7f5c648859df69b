/*
 * overlap.c: how many rows each rank of one layout and each rank of another
 * both hold. A sweep over the stream, stretch by stretch of either.
 */
#include "layout.h"

/* Rows that one rank of either layout holds in a row. */
typedef struct piece {
    int a_rank, b_rank;
    int64_t a_end, b_end; /* slots */
} piece;

static bool goes_on(const piece *last, const piece *next, int64_t length)
{
    return last->a_rank == next->a_rank && last->b_rank == next->b_rank &&
           last->a_end + length == next->a_end &&
           last->b_end + length == next->b_end;
}

cpl_status cpl_layout_overlap(const cpl_layout *a, const cpl_layout *b,
                              int64_t *rows, int64_t *segments)
{
    if (a->stream->digest != b->stream->digest)
        return cpli_fail(CPL_MISMATCH,
                         "layout.overlap: the streams differ: %s and %s",
                         cpl_layout_describe(a), cpl_layout_describe(b));
    int64_t n_a = cpl_layout_n_ranks(a), n_b = cpl_layout_n_ranks(b);
    int64_t n = cpl_stream_n_positions(a->stream);
    cpli_lookup in_a = {.layout = a}, in_b = {.layout = b};
    piece last = {.a_rank = -1};
    memset(rows, 0, (size_t)(n_a * n_b) * sizeof *rows);
    memset(segments, 0, (size_t)n_a * sizeof *segments);
    const cpli_holding *x = NULL, *y = NULL;
    int64_t x_end = 0, y_end = 0;
    for (int64_t p = 0; p < n;) {
        if (p == x_end) {
            x = cpli_lookup_find(&in_a, p);
            x_end = x->start + x->length;
        }
        if (p == y_end) {
            y = cpli_lookup_find(&in_b, p);
            y_end = y->start + y->length;
        }
        int64_t stop = cpli_min(x_end, y_end);
        piece next = {x->rank, y->rank, x->slot + stop - x->start,
                      y->slot + stop - y->start};
        rows[x->rank * n_b + y->rank] += stop - p;
        segments[x->rank] += !goes_on(&last, &next, stop - p);
        last = next;
        p = stop;
    }
    return CPL_OK;
}
