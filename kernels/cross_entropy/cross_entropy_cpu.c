/*
 * cross_entropy_cpu.c: three passes over a row of logits, all vectorised; the
 * sums are kept in double, because a vocabulary is wide.
 */
#include "real.h"

static real row_max(const real *x, int64_t n)
{
    real max = -REAL(INFINITY);
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static double sum_exp(const real *x, real max, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)real_exp(x[i] - max);
    return sum;
}

static double grad_scale(const cpl_cross_entropy *p)
{
    return p->scale != NULL ? *p->scale * p->grad_scale : p->grad_scale;
}

/* Returns the loss of a row that has a label; dlogits may be logits. */
static double row_loss(const cpl_cross_entropy *p, const real *logits,
                       int64_t label, real *dlogits)
{
    real max = row_max(logits, p->vocab);
    double sum = sum_exp(logits, max, p->vocab);
    double loss = (double)max + log(sum) - (double)logits[label];
    if (dlogits == NULL)
        return loss;
    real factor = REAL(grad_scale(p) / sum);
#pragma omp simd
    for (int64_t i = 0; i < p->vocab; i++)
        dlogits[i] = real_exp(logits[i] - max) * factor;
    dlogits[label] -= REAL(grad_scale(p));
    return loss;
}

size_t NAME(cross_entropy_workspace)(const cpl_cross_entropy *p)
{
    (void)p;
    return 0;
}

void NAME(cross_entropy)(const cpl_cross_entropy *p)
{
    double loss = 0;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *logits = (const real *)p->logits + row * p->vocab;
        real *dlogits =
            p->dlogits == NULL ? NULL : (real *)p->dlogits + row * p->vocab;
        if (p->labels[row] >= 0)
            loss += row_loss(p, logits, p->labels[row], dlogits);
        else if (dlogits != NULL)
            memset(dlogits, 0, (size_t)p->vocab * sizeof(real));
    }
    *p->loss_sum = loss == loss ? loss : (double)NAN; /* one NaN for Lua */
}
