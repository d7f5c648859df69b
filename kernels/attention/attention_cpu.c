/*
 * attention_cpu.c: causal attention by tiles of queries x keys, so that no
 * T x T matrix exists. The query heads that share a key/value head stand in
 * one tile, row (token, head), and meet the same keys. Forward keeps for each
 * row the running maximum m and sum l of e^(score - m); a later tile rescales
 * what the earlier ones left (Milakov and Gimelshein, arXiv 1805.02867; Dao et
 * al., arXiv 2205.14135). What earlier blocks or calls left in (o, lse) stands
 * for one key of score lse and value o. Backward computes the weights again
 * from lse.
 *
 * 0 times a NaN or an Inf is NaN. So a tile in which some row does not see some
 * key is no product of matrices where what is multiplied with weights of 0 is
 * not finite, but goes pair by pair.
 */
#include "real.h"
#include "spans.h"

/* A tile of queries has about QUERY_ROWS rows, of keys KEYS: large enough for
 * gemm to run at its rate, small enough for the second-level cache. Along the
 * diagonal, and along the edge of a window, tiles of DIAGONAL_KEYS meet only
 * the rows that see them, so that little of the triangle is computed in vain.
 */
enum { QUERY_ROWS = 256, KEYS = 256, DIAGONAL_KEYS = 64 };

/* Queries of some tokens for the heads of one kv head. */
typedef struct tile {
    int64_t kv_head, group; /* query heads per kv head */
    int64_t slot, n_tokens; /* tokens of the tile */
    int64_t n_before;       /* the last key that the first token may see */
    int64_t window;         /* and how many; more than there are: no limit */
    int64_t kv_slot;        /* first key of the block */
    int64_t n_keys;         /* of the block */
    int64_t n_rows;         /* n_tokens * group */
    real *q;                /* [rows, K] */
    real *scores;           /* [rows, KEYS] */
    real *o;                /* [rows, V]; backward: do */
    real *max, *sum;        /* [rows]; backward: lse, do.o */
    real *d_scores, *dq;    /* backward only */
    bool is_finite;         /* backward: whether all of q and do is */
} tile;

static int64_t tokens_per_tile(const cpl_attention *p)
{
    return cpli_max(QUERY_ROWS / (p->heads / p->kv_heads), 1);
}

static size_t carve(const cpl_attention *p, void *workspace, bool backward,
                    tile *t)
{
    arena a = {workspace, 0};
    int64_t rows = tokens_per_tile(p) * (p->heads / p->kv_heads);
    t->q = take(&a, rows * p->key_dim);
    t->scores = take(&a, rows * KEYS);
    t->o = take(&a, rows * p->value_dim);
    t->max = take(&a, rows);
    t->sum = take(&a, rows);
    if (backward) {
        t->d_scores = take(&a, rows * KEYS);
        t->dq = take(&a, rows * p->key_dim);
    }
    return a.used;
}

/* The tile's rows in an array [token, heads, dim] with a row stride. */
static void gather(const tile *t, const void *array, int64_t stride,
                   int64_t dim, real *rows)
{
    const real *from =
        (const real *)array + t->slot * stride + t->kv_head * t->group * dim;
    int64_t n = t->group * dim;
    for (int64_t i = 0; i < t->n_tokens; i++)
        memcpy(rows + i * n, from + i * stride, (size_t)n * sizeof(real));
}

static void scatter(const tile *t, const real *rows, int64_t dim, void *array,
                    int64_t stride)
{
    real *to = (real *)array + t->slot * stride + t->kv_head * t->group * dim;
    int64_t n = t->group * dim;
    for (int64_t i = 0; i < t->n_tokens; i++)
        memcpy(to + i * stride, rows + i * n, (size_t)n * sizeof(real));
}

/* The keys that a row sees, counted from the block's first key. */
static int64_t seen_begin(const tile *t, int64_t row)
{
    return cpli_max(t->n_before + row / t->group - t->window + 1, 0);
}

