/*
 * segments.c: one rank's segments of a route, in order. Either side is found by
 * walking its own runs and asking the other side who holds each stretch, so
 * the cost is linear in the segments themselves. Only the senders of a view
 * look at other ranks: at those that may see theirs.
 */
#include <stdlib.h>

#include "layout.h"

/*
 * Where a walk puts its segments. Every walk is made twice: first to count
 * (items NULL), then to fill, peer by peer; so no list has to grow and the
 * order by peer costs nothing. Segments come in the slot order of one side, so
 * those that go on are neighbours, and merge here: the last one grows where it
 * lies.
 */
typedef struct sink {
    int64_t *first;     /* of each peer; while counting, [peer + 1] counts */
    cpl_segment *items; /* NULL: only count */
    cpl_segment *last;
    cpl_segment counted; /* the last one while counting; at first of no peer */
    const int *viewers;  /* where the other layout names CP ranks: who sees the
                            rows of CP rank i is at i * stride; or NULL */
    int stride;
} sink;

static void start(sink *to, cpl_segment *items)
{
    to->items = items;
    to->counted.peer = -1;
    to->last = &to->counted;
}

static bool goes_on(const cpl_segment *last, const cpl_segment *next)
{
    return next->position == last->position + last->length &&
           next->slot == last->slot + last->length &&
           next->peer_slot == last->peer_slot + last->length &&
           next->peer == last->peer;
}

static inline void emit(sink *to, cpl_segment segment)
{
    if (goes_on(to->last, &segment)) {
        to->last->length += segment.length;
        return;
    }
    if (to->items == NULL)
        to->first[segment.peer + 1]++;
    else
        to->last = &to->items[to->first[segment.peer]++];
    *to->last = segment;
}

static inline int peer_of(const sink *to, int rank)
{
    return to->viewers == NULL ? rank : to->viewers[rank * to->stride];
}

/* ---- walks ---- */

/* Cuts positions in consecutive slots into what each rank of the other layout
 * holds. Position p is called p + shift there. */
static void cut(cpli_lookup *other, const cpli_holding *mine, int64_t shift,
                sink *to)
{
    int64_t end = mine->start + mine->length;
    for (int64_t p = mine->start; p < end;) {
        const cpli_holding *there = cpli_lookup_find(other, p + shift);
        int64_t stop = cpli_min(end, there->start + there->length - shift);
        cpl_segment segment = {
            .peer = peer_of(to, there->rank),
            .position = p,
            .slot = mine->slot + p - mine->start,
            .peer_slot = there->slot + p + shift - there->start,
            .length = stop - p,
        };
        emit(to, segment);
        p = stop;
    }
}

static void walk_layout(const cpl_layout *mine, const cpl_layout *other,
                        int rank, sink *to)
{
    cpli_walk walk = cpli_walk_begin(mine, rank);
    cpli_lookup lookup = {.layout = other};
    const cpli_holding *holding;
    while ((holding = cpli_walk_holding(&walk)) != NULL)
        cut(&lookup, holding, 0, to);
}

static cpl_status walk_view(const cpl_view *view, int rank, sink *to)
{
    cpli_runs list = {0};
    cpli_lookup lookup = {.layout = view->layout};
    int64_t slot = 0;
    cpl_status status = cpli_view_list(view, rank, &list);
    for (int64_t i = 0; i < list.n && status == CPL_OK; i++) {
        cpli_holding seen = {rank, list.items[i].start, slot,
                             list.items[i].length};
        if (seen.start >= 0)
            cut(&lookup, &seen, 0, to);
        slot += seen.length;
    }
    cpli_free(list.items);
    return status;
}

/* ---- what a rank sends to a view: what others see of it ---- */

