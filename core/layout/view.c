/*
 * view.c: what a consumer of tokens wants to see. A view keeps no runs: each
 * kind makes those of a rank when they are asked for.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "layout.h"

struct cpli_view_kind {
    const char *name;
    /* Appends the runs that the rank sees. */
    cpl_status (*list)(const cpl_view *view, int rank, cpli_runs *out);
    /* A token is seen only by ranks that hold a token of its sequence that is
     * near .. far offsets later; NULL: by any rank. */
    int64_t (*near)(const cpl_view *view);
    int64_t (*far)(const cpl_view *view);
};

/* What each span of a rank asks for; spans may be reordered. */
typedef cpl_status (*list_spans)(const cpl_view *view, cpl_span *spans,
                                 int64_t n, cpli_runs *out);

static cpl_status list_by(list_spans list, const cpl_view *view, int rank,
                          bool real_only, cpli_runs *out)
{
    cpl_span *spans;
    int64_t n;
    CPL_TRY(cpl_layout_spans(view->layout, rank, real_only, &spans, &n));
    cpl_status status = list(view, spans, n, out);
    cpli_free(spans);
    return status;
}

static int64_t at_once(const cpl_view *view)
{
    (void)view;
    return 0;
}

/* ---- halo ---- */

static cpl_status halo_of_spans(const cpl_view *view, cpl_span *spans,
                                int64_t n, cpli_runs *out)
{
    const cpl_stream *stream = view->layout->stream;
    for (int64_t i = 0; i < n; i++) {
        int64_t before = cpli_min(view->size, spans[i].offset);
        int64_t start = stream->cu[spans[i].sequence] + spans[i].offset;
        CPL_TRY(cpli_runs_push(out, -1, view->size - before));
        CPL_TRY(cpli_runs_push(out, start - before, before));
    }
    return CPL_OK;
}

static cpl_status list_halo(const cpl_view *view, int rank, cpli_runs *out)
{
    return list_by(halo_of_spans, view, rank, view->real_only, out);
}

static int64_t halo_near(const cpl_view *view)
{
    (void)view;
    return 1;
}

static int64_t halo_far(const cpl_view *view)
{
    return view->size;
}

static const cpli_view_kind halo = {
    .name = "halo",
    .list = list_halo,
    .near = halo_near,
    .far = halo_far,
};

/* ---- shift ---- */

/* Of a span, the offsets from `low` to `high` have a source. */
static cpl_status shift_of_spans(const cpl_view *view, cpl_span *spans,
                                 int64_t n, cpli_runs *out)
{
    const cpl_stream *stream = view->layout->stream;
    int64_t k = view->size;
    for (int64_t i = 0; i < n; i++) {
        int64_t first = spans[i].offset;
        int64_t end = first + spans[i].length;
        int64_t real = stream->real[spans[i].sequence];
        int64_t low = cpli_min(end, cpli_max(first, -k));
        int64_t high = cpli_max(low, cpli_min(end, cpli_min(real, real - k)));
        CPL_TRY(cpli_runs_push(out, -1, low - first));
        CPL_TRY(cpli_runs_push(out, stream->cu[spans[i].sequence] + low + k,
                               high - low));
        CPL_TRY(cpli_runs_push(out, -1, end - high));
    }
    return CPL_OK;
}

static cpl_status list_shift(const cpl_view *view, int rank, cpli_runs *out)
{
    return list_by(shift_of_spans, view, rank, false, out);
}

static int64_t shift_back(const cpl_view *view)
{
    return -view->size;
}

static const cpli_view_kind shift = {
    .name = "shift",
    .list = list_shift,
    .near = shift_back,
    .far = shift_back,
};

/* ---- keys ---- */

