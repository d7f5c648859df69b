/*
 * gdn_cpu.c: the forward pass, chunk after chunk; see chunk.h for the maths,
 * and walk.h for chunks that come out not finite.
 */
#include "gdn/walk.h"
#include "spans.h"

typedef struct pass {
    chunk chunk;
    real *state;    /* [K, V] */
    real *surprise; /* [chunk, V] */
    real *deltas;   /* [chunk, V] */
} pass;

static size_t carve(const cpl_gdn *p, void *workspace, pass *s)
{
    arena a = {workspace, 0};
    NAME(gdn_chunk_take)(p, &a, &s->chunk);
    s->state = take(&a, state_size(p));
    s->surprise = take(&a, p->chunk * p->value_dim);
    s->deltas = take(&a, p->chunk * p->value_dim);
    return a.used;
}

/* O = s diag(G) Q S + P N; products holds Q S above K S. Returns whether all of
 * it is finite. */
static bool output(const cpl_gdn *p, const pass *s)
{
    const chunk *c = &s->chunk;
    const int64_t width = p->value_heads * p->value_dim;
    real *o = (real *)p->o + c->slot * width + c->head * p->value_dim;
    for (int64_t i = 0; i < c->n; i++) {
        const real *seen = c->products + i * p->value_dim;
        const real factor = REAL(p->scale) * c->from_start[i];
#pragma omp simd
        for (int64_t j = 0; j < p->value_dim; j++)
            o[i * width + j] = factor * seen[j];
    }
    gemm(c->n, p->value_dim, c->n, 1, plain(c->weights, c->n),
         plain(s->deltas, p->value_dim), 1, o, width);
    return rows_finite(o, c->n, p->value_dim, width);
}

static void forward_chunk(const cpl_gdn *p, pass *s)
{
    chunk *c = &s->chunk;
    gemm(2 * c->n, p->value_dim, p->key_dim, 1, chunk_queries(p, c),
         plain(s->state, p->value_dim), 0, c->products, p->value_dim);
    NAME(gdn_chunk_deltas)
    (c, chunk_values(p, c), p->value_dim, c->products, s->surprise, s->deltas);
    if (output(p, s))
        NAME(gdn_chunk_advance)(p, c, p->value_dim, s->deltas, s->state);
    else
        NAME(gdn_walk)(p, c, s->state);
}

size_t NAME(gdn_workspace)(const cpl_gdn *p)
{
    pass s;
    return carve(p, NULL, &s);
}

void NAME(gdn)(const cpl_gdn *p)
{
    size_t row_bytes = (size_t)(p->value_heads * p->value_dim) * sizeof(real);
    pass s;
    carve(p, p->workspace, &s);
    zero_gaps(p->o, row_bytes, row_bytes, p->spans, p->n_spans, p->n_rows);
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t head = 0; head < p->value_heads; head++) {
            const cpl_span *span = &p->spans[i];
            load_state(p, p->state_in, i, head, s.state);
            for (int64_t t = 0; t < span->length; t += p->chunk) {
                int64_t n = cpli_min(span->length - t, p->chunk);
                NAME(gdn_chunk_load)(p, &s.chunk, span->slot + t, n, head);
                forward_chunk(p, &s);
            }
            store_state(p, s.state, i, head, p->state_out);
        }
}
