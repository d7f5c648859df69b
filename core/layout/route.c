/*
 * route.c: the exact moves between a partition and another partition or a
 * view. A rank's own part is found by walking its runs and asking the other
 * side who holds each stretch, so it costs time linear in its own segments.
 * Only the senders of a view look at other ranks: at those that may see theirs.
 */
#include <stdlib.h>

#include "layout.h"

typedef struct part {
    bool is_built;
    cpli_segments sends;
    cpli_segments receives;
    int64_t n_target_rows;
    int64_t n_fill_rows;
} part;

struct cpl_route {
    const cpl_layout *from;
    const cpl_layout *to;
    const cpl_view *view; /* instead of `to` */
    char *text;
    part *parts;
};

/* ---- segments of one rank -------------------------------------------------
 */

/* Cuts positions that stand in consecutive slots of `rank` into what each rank
 * of `other` holds of them; with only >= 0, the rest is left out. */
static cpl_status cut(const cpl_layout *other, cpli_piece run, int only,
                      int64_t *hint, cpli_segments *out)
{
    int64_t end = run.start + run.length;
    for (int64_t p = run.start; p < end;) {
        cpli_piece piece = cpli_at_position(other, p, hint);
        int64_t stop = cpli_min(end, piece.start + piece.length);
        cpl_segment segment = {
            .peer = piece.rank,
            .position = p,
            .slot = run.slot + p - run.start,
            .peer_slot = piece.slot + p - piece.start,
            .length = stop - p,
        };
        if (only < 0 || piece.rank == only)
            CPL_TRY(cpli_segments_push(out, &segment));
        p = stop;
    }
    return CPL_OK;
}

static cpl_status cut_layout(const cpl_layout *mine, const cpl_layout *other,
                             int rank, cpli_segments *out)
{
    cpli_walk walk = cpli_walk_begin(mine, rank);
    cpli_piece run;
    int64_t hint = 0;
    while (cpli_walk_next(&walk, &run))
        CPL_TRY(cut(other, run, -1, &hint, out));
    return CPL_OK;
}

/* As cut_layout, with the rank's runs of the view; counts rows and fill. */
static cpl_status cut_view(const cpl_view *view, int rank, int only,
                           cpli_segments *out, int64_t *n_rows, int64_t *n_fill)
{
    cpl_status status;
    cpli_runs list = {0};
    int64_t slot = 0, fill = 0, hint = 0;
    CPL_TRY_GO(cpli_view_list(view, rank, &list), done);
    for (int64_t i = 0; i < list.n; i++) {
        cpli_piece run = {rank, list.items[i].start, slot,
                          list.items[i].length};
        if (run.start >= 0)
            CPL_TRY_GO(cut(view->layout, run, only, &hint, out), done);
        else
            fill += run.length;
        slot += run.length;
    }
    *n_rows = slot;
    *n_fill = fill;
done:
    cpli_free(list.items);
    return status;
}

/* ---- order: peer, then position, then target slot -------------------------
 */

static int compare(const cpl_segment *a, const cpl_segment *b, bool is_send)
{
    int64_t x = a->position, y = b->position;
    if (x == y) {
        x = is_send ? a->peer_slot : a->slot;
        y = is_send ? b->peer_slot : b->slot;
    }
    return (x > y) - (x < y);
}

static int compare_sends(const void *a, const void *b)
{
    return compare(a, b, true);
}

static int compare_receives(const void *a, const void *b)
{
    return compare(a, b, false);
}

/* Segments of one peer come in slot order, which is position order but for a
 * few neighbours in most layouts; insertion sort is then linear. Where it is
 * not, it gives up in favour of qsort. */
static void order_peer(cpl_segment *items, int64_t n, bool is_send)
{
    int64_t moves_left = 4 * n;
    for (int64_t i = 1; i < n; i++) {
        cpl_segment item = items[i];
        int64_t j = i;
        for (; j > 0 && compare(&items[j - 1], &item, is_send) > 0; j--)
            items[j] = items[j - 1];
        items[j] = item;
        moves_left -= i - j;
        if (moves_left < 0) {
            qsort(items, (size_t)n, sizeof *items,
                  is_send ? compare_sends : compare_receives);
            return;
        }
    }
}

/* Counting sort by peer, which keeps the order inside a peer. */
static void spread(const cpli_segments *from, cpl_segment *sorted,
                   int64_t *first, int n_ranks)
{
    for (int64_t i = 0; i < from->n; i++)
        first[from->items[i].peer + 1]++;
    for (int rank = 0; rank < n_ranks; rank++)
        first[rank + 1] += first[rank];
    for (int64_t i = 0; i < from->n; i++)
        sorted[first[from->items[i].peer]++] = from->items[i];
}