static int64_t seen_end(const tile *t, int64_t row)
{
    int64_t end = t->n_before + row / t->group + 1;
    return cpli_max(cpli_min(end, t->n_keys), 0);
}

/* The keys that some row of the tile sees; none if begin >= end. */
static int64_t visible_begin(const tile *t)
{
    return seen_begin(t, 0);
}

static int64_t visible_end(const tile *t)
{
    return seen_end(t, t->n_rows - 1);
}

static bool is_blind(const tile *t)
{
    return visible_begin(t) >= visible_end(t);
}

/* A tile of keys, and the rows of the tile of queries that see one of them. */
typedef struct strip {
    int64_t key, n_keys; /* counted from the block's first key */
    int64_t row, end_row;
    bool all_see_all;
} strip;

/* The strip that starts at `key`, which is visible. */
static strip strip_at(const tile *t, int64_t key)
{
    int64_t n = cpli_min(visible_end(t) - key, KEYS);
    bool all_see_all =
        key + n <= seen_end(t, 0) && key >= seen_begin(t, t->n_rows - 1);
    if (!all_see_all)
        n = cpli_min(n, DIAGONAL_KEYS);
    int64_t first = cpli_max(key - t->n_before, 0);
    int64_t end = key + n - t->n_before + t->window - 1;
    return (strip){.key = key,
                   .n_keys = n,
                   .row = first * t->group,
                   .end_row = cpli_min(end, t->n_tokens) * t->group,
                   .all_see_all = all_see_all};
}

/* Of the strip's keys, those that a row of it sees; at least one. */
static int64_t begin_in(const tile *t, const strip *s, int64_t row)
{
    return cpli_max(seen_begin(t, row) - s->key, 0);
}

static int64_t end_in(const tile *t, const strip *s, int64_t row)
{
    return cpli_min(seen_end(t, row) - s->key, s->n_keys);
}

static const real *keys(const cpl_attention *p, const tile *t, int64_t key)
{
    return (const real *)p->k + (t->kv_slot + key) * p->k_stride +
           t->kv_head * p->key_dim;
}

static const real *values(const cpl_attention *p, const tile *t, int64_t key)
{
    return (const real *)p->v + (t->kv_slot + key) * p->v_stride +
           t->kv_head * p->value_dim;
}

/* Calls visit for every tile of every block and kv head. */
static void each_tile(const cpl_attention *p, tile *t, const void *context,
                      void (*visit)(const void *context, const cpl_attention *p,
                                    tile *t))
{
    t->group = p->heads / p->kv_heads;
    t->window = p->window > 0 ? p->window : INT64_MAX / 2;
    const int64_t step = tokens_per_tile(p);
    for (t->kv_head = 0; t->kv_head < p->kv_heads; t->kv_head++)
        for (int64_t b = 0; b < p->n_blocks; b++) {
            const cpl_attention_block *block = &p->blocks[b];
            t->kv_slot = block->kv_slot;
            t->n_keys = block->n_keys;
            for (int64_t i = 0; i < block->n_queries; i += step) {
                t->slot = block->q_slot + i;
                t->n_tokens = cpli_min(block->n_queries - i, step);
                t->n_rows = t->n_tokens * t->group;
                t->n_before = block->n_before + i;
                visit(context, p, t);
            }
        }
}

/* Zeros for the keys of a strip that a row does not see. */
static void mask(real *row, int64_t begin, int64_t end, int64_t n)
{
    for (int64_t j = 0; j < begin; j++)
        row[j] = 0;
    for (int64_t j = end; j < n; j++)
        row[j] = 0;
}

/* ---- forward ---- */

/* Scores begin .. end-1 become e^(score - m) with the new maximum m, or 0 where
 * that is -Inf. Returns by how much the row's earlier sums shrink. */
