/*
 * moe_cpu.c: routing, grouping and the ways there and back, vectorised over
 * experts or over the width. Matrix products of the experts are not here: each
 * expert's slots stand together, so they are plain products of rows.
 */
#include "real.h"
#include "spans.h"

/* NaN is the least of all. */
static bool is_larger(real a, real b)
{
    return a == a && !(a <= b);
}

/* The indices of the k largest, the largest first: insertion into a short
 * list, behind equals, so that ties go to the lower index. */
static void choose(const real *logits, int64_t experts, int64_t top_k,
                   int32_t *chosen)
{
    for (int64_t e = 0; e < experts; e++) {
        int64_t at = e < top_k ? e : top_k;
        if (at == top_k && !is_larger(logits[e], logits[chosen[top_k - 1]]))
            continue;
        at = at == top_k ? top_k - 1 : at; /* the last one leaves */
        while (at > 0 && is_larger(logits[e], logits[chosen[at - 1]])) {
            chosen[at] = chosen[at - 1];
            at--;
        }
        chosen[at] = (int32_t)e;
    }
}

static void softmax(const real *x, real max, real *y, int64_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        y[i] = real_exp(x[i] - max);
        sum += y[i];
    }
    real scale = 1 / sum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] *= scale;
}

static real sum_of_chosen(const real *probs, const int32_t *chosen,
                          int64_t top_k)
{
    real sum = 0;
    for (int64_t j = 0; j < top_k; j++)
        sum += probs[chosen[j]];
    return sum;
}

/* The gap between the last chosen logit and the largest of the others. */
static double margin_of(const real *logits, int64_t experts,
                        const int32_t *chosen, int64_t top_k)
{
    int32_t last = chosen[top_k - 1];
    real next = -REAL(INFINITY);
    for (int32_t e = 0; e < experts; e++) {
        /* Behind the last: smaller, or equal with a higher index. */
        bool behind =
            logits[e] < logits[last] || (e > last && logits[e] == logits[last]);
        next = behind && logits[e] > next ? logits[e] : next;
    }
    return (double)logits[last] - (double)next;
}

static void route_row(const cpl_moe_route *p, int64_t row)
{
    const real *logits = (const real *)p->logits + row * p->experts;
    real *probs = (real *)p->probs + row * p->experts;
    real *weights = (real *)p->weights + row * p->top_k;
    int32_t *chosen = p->chosen + row * p->top_k;
    choose(logits, p->experts, p->top_k, chosen);
    softmax(logits, logits[chosen[0]], probs, p->experts);
    real sum = p->renormalise ? sum_of_chosen(probs, chosen, p->top_k) : 1;
    for (int64_t j = 0; j < p->top_k; j++)
        weights[j] = probs[chosen[j]] / sum;
    if (p->margin == NULL)
        return;
    double gap = margin_of(logits, p->experts, chosen, p->top_k);
    *p->margin = gap < *p->margin ? gap : *p->margin;
}

void NAME(moe_route)(const cpl_moe_route *p)
{
    for (int64_t i = 0; i < p->n_rows * p->top_k; i++)
        p->chosen[i] = -1;
    size_t experts = (size_t)p->experts * sizeof(real);
    size_t top_k = (size_t)p->top_k * sizeof(real);
    zero_gaps(p->probs, experts, experts, p->spans, p->n_spans, p->n_rows);
    zero_gaps(p->weights, top_k, top_k, p->spans, p->n_spans, p->n_rows);
    if (p->margin != NULL)
        *p->margin = (double)INFINITY;
    for (int64_t s = 0; s < p->n_spans; s++)
        for (int64_t i = 0; i < p->spans[s].length; i++)
            route_row(p, p->spans[s].slot + i);
}

static void route_row_backward(const cpl_moe_route_backward *p, int64_t row)
{
    const real *probs = (const real *)p->probs + row * p->experts;
    const real *dweights = (const real *)p->dweights + row * p->top_k;
    const int32_t *chosen = p->chosen + row * p->top_k;
    real *dlogits = (real *)p->dlogits + row * p->experts;
    real sum = p->renormalise ? sum_of_chosen(probs, chosen, p->top_k) : 1;
    real mean_weight = 0;
    for (int64_t j = 0; p->renormalise && j < p->top_k; j++)
        mean_weight += dweights[j] * probs[chosen[j]] / sum;
    for (int64_t e = 0; e < p->experts; e++)
        dlogits[e] = p->dprobs == NULL ? 0 : REAL(p->dprobs[e]);
    for (int64_t j = 0; j < p->top_k; j++)
        dlogits[chosen[j]] += (dweights[j] - mean_weight) / sum;
    real mean = dot(probs, dlogits, p->experts);
#pragma omp simd
    for (int64_t e = 0; e < p->experts; e++)
        dlogits[e] = probs[e] * (dlogits[e] - mean);
}

