/*
 * moe_ref.c: the formulas of kernels.h, row by row.
 */
#include <math.h>
#include <string.h>

#include "entries.h"
#include "spans.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* A larger logit stands before, or the same and a lower index; NaN is the least
 * of all, so that ranks are all different. */
static bool stands_before(const double *logits, int64_t f, int64_t e)
{
    bool f_is_nan = isnan(logits[f]), e_is_nan = isnan(logits[e]);
    if (f_is_nan || e_is_nan)
        return e_is_nan && (!f_is_nan || f < e);
    return logits[f] > logits[e] || (f < e && logits[f] == logits[e]);
}

/* Experts that come before e. */
static int64_t rank_of(const double *logits, int64_t experts, int64_t e)
{
    int64_t rank = 0;
    for (int64_t f = 0; f < experts; f++)
        rank += stands_before(logits, f, e);
    return rank;
}

static double sum_of_chosen(const double *probs, const int32_t *chosen,
                            int64_t top_k)
{
    double sum = 0;
    for (int64_t j = 0; j < top_k; j++)
        sum += probs[chosen[j]];
    return sum;
}

static void route_row(const cpl_moe_route *p, int64_t row)
{
    const double *logits = (const double *)p->logits + row * p->experts;
    double *probs = (double *)p->probs + row * p->experts;
    double *weights = (double *)p->weights + row * p->top_k;
    int32_t *chosen = p->chosen + row * p->top_k;
    double max = logits[0];
    double sum = 0;
    for (int64_t e = 0; e < p->experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (int64_t e = 0; e < p->experts; e++)
        sum += exp(logits[e] - max);
    double next = -(double)INFINITY; /* the first that is not chosen */
    for (int64_t e = 0; e < p->experts; e++) {
        int64_t rank = rank_of(logits, p->experts, e);
        probs[e] = exp(logits[e] - max) / sum;
        if (rank < p->top_k)
            chosen[rank] = (int32_t)e;
        if (rank == p->top_k)
            next = logits[e];
    }
    double total = p->renormalise ? sum_of_chosen(probs, chosen, p->top_k) : 1;
    for (int64_t j = 0; j < p->top_k; j++)
        weights[j] = probs[chosen[j]] / total;
    double gap = logits[chosen[p->top_k - 1]] - next;
    if (p->margin != NULL && gap < *p->margin)
        *p->margin = gap;
}

void NAME(moe_route)(const cpl_moe_route *p)
{
    for (int64_t i = 0; i < p->n_rows * p->top_k; i++)
        p->chosen[i] = -1;
    size_t experts = (size_t)p->experts * sizeof(double);
    size_t top_k = (size_t)p->top_k * sizeof(double);
    zero_gaps(p->probs, experts, experts, p->spans, p->n_spans, p->n_rows);
    zero_gaps(p->weights, top_k, top_k, p->spans, p->n_spans, p->n_rows);
    if (p->margin != NULL)
        *p->margin = (double)INFINITY;
    for (int64_t s = 0; s < p->n_spans; s++)
        for (int64_t i = 0; i < p->spans[s].length; i++)
            route_row(p, p->spans[s].slot + i);
}

/* With w_j = p_j / s (s the sum of the chosen): dp_j = (dw_j - sum dw w) / s;
 * without: dp_j = dw_j. Then dz = p (dp - sum p dp). */
static void route_row_backward(const cpl_moe_route_backward *p, int64_t row)
{
    const double *probs = (const double *)p->probs + row * p->experts;
    const double *dweights = (const double *)p->dweights + row * p->top_k;
    const int32_t *chosen = p->chosen + row * p->top_k;
    double *dlogits = (double *)p->dlogits + row * p->experts;
    double sum = sum_of_chosen(probs, chosen, p->top_k);
    double dot = 0; /* sum of dw w */
    for (int64_t j = 0; j < p->top_k; j++)
        dot += dweights[j] * probs[chosen[j]] / sum;
    for (int64_t e = 0; e < p->experts; e++)
        dlogits[e] = p->dprobs == NULL ? 0 : p->dprobs[e];
    for (int64_t j = 0; j < p->top_k; j++)
        dlogits[chosen[j]] +=
            p->renormalise ? (dweights[j] - dot) / sum : dweights[j];
    double mean = 0; /* sum of p dp */
    for (int64_t e = 0; e < p->experts; e++)
        mean += probs[e] * dlogits[e];
    for (int64_t e = 0; e < p->experts; e++)
        dlogits[e] = probs[e] * (dlogits[e] - mean);
}

void NAME(moe_route_backward)(const cpl_moe_route_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        if (p->chosen[row * p->top_k] >= 0)
            route_row_backward(p, row);
        else
            memset((double *)p->dlogits + row * p->experts, 0,
                   (size_t)p->experts * sizeof(double));
    }
}