static int compare_spans(const void *a, const void *b)
{
    const cpl_span *x = a;
    const cpl_span *y = b;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* The spans' windows are in order, so what the last ones showed of the
 * sequence ends at `shown`. */
static cpl_status keys_of_spans(const cpl_view *view, cpl_span *spans,
                                int64_t n, cpli_runs *out)
{
    const cpl_stream *stream = view->layout->stream;
    int64_t window = view->size > 0 ? view->size : CPLI_MAX_POSITIONS;
    int64_t shown = 0;
    qsort(spans, (size_t)n, sizeof *spans, compare_spans);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && spans[i].sequence != spans[i - 1].sequence)
            shown = 0;
        int64_t end = spans[i].offset + spans[i].length;
        int64_t first = cpli_max(shown, spans[i].offset - window + 1);
        CPL_TRY(cpli_runs_push(out, stream->cu[spans[i].sequence] + first,
                               end - first));
        shown = end;
    }
    return CPL_OK;
}

static cpl_status list_keys(const cpl_view *view, int rank, cpli_runs *out)
{
    return list_by(keys_of_spans, view, rank, true, out);
}

static int64_t keys_far(const cpl_view *view)
{
    return view->size > 0 ? view->size - 1 : CPLI_MAX_POSITIONS;
}

static const cpli_view_kind keys = {
    .name = "keys",
    .list = list_keys,
    .near = at_once,
    .far = keys_far,
};

/* ---- whole ---- */

static cpl_status list_whole(const cpl_view *view, int rank, cpli_runs *out)
{
    (void)rank;
    return cpli_runs_push(out, 0, cpl_stream_n_positions(view->layout->stream));
}

static const cpli_view_kind whole = {
    .name = "whole",
    .list = list_whole,
};

/* ---- onto ---- */

static cpl_status list_onto(const cpl_view *view, int rank, cpli_runs *out)
{
    const cpl_stream *seen = view->layout->stream;
    cpl_span *spans;
    int64_t n;
    CPL_TRY(cpl_layout_spans(view->onto, rank, false, &spans, &n));
    cpl_status status = CPL_OK;
    for (int64_t i = 0; i < n && status == CPL_OK; i++) {
        int64_t start = seen->cu[spans[i].sequence];
        int64_t left = seen->cu[spans[i].sequence + 1] - start;
        int64_t some =
            cpli_max(0, cpli_min(spans[i].length, left - spans[i].offset));
        status = cpli_runs_push(out, start + spans[i].offset, some);
        if (status == CPL_OK)
            status = cpli_runs_push(out, -1, spans[i].length - some);
    }
    cpli_free(spans);
    return status;
}

/* Senders of this kind find their viewers in closed form: see segments.c. */
static const cpli_view_kind onto = {
    .name = "onto",
    .list = list_onto,
};

/* ---- shard ---- */

static cpl_status list_shard(const cpl_view *view, int rank, cpli_runs *out)
{
    cpli_walk walk =
        cpli_walk_begin(view->onto, cpli_layout_cp_rank(view->layout, rank));
    cpli_holding run;
    while (cpli_walk_next(&walk, &run))
        CPL_TRY(cpli_runs_push(out, run.start, run.length));
    return CPL_OK;
}

/* Senders of this kind, too, find their viewers in closed form. */
static const cpli_view_kind shard = {
    .name = "shard",
    .list = list_shard,
};

/* ---- views ---- */

static uint64_t digest(const cpl_view *view)
{
    int64_t words[] = {view->size, view->real_only, view->is_sliced};
    uint64_t hash = cpl_layout_digest(view->layout);
    hash = cpl_hash(hash, view->kind->name, strlen(view->kind->name));
    if (view->onto != NULL) {
        uint64_t other = cpl_layout_digest(view->onto);
        hash = cpl_hash(hash, &other, sizeof other);
    }
    return cpl_hash(hash, words, sizeof words);
}

static cpl_status describe(cpl_view *view)
{
    const char *text = cpl_layout_describe(view->layout);
    const char *name = view->kind->name;
    if (view->onto != NULL)
        return cpli_text(&view->text, "%s %s, of %s",
                         view->viewers != NULL ? "shards of" : name,
                         cpl_layout_describe(view->onto), text);
    if (view->is_sliced)
        return cpli_text(&view->text, "%s of %s, sliced", name, text);
    if (view->kind == &whole || (view->kind == &keys && view->size == 0))
        return cpli_text(&view->text, "%s of %s", name, text);
    return cpli_text(
        &view->text, "%s %s%" PRId64 "%s of %s", name,
        view->kind == &keys ? "in a window of " : "", view->size,
        view->kind == &halo && view->real_only ? " (real tokens)" : "", text);
}

