/*
 * gdn_backward_cpu.c: gradients of the delta rule. Per value head, a forward
 * sweep keeps for every chunk the state that enters, Y and N; then chunks from
 * the last to the first. With the names of chunk.h and pull.h,
 *   dP = lower(dO N'),  E = strictly lower(-dR N')      (E = dL)
 *   dV = diag(beta) dR,  dbeta_i = dR_i.Y_i + sum_j E_ij M_ij
 *   A  = s D .* dP,  B = diag(beta) D .* E
 *   dQ = diag(s G) dO S' + A K
 *   dK = diag(D_n) N X' - diag(beta G) dR S' + B K + [A; B]' [Q; K]
 * and g_l takes a share of every exponent that contains it:
 *   dg_l = sum_(i >= l > j) (dP_ij P_ij + E_ij L_ij)
 *        + sum_(i >= l) a_i + sum_(j < l) b_j + G_n <S, X>,
 *   a_i = q_i.(s G dO S')_i - k_i.(beta G dR S')_i,  b_j = k_j.(D_n N X')_j.
 * The terms are summed as they are: no difference of large sums is formed.
 * Chunks whose gradients are not finite are made anew by walk.h; states need
 * not be, since what is not finite goes to its whole column of them in either
 * way.
 */
#include "gdn/pull.h"
#include "gdn/walk.h"
#include "spans.h"

typedef struct pass {
    chunk chunk;
    real *x;         /* [K, V]: gradient of the state that leaves the chunk */
    real *pulled;    /* [2 chunk, V]: dO above dR */
    real *pairs;     /* [2 chunk, chunk]: dP above E, then A above B */
    real *exponents; /* [chunk, chunk]: dP P + E L */
    real *from_in;   /* [chunk]: a */
    real *to_out;    /* [chunk]: b */
    real *d_qk;      /* [2 chunk, K]: dQ above dK */
    real *from_x;    /* [chunk, K]: N X' */
    real *states;    /* per chunk of the longest span: S [K, V], */
    real *surprises; /* Y [chunk, V] */
    real *deltas;    /* and N [chunk, V] */
} pass;

static int64_t most_chunks(const cpl_gdn *p)
{
    int64_t most = 0;
    for (int64_t i = 0; i < p->n_spans; i++)
        most = cpli_max(most, cpli_ceil_div(p->spans[i].length, p->chunk));
    return most;
}

static size_t carve(const cpl_gdn *p, void *workspace, pass *s)
{
    arena a = {workspace, 0};
    const int64_t n = p->chunk;
    const int64_t n_chunks = most_chunks(p);
    NAME(gdn_chunk_take)(p, &a, &s->chunk);
    s->x = take(&a, state_size(p));
    s->pulled = take(&a, 2 * n * p->value_dim);
    s->pairs = take(&a, 2 * n * n);
    s->exponents = take(&a, n * n);
    s->from_in = take(&a, n);
    s->to_out = take(&a, n);
    s->d_qk = take(&a, 2 * n * p->key_dim);
    s->from_x = take(&a, n * p->key_dim);
    s->states = take(&a, (n_chunks + 1) * state_size(p));
    s->surprises = take(&a, n_chunks * n * p->value_dim);
    s->deltas = take(&a, n_chunks * n * p->value_dim);
    return a.used;
}

/* Loads chunk `at` of a span. */
static void load_chunk(const cpl_gdn *p, pass *s, const cpl_span *span,
                       int64_t at, int64_t head)
{
    int64_t t = at * p->chunk;
    NAME(gdn_chunk_load)
    (p, &s->chunk, span->slot + t, cpli_min(span->length - t, p->chunk), head);
}

/* The forward sweep: S, Y and N of every chunk of a span. */
static void sweep(const cpl_gdn *forward, pass *s, const cpl_span *span,
                  int64_t head)
{
    cpl_gdn without_queries = *forward;
    without_queries.q = NULL;
    const cpl_gdn *p = &without_queries;
    const int64_t size = state_size(p);
    const int64_t width = p->value_dim;
    chunk *c = &s->chunk;
    for (int64_t at = 0; at * p->chunk < span->length; at++) {
        real *state = s->states + at * size;
        real *surprise = s->surprises + at * p->chunk * width;
        real *deltas = s->deltas + at * p->chunk * width;
        load_chunk(p, s, span, at, head);
        gemm(c->n, width, p->key_dim, 1, chunk_keys(p, c), plain(state, width),
             0, c->products + c->n * width, width);
        NAME(gdn_chunk_deltas)
        (c, chunk_values(p, c), width, c->products, surprise, deltas);
        memcpy(state + size, state, (size_t)size * sizeof(real));
        NAME(gdn_chunk_advance)(p, c, width, deltas, state + size);
    }
}

