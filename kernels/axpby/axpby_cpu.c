/*
 * axpby_cpu.c: y = alpha x + beta y, vectorised.
 */
#include "real.h"

void NAME(axpby)(const cpl_axpby *p)
{
    const real *x = p->x;
    real *y = p->y;
    const real alpha = REAL(p->alpha);
    const real beta = REAL(p->beta);
    if (p->alpha == 0) {
        for (int64_t i = 0; i < p->n; i++)
            y[i] = beta == 0 ? 0 : beta * y[i];
        return;
    }
    if (p->beta == 0) {
#pragma omp simd
        for (int64_t i = 0; i < p->n; i++)
            y[i] = alpha * x[i];
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < p->n; i++)
        y[i] = alpha * x[i] + beta * y[i];
}
