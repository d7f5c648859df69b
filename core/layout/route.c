/*
 * route.c: the exact moves between a partition and another partition or a
 * view, kept as the parts of single ranks, each made when first asked for.
 */
#include "layout.h"

typedef struct part {
    bool is_built;
    cpli_segments segments;
    int64_t n_target_rows;
    int64_t n_fill_rows;
} part;

struct cpl_route {
    cpli_ends ends;
    int n_ranks; /* kept, since destroy must not touch what it borrows */
    char *text;
    part *parts;
};

/* ---- parts ---- */

static cpl_status count_rows(const cpli_ends *ends, int rank, part *out)
{
    cpli_runs list = {0};
    if (ends->view == NULL) {
        out->n_target_rows = cpli_n_local(ends->to, rank);
        return CPL_OK;
    }
    cpl_status status = cpli_view_list(ends->view, rank, &list);
    for (int64_t i = 0; i < list.n; i++) {
        out->n_target_rows += list.items[i].length;
        if (list.items[i].start < 0)
            out->n_fill_rows += list.items[i].length;
    }
    cpli_free(list.items);
    return status;
}

static bool is_sliced(const cpli_ends *ends)
{
    return ends->view != NULL && ends->view->is_sliced;
}

/* The source of slices is packed: first the rows' slices for rank 0, then those
 * for rank 1, ... */
static void shift_slices(const cpli_ends *ends, int rank,
                         cpli_segments *segments)
{
    int64_t n_local = cpli_n_local(ends->from, rank);
    cpl_segment *receives = segments->items + segments->n_sends;
    for (int64_t i = 0; i < segments->n_sends; i++)
        segments->items[i].slot += segments->items[i].peer * n_local;
    for (int64_t i = 0; i < segments->n_receives; i++)
        receives[i].peer_slot +=
            rank * cpli_n_local(ends->from, receives[i].peer);
}

static cpl_status build(cpl_route *route, int rank)
{
    part built = {.is_built = true};
    CPL_TRY(count_rows(&route->ends, rank, &built));
    CPL_TRY(cpli_segments_collect(&route->ends, rank, true, &built.segments));
    if (is_sliced(&route->ends))
        shift_slices(&route->ends, rank, &built.segments);
    route->parts[rank] = built;
    return CPL_OK;
}

cpl_status cpl_route_rank(cpl_route *route, int rank, cpl_route_part *out)
{
    CPL_TRY(cpli_check_rank(route->ends.from, rank, "route"));
    if (!route->parts[rank].is_built)
        CPL_TRY(build(route, rank));
    const part *known = &route->parts[rank];
    const cpli_segments *segments = &known->segments;
    *out = (cpl_route_part){
        .sends = segments->items,
        .receives = segments->items + segments->n_sends,
        .n_sends = segments->n_sends,
        .n_receives = segments->n_receives,
        .n_source_rows = cpli_n_local(route->ends.from, rank) *
                         (is_sliced(&route->ends) ? route->n_ranks : 1),
        .n_target_rows = known->n_target_rows,
        .n_fill_rows = known->n_fill_rows,
    };
    return CPL_OK;
}

/* ---- create ---- */

static cpl_status create(const cpl_layout *from, const cpl_layout *to,
                         const cpl_view *view, cpl_route **out)
{
    cpl_status status;
    cpl_route *route;
    CPL_TRY(CPL_ALLOC(1, &route));
    route->ends = (cpli_ends){from, to, view};
    route->n_ranks = cpl_layout_n_ranks(from);
    CPL_TRY_GO(CPL_ALLOC(route->n_ranks, &route->parts), fail);
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
    if (route->ends.view != NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "route.inverse: %s is a view; it has no inverse, "
                         "only an adjoint",
                         cpl_view_describe(route->ends.view));
    return create(route->ends.to, route->ends.from, NULL, out);
}

void cpl_route_destroy(cpl_route *route)
{
    if (route == NULL)
        return;
    if (route->parts != NULL)
        for (int rank = 0; rank < route->n_ranks; rank++)
            cpli_free(route->parts[rank].segments.items);
    cpli_free(route->parts);
    cpli_free(route->text);
    cpli_free(route);
}

/* ---- getters ---- */

const cpli_ends *cpli_route_ends(const cpl_route *route)
{
    return &route->ends;
}

int cpl_route_n_ranks(const cpl_route *route)
{
    return route->n_ranks;
}

bool cpl_route_is_identity(const cpl_route *route)
{
    return route->ends.view == NULL &&
           cpl_layout_equal(route->ends.from, route->ends.to);
}

uint64_t cpl_route_source_digest(const cpl_route *route)
{
    return route->ends.from->digest;
}

uint64_t cpl_route_target_digest(const cpl_route *route)
{
    const cpl_view *view = route->ends.view;
    if (view == NULL)
        return route->ends.to->digest;
    /* Rows in the slots of a layout are rows of that layout. */
    return view->onto != NULL ? view->onto->digest : view->digest;
}

const char *cpl_route_describe(const cpl_route *route)
{
    return route->text;
}

/* ---- statistics over ranks ---- */

/* Adds what one rank receives; out_rows counts what its peers send. */
static int64_t add_receives(const cpli_segments *segments, int rank,
                            int64_t *out_rows, cpl_route_stats *stats)
{
    const cpl_segment *receives = segments->items + segments->n_sends;
    int64_t in_rows = 0;
    int last_peer = rank;
    for (int64_t i = 0; i < segments->n_receives; i++) {
        const cpl_segment *segment = &receives[i];
        if (segment->peer == rank)
            continue;
        in_rows += segment->length;
        out_rows[segment->peer] += segment->length;
        stats->messages += segment->peer != last_peer;
        last_peer = segment->peer;
    }
    stats->moved_tokens += in_rows;
    stats->segments += segments->n_receives;
    return in_rows;
}

/* What one rank receives is what others send, so receives alone tell all, and
 * parts that nobody asked for are not kept. */
static cpl_status add_rank(const cpl_route *route, int rank, int64_t *out_rows,
                           cpl_route_stats *stats)
{
    cpli_segments fresh = {0};
    const cpli_segments *segments = &fresh;
    if (route->parts[rank].is_built)
        segments = &route->parts[rank].segments;
    else
        CPL_TRY(cpli_segments_collect(&route->ends, rank, false, &fresh));
    int64_t in_rows = add_receives(segments, rank, out_rows, stats);
    stats->busiest_tokens = cpli_max(stats->busiest_tokens, in_rows);
    cpli_free(fresh.items);
    return CPL_OK;
}

cpl_status cpl_route_measure(cpl_route *route, cpl_route_stats *out)
{
    int64_t *out_rows;
    cpl_route_stats stats = {0};
    int n = cpl_route_n_ranks(route);
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