static real soften(real *scores, int64_t begin, int64_t end, real *max,
                   real *sum)
{
    real m = *max;
#pragma omp simd reduction(max : m)
    for (int64_t j = begin; j < end; j++)
        m = scores[j] > m ? scores[j] : m;
    const real base = m == -REAL(INFINITY) ? 0 : m;
    real total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = begin; j < end; j++) {
        scores[j] = real_exp(scores[j] - base);
        total += scores[j];
    }
    real shrink = real_exp(*max - base);
    *sum = *sum * shrink + total;
    *max = m;
    return shrink;
}

/* o += weights v, pair by pair. */
static void add_seen(const cpl_attention *p, const tile *t, const strip *s,
                     matrix v)
{
    for (int64_t row = s->row; row < s->end_row; row++)
        for (int64_t j = begin_in(t, s, row); j < end_in(t, s, row); j++)
            add_scaled(t->o + row * p->value_dim, t->scores[row * KEYS + j],
                       v.data + j * v.stride, p->value_dim);
}

static void attend_keys(const cpl_attention *p, const tile *t, const strip *s)
{
    const matrix v = plain(values(p, t, s->key), p->v_stride);
    const real *q = t->q + s->row * p->key_dim;
    real *scores = t->scores + s->row * KEYS;
    real *o = t->o + s->row * p->value_dim;
    const int64_t n_rows = s->end_row - s->row;
    gemm(n_rows, s->n_keys, p->key_dim, REAL(p->scale), plain(q, p->key_dim),
         turned(keys(p, t, s->key), p->k_stride), 0, scores, KEYS);
    for (int64_t row = s->row; row < s->end_row; row++) {
        real *o_row = t->o + row * p->value_dim;
        real *row_scores = t->scores + row * KEYS;
        int64_t begin = begin_in(t, s, row);
        int64_t end = end_in(t, s, row);
        real shrink =
            soften(row_scores, begin, end, &t->max[row], &t->sum[row]);
        mask(row_scores, begin, end, s->n_keys);
#pragma omp simd
        for (int64_t a = 0; a < p->value_dim; a++)
            o_row[a] *= shrink;
    }
    if (s->all_see_all ||
        rows_finite(v.data, s->n_keys, p->value_dim, v.stride))
        gemm(n_rows, p->value_dim, s->n_keys, 1, plain(scores, KEYS), v, 1, o,
             p->value_dim);
    else
        add_seen(p, t, s, v);
}

/* What (o, lse) hold already, as one key. */
static void load_result(const cpl_attention *p, const tile *t)
{
    gather(t, p->o, p->heads * p->value_dim, p->value_dim, t->o);
    gather(t, p->lse, p->heads, 1, t->max);
    for (int64_t row = 0; row < t->n_rows; row++)
        t->sum[row] = t->max[row] == -REAL(INFINITY) ? 0 : 1;
}

static void store_result(const cpl_attention *p, const tile *t)
{
    for (int64_t row = 0; row < t->n_rows; row++) {
        real *o = t->o + row * p->value_dim;
        const real max = t->max[row];
        /* NaN if it is not finite, but for the -Inf of no key at all. */
        if (seen_begin(t, row) < seen_end(t, row) || max != -REAL(INFINITY))
            t->sum[row] += max - max;
        /* The largest key adds 1, so that the sum is 0 only without keys. */
        real factor = t->sum[row] == 0 ? 0 : 1 / t->sum[row];
#pragma omp simd
        for (int64_t a = 0; a < p->value_dim; a++)
            o[a] *= factor;
        t->max[row] += LOG(t->sum[row]);
    }
    scatter(t, t->max, 1, p->lse, p->heads);
    scatter(t, t->o, p->value_dim, p->o, p->heads * p->value_dim);
}

