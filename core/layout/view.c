/*
 * view.c: what a consumer of tokens wants to see. A view keeps no runs: each
 * kind makes those of a rank from the rank's spans when they are asked for.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "layout.h"

struct cpli_view_kind {
    const char *name;
    /* Appends the runs that the rank's spans ask for. */
    cpl_status (*list)(const cpl_view *view, cpl_span *spans, int64_t n,
                       cpli_runs *out);
    /* A position p is seen only by ranks that hold some of p + near ..
     * p + far; with anywhere, by any. */
    bool anywhere;
    int64_t (*near)(const cpl_view *view);
    int64_t (*far)(const cpl_view *view);
};

/* ---- halo ---- */

static cpl_status list_halo(const cpl_view *view, cpl_span *spans, int64_t n,
                            cpli_runs *out)
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
static cpl_status list_shift(const cpl_view *view, cpl_span *spans, int64_t n,
                             cpli_runs *out)
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

static int compare_sequences(const void *a, const void *b)
{
    int64_t x = ((const cpl_span *)a)->sequence;
    int64_t y = ((const cpl_span *)b)->sequence;
    return (x > y) - (x < y);
}

static cpl_status list_keys(const cpl_view *view, cpl_span *spans, int64_t n,
                            cpli_runs *out)
{
    const cpl_stream *stream = view->layout->stream;
    qsort(spans, (size_t)n, sizeof *spans, compare_sequences);
    for (int64_t i = 0; i < n;) {
        int64_t sequence = spans[i].sequence, end = 0;
        for (; i < n && spans[i].sequence == sequence; i++)
            end = cpli_max(end, spans[i].offset + spans[i].length);
        CPL_TRY(cpli_runs_push(out, stream->cu[sequence], end));
    }
    return CPL_OK;
}

static const cpli_view_kind keys = {
    .name = "keys",
    .list = list_keys,
    .anywhere = true,
};

/* ---- views ---- */

static uint64_t digest(const cpl_view *view)
{
    int64_t words[] = {view->size, view->real_only};
    uint64_t hash = cpl_layout_digest(view->layout);
    hash = cpl_hash(hash, view->kind->name, strlen(view->kind->name));
    return cpl_hash(hash, words, sizeof words);
}

static cpl_status create(const cpli_view_kind *kind, const cpl_layout *layout,
                         int64_t size, bool real_only, cpl_view **out)
{
    cpl_view *view;
    CPL_TRY(CPL_ALLOC(1, &view));
    view->kind = kind;
    view->layout = layout;
    view->size = size;
    view->real_only = real_only;
    view->digest = digest(view);
    const char *text = cpl_layout_describe(layout);
    cpl_status status =
        kind == &keys
            ? cpli_text(&view->text, "keys of %s", text)
            : cpli_text(&view->text, "%s %" PRId64 "%s of %s", kind->name, size,
                        real_only ? " (real tokens)" : "", text);
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
    return create(&halo, layout, width, real_only, out);
}

cpl_status cpl_view_shift(const cpl_layout *layout, int64_t k, cpl_view **out)
{
    if (k < -CPLI_MAX_POSITIONS || k > CPLI_MAX_POSITIONS)
        return cpli_fail(
            CPL_INVALID,
            "view.shift: k must be in -2^53 .. 2^53 (got %" PRId64 ")", k);
    return create(&shift, layout, k, false, out);
}

cpl_status cpl_view_keys(const cpl_layout *layout, cpl_view **out)
{
    return create(&keys, layout, 0, true, out);
}

void cpl_view_destroy(cpl_view *view)
{
    if (view == NULL)
        return;
    cpli_free(view->text);
    cpli_free(view);
}

cpl_status cpli_view_list(const cpl_view *view, int rank, cpli_runs *out)
{
    cpl_span *spans;
    int64_t n;
    CPL_TRY(cpl_layout_spans(view->layout, rank, view->real_only, &spans, &n));
    cpl_status status = view->kind->list(view, spans, n, out);
    cpli_free(spans);
    return status;
}

void cpli_view_reach(const cpl_view *view, int64_t start, int64_t length,
                     bool *marks)
{
    const cpl_layout *layout = view->layout;
    if (view->kind->anywhere) {
        memset(marks, true, (size_t)cpl_layout_n_ranks(layout));
        return;
    }
    cpli_cursor at = {0};
    int64_t p = cpli_max(0, start + view->kind->near(view));
    int64_t end = cpli_min(cpl_stream_n_positions(layout->stream),
                           start + length + view->kind->far(view));
    while (p < end) {
        cpli_holding holding;
        cpli_at_position(layout, p, &at, &holding);
        marks[holding.rank] = true;
        p = holding.start + holding.length;
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