/* dbeta_i and row i of A, B and of the exponents' shares, from row i of dP and
 * of dR N'. */
static real pair_row(const cpl_gdn *p, pass *s, int64_t i)
{
    const chunk *c = &s->chunk;
    const int64_t n = c->n;
    const real *decay = c->decay + i * n;
    const real *weights = c->weights + i * n;
    const real *met = c->keys_met + i * n;
    const real scale = REAL(p->scale);
    const real beta = c->beta[i];
    real *a = s->pairs + i * n;
    real *b = s->pairs + (n + i) * n;
    real *share = s->exponents + i * n;
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < i; j++) {
        real met_share = -b[j] * met[j];
        sum += met_share;
        share[j] = a[j] * weights[j] + beta * met_share;
        a[j] *= scale * decay[j];
        b[j] *= -beta * decay[j];
    }
    a[i] *= scale;
    b[i] = 0;
    share[i] = 0;
    for (int64_t j = i + 1; j < n; j++)
        a[j] = b[j] = share[j] = 0;
    return sum;
}

/* dbeta, dV, and the pairs. */
static void backward_pairs(const cpl_gdn_backward *b, pass *s,
                           const real *surprise, const real *deltas)
{
    const cpl_gdn *p = &b->forward;
    const chunk *c = &s->chunk;
    const int64_t n = c->n;
    const int64_t width = p->value_dim;
    real *dv = (real *)b->dv + c->slot * b->dv_stride + c->head * width;
    real *dbeta = (real *)b->dbeta + c->slot * p->value_heads + c->head;
    gemm(2 * n, n, width, 1, plain(s->pulled, width), turned(deltas, width), 0,
         s->pairs, n);
    for (int64_t i = 0; i < n; i++) {
        const real *dr = s->pulled + (n + i) * width;
        dbeta[i * p->value_heads] =
            pair_row(p, s, i) + dot(dr, surprise + i * width, width);
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            dv[i * b->dv_stride + j] = c->beta[i] * dr[j];
    }
}

/* The parts of dQ and dK that come from S and X, and their shares a and b. */
static void backward_states(const cpl_gdn *p, pass *s, const real *state,
                            const real *deltas)
{
    const chunk *c = &s->chunk;
    const int64_t n = c->n;
    const int64_t key_dim = p->key_dim;
    gemm(2 * n, key_dim, p->value_dim, 1, plain(s->pulled, p->value_dim),
         turned(state, p->value_dim), 0, s->d_qk, key_dim);
    gemm(n, key_dim, p->value_dim, 1, plain(deltas, p->value_dim),
         turned(s->x, p->value_dim), 0, s->from_x, key_dim);
    for (int64_t i = 0; i < n; i++) {
        const real *q = c->qk + i * key_dim;
        const real *k = c->qk + (n + i) * key_dim;
        const real q_factor = REAL(p->scale) * c->from_start[i];
        const real k_factor = -c->beta[i] * c->from_start[i];
        const real end = to_end(c)[i];
        real *dq = s->d_qk + i * key_dim;
        real *dk = s->d_qk + (n + i) * key_dim;
        const real *from_x = s->from_x + i * key_dim;
        s->from_in[i] =
            q_factor * dot(q, dq, key_dim) + k_factor * dot(k, dk, key_dim);
        s->to_out[i] = end * dot(k, from_x, key_dim);
#pragma omp simd
        for (int64_t j = 0; j < key_dim; j++) {
            dq[j] *= q_factor;
            dk[j] = k_factor * dk[j] + end * from_x[j];
        }
    }
}

/* dg from the shares; `whole` is the one that holds all of the chunk's g. */
static void backward_decay(const cpl_gdn_backward *b, const pass *s, real whole)
{
    const chunk *c = &s->chunk;
    const int64_t heads = b->forward.value_heads;
    real *dg = (real *)b->dg + c->slot * heads + c->head;
    real columns[64] = {0}; /* sum over i >= l of the shares (i, j) */
    real from_in = 0;       /* sum over i >= l of a_i */
    for (int64_t l = c->n - 1; l >= 0; l--) {
        const real *share = s->exponents + l * c->n;
        real pairs = 0;
        real to_out = 0;
        from_in += s->from_in[l];
#pragma omp simd reduction(+ : pairs, to_out)
        for (int64_t j = 0; j < l; j++) {
            columns[j] += share[j];
            pairs += columns[j];
            to_out += s->to_out[j];
        }
        dg[l * heads] = pairs + to_out + from_in + whole;
    }
}

