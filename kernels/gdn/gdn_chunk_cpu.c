/*
 * gdn_chunk_cpu.c: what forward, backward and summary share; see chunk.h.
 */
#include "gdn/chunk.h"

void NAME(gdn_chunk_take)(const cpl_gdn *p, arena *a, chunk *c)
{
    const int64_t n = p->chunk;
    c->qk = take(a, 2 * n * p->key_dim);
    c->decay = take(a, n * n);
    c->keys_met = take(a, n * n);
    c->coupling = take(a, n * n);
    c->weights = take(a, n * n);
    c->from_start = take(a, n);
    c->beta = take(a, n);
    c->products =
        take(a, 2 * n * cpli_max(n, cpli_max(p->key_dim, p->value_dim)));
}

static void load_rows(const void *array, int64_t stride, int64_t offset,
                      const chunk *c, int64_t width, real *rows)
{
    const real *from = (const real *)array + c->slot * stride + offset;
    for (int64_t i = 0; i < c->n; i++)
        memcpy(rows + i * width, from + i * stride,
               (size_t)width * sizeof(real));
}

/* D and G. The exponents of row i are those of row i - 1 plus g_i; the mask
 * comes before exp. */
static void load_decay(const cpl_gdn *p, const chunk *c)
{
    const int64_t n = c->n;
    const int64_t gate = c->slot * p->value_heads + c->head;
    const real *g = (const real *)p->g + gate;
    const real *beta = (const real *)p->beta + gate;
    real exponent[64]; /* chunk <= 64 */
    real sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const real g_i = g[i * p->value_heads];
        real *row = c->decay + i * n;
        c->beta[i] = beta[i * p->value_heads];
        sum += g_i;
        c->from_start[i] = real_exp(sum);
#pragma omp simd
        for (int64_t j = 0; j < i; j++) {
            exponent[j] += g_i;
            row[j] = real_exp(exponent[j]);
        }
        exponent[i] = 0;
        row[i] = 1;
    }
}

/* M and L from the products k k'. */
static void load_coupling(const chunk *c)
{
    const int64_t n = c->n;
    for (int64_t i = 0; i < n; i++) {
        const real *decay = c->decay + i * n;
        const real *k_k = c->products + (n + i) * n;
        real *met = c->keys_met + i * n;
        real *coupling = c->coupling + i * n;
        memset(met, 0, (size_t)n * sizeof(real));
#pragma omp simd
        for (int64_t j = 0; j < i; j++) {
            met[j] = k_k[j] * decay[j];
            coupling[j] = c->beta[i] * met[j];
        }
    }
}

/* P from the products q k'. */
static void load_weights(const cpl_gdn *p, const chunk *c)
{
    const int64_t n = c->n;
    const real scale = REAL(p->scale);
    for (int64_t i = 0; i < n; i++) {
        const real *decay = c->decay + i * n;
        const real *q_k = c->products + i * n;
        real *weights = c->weights + i * n;
        memset(weights, 0, (size_t)n * sizeof(real));
#pragma omp simd
        for (int64_t j = 0; j <= i; j++)
            weights[j] = scale * q_k[j] * decay[j];
    }
}

void NAME(gdn_chunk_load)(const cpl_gdn *p, chunk *c, int64_t slot, int64_t n,
                          int64_t head)
{
    const int64_t key_dim = p->key_dim;
    int64_t key_at = head / (p->value_heads / p->key_heads) * key_dim;
    int64_t first = p->q == NULL ? n : 0; /* row of [Q; K] */
    c->slot = slot;
    c->n = n;
    c->head = head;
    load_rows(p->k, p->k_stride, key_at, c, key_dim, c->qk + n * key_dim);
    if (p->q != NULL)
        load_rows(p->q, p->q_stride, key_at, c, key_dim, c->qk);
    load_decay(p, c);
    gemm(2 * n - first, n, key_dim, 1, plain(c->qk + first * key_dim, key_dim),
         transpose(chunk_keys(p, c)), 0, c->products + first * n, n);
    load_coupling(c);
    if (p->q != NULL)
        load_weights(p, c);
}

/* Rows of a solve that are done one by one; between blocks of them, gemm. The
 * library's triangular solve takes three times as long for 64 rows. */
enum { SOLVE_BLOCK = 16 };

/* x = (I + L)^-1 x, from the first row to the last. */
static void solve_lower(const chunk *c, int64_t width, real *x)
{
    const int64_t n = c->n;
    for (int64_t first = 0; first < n; first += SOLVE_BLOCK) {
        int64_t end = cpli_min(first + SOLVE_BLOCK, n);
        if (first > 0)
            gemm(end - first, width, first, -1,
                 plain(c->coupling + first * n, n), plain(x, width), 1,
                 x + first * width, width);
        for (int64_t i = first + 1; i < end; i++)
            for (int64_t j = first; j < i; j++)
                add_scaled(x + i * width, -c->coupling[i * n + j],
                           x + j * width, width);
    }
}

/* x = (I + L)'^-1 x, from the last row to the first. */
static void solve_upper(const chunk *c, int64_t width, real *x)
{
    const int64_t n = c->n;
    int64_t first = (n - 1) / SOLVE_BLOCK * SOLVE_BLOCK;
    for (; first >= 0; first -= SOLVE_BLOCK) {
        int64_t end = cpli_min(first + SOLVE_BLOCK, n);
        if (end < n)
            gemm(end - first, width, n - end, -1,
                 turned(c->coupling + end * n + first, n),
                 plain(x + end * width, width), 1, x + first * width, width);
        for (int64_t i = end - 2; i >= first; i--)
            for (int64_t j = i + 1; j < end; j++)
                add_scaled(x + i * width, -c->coupling[j * n + i],
                           x + j * width, width);
    }
}

void NAME(gdn_chunk_solve)(const chunk *c, bool transposed, int64_t width,
                           real *x)
{
    if (transposed)
        solve_upper(c, width, x);
    else
        solve_lower(c, width, x);
}

void NAME(gdn_chunk_deltas)(const chunk *c, matrix values, int64_t width,
                            const real *products, real *surprise, real *deltas)
{
    for (int64_t i = 0; i < c->n; i++) {
        const real *met = products + (c->n + i) * width;
        const real *value =
            values.data == NULL ? NULL : values.data + i * values.stride;
        const real start = c->from_start[i];
        const real beta = c->beta[i];
        real *y = surprise + i * width;
        real *delta = deltas + i * width;
        if (value == NULL)
#pragma omp simd
            for (int64_t j = 0; j < width; j++)
                y[j] = -start * met[j];
        else
#pragma omp simd
            for (int64_t j = 0; j < width; j++)
                y[j] = value[j] - start * met[j];
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            delta[j] = beta * y[j];
    }
    NAME(gdn_chunk_solve)(c, false, width, deltas);
}

void NAME(gdn_chunk_advance)(const cpl_gdn *p, chunk *c, int64_t width,
                             const real *deltas, real *state)
{
    memcpy(c->products, deltas, (size_t)(c->n * width) * sizeof(real));
    scale_rows(c->products, to_end(c), c->n, width);
    gemm(p->key_dim, width, c->n, 1, transpose(chunk_keys(p, c)),
         plain(c->products, width), c->from_start[c->n - 1], state, width);
}
