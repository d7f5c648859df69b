/*
 * sum_squares_cpu.c: vectorised; every lane adds in double, in the same order
 * each time.
 */
#include "real.h"

size_t NAME(sum_squares_workspace)(const cpl_sum_squares *p)
{
    (void)p;
    return 0;
}

void NAME(sum_squares)(const cpl_sum_squares *p)
{
    const real *x = p->x;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < p->n; i++)
        sum += (double)x[i] * (double)x[i];
    *p->sum = sum;
}
