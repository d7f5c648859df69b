/*
 * gdn_pull_cpu.c: the backward sweep of the state; see pull.h.
 */
#include "gdn/pull.h"

void NAME(gdn_chunk_pull)(const cpl_gdn *p, chunk *c, const void *d_o,
                          const real *x, real *pulled)
{
    const int64_t n = c->n;
    const int64_t width = p->value_dim;
    const int64_t stride = p->value_heads * width;
    const real *from = (const real *)d_o + c->slot * stride + c->head * width;
    real *d_deltas = pulled + n * width;
    for (int64_t i = 0; i < n; i++)
        memcpy(pulled + i * width, from + i * stride,
               (size_t)width * sizeof(real));
    gemm(n, width, p->key_dim, 1, chunk_keys(p, c), plain(x, width), 0,
         d_deltas, width);
    scale_rows(d_deltas, to_end(c), n, width);
    gemm(n, width, n, 1, turned(c->weights, n), plain(pulled, width), 1,
         d_deltas, width);
    NAME(gdn_chunk_solve)(c, true, width, d_deltas);
}

void NAME(gdn_chunk_retreat)(const cpl_gdn *p, const chunk *c, real *pulled,
                             real *x)
{
    const int64_t n = c->n;
    const int64_t width = p->value_dim;
    real factors[128]; /* 2 * chunk */
    for (int64_t i = 0; i < n; i++) {
        factors[i] = REAL(p->scale) * c->from_start[i];
        factors[n + i] = -c->beta[i] * c->from_start[i];
    }
    scale_rows(pulled, factors, 2 * n, width);
    gemm(p->key_dim, width, 2 * n, 1, transpose(chunk_queries(p, c)),
         plain(pulled, width), c->from_start[n - 1], x, width);
}
