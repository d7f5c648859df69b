/*
 * chunk.h: one chunk of the gated delta rule, as matrices. Rows i, j of a
 * chunk of n tokens; S the state [K, V] that enters, s the scale, and
 *   D_ij = e^(g_(j+1) + .. + g_i) for i >= j, else 0    (decay)
 *   G_i  = e^(g_1 + .. + g_i)                           (from_start)
 *   M_ij = k_i.k_j D_ij for i > j,  L = diag(beta) M    (keys_met, coupling)
 *   P_ij = s q_i.k_j D_ij for i >= j                    (weights)
 *   Y    = V - diag(G) K S                              (surprise)
 *   (I + L) N = diag(beta) Y                            (deltas)
 *   O    = s diag(G) Q S + P N
 *   S'   = G_n S + K' diag(D_n) N,  D_n the last row of D
 * This is the WY form of Yang et al. (arXiv 2412.06464) with the inverse left
 * as a triangular solve. Exponents are sums of decays, never differences of
 * cumulated ones: a reset (g = -1e4) costs no accuracy after it.
 */
#ifndef CPLI_GDN_CHUNK_H
#define CPLI_GDN_CHUNK_H

#include "real.h"

/* A chunk of one value head. Matrices have n rows, unless a size is said. */
typedef struct chunk {
    int64_t n, slot, head;
    real *qk;         /* [2n, K]: q above k */
    real *decay;      /* [n, n]; only up to the diagonal */
    real *keys_met;   /* [n, n] */
    real *coupling;   /* [n, n]; only below the diagonal */
    real *weights;    /* [n, n] */
    real *from_start; /* [n] */
    real *beta;       /* [n] */
    real *products;   /* [2n, max(n, K, V)] scratch */
} chunk;

/* Takes the pieces of a chunk of up to p->chunk tokens. */
void NAME(gdn_chunk_take)(const cpl_gdn *p, arena *a, chunk *c);

/* Loads tokens slot .. slot + n - 1 of a value head: everything above that
 * does not depend on the state. Without p->q neither Q nor P. */
void NAME(gdn_chunk_load)(const cpl_gdn *p, chunk *c, int64_t slot, int64_t n,
                          int64_t head);

/* Y and N for a state of `width` columns; `values` NULL: V = 0. With
 * `products` [2n, width] = qk S given; only its lower half is read. */
void NAME(gdn_chunk_deltas)(const chunk *c, matrix values, int64_t width,
                            const real *products, real *surprise, real *deltas);

/* S becomes S'. */
void NAME(gdn_chunk_advance)(const cpl_gdn *p, chunk *c, int64_t width,
                             const real *deltas, real *state);

/* x = (I + L)^-1 x, or with `transposed` the same with (I + L)'. */
void NAME(gdn_chunk_solve)(const chunk *c, bool transposed, int64_t width,
                           real *x);

/* The state, or its gradient, of (span, head) in or out of [n_spans, heads,
 * K, V]; a NULL array reads as zeros and is not written. */
static inline int64_t state_size(const cpl_gdn *p)
{
    return p->key_dim * p->value_dim;
}

static inline void load_state(const cpl_gdn *p, const void *states,
                              int64_t span, int64_t head, real *state)
{
    int64_t n = state_size(p);
    int64_t at = (span * p->value_heads + head) * n;
    if (states == NULL)
        memset(state, 0, (size_t)n * sizeof(real));
    else
        memcpy(state, (const real *)states + at, (size_t)n * sizeof(real));
}

static inline void store_state(const cpl_gdn *p, const real *state,
                               int64_t span, int64_t head, void *states)
{
    int64_t n = state_size(p);
    int64_t at = (span * p->value_heads + head) * n;
    if (states != NULL)
        memcpy((real *)states + at, state, (size_t)n * sizeof(real));
}

/* The value rows of a chunk, in place. */
static inline matrix chunk_values(const cpl_gdn *p, const chunk *c)
{
    return plain((const real *)p->v + c->slot * p->v_stride +
                     c->head * p->value_dim,
                 p->v_stride);
}

static inline matrix chunk_queries(const cpl_gdn *p, const chunk *c)
{
    return plain(c->qk, p->key_dim);
}

static inline matrix chunk_keys(const cpl_gdn *p, const chunk *c)
{
    return plain(c->qk + c->n * p->key_dim, p->key_dim);
}

/* D_n: by how much each row decays until the end of the chunk. */
static inline const real *to_end(const chunk *c)
{
    return c->decay + (c->n - 1) * c->n;
}

/* rows[i] *= factors[i] */
static inline void scale_rows(real *rows, const real *factors, int64_t n,
                              int64_t width)
{
    for (int64_t i = 0; i < n; i++) {
        real *row = rows + i * width;
        const real factor = factors[i];
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            row[j] *= factor;
    }
}

#endif