static void forward_tile(const void *context, const cpl_attention *p, tile *t)
{
    (void)context;
    /* What was there before may be no number that stays as it is. */
    if (is_blind(t) && !p->accumulate)
        return;
    gather(t, p->q, p->q_stride, p->key_dim, t->q);
    load_result(p, t);
    for (int64_t key = visible_begin(t); key < visible_end(t);) {
        strip s = strip_at(t, key);
        attend_keys(p, t, &s);
        key += s.n_keys;
    }
    store_result(p, t);
}

size_t NAME(attention_workspace)(const cpl_attention *p)
{
    tile t;
    return carve(p, NULL, false, &t);
}

void NAME(attention)(const cpl_attention *p)
{
    tile t;
    carve(p, p->workspace, false, &t);
    size_t row_bytes = (size_t)(p->heads * p->value_dim) * sizeof(real);
    if (!p->accumulate) {
        zero_rows(p->o, row_bytes, row_bytes, 0, p->n_queries);
        for (int64_t i = 0; i < p->n_queries * p->heads; i++)
            ((real *)p->lse)[i] = -REAL(INFINITY);
    }
    each_tile(p, &t, NULL, forward_tile);
}

/* ---- backward ---- */

/* scores become the weights w, d_scores (dw on entry) become w (dw - do.o). */
static void weigh(const tile *t, const strip *s)
{
    for (int64_t row = s->row; row < s->end_row; row++) {
        real *w = t->scores + row * KEYS;
        real *d = t->d_scores + row * KEYS;
        const real lse = t->max[row];
        const real along = t->sum[row];
        int64_t begin = begin_in(t, s, row);
        int64_t end = end_in(t, s, row);
#pragma omp simd
        for (int64_t j = begin; j < end; j++) {
            w[j] = real_exp(w[j] - lse);
            d[j] = w[j] * (d[j] - along);
        }
        mask(w, begin, end, s->n_keys);
        mask(d, begin, end, s->n_keys);
    }
}

/* The gradients of a strip whose weights and gradients of scores are there. */
typedef struct strip_gradients {
    real *dq, *dk, *dv; /* of its first row, and of its first key */
} strip_gradients;

static void add_back(const cpl_attention_backward *b, const tile *t,
                     const strip *s, matrix k, const strip_gradients *to)
{
    const cpl_attention *p = &b->forward;
    const real scale = REAL(p->scale);
    const int64_t n = s->n_keys;
    const int64_t n_rows = s->end_row - s->row;
    matrix q = plain(t->q + s->row * p->key_dim, p->key_dim);
    matrix d_o = plain(t->o + s->row * p->value_dim, p->value_dim);
    matrix w = plain(t->scores + s->row * KEYS, KEYS);
    matrix d = plain(t->d_scores + s->row * KEYS, KEYS);
    gemm(n, p->value_dim, n_rows, 1, transpose(w), d_o, 1, to->dv,
         b->dv_stride);
    gemm(n, p->key_dim, n_rows, scale, transpose(d), q, 1, to->dk,
         b->dk_stride);
    gemm(n_rows, p->key_dim, n, scale, d, k, 1, to->dq, p->key_dim);
}

/* The same, pair by pair. */
static void add_seen_back(const cpl_attention_backward *b, const tile *t,
                          const strip *s, matrix k, const strip_gradients *to)
{
    const cpl_attention *p = &b->forward;
    for (int64_t row = s->row; row < s->end_row; row++)
        for (int64_t j = begin_in(t, s, row); j < end_in(t, s, row); j++) {
            const real d = REAL(p->scale) * t->d_scores[row * KEYS + j];
            add_scaled(to->dv + j * b->dv_stride, t->scores[row * KEYS + j],
                       t->o + row * p->value_dim, p->value_dim);
            add_scaled(to->dk + j * b->dk_stride, d, t->q + row * p->key_dim,
                       p->key_dim);
            add_scaled(to->dq + (row - s->row) * p->key_dim, d,
                       k.data + j * k.stride, p->key_dim);
        }
}