static cpl_status order(cpli_segments *list, int n_ranks, bool is_send)
{
    cpl_status status;
    int64_t *first = NULL;
    cpl_segment *sorted = NULL;
    CPL_TRY_GO(CPL_ALLOC(n_ranks + 1, &first), done);
    CPL_TRY_GO(CPL_ALLOC(list->n, &sorted), done);
    spread(list, sorted, first, n_ranks);
    /* spread moved first[r] to the end of r's segments. */
    for (int64_t rank = 0, begin = 0; rank < n_ranks; rank++) {
        order_peer(sorted + begin, first[rank] - begin, is_send);
        begin = first[rank];
    }
    cpli_free(list->items);
    list->items = sorted;
    list->capacity = list->n;
    sorted = NULL;
done:
    cpli_free(sorted);
    cpli_free(first);
    return status;
}

/* ---- parts ------------------------------------------------------------------
 */

static int count_ranks(const cpl_route *route)
{
    return cpl_layout_n_ranks(route->from);
}

static cpl_status receive(const cpl_route *route, int rank, part *out)
{
    if (route->view != NULL) {
        CPL_TRY(cut_view(route->view, rank, -1, &out->receives,
                         &out->n_target_rows, &out->n_fill_rows));
    } else {
        out->n_target_rows = cpli_n_local(route->to, rank);
        CPL_TRY(cut_layout(route->to, route->from, rank, &out->receives));
    }
    return order(&out->receives, count_ranks(route), false);
}

/* What rank `peer` sees of `rank`, turned round. */
static cpl_status send_to_viewer(const cpl_view *view, int rank, int peer,
                                 cpli_segments *out)
{
    cpli_segments seen = {0};
    int64_t n_rows, n_fill;
    cpl_status status = cut_view(view, peer, rank, &seen, &n_rows, &n_fill);
    for (int64_t i = 0; i < seen.n && status == CPL_OK; i++) {
        cpl_segment segment = seen.items[i];
        segment.peer = peer;
        segment.slot = seen.items[i].peer_slot;
        segment.peer_slot = seen.items[i].slot;
        status = cpli_segments_push(out, &segment);
    }
    cpli_free(seen.items);
    return status;
}

static cpl_status send_to_view(const cpl_view *view, int rank,
                               cpli_segments *out)
{
    bool *marks;
    cpli_walk walk = cpli_walk_begin(view->layout, rank);
    cpli_piece run;
    cpl_status status = CPL_ALLOC(cpl_layout_n_ranks(view->layout), &marks);
    if (status != CPL_OK)
        return status;
    while (cpli_walk_next(&walk, &run))
        cpli_view_reach(view, run.start, run.length, marks);
    for (int peer = 0; peer < cpl_layout_n_ranks(view->layout); peer++)
        if (marks[peer] && status == CPL_OK)
            status = send_to_viewer(view, rank, peer, out);
    cpli_free(marks);
    return status;
}

static cpl_status send(const cpl_route *route, int rank, part *out)
{
    if (route->view != NULL)
        CPL_TRY(send_to_view(route->view, rank, &out->sends));
    else
        CPL_TRY(cut_layout(route->from, route->to, rank, &out->sends));
    return order(&out->sends, count_ranks(route), true);
}

static void clear(part *unwanted)
{
    cpli_free(unwanted->sends.items);
    cpli_free(unwanted->receives.items);
}

static cpl_status build(cpl_route *route, int rank)
{
    part built = {.is_built = true};
    cpl_status status = receive(route, rank, &built);
    if (status == CPL_OK)
        status = send(route, rank, &built);
    if (status == CPL_OK)
        route->parts[rank] = built;
    else
        clear(&built);
    return status;
}

cpl_status cpl_route_rank(cpl_route *route, int rank, cpl_route_part *out)
{
    CPL_TRY(cpli_check_rank(route->from, rank, "route"));
    if (!route->parts[rank].is_built)
        CPL_TRY(build(route, rank));
    const part *known = &route->parts[rank];
    *out = (cpl_route_part){
        .sends = known->sends.items,
        .receives = known->receives.items,
        .n_sends = known->sends.n,
        .n_receives = known->receives.n,
        .n_source_rows = cpli_n_local(route->from, rank),
        .n_target_rows = known->n_target_rows,
        .n_fill_rows = known->n_fill_rows,
    };
    return CPL_OK;
}

/* ---- create
 * ------------------------------------------------------------------- */