/* The rank's runs in position order. */
static cpl_status list_mine(const cpl_layout *layout, int rank,
                            cpli_holding **out, int64_t *n_out)
{
    int64_t n;
    cpli_holding *mine, *next;
    CPL_TRY(cpl_layout_n_runs(layout, rank, &n));
    CPL_TRY(CPL_ALLOC(n, &mine));
    cpli_walk walk = cpli_walk_begin(layout, rank);
    for (next = mine; cpli_walk_next(&walk, next); next++)
        continue;
    cpli_sort_holdings(mine, n);
    *out = mine;
    *n_out = n;
    return CPL_OK;
}

/* The first of the sorted runs that ends after `position`. */
static int64_t first_after(const cpli_holding *mine, int64_t n,
                           int64_t position)
{
    int64_t low = 0, high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (mine[middle].start + mine[middle].length <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What a viewer sees of mine in one of its runs, `seen`. */
static void cut_mine(const cpli_holding *mine, int64_t n, cpli_holding seen,
                     sink *to)
{
    int64_t end = seen.start + seen.length;
    int64_t i = first_after(mine, n, seen.start);
    for (; i < n && mine[i].start < end; i++) {
        int64_t p = cpli_max(seen.start, mine[i].start);
        int64_t stop = cpli_min(end, mine[i].start + mine[i].length);
        cpl_segment segment = {
            .peer = seen.rank,
            .position = p,
            .slot = mine[i].slot + p - mine[i].start,
            .peer_slot = seen.slot + p - seen.start,
            .length = stop - p,
        };
        emit(to, segment);
    }
}

static cpl_status walk_viewer(const cpl_view *view, int viewer,
                              const cpli_holding *mine, int64_t n, sink *to)
{
    cpli_runs list = {0};
    int64_t slot = 0;
    cpl_status status = cpli_view_list(view, viewer, &list);
    for (int64_t i = 0; i < list.n && status == CPL_OK; i++) {
        int64_t start = list.items[i].start, length = list.items[i].length;
        if (start >= 0)
            cut_mine(mine, n, (cpli_holding){viewer, start, slot, length}, to);
        slot += length;
    }
    cpli_free(list.items);
    return status;
}

static cpl_status walk_viewers(const cpl_view *view, int rank, sink *to)
{
    cpl_status status;
    cpli_marks marks = {0};
    cpli_holding *mine = NULL;
    int64_t n;
    int n_ranks = cpl_layout_n_ranks(view->layout);
    CPL_TRY_GO(list_mine(view->layout, rank, &mine, &n), done);
    CPL_TRY_GO(CPL_ALLOC(n_ranks, &marks.of), done);
    marks.n_unmarked = n_ranks;
    for (int64_t i = 0; i < n; i++)
        cpli_view_reach(view, mine[i].start, mine[i].length, &marks);
    for (int viewer = 0; viewer < n_ranks; viewer++)
        if (marks.of[viewer])
            CPL_TRY_GO(walk_viewer(view, viewer, mine, n, to), done);
done:
    cpli_free(marks.of);
    cpli_free(mine);
    return status;
}

/* ---- what a rank sends onto the slots of a layout of another stream ---- */

static void walk_onto(const cpl_view *view, int rank, sink *to)
{
    const cpl_layout *mine = view->layout, *other = view->onto;
    const int64_t *cu = mine->stream->cu, *other_cu = other->stream->cu;
    cpli_walk walk = cpli_walk_begin(mine, rank);
    cpli_lookup lookup = {.layout = other};
    const cpli_holding *run;
    cpli_cursor at = {0};
    while ((run = cpli_walk_holding(&walk)) != NULL) {
        int64_t end = run->start + run->length;
        for (int64_t p = run->start; p < end;) {
            int64_t i = cpli_stream_find(mine->stream, p, &at);
            int64_t shift = other_cu[i] - cu[i];
            int64_t stop = cpli_min(end, cu[i + 1]);
            cpli_holding piece = {rank, p, run->slot + p - run->start, 0};
            piece.length = cpli_min(stop, other_cu[i + 1] - shift) - p;
            cut(&lookup, &piece, shift, to);
            p = stop;
        }
    }
}

/* ---- what a rank sends to those who see whole shards ---- */

/* The same rows to each of the tp ranks of a CP rank. */
static void walk_shards(const cpl_view *view, int rank, sink *to)
{
    int tp = view->layout->tp;
    for (int window = 0; window < tp; window++) {
        cpli_walk walk = cpli_walk_begin(view->layout, rank);
        cpli_lookup lookup = {.layout = view->onto};
        const cpli_holding *holding;
        to->viewers = view->viewers + window;
        to->stride = tp;
        while ((holding = cpli_walk_holding(&walk)) != NULL)
            cut(&lookup, holding, 0, to);
    }
    to->viewers = NULL;
}

/* ---- either side ---- */

static cpl_status walk_side(const cpli_ends *ends, int rank, bool is_send,
                            sink *to)
{
    cpl_status status = CPL_OK;
    if (ends->view == NULL && is_send)
        walk_layout(ends->from, ends->to, rank, to);
    else if (ends->view == NULL)
        walk_layout(ends->to, ends->from, rank, to);
    else if (is_send && ends->view->viewers != NULL)
        walk_shards(ends->view, rank, to);
    else if (is_send && ends->view->onto != NULL)
        walk_onto(ends->view, rank, to);
    else if (is_send)
        status = walk_viewers(ends->view, rank, to);
    else
        status = walk_view(ends->view, rank, to);
    return status;
}

/* ---- order: peer, then position, then target slot ---- */

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
    for (int64_t i = 1; i < n && moves_left >= 0; i++) {
        cpl_segment item = items[i];
        int64_t j = i;
        for (; j > 0 && compare(&items[j - 1], &item, is_send) > 0; j--)
            items[j] = items[j - 1];
        if (j < i)
            items[j] = item;
        moves_left -= i - j;
    }
    if (moves_left < 0)
        qsort(items, (size_t)n, sizeof *items,
              is_send ? compare_sends : compare_receives);
}

/* One side, made ready to be filled. */
typedef struct side {
    bool is_send;
    int64_t n;
    sink to;
} side;

static cpl_status count(const cpli_ends *ends, int rank, side *out)
{
    int n_ranks = cpl_layout_n_ranks(ends->from);
    CPL_TRY(CPL_ALLOC(n_ranks + 1, &out->to.first));
    start(&out->to, NULL);
    CPL_TRY(walk_side(ends, rank, out->is_send, &out->to));
    for (int peer = 0; peer < n_ranks; peer++)
        out->to.first[peer + 1] += out->to.first[peer];
    out->n = out->to.first[n_ranks];
    return CPL_OK;
}

static cpl_status fill(const cpli_ends *ends, int rank, cpl_segment *items,
                       side *out)
{
    int64_t begin = 0;
    start(&out->to, items);
    CPL_TRY(walk_side(ends, rank, out->is_send, &out->to));
    /* The walk moved first[r] to the end of r's segments. */
    for (int peer = 0; peer < cpl_layout_n_ranks(ends->from); peer++) {
        int64_t end = out->to.first[peer];
        order_peer(items + begin, end - begin, out->is_send);
        begin = end;
    }
    return CPL_OK;
}

cpl_status cpli_segments_collect(const cpli_ends *ends, int rank,
                                 bool with_sends, cpli_segments *out)
{
    cpl_status status;
    side sends = {.is_send = true}, receives = {0};
    cpl_segment *items = NULL;
    if (with_sends)
        CPL_TRY_GO(count(ends, rank, &sends), done);
    CPL_TRY_GO(count(ends, rank, &receives), done);
    /* Not zeroed: the second walks write all of it. */
    CPL_TRY_GO(cpli_realloc((void **)&items, (size_t)(sends.n + receives.n),
                            sizeof *items),
               done);
    if (with_sends)
        CPL_TRY_GO(fill(ends, rank, items, &sends), done);
    CPL_TRY_GO(fill(ends, rank, items + sends.n, &receives), done);
    *out = (cpli_segments){items, sends.n, receives.n};
    items = NULL;
done:
    cpli_free(items);
    cpli_free(receives.to.first);
    cpli_free(sends.to.first);
    return status;
}