/* Makes a view of what the given one says, on the heap; takes its viewers. */
static cpl_status create(cpl_view given, cpl_view **out)
{
    cpl_view *view;
    cpl_status taken = CPL_ALLOC(1, &view);
    if (taken != CPL_OK) {
        cpli_free(given.viewers);
        return taken;
    }
    *view = given;
    view->digest = digest(view);
    cpl_status status = describe(view);
    if (status != CPL_OK) {
        cpl_view_destroy(view);
        return status;
    }
    *out = view;
    return CPL_OK;
}

cpl_status cpl_view_halo(const cpl_layout *layout, int64_t width,
                         bool real_only, cpl_view **out)
{
    if (width < 1 || width > CPLI_MAX_POSITIONS)
        return cpli_fail(
            CPL_INVALID,
            "view.halo: width must be in 1 .. 2^53 (got %" PRId64 ")", width);
    return create((cpl_view){.kind = &halo,
                             .layout = layout,
                             .size = width,
                             .real_only = real_only},
                  out);
}

cpl_status cpl_view_shift(const cpl_layout *layout, int64_t k, cpl_view **out)
{
    if (k < -CPLI_MAX_POSITIONS || k > CPLI_MAX_POSITIONS)
        return cpli_fail(
            CPL_INVALID,
            "view.shift: k must be in -2^53 .. 2^53 (got %" PRId64 ")", k);
    return create((cpl_view){.kind = &shift, .layout = layout, .size = k}, out);
}

cpl_status cpl_view_keys(const cpl_layout *layout, int64_t window,
                         cpl_view **out)
{
    if (window < 0 || window > CPLI_MAX_POSITIONS)
        return cpli_fail(
            CPL_INVALID,
            "view.keys: window must be in 0 .. 2^53 (got %" PRId64 ")", window);
    return create((cpl_view){.kind = &keys, .layout = layout, .size = window},
                  out);
}

cpl_status cpl_view_whole(const cpl_layout *layout, bool sliced, cpl_view **out)
{
    return create(
        (cpl_view){.kind = &whole, .layout = layout, .is_sliced = sliced}, out);
}

cpl_status cpl_view_onto(const cpl_layout *layout, const cpl_layout *target,
                         cpl_view **out)
{
    const cpl_stream *a = layout->stream;
    const cpl_stream *b = target->stream;
    if (a->n_sequences != b->n_sequences || a->is_sbhd != b->is_sbhd ||
        a->batch != b->batch)
        return cpli_fail(CPL_MISMATCH,
                         "view.onto: the sequences differ: %s, and %s",
                         layout->text, target->text);
    if (cpl_layout_n_ranks(layout) != cpl_layout_n_ranks(target))
        return cpli_fail(CPL_MISMATCH, "view.onto: %d ranks in %s, %d in %s",
                         cpl_layout_n_ranks(layout), layout->text,
                         cpl_layout_n_ranks(target), target->text);
    return create((cpl_view){.kind = &onto, .layout = layout, .onto = target},
                  out);
}

cpl_status cpl_view_shard(const cpl_layout *layout, const cpl_layout *target,
                          cpl_view **out)
{
    int *viewers;
    int n_ranks = cpl_layout_n_ranks(layout);
    if (layout->stream->digest != target->stream->digest)
        return cpli_fail(CPL_MISMATCH,
                         "view.shard: the streams differ: %s, and %s",
                         layout->text, target->text);
    if (layout->cp != target->cp || target->tp != 1)
        return cpli_fail(CPL_MISMATCH,
                         "view.shard: shards of %s, which must have cp %d, tp "
                         "1, as there is one for each CP rank of %s",
                         target->text, layout->cp, layout->text);
    CPL_TRY(CPL_ALLOC(n_ranks, &viewers));
    for (int logical = 0; logical < n_ranks; logical++) {
        int rank = layout->order[logical];
        int cp_rank = cpli_layout_cp_rank(layout, rank);
        viewers[cp_rank * layout->tp + logical % layout->tp] = rank;
    }
    return create((cpl_view){.kind = &shard,
                             .layout = layout,
                             .onto = target,
                             .viewers = viewers},
                  out);
}