static cpl_status create(const cpl_layout *from, const cpl_layout *to,
                         const cpl_view *view, cpl_route **out)
{
    cpl_status status;
    cpl_route *route;
    CPL_TRY(CPL_ALLOC(1, &route));
    route->from = from;
    route->to = to;
    route->view = view;
    CPL_TRY_GO(CPL_ALLOC(cpl_layout_n_ranks(from), &route->parts), fail);
    CPL_TRY_GO(cpli_text(&route->text, "%s -> %s", cpl_layout_describe(from),
                         view != NULL ? cpl_view_describe(view)
                                      : cpl_layout_describe(to)),
               fail);
    *out = route;
    return CPL_OK;
fail:
    cpl_route_destroy(route);
    return status;
}

cpl_status cpl_route_create(const cpl_layout *from, const cpl_layout *to,
                            cpl_route **out)
{
    const char *text_from = cpl_layout_describe(from);
    const char *text_to = cpl_layout_describe(to);
    if (from->stream->digest != to->stream->digest)
        return cpli_fail(CPL_MISMATCH,
                         "route: the streams differ: %s has boundaries "
                         "%08x, %s has %08x",
                         text_from, (unsigned)(from->stream->digest >> 32),
                         text_to, (unsigned)(to->stream->digest >> 32));
    if (from->cp != to->cp || from->tp != to->tp)
        return cpli_fail(CPL_MISMATCH,
                         "route: the groups differ: %s has cp %d, tp %d, %s "
                         "has cp %d, tp %d",
                         text_from, from->cp, from->tp, text_to, to->cp,
                         to->tp);
    return create(from, to, NULL, out);
}

cpl_status cpl_route_to_view(const cpl_view *view, cpl_route **out)
{
    return create(view->layout, NULL, view, out);
}

cpl_status cpl_route_inverse(const cpl_route *route, cpl_route **out)
{
    if (route->view != NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "route.inverse: %s is a view; it has no inverse, "
                         "only an adjoint",
                         cpl_view_describe(route->view));
    return create(route->to, route->from, NULL, out);
}

void cpl_route_destroy(cpl_route *route)
{
    if (route == NULL)
        return;
    if (route->parts != NULL)
        for (int rank = 0; rank < count_ranks(route); rank++)
            clear(&route->parts[rank]);
    cpli_free(route->parts);
    cpli_free(route->text);
    cpli_free(route);
}

/* ---- getters
 * -------------------------------------------------------------------- */

int cpl_route_n_ranks(const cpl_route *route)
{
    return count_ranks(route);
}

bool cpl_route_is_identity(const cpl_route *route)
{
    return route->view == NULL && cpl_layout_equal(route->from, route->to);
}

uint64_t cpl_route_source_digest(const cpl_route *route)
{
    return route->from->digest;
}

uint64_t cpl_route_target_digest(const cpl_route *route)
{
    return route->view != NULL ? route->view->digest : route->to->digest;
}

const char *cpl_route_describe(const cpl_route *route)
{
    return route->text;
}

/* ---- statistics over ranks
 * --------------------------------------------------------- */

/* Adds what one rank receives; out_rows counts what its peers send. */
static int64_t add_receives(const part *known, int rank, int64_t *out_rows,
                            cpl_route_stats *stats)
{
    int64_t in_rows = 0;
    int last_peer = rank;
    for (int64_t i = 0; i < known->receives.n; i++) {
        const cpl_segment *segment = &known->receives.items[i];
        if (segment->peer == rank)
            continue;
        in_rows += segment->length;
        out_rows[segment->peer] += segment->length;
        stats->messages += segment->peer != last_peer;
        last_peer = segment->peer;
    }
    stats->moved_tokens += in_rows;
    stats->segments += known->receives.n;
    return in_rows;
}

/* What one rank receives is what others send, so receives alone tell all, and
 * parts that nobody asked for are not kept. */
static cpl_status add_rank(const cpl_route *route, int rank, int64_t *out_rows,
                           cpl_route_stats *stats)
{
    part fresh = {0};
    const part *known = &route->parts[rank];
    cpl_status status = CPL_OK;
    if (!known->is_built) {
        status = receive(route, rank, &fresh);
        known = &fresh;
    }
    if (status == CPL_OK) {
        int64_t in_rows = add_receives(known, rank, out_rows, stats);
        stats->busiest_tokens = cpli_max(stats->busiest_tokens, in_rows);
    }
    clear(&fresh);
    return status;
}

cpl_status cpl_route_measure(cpl_route *route, cpl_route_stats *out)
{
    int64_t *out_rows;
    cpl_route_stats stats = {0};
    int n = count_ranks(route);
    cpl_status status = CPL_ALLOC(n, &out_rows);
    if (status != CPL_OK)
        return status;
    for (int rank = 0; rank < n; rank++)
        CPL_TRY_GO(add_rank(route, rank, out_rows, &stats), done);
    for (int rank = 0; rank < n; rank++)
        stats.busiest_tokens = cpli_max(stats.busiest_tokens, out_rows[rank]);
    *out = stats;
done:
    cpli_free(out_rows);
    return status;
}
