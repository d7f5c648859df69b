/*
 * chain.c: who hands the recurrent state of a sequence on to whom. The chain
 * of a sequence is found by walking its real positions from the first: every
 * stretch of positions that lies in consecutive slots of one rank is a span of
 * that rank, and the spans in this order are the chain.
 */
#include <inttypes.h>

#include "layout.h"

/* The real spans of the ranks that were asked for, made once each. */
typedef struct span_lists {
    const cpl_layout *layout;
    struct {
        cpl_span *items;
        int64_t n;
    } * of;
} span_lists;

static cpl_status span_lists_begin(const cpl_layout *layout, span_lists *lists)
{
    lists->layout = layout;
    return CPL_ALLOC(cpl_layout_n_ranks(layout), &lists->of);
}

static void span_lists_end(span_lists *lists)
{
    if (lists->of != NULL)
        for (int r = 0; r < cpl_layout_n_ranks(lists->layout); r++)
            cpli_free(lists->of[r].items);
    cpli_free(lists->of);
}

static cpl_status need(span_lists *lists, int rank)
{
    if (lists->of[rank].items != NULL)
        return CPL_OK;
    return cpl_layout_spans(lists->layout, rank, true, &lists->of[rank].items,
                            &lists->of[rank].n);
}

/* The index of the rank's span that starts at `slot`. */
static cpl_status index_of(span_lists *lists, int rank, int64_t slot,
                           int64_t *out)
{
    CPL_TRY(need(lists, rank));
    const cpl_span *items = lists->of[rank].items;
    int64_t low = 0, high = lists->of[rank].n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (items[middle].slot <= slot)
            low = middle;
        else
            high = middle;
    }
    CPL_ASSERT(items[low].slot == slot);
    *out = low;
    return CPL_OK;
}

/* Writes the links of those spans of one chain that `rank` holds. */
static cpl_status walk_chain(span_lists *lists, int rank, int64_t sequence,
                             cpl_link *links)
{
    const cpl_layout *layout = lists->layout;
    int64_t start = layout->stream->cu[sequence];
    int64_t end = start + layout->stream->real[sequence];
    int64_t mine = -1;
    cpli_cursor at = {0};
    cpli_holding last = {.rank = -1};
    for (int64_t p = start, level = 0; p < end; level++) {
        cpli_holding span = cpli_stretch(layout, p, end, &at);
        if (last.rank == rank) {
            links[mine].next_rank = span.rank;
            CPL_TRY(
                index_of(lists, span.rank, span.slot, &links[mine].next_span));
        }
        if (span.rank == rank) {
            CPL_TRY(index_of(lists, rank, span.slot, &mine));
            links[mine] = (cpl_link){level, last.rank, -1, -1, -1};
            if (last.rank >= 0)
                CPL_TRY(index_of(lists, last.rank, last.slot,
                                 &links[mine].prev_span));
        }
        last = span;
        p += span.length;
    }
    return CPL_OK;
}

/* Every sequence once, at its span with the smallest index. */
static cpl_status link_all(span_lists *lists, int rank, cpl_link *links)
{
    const cpl_span *items = lists->of[rank].items;
    for (int64_t i = 0; i < lists->of[rank].n; i++)
        links[i].level = -1;
    for (int64_t i = 0; i < lists->of[rank].n; i++)
        if (links[i].level < 0)
            CPL_TRY(walk_chain(lists, rank, items[i].sequence, links));
    return CPL_OK;
}

cpl_status cpl_layout_chain(const cpl_layout *layout, int rank, cpl_link **out,
                            int64_t *n_out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.chain"));
    cpl_status status;
    span_lists lists = {0};
    cpl_link *links = NULL;
    CPL_TRY_GO(span_lists_begin(layout, &lists), done);
    CPL_TRY_GO(need(&lists, rank), done);
    CPL_TRY_GO(CPL_ALLOC(lists.of[rank].n, &links), done);
    CPL_TRY_GO(link_all(&lists, rank, links), done);
    *out = links;
    *n_out = lists.of[rank].n;
    links = NULL;
done:
    cpli_free(links);
    span_lists_end(&lists);
    return status;
}