static void attend_keys_back(const cpl_attention_backward *b, const tile *t,
                             const strip *s)
{
    const cpl_attention *p = &b->forward;
    const real scale = REAL(p->scale);
    const int64_t n = s->n_keys;
    const int64_t n_rows = s->end_row - s->row;
    matrix k = plain(keys(p, t, s->key), p->k_stride);
    matrix v = plain(values(p, t, s->key), p->v_stride);
    matrix q = plain(t->q + s->row * p->key_dim, p->key_dim);
    matrix d_o = plain(t->o + s->row * p->value_dim, p->value_dim);
    real *scores = t->scores + s->row * KEYS;
    real *d_scores = t->d_scores + s->row * KEYS;
    const int64_t key = t->kv_slot + s->key;
    const strip_gradients to = {
        .dq = t->dq + s->row * p->key_dim,
        .dk = (real *)b->dk + key * b->dk_stride + t->kv_head * p->key_dim,
        .dv = (real *)b->dv + key * b->dv_stride + t->kv_head * p->value_dim};
    gemm(n_rows, n, p->key_dim, scale, q, transpose(k), 0, scores, KEYS);
    gemm(n_rows, n, p->value_dim, 1, d_o, transpose(v), 0, d_scores, KEYS);
    weigh(t, s);
    if (s->all_see_all ||
        (t->is_finite && rows_finite(k.data, n, p->key_dim, k.stride)))
        add_back(b, t, s, k, &to);
    else
        add_seen_back(b, t, s, k, &to);
}

/* t->sum = do.o, row by row; t->o holds do. */
static void gather_output(const cpl_attention_backward *b, tile *t)
{
    const cpl_attention *p = &b->forward;
    const int64_t width = p->heads * p->value_dim;
    gather(t, b->d_o, width, p->value_dim, t->o);
    gather(t, p->lse, p->heads, 1, t->max);
    for (int64_t row = 0; row < t->n_rows; row++) {
        const real *o = (const real *)p->o +
                        (t->slot + row / t->group) * width +
                        (t->kv_head * t->group + row % t->group) * p->value_dim;
        t->sum[row] = dot(o, t->o + row * p->value_dim, p->value_dim);
    }
}

static void backward_tile(const void *context, const cpl_attention *p, tile *t)
{
    const cpl_attention_backward *b = context;
    if (is_blind(t))
        return;
    gather(t, p->q, p->q_stride, p->key_dim, t->q);
    gather_output(b, t);
    t->is_finite = all_finite(t->q, t->n_rows * p->key_dim) &&
                   all_finite(t->o, t->n_rows * p->value_dim);
    gather(t, b->dq, b->dq_stride, p->key_dim, t->dq);
    for (int64_t key = visible_begin(t); key < visible_end(t);) {
        strip s = strip_at(t, key);
        attend_keys_back(b, t, &s);
        key += s.n_keys;
    }
    scatter(t, t->dq, p->key_dim, b->dq, b->dq_stride);
}

size_t NAME(attention_backward_workspace)(const cpl_attention_backward *p)
{
    tile t;
    return carve(&p->forward, NULL, true, &t);
}

static void clear_gradients(const cpl_attention_backward *b)
{
    const cpl_attention *p = &b->forward;
    size_t size = sizeof(real);
    zero_rows(b->dq, (size_t)(p->heads * p->key_dim) * size,
              (size_t)b->dq_stride * size, 0, p->n_queries);
    zero_rows(b->dk, (size_t)(p->kv_heads * p->key_dim) * size,
              (size_t)b->dk_stride * size, 0, p->n_keys);
    zero_rows(b->dv, (size_t)(p->kv_heads * p->value_dim) * size,
              (size_t)b->dv_stride * size, 0, p->n_keys);
}

void NAME(attention_backward)(const cpl_attention_backward *b)
{
    tile t;
    carve(&b->forward, b->workspace, true, &t);
    if (!b->forward.accumulate)
        clear_gradients(b);
    each_tile(&b->forward, &t, b, backward_tile);
}
