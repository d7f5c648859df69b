/*
 * sgd_cpu.c: w -= lr factors[0] grad, vectorised.
 */
#include "real.h"

void NAME(sgd)(const cpl_sgd *p)
{
    const real *grad = p->grad;
    real *w = p->w;
    const double lr = p->rate != NULL ? *p->rate : p->lr;
    const real rate = REAL(-lr * p->factors[0]);
#pragma omp simd
    for (int64_t i = 0; i < p->n; i++)
        w[i] += rate * grad[i];
}
