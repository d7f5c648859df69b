/*
 * merge_cpu.c: o -= sigmoid(lse_b - lse) (o - o_b), which cannot overflow, and
 * lse = max + log1p(exp(min - max)).
 */
#include "real.h"

void NAME(merge)(const cpl_merge *p)
{
    real *lse = p->lse;
    const real *lse_b = p->lse_b;
    for (int64_t i = 0; i < p->n_rows * p->heads; i++) {
        real *o = (real *)p->o + i * p->width;
        const real *o_b = (const real *)p->o_b + i * p->width;
        if (lse_b[i] == -REAL(INFINITY))
            continue;
        real share = real_sigmoid(lse_b[i] - lse[i]);
#pragma omp simd
        for (int64_t j = 0; j < p->width; j++)
            o[j] -= share * (o[j] - o_b[j]);
        bool b_is_larger = lse_b[i] > lse[i];
        real high = b_is_larger ? lse_b[i] : lse[i];
        real low = b_is_larger ? lse[i] : lse_b[i];
        lse[i] = high + LOG1P(real_exp(low - high));
    }
}