/* Adds the finished rows of dQ and dK to those of the key head. */
static void add_rows(const chunk *c, const real *rows, int64_t width,
                     int64_t offset, void *array, int64_t stride)
{
    real *to = (real *)array + c->slot * stride + offset;
    for (int64_t i = 0; i < c->n; i++)
        add_scaled(to + i * stride, 1, rows + i * width, width);
}

/* All gradients of a chunk, dQ and dK in d_qk; X stays. */
static void differentiate(const cpl_gdn_backward *b, pass *s, const real *state,
                          const real *surprise, const real *deltas)
{
    const cpl_gdn *p = &b->forward;
    chunk *c = &s->chunk;
    const int64_t n = c->n;
    const int64_t key_dim = p->key_dim;
    NAME(gdn_chunk_pull)(p, c, b->d_o, s->x, s->pulled);
    backward_pairs(b, s, surprise, deltas);
    backward_states(p, s, state, deltas);
    backward_decay(b, s,
                   c->from_start[n - 1] * dot(state, s->x, state_size(p)));
    real *dk = s->d_qk + n * key_dim;
    gemm(2 * n, key_dim, n, 1, plain(s->pairs, n), chunk_keys(p, c), 1, s->d_qk,
         key_dim);
    gemm(n, key_dim, 2 * n, 1, turned(s->pairs, n), chunk_queries(p, c), 1, dk,
         key_dim);
}

/* Whatever is not finite, and reaches one of the others, is in dQ or dK. */
static void backward_chunk(const cpl_gdn_backward *b, pass *s,
                           const real *state, const real *surprise,
                           const real *deltas)
{
    const cpl_gdn *p = &b->forward;
    chunk *c = &s->chunk;
    const int64_t key_dim = p->key_dim;
    const int64_t key_at = c->head / (p->value_heads / p->key_heads) * key_dim;
    const walk_back walk = {.state = state,
                            .x = s->x,
                            .dq = s->d_qk,
                            .dk = s->d_qk + c->n * key_dim,
                            .column = s->from_x};
    differentiate(b, s, state, surprise, deltas);
    if (all_finite(s->d_qk, 2 * c->n * key_dim))
        NAME(gdn_chunk_retreat)(p, c, s->pulled, s->x);
    else
        NAME(gdn_walk_back)(b, c, &walk);
    add_rows(c, walk.dq, key_dim, key_at, b->dq, b->dq_stride);
    add_rows(c, walk.dk, key_dim, key_at, b->dk, b->dk_stride);
}

static void backward_head(const cpl_gdn_backward *b, pass *s, int64_t i,
                          int64_t head)
{
    const cpl_gdn *p = &b->forward;
    const cpl_span *span = &p->spans[i];
    const int64_t rows = p->chunk * p->value_dim;
    load_state(p, p->state_in, i, head, s->states);
    sweep(p, s, span, head);
    load_state(p, b->d_state_out, i, head, s->x);
    int64_t n_chunks = cpli_ceil_div(span->length, p->chunk);
    for (int64_t at = n_chunks - 1; at >= 0; at--) {
        load_chunk(p, s, span, at, head);
        backward_chunk(b, s, s->states + at * state_size(p),
                       s->surprises + at * rows, s->deltas + at * rows);
    }
    store_state(p, s->x, i, head, b->d_state_in);
}

static void zero_gradients(const cpl_gdn_backward *b)
{
    const cpl_gdn *p = &b->forward;
    size_t size = sizeof(real);
    size_t key_bytes = (size_t)(p->key_heads * p->key_dim) * size;
    size_t value_bytes = (size_t)(p->value_heads * p->value_dim) * size;
    size_t gate_bytes = (size_t)p->value_heads * size;
    /* Value heads add to dq and dk; the rest is written where spans are. */
    zero_rows(b->dq, key_bytes, (size_t)b->dq_stride * size, 0, p->n_rows);
    zero_rows(b->dk, key_bytes, (size_t)b->dk_stride * size, 0, p->n_rows);
    zero_gaps(b->dv, value_bytes, (size_t)b->dv_stride * size, p->spans,
              p->n_spans, p->n_rows);
    zero_gaps(b->dg, gate_bytes, gate_bytes, p->spans, p->n_spans, p->n_rows);
    zero_gaps(b->dbeta, gate_bytes, gate_bytes, p->spans, p->n_spans,
              p->n_rows);
}

size_t NAME(gdn_backward_workspace)(const cpl_gdn_backward *p)
{
    pass s;
    return carve(&p->forward, NULL, &s);
}

void NAME(gdn_backward)(const cpl_gdn_backward *p)
{
    pass s;
    carve(&p->forward, p->workspace, &s);
    zero_gradients(p);
    for (int64_t i = 0; i < p->forward.n_spans; i++)
        for (int64_t head = 0; head < p->forward.value_heads; head++)
            backward_head(p, &s, i, head);
}