/* Choices that stand before number i: of a lower expert, or of the same and
 * an earlier row. */
static int64_t place_of(const cpl_moe_group *p, int64_t i)
{
    int64_t place = 0;
    for (int64_t j = 0; j < p->n_rows * p->top_k; j++)
        place += p->chosen[j] >= 0 && (p->chosen[j] < p->chosen[i] ||
                                       (j < i && p->chosen[j] == p->chosen[i]));
    return place;
}

void NAME(moe_group)(const cpl_moe_group *p)
{
    int64_t n = p->n_rows * p->top_k;
    for (int64_t e = 0; e <= p->experts; e++) {
        p->offsets[e] = 0;
        for (int64_t i = 0; i < n; i++)
            p->offsets[e] += p->chosen[i] >= 0 && p->chosen[i] < e;
    }
    for (int64_t i = 0; i < n; i++)
        p->places[i] = p->chosen[i] < 0 ? -1 : place_of(p, i);
}

void NAME(moe_dispatch)(const cpl_moe_dispatch *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t j = 0; j < p->top_k; j++) {
            int64_t place = p->places[row * p->top_k + j];
            if (place >= 0)
                memcpy((double *)p->y + place * p->width,
                       (const double *)p->x + row * p->width,
                       (size_t)p->width * sizeof(double));
        }
}

void NAME(moe_combine)(const cpl_moe_combine *p)
{
    const double *h = p->h;
    const double *weights = p->weights;
    const double *shared = p->shared;
    const double *gate = p->shared_gate;
    double *y = p->y;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const int64_t *places = p->places + row * p->top_k;
        for (int64_t i = 0; i < p->width; i++) {
            double sum = 0;
            for (int64_t j = 0; places[0] >= 0 && j < p->top_k; j++)
                sum += (weights == NULL ? 1 : weights[row * p->top_k + j]) *
                       h[places[j] * p->width + i];
            if (places[0] >= 0 && shared != NULL)
                sum += sigmoid(gate[row]) * shared[row * p->width + i];
            y[row * p->width + i] = sum;
        }
    }
}

/* dgate = <dy, shared> s (1 - s), dshared = s dy, with s = sigmoid(gate). */
static void shared_backward(const cpl_moe_combine_backward *p, int64_t row,
                            bool is_routed)
{
    int64_t width = p->forward.width;
    const double *dy = (const double *)p->dy + row * width;
    const double *shared = (const double *)p->forward.shared + row * width;
    double *dshared = (double *)p->dshared + row * width;
    double s = sigmoid(((const double *)p->forward.shared_gate)[row]);
    double dot = 0;
    for (int64_t i = 0; i < width; i++) {
        dot += dy[i] * shared[i];
        dshared[i] = is_routed ? s * dy[i] : 0;
    }
    ((double *)p->dshared_gate)[row] = is_routed ? dot * s * (1 - s) : 0;
}

void NAME(moe_combine_backward)(const cpl_moe_combine_backward *p)
{
    int64_t width = p->forward.width;
    int64_t top_k = p->forward.top_k;
    for (int64_t row = 0; row < p->forward.n_rows; row++) {
        const double *dy = (const double *)p->dy + row * width;
        for (int64_t j = row * top_k; j < (row + 1) * top_k; j++) {
            int64_t place = p->forward.places[j];
            double dot = 0;
            for (int64_t i = 0; place >= 0 && i < width; i++) {
                dot +=
                    dy[i] * ((const double *)p->forward.h)[place * width + i];
                ((double *)p->dh)[place * width + i] =
                    ((const double *)p->forward.weights)[j] * dy[i];
            }
            ((double *)p->dweights)[j] = dot;
        }
        if (p->forward.shared != NULL)
            shared_backward(p, row, p->forward.places[row * top_k] >= 0);
    }
}
