/*
 * merge_cpu.c: o -= sigmoid(lse_b - lse) (o - o_b), which cannot overflow, and
 * lse = max + log1p(exp(min - max)); and back. Where the larger lse is +Inf,
 * all is NaN; where an o is not finite, the mean is not by a difference.
 */
#include "real.h"

/* The share of weights that `lse` has beside those of `other`. */
static real share_of(real lse, real other)
{
    const real max = lse > other ? lse : other;
    return real_sigmoid(lse - other) + (max - max);
}

static void join(const real *o_b, real share, real share_b, int64_t n, real *o)
{
    if (all_finite(o, n) && all_finite(o_b, n))
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            o[j] -= share_b * (o[j] - o_b[j]);
    else
        for (int64_t j = 0; j < n; j++)
            o[j] = share * o[j] + share_b * o_b[j];
}

void NAME(merge)(const cpl_merge *p)
{
    real *lse = p->lse;
    const real *lse_b = p->lse_b;
    for (int64_t i = 0; i < p->n_rows * p->heads; i++) {
        real *o = (real *)p->o + i * p->width;
        const real *o_b = (const real *)p->o_b + i * p->width;
        if (lse_b[i] == -REAL(INFINITY))
            continue;
        join(o_b, share_of(lse[i], lse_b[i]), share_of(lse_b[i], lse[i]),
             p->width, o);
        bool b_is_larger = lse_b[i] > lse[i];
        real high = b_is_larger ? lse_b[i] : lse[i];
        real low = b_is_larger ? lse[i] : lse_b[i];
        lse[i] = high + LOG1P(real_exp(low - high)) + (high - high);
    }
}

void NAME(merge_backward)(const cpl_merge_backward *p)
{
    const real *lse = p->lse, *lse_b = p->lse_b, *d_lse = p->d_lse;
    real *d_lse_a = p->d_lse_a, *d_lse_b = p->d_lse_b;
    for (int64_t i = 0; i < p->n_rows * p->heads; i++) {
        int64_t at = i * p->width;
        const real *o = (const real *)p->o + at;
        const real *o_b = (const real *)p->o_b + at;
        const real *d_o = (const real *)p->d_o + at;
        real *d_o_a = (real *)p->d_o_a + at, *d_o_b = (real *)p->d_o_b + at;
        /* Not 1 - share_b: the smaller one would be lost in rounding. */
        bool is_all = lse_b[i] == -REAL(INFINITY);
        real share = is_all ? 1 : share_of(lse[i], lse_b[i]);
        real share_b = is_all ? 0 : share_of(lse_b[i], lse[i]), moved = 0;
#pragma omp simd reduction(+ : moved)
        for (int64_t j = 0; j < p->width; j++) {
            moved += d_o[j] * (o_b[j] - o[j]);
            d_o_a[j] = share * d_o[j];
            d_o_b[j] = share_b * d_o[j];
        }
        real own = d_lse == NULL ? 0 : d_lse[i];
        d_lse_a[i] = share * own - share * share_b * moved;
        d_lse_b[i] = share_b * own + share * share_b * moved;
    }
}
