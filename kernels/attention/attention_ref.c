/*
 * attention_ref.c: causal softmax attention, one query at a time. For a query
 * of one head, over the keys that it sees in all blocks,
 *   score_j = scale q.k_j,  lse = log sum_j e^score_j,  w_j = e^(score_j -
 * lse), o = sum_j w_j v_j. Backward: dw_j = do.v_j,  dscore_j = w_j (dw_j -
 * do.o), dq = scale sum_j dscore_j k_j,  dk_j += scale dscore_j q,  dv_j += w_j
 * do.
 */
#include <math.h>

#include "entries.h"
#include "spans.h"

static double product(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static const double *query(const cpl_attention *p, int64_t slot, int64_t head)
{
    return (const double *)p->q + slot * p->q_stride + head * p->key_dim;
}

static int64_t kv_head(const cpl_attention *p, int64_t head)
{
    return head / (p->heads / p->kv_heads);
}

static double score(const cpl_attention *p, const double *q, int64_t key,
                    int64_t head)
{
    const double *k = (const double *)p->k + key * p->k_stride +
                      kv_head(p, head) * p->key_dim;
    return p->scale * product(q, k, p->key_dim);
}

/* Whether query i of the block sees its key j, 0 <= j < n_keys. */
static bool sees(const cpl_attention *p, const cpl_attention_block *block,
                 int64_t i, int64_t j)
{
    int64_t last = block->n_before + i;
    return j <= last && (p->window == 0 || j > last - p->window);
}

/* The largest score that query i sees, lse included: what it saw before. */
static double largest(const cpl_attention *p, const cpl_attention_block *block,
                      int64_t i, int64_t head, double lse)
{
    const double *q = query(p, block->q_slot + i, head);
    for (int64_t j = 0; j < block->n_keys; j++) {
        if (!sees(p, block, i, j))
            continue;
        double x = score(p, q, block->kv_slot + j, head);
        lse = x > lse ? x : lse;
    }
    return lse;
}

/* What was there counts as one key of score lse and value o. */
static void attend(const cpl_attention *p, const cpl_attention_block *block,
                   int64_t i, int64_t head)
{
    int64_t at = (block->q_slot + i) * p->heads + head;
    const double *q = query(p, block->q_slot + i, head);
    double *o = (double *)p->o + at * p->value_dim;
    double *lse = (double *)p->lse + at;
    double max = largest(p, block, i, head, *lse);
    double sum = *lse == -INFINITY ? 0 : exp(*lse - max);
    for (int64_t a = 0; a < p->value_dim; a++)
        o[a] *= sum;
    for (int64_t j = 0; j < block->n_keys; j++) {
        if (!sees(p, block, i, j))
            continue;
        int64_t key = block->kv_slot + j;
        const double *v = (const double *)p->v + key * p->v_stride +
                          kv_head(p, head) * p->value_dim;
        double weight = exp(score(p, q, key, head) - max);
        sum += weight;
        for (int64_t a = 0; a < p->value_dim; a++)
            o[a] += weight * v[a];
    }
    if (sum == 0)
        return;
    for (int64_t a = 0; a < p->value_dim; a++)
        o[a] /= sum;
    *lse = max + log(sum);
}

size_t NAME(attention_workspace)(const cpl_attention *p)
{
    (void)p;
    return 0;
}

void NAME(attention)(const cpl_attention *p)
{
    size_t row_bytes = (size_t)(p->heads * p->value_dim) * sizeof(double);
    if (!p->accumulate) {
        zero_rows(p->o, row_bytes, row_bytes, 0, p->n_queries);
        for (int64_t i = 0; i < p->n_queries * p->heads; i++)
            ((double *)p->lse)[i] = -INFINITY;
    }
    for (int64_t b = 0; b < p->n_blocks; b++)
        for (int64_t i = 0; i < p->blocks[b].n_queries; i++)
            for (int64_t head = 0; head < p->heads; head++)
                attend(p, &p->blocks[b], i, head);
}

size_t NAME(attention_backward_workspace)(const cpl_attention_backward *p)
{
    (void)p;
    return 0;
}

static void attend_back(const cpl_attention_backward *b,
                        const cpl_attention_block *block, int64_t i,
                        int64_t head)
{
    const cpl_attention *p = &b->forward;
    int64_t slot = block->q_slot + i;
    int64_t at = slot * p->heads + head;
    const double *q = query(p, slot, head);
    const double *d_o = (const double *)b->d_o + at * p->value_dim;
    const double *o = (const double *)p->o + at * p->value_dim;
    double lse = ((const double *)p->lse)[at];
    double *dq = (double *)b->dq + slot * b->dq_stride + head * p->key_dim;
    double along = product(d_o, o, p->value_dim);
    for (int64_t j = 0; j < block->n_keys; j++) {
        if (!sees(p, block, i, j))
            continue;
        int64_t key = block->kv_slot + j;
        int64_t k_at = kv_head(p, head) * p->key_dim;
        int64_t v_at = kv_head(p, head) * p->value_dim;
        const double *k = (const double *)p->k + key * p->k_stride + k_at;
        const double *v = (const double *)p->v + key * p->v_stride + v_at;
        double *dk = (double *)b->dk + key * b->dk_stride + k_at;
        double *dv = (double *)b->dv + key * b->dv_stride + v_at;
        double weight = exp(score(p, q, key, head) - lse);
        double d_score = weight * (product(d_o, v, p->value_dim) - along);
        for (int64_t a = 0; a < p->key_dim; a++) {
            dq[a] += p->scale * d_score * k[a];
            dk[a] += p->scale * d_score * q[a];
        }
        for (int64_t a = 0; a < p->value_dim; a++)
            dv[a] += weight * d_o[a];
    }
}

static void clear_gradients(const cpl_attention_backward *b)
{
    const cpl_attention *p = &b->forward;
    size_t size = sizeof(double);
    zero_rows(b->dq, (size_t)(p->heads * p->key_dim) * size,
              (size_t)b->dq_stride * size, 0, p->n_queries);
    zero_rows(b->dk, (size_t)(p->kv_heads * p->key_dim) * size,
              (size_t)b->dk_stride * size, 0, p->n_keys);
    zero_rows(b->dv, (size_t)(p->kv_heads * p->value_dim) * size,
              (size_t)b->dv_stride * size, 0, p->n_keys);
}

void NAME(attention_backward)(const cpl_attention_backward *b)
{
    const cpl_attention *p = &b->forward;
    if (!p->accumulate)
        clear_gradients(b);
    for (int64_t n = 0; n < p->n_blocks; n++)
        for (int64_t i = 0; i < p->blocks[n].n_queries; i++)
            for (int64_t head = 0; head < p->heads; head++)
                attend_back(b, &p->blocks[n], i, head);
}