void NAME(moe_route_backward)(const cpl_moe_route_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        if (p->chosen[row * p->top_k] >= 0)
            route_row_backward(p, row);
        else
            memset((real *)p->dlogits + row * p->experts, 0,
                   (size_t)p->experts * sizeof(real));
    }
}

/* A counting sort: offsets[e] runs from the first slot of expert e to that of
 * e + 1, and is then moved on by one. */
void NAME(moe_group)(const cpl_moe_group *p)
{
    int64_t n = p->n_rows * p->top_k;
    int64_t *offsets = p->offsets;
    memset(offsets, 0, (size_t)(p->experts + 1) * sizeof *offsets);
    for (int64_t i = 0; i < n; i++)
        if (p->chosen[i] >= 0)
            offsets[p->chosen[i] + 1]++;
    for (int64_t e = 0; e < p->experts; e++)
        offsets[e + 1] += offsets[e];
    for (int64_t i = 0; i < n; i++)
        p->places[i] = p->chosen[i] < 0 ? -1 : offsets[p->chosen[i]]++;
    for (int64_t e = p->experts; e > 0; e--)
        offsets[e] = offsets[e - 1];
    offsets[0] = 0;
}

void NAME(moe_dispatch)(const cpl_moe_dispatch *p)
{
    size_t bytes = (size_t)p->width * sizeof(real);
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t j = 0; j < p->top_k; j++) {
            int64_t place = p->places[row * p->top_k + j];
            if (place >= 0)
                memcpy((real *)p->y + place * p->width,
                       (const real *)p->x + row * p->width, bytes);
        }
}

void NAME(moe_combine)(const cpl_moe_combine *p)
{
    const real *h = p->h;
    const real *weights = p->weights;
    const real *shared = p->shared;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const int64_t *places = p->places + row * p->top_k;
        real *y = (real *)p->y + row * p->width;
        memset(y, 0, (size_t)p->width * sizeof(real));
        if (places[0] < 0)
            continue;
        for (int64_t j = 0; j < p->top_k; j++)
            add_scaled(y, weights == NULL ? 1 : weights[row * p->top_k + j],
                       h + places[j] * p->width, p->width);
        if (shared != NULL)
            add_scaled(y, real_sigmoid(((const real *)p->shared_gate)[row]),
                       shared + row * p->width, p->width);
    }
}

static void scale(real *y, real a, const real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = a * x[i];
}

static void shared_backward(const cpl_moe_combine_backward *p, int64_t row)
{
    int64_t width = p->forward.width;
    const real *dy = (const real *)p->dy + row * width;
    real *dshared = (real *)p->dshared + row * width;
    real *dgate = (real *)p->dshared_gate + row;
    if (p->forward.places[row * p->forward.top_k] < 0) {
        memset(dshared, 0, (size_t)width * sizeof(real));
        *dgate = 0;
        return;
    }
    real s = real_sigmoid(((const real *)p->forward.shared_gate)[row]);
    scale(dshared, s, dy, width);
    *dgate = dot(dy, (const real *)p->forward.shared + row * width, width) * s *
             (1 - s);
}

void NAME(moe_combine_backward)(const cpl_moe_combine_backward *p)
{
    int64_t width = p->forward.width;
    int64_t top_k = p->forward.top_k;
    const real *h = p->forward.h;
    const real *weights = p->forward.weights;
    real *dh = p->dh;
    real *dweights = p->dweights;
    for (int64_t row = 0; row < p->forward.n_rows; row++) {
        const real *dy = (const real *)p->dy + row * width;
        for (int64_t j = row * top_k; j < (row + 1) * top_k; j++) {
            int64_t place = p->forward.places[j];
            dweights[j] = 0;
            if (place < 0)
                continue;
            dweights[j] = dot(dy, h + place * width, width);
            scale(dh + place * width, weights[j], dy, width);
        }
        if (p->forward.shared != NULL)
            shared_backward(p, row);
    }
}