void cpl_view_destroy(cpl_view *view)
{
    if (view == NULL)
        return;
    cpli_free(view->viewers);
    cpli_free(view->text);
    cpli_free(view);
}

int64_t cpli_view_copies(const cpl_view *view)
{
    return view != NULL && view->viewers != NULL ? view->layout->tp : 0;
}

cpl_status cpli_view_list(const cpl_view *view, int rank, cpli_runs *out)
{
    return view->kind->list(view, rank, out);
}

/* ---- who sees what a rank holds ---- */

static void mark(cpli_marks *marks, int rank)
{
    marks->n_unmarked -= !marks->of[rank];
    marks->of[rank] = true;
}

/* Marks the holders of positions first .. end-1. */
static void mark_holders(const cpl_layout *layout, int64_t first, int64_t end,
                         cpli_cursor *at, cpli_marks *marks)
{
    while (first < end && marks->n_unmarked > 0) {
        cpli_holding holding;
        cpli_at_position(layout, first, at, &holding);
        mark(marks, holding.rank);
        first = holding.start + holding.length;
    }
}

void cpli_view_reach(const cpl_view *view, int64_t start, int64_t length,
                     cpli_marks *marks)
{
    const cpl_layout *layout = view->layout;
    const int64_t *cu = layout->stream->cu;
    if (view->kind->near == NULL)
        for (int rank = 0; rank < cpl_layout_n_ranks(layout); rank++)
            mark(marks, rank);
    cpli_cursor sequence_at = {0}, at = {0};
    int64_t end = start + length;
    for (int64_t p = start; p < end && marks->n_unmarked > 0;) {
        int64_t i = cpli_stream_find(layout->stream, p, &sequence_at);
        int64_t stop = cpli_min(end, cu[i + 1]);
        mark_holders(layout, cpli_max(cu[i], p + view->kind->near(view)),
                     cpli_min(cu[i + 1], stop + view->kind->far(view)), &at,
                     marks);
        p = stop;
    }
}

/* ---- questions ---- */

/* The list of one rank, checked; to be freed by the caller when it is OK. */
static cpl_status ask(const cpl_view *view, int rank, const char *who,
                      cpli_runs *list)
{
    CPL_TRY(cpli_check_rank(view->layout, rank, who));
    cpl_status status = cpli_view_list(view, rank, list);
    if (status != CPL_OK)
        cpli_free(list->items);
    return status;
}

cpl_status cpl_view_n_local(const cpl_view *view, int rank, int64_t *out)
{
    cpli_runs list = {0};
    CPL_TRY(ask(view, rank, "view.n_local", &list));
    int64_t n = 0;
    for (int64_t i = 0; i < list.n; i++)
        n += list.items[i].length;
    cpli_free(list.items);
    *out = n;
    return CPL_OK;
}

cpl_status cpl_view_n_runs(const cpl_view *view, int rank, int64_t *out)
{
    cpli_runs list = {0};
    CPL_TRY(ask(view, rank, "view.n_runs", &list));
    cpli_free(list.items);
    *out = list.n;
    return CPL_OK;
}

cpl_status cpl_view_runs(const cpl_view *view, int rank, cpl_run *out)
{
    cpli_runs list = {0};
    CPL_TRY(ask(view, rank, "view.runs", &list));
    for (int64_t i = 0; i < list.n; i++)
        out[i] = list.items[i];
    cpli_free(list.items);
    return CPL_OK;
}

uint64_t cpl_view_digest(const cpl_view *view)
{
    return view->digest;
}

const char *cpl_view_describe(const cpl_view *view)
{
    return view->text;
}
