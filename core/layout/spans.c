/*
 * spans.c: runs cut at sequence boundaries, and what follows from them alone:
 * the causal work of a CP rank.
 */
#include <inttypes.h>

#include "layout.h"

typedef struct spans {
    cpl_span *items;
    int64_t n;
    int64_t capacity;
} spans;

static cpl_status push(spans *list, cpl_span span)
{
    if (span.length <= 0)
        return CPL_OK;
    CPL_TRY(cpli_grow((void **)&list->items, list->n, &list->capacity,
                      sizeof *list->items));
    list->items[list->n++] = span;
    return CPL_OK;
}

/* Cuts one run. Real tokens stand first in their sequence, so clipping only
 * shortens a span, to nothing at worst. */
static cpl_status cut(const cpl_stream *stream, cpli_holding run,
                      bool real_only, cpli_cursor *at, spans *list)
{
    int64_t end = run.start + run.length;
    for (int64_t p = run.start; p < end;) {
        int64_t i = cpli_stream_find(stream, p, at);
        int64_t length = cpli_min(end, stream->cu[i + 1]) - p;
        cpl_span span = {
            .sequence = i,
            .offset = p - stream->cu[i],
            .slot = run.slot + p - run.start,
            .length = length,
        };
        if (real_only)
            span.length = cpli_min(length, stream->real[i] - span.offset);
        CPL_TRY(push(list, span));
        p += length;
    }
    return CPL_OK;
}

static cpl_status collect(const cpl_layout *layout, int rank, bool real_only,
                          spans *list)
{
    cpli_walk walk = cpli_walk_begin(layout, rank);
    cpli_holding run;
    cpli_cursor at = {0};
    while (cpli_walk_next(&walk, &run))
        CPL_TRY(cut(layout->stream, run, real_only, &at, list));
    return CPL_OK;
}

cpl_status cpl_layout_spans(const cpl_layout *layout, int rank, bool real_only,
                            cpl_span **out, int64_t *n_out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.spans"));
    spans list = {0};
    cpl_status status = collect(layout, rank, real_only, &list);
    if (status == CPL_OK && list.items == NULL)
        status = CPL_ALLOC(0, &list.items);
    if (status != CPL_OK) {
        cpli_free(list.items);
        return status;
    }
    *out = list.items;
    *n_out = list.n;
    return CPL_OK;
}

/* Adds the pairs of one span: its token at offset o sees o + 1 keys, so the sum
 * over n tokens is n * offset + n * (n + 1) / 2; tokens that the window limits
 * see `window` each. False on overflow. */
static bool add_pairs(const cpl_span *span, int64_t window, int64_t *sum)
{
    int64_t n = cpli_min(span->length, cpli_max(window - span->offset, 0));
    int64_t even = n % 2 == 0 ? n / 2 : n;
    int64_t odd = n % 2 == 0 ? n + 1 : (n + 1) / 2, before, own, rest;
    return !__builtin_mul_overflow(n, span->offset, &before) &&
           !__builtin_mul_overflow(even, odd, &own) &&
           !__builtin_mul_overflow(span->length - n, window, &rest) &&
           !__builtin_add_overflow(*sum, before, sum) &&
           !__builtin_add_overflow(*sum, own, sum) &&
           !__builtin_add_overflow(*sum, rest, sum);
}

/* Adds the work of one group rank. */
static cpl_status add_work(const cpl_layout *layout, int rank, int64_t window,
                           int64_t *sum)
{
    cpl_span *items;
    int64_t n;
    CPL_TRY(cpl_layout_spans(layout, rank, true, &items, &n));
    bool fits = true;
    for (int64_t i = 0; i < n && fits; i++)
        fits = add_pairs(&items[i], window, sum);
    cpli_free(items);
    if (!fits)
        return cpli_fail(CPL_INVALID,
                         "layout.work: the work of rank %d passes 2^63", rank);
    return CPL_OK;
}

cpl_status cpl_layout_work(const cpl_layout *layout, int64_t window,
                           int64_t *out)
{
    if (window < 0)
        return cpli_fail(CPL_INVALID,
                         "layout.work: window = %" PRId64 " is below 0",
                         window);
    int64_t *work, most = window > 0 ? window : INT64_MAX;
    cpl_status status = CPL_ALLOC(layout->cp, &work);
    if (status != CPL_OK)
        return status;
    for (int i = 0; i < layout->cp * layout->tp; i++)
        CPL_TRY_GO(add_work(layout, layout->order[i], most,
                            &work[layout->cp_order[i / layout->tp]]),
                   done);
    memcpy(out, work, (size_t)layout->cp * sizeof *work);
done:
    cpli_free(work);
    return status;
}
