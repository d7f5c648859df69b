/*
 * split.c: what an exchange in place may leave alone, what it may swap, and
 * what has to pass through a buffer. Integers only, once per plan.
 */
#include <stdlib.h>

#include "exchange.h"

static int compare_slots(const void *a, const void *b)
{
    const cpl_segment *x = a;
    const cpl_segment *y = b;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static cpl_status sort_by_slot(const cpl_segment *segments, int64_t n,
                               cpl_segment **out)
{
    CPL_TRY(CPL_ALLOC(n, out));
    if (n > 0)
        memcpy(*out, segments, (size_t)n * sizeof *segments);
    qsort(*out, (size_t)n, sizeof **out, compare_slots);
    return CPL_OK;
}

/* Whether segments in slot order hold each of n_rows rows exactly once. */
static bool do_cover(const cpl_segment *by_slot, int64_t n, int64_t n_rows)
{
    int64_t next = 0;
    for (int64_t i = 0; i < n; i++) {
        if (by_slot[i].slot != next)
            return false;
        next += by_slot[i].length;
    }
    return next == n_rows;
}

cpl_status cpli_split_create(const cpl_route_part *part, cpli_split *out)
{
    cpl_status status;
    cpli_split split = {0};
    int64_t n_out = part->n_sends;
    int64_t n_in = part->n_receives;
    CPL_TRY_GO(sort_by_slot(part->sends, n_out, &split.sends_by_slot), fail);
    CPL_TRY_GO(sort_by_slot(part->receives, n_in, &split.receives_by_slot),
               fail);
    CPL_TRY_GO(CPL_ALLOC(n_in, &split.swaps), fail);
    CPL_TRY_GO(CPL_ALLOC(n_out, &split.sends), fail);
    CPL_TRY_GO(CPL_ALLOC(n_in, &split.receives), fail);
    split.is_exact =
        do_cover(split.sends_by_slot, n_out, part->n_source_rows) &&
        do_cover(split.receives_by_slot, n_in, part->n_target_rows);
    *out = split;
    return CPL_OK;
fail:
    cpli_split_destroy(&split);
    return status;
}

void cpli_split_destroy(cpli_split *split)
{
    cpli_free(split->sends_by_slot);
    cpli_free(split->receives_by_slot);
    cpli_free(split->swaps);
    cpli_free(split->sends);
    cpli_free(split->receives);
    *split = (cpli_split){0};
}

/* Whether the segment also goes the other way. In an exact part a slot begins
 * at most one segment. */
static bool has_partner(const cpl_segment *segment, const cpl_segment *by_slot,
                        int64_t n)
{
    const cpl_segment *other =
        bsearch(segment, by_slot, (size_t)n, sizeof *by_slot, compare_slots);
    return other != NULL && other->peer == segment->peer &&
           other->peer_slot == segment->peer_slot &&
           other->length == segment->length;
}

static bool does_stay(const cpl_segment *segment, int rank)
{
    return segment->peer == rank && segment->slot == segment->peer_slot;
}

/* Swaps go by peer, then by the slot on the lower rank of the two. */
static int compare_below(const void *a, const void *b)
{
    const cpl_segment *x = a;
    const cpl_segment *y = b;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return (x->peer_slot > y->peer_slot) - (x->peer_slot < y->peer_slot);
}

static int compare_above(const void *a, const void *b)
{
    const cpl_segment *x = a;
    const cpl_segment *y = b;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return compare_slots(a, b);
}

/* Peers below the rank order by their own slots, peers above by the rank's;
 * the receives are in peer order, so the swaps are too. */
static void order_swaps(cpli_split *split, int rank)
{
    int64_t n_below = 0;
    while (n_below < split->n_swaps && split->swaps[n_below].peer < rank)
        n_below++;
    qsort(split->swaps, (size_t)n_below, sizeof *split->swaps, compare_below);
    qsort(split->swaps + n_below, (size_t)(split->n_swaps - n_below),
          sizeof *split->swaps, compare_above);
}

void cpli_split_decide(cpli_split *split, const cpl_route_part *part, int rank,
                       bool may_swap)
{
    split->n_swaps = split->n_sends = split->n_receives = 0;
    for (int64_t i = 0; i < part->n_receives; i++) {
        const cpl_segment *segment = &part->receives[i];
        bool swaps = may_swap && segment->peer != rank &&
                     has_partner(segment, split->sends_by_slot, part->n_sends);
        if (swaps)
            split->swaps[split->n_swaps++] = *segment;
        else if (!does_stay(segment, rank))
            split->receives[split->n_receives++] = *segment;
    }
    for (int64_t i = 0; i < part->n_sends; i++) {
        const cpl_segment *segment = &part->sends[i];
        bool swaps =
            may_swap && segment->peer != rank &&
            has_partner(segment, split->receives_by_slot, part->n_receives);
        if (!swaps && !does_stay(segment, rank))
            split->sends[split->n_sends++] = *segment;
    }
    order_swaps(split, rank);
}
