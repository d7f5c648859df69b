/*
 * gdn_walk_cpu.c: chunks that are not finite, token by token; see walk.h. The
 * maths is that of gdn_ref.c, in its letters.
 */
#include "gdn/walk.h"

/* Token i of a chunk. */
typedef struct token {
    const real *q, *k, *v; /* q is NULL without p->q */
    real decay, beta;
} token;

static token token_at(const cpl_gdn *p, const chunk *c, int64_t i)
{
    const int64_t gate = (c->slot + i) * p->value_heads + c->head;
    return (token){
        .q = p->q == NULL ? NULL : c->qk + i * p->key_dim,
        .k = c->qk + (c->n + i) * p->key_dim,
        .v = chunk_values(p, c).data + i * p->v_stride,
        .decay = real_exp(((const real *)p->g)[gate]),
        .beta = c->beta[i],
    };
}

/* rows[i] += factors[i] row, or row += factors[i] rows[i]. */
static void add_to_rows(const real *factors, const real *row, int64_t n,
                        int64_t width, real *rows)
{
    for (int64_t i = 0; i < n; i++)
        add_scaled(rows + i * width, factors[i], row, width);
}

static void add_up_rows(const real *factors, const real *rows, int64_t n,
                        int64_t width, real *row)
{
    memset(row, 0, (size_t)width * sizeof(real));
    for (int64_t i = 0; i < n; i++)
        add_scaled(row, factors[i], rows + i * width, width);
}

/* S = S~ + k d', with `delta` [V] as scratch. */
static void step(const cpl_gdn *p, const token *t, real *delta, real *state)
{
    const int64_t width = p->value_dim;
    for (int64_t i = 0; i < state_size(p); i++)
        state[i] *= t->decay;
    add_up_rows(t->k, state, p->key_dim, width, delta);
    for (int64_t j = 0; j < width; j++)
        delta[j] = t->beta * (t->v[j] - delta[j]);
    add_to_rows(t->k, delta, p->key_dim, width, state);
}

void NAME(gdn_walk)(const cpl_gdn *p, const chunk *c, real *state)
{
    const int64_t width = p->value_dim;
    for (int64_t i = 0; i < c->n; i++) {
        token t = token_at(p, c, i);
        step(p, &t, c->products, state);
        if (t.q == NULL)
            continue;
        real *o =
            (real *)p->o + ((c->slot + i) * p->value_heads + c->head) * width;
        add_up_rows(t.q, state, p->key_dim, width, o);
        for (int64_t j = 0; j < width; j++)
            o[j] *= REAL(p->scale);
    }
}

/* ---- backward ---- */

/* What one token and one column j give, summed over columns. */
typedef struct gradients {
    real *dq, *dk;         /* [K] */
    real *dv, *dg, *dbeta; /* one number each */
} gradients;

/* `decayed` [K] is S~'s column, x that of X. */
static void step_back(const cpl_gdn *p, const token *t, int64_t j, real d_o,
                      const real *decayed, const gradients *to, real *x)
{
    const int64_t n = p->key_dim;
    const real from_o = REAL(p->scale) * d_o;
    add_scaled(x, from_o, t->q, n);
    const real surprise = t->v[j] - dot(decayed, t->k, n);
    const real delta = t->beta * surprise;
    const real d_delta = dot(x, t->k, n);
    const real d_surprise = t->beta * d_delta;
    real dg = 0;
#pragma omp simd reduction(+ : dg)
    for (int64_t i = 0; i < n; i++) {
        to->dq[i] += from_o * (decayed[i] + t->k[i] * delta);
        to->dk[i] += x[i] * delta - decayed[i] * d_surprise;
        const real d_decayed = x[i] - t->k[i] * d_surprise;
        dg += d_decayed * decayed[i];
        x[i] = t->decay * d_decayed;
    }
    *to->dv = d_surprise;
    *to->dbeta += d_delta * surprise;
    *to->dg += dg;
}

/* S~ of column j at every token of the chunk, [n, K] in products. */
static void walk_column(const cpl_gdn *p, const chunk *c, int64_t j,
                        const real *state, real *column)
{
    const int64_t n = p->key_dim;
    for (int64_t a = 0; a < n; a++)
        column[a] = state[a * p->value_dim + j];
    for (int64_t i = 0; i < c->n; i++) {
        const token t = token_at(p, c, i);
        real *decayed = c->products + i * n;
        for (int64_t a = 0; a < n; a++)
            column[a] = decayed[a] = t.decay * column[a];
        add_scaled(column, t.beta * (t.v[j] - dot(decayed, t.k, n)), t.k, n);
    }
}

static void walk_column_back(const cpl_gdn_backward *b, const chunk *c,
                             int64_t j, const walk_back *w)
{
    const cpl_gdn *p = &b->forward;
    const int64_t width = p->value_dim;
    real *x = w->column;
    for (int64_t a = 0; a < p->key_dim; a++)
        x[a] = w->x[a * width + j];
    for (int64_t i = c->n - 1; i >= 0; i--) {
        const int64_t slot = c->slot + i;
        const int64_t gate = slot * p->value_heads + c->head;
        const token t = token_at(p, c, i);
        const gradients to = {.dq = w->dq + i * p->key_dim,
                              .dk = w->dk + i * p->key_dim,
                              .dv = (real *)b->dv + slot * b->dv_stride +
                                    c->head * width + j,
                              .dg = (real *)b->dg + gate,
                              .dbeta = (real *)b->dbeta + gate};
        step_back(p, &t, j, ((const real *)b->d_o)[gate * width + j],
                  c->products + i * p->key_dim, &to, x);
    }
    for (int64_t a = 0; a < p->key_dim; a++)
        w->x[a * width + j] = x[a];
}

void NAME(gdn_walk_back)(const cpl_gdn_backward *b, const chunk *c,
                         const walk_back *w)
{
    const cpl_gdn *p = &b->forward;
    const size_t bytes = (size_t)(c->n * p->key_dim) * sizeof(real);
    memset(w->dq, 0, bytes);
    memset(w->dk, 0, bytes);
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t gate = (c->slot + i) * p->value_heads + c->head;
        ((real *)b->dg)[gate] = ((real *)b->dbeta)[gate] = 0;
    }
    for (int64_t j = 0; j < p->value_dim; j++) {
        walk_column(p, c, j, w->state, w->column);
        walk_column_back(b, c, j, w);
    }
}
