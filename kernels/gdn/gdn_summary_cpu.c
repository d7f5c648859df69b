/*
 * gdn_summary_cpu.c: the affine summary of a span. The map S -> M S + B is
 * linear in (S, V), so M is where the identity goes with V = 0, and B is where
 * S = 0 goes with the true V: the same recursion as the forward pass, without
 * outputs. The adjoint's offset is the backward sweep of the state alone.
 */
#include "gdn/pull.h"

typedef struct pass {
    chunk chunk;
    real *surprise; /* [chunk, max(K, V)] */
    real *deltas;   /* [chunk, max(K, V)] */
    real *pulled;   /* [2 chunk, V]: do above the gradient of beta Y */
} pass;

static size_t carve(const cpl_gdn *p, void *workspace, pass *s)
{
    arena a = {workspace, 0};
    int64_t width = cpli_max(p->key_dim, p->value_dim);
    NAME(gdn_chunk_take)(p, &a, &s->chunk);
    s->surprise = take(&a, p->chunk * width);
    s->deltas = take(&a, p->chunk * width);
    s->pulled = take(&a, 2 * p->chunk * p->value_dim);
    return a.used;
}

/* One chunk of the recursion on `width` columns; `state` is M or B so far. */
static void advance(const cpl_gdn *p, pass *s, matrix values, int64_t width,
                    real *state)
{
    chunk *c = &s->chunk;
    gemm(c->n, width, p->key_dim, 1, chunk_keys(p, c), plain(state, width), 0,
         c->products + c->n * width, width);
    NAME(gdn_chunk_deltas)
    (c, values, width, c->products, s->surprise, s->deltas);
    NAME(gdn_chunk_advance)(p, c, width, s->deltas, state);
}

static void start_transition(int64_t key_dim, real *transition)
{
    memset(transition, 0, (size_t)(key_dim * key_dim) * sizeof(real));
    for (int64_t i = 0; i < key_dim; i++)
        transition[i * key_dim + i] = 1;
}

/* Where the state, or its gradient, starts; it may be there already. */
static void start_offset(const cpl_gdn *p, const void *states, int64_t span,
                         int64_t head, void *offsets, real *offset)
{
    if (states != offsets)
        load_state(p, states, span, head, offset);
}

static real *part(void *array, int64_t index, int64_t n)
{
    return array == NULL ? NULL : (real *)array + index * n;
}

/* M only ever shrinks; on its way to 0 it would spend many chunks as numbers
 * too small to be normal, with which processors are a hundred times slower. */
static void flush_tiny(real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > -REAL_TINY && x[i] < REAL_TINY ? 0 : x[i];
}

size_t NAME(gdn_summary_workspace)(const cpl_gdn_summary *p)
{
    pass s;
    return carve(&p->gdn, NULL, &s);
}

static void summarise_head(const cpl_gdn_summary *summary, const cpl_gdn *p,
                           pass *s, int64_t i, int64_t head)
{
    const cpl_span *span = &p->spans[i];
    int64_t index = i * p->value_heads + head;
    real *transition =
        part(summary->transition, index, p->key_dim * p->key_dim);
    real *offset = part(summary->offset, index, state_size(p));
    if (transition != NULL)
        start_transition(p->key_dim, transition);
    if (offset != NULL)
        start_offset(p, p->state_in, i, head, summary->offset, offset);
    for (int64_t t = 0; t < span->length; t += p->chunk) {
        int64_t n = cpli_min(span->length - t, p->chunk);
        NAME(gdn_chunk_load)(p, &s->chunk, span->slot + t, n, head);
        if (transition != NULL) {
            advance(p, s, plain(NULL, 0), p->key_dim, transition);
            flush_tiny(transition, p->key_dim * p->key_dim);
        }
        if (offset != NULL)
            advance(p, s, chunk_values(p, &s->chunk), p->value_dim, offset);
    }
}

void NAME(gdn_summary)(const cpl_gdn_summary *p)
{
    cpl_gdn gdn = p->gdn;
    gdn.q = NULL; /* outputs are not wanted */
    pass s;
    carve(&gdn, p->workspace, &s);
    for (int64_t i = 0; i < gdn.n_spans; i++)
        for (int64_t head = 0; head < gdn.value_heads; head++)
            summarise_head(p, &gdn, &s, i, head);
}

size_t NAME(gdn_summary_backward_workspace)(const cpl_gdn_summary_backward *p)
{
    pass s;
    return carve(&p->gdn, NULL, &s);
}

/* Chunks from the last to the first, on the grid of the forward pass. */
void NAME(gdn_summary_backward)(const cpl_gdn_summary_backward *b)
{
    const cpl_gdn *p = &b->gdn;
    pass s;
    carve(p, b->workspace, &s);
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t head = 0; head < p->value_heads; head++) {
            const cpl_span *span = &p->spans[i];
            real *x = part(b->offset, i * p->value_heads + head, state_size(p));
            start_offset(p, b->d_state_out, i, head, b->offset, x);
            int64_t n_chunks = cpli_ceil_div(span->length, p->chunk);
            for (int64_t at = n_chunks - 1; at >= 0; at--) {
                int64_t t = at * p->chunk;
                int64_t n = cpli_min(span->length - t, p->chunk);
                NAME(gdn_chunk_load)(p, &s.chunk, span->slot + t, n, head);
                NAME(gdn_chunk_pull)(p, &s.chunk, b->d_o, x, s.pulled);
                NAME(gdn_chunk_retreat)(p, &s.chunk, s.pulled, x);
            }
        }
}
