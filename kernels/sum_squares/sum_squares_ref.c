/*
 * sum_squares_ref.c: from the first element to the last.
 */
#include "entries.h"

size_t NAME(sum_squares_workspace)(const cpl_sum_squares *p)
{
    (void)p;
    return 0;
}

void NAME(sum_squares)(const cpl_sum_squares *p)
{
    const double *x = p->x;
    double sum = 0;
    for (int64_t i = 0; i < p->n; i++)
        sum += x[i] * x[i];
    *p->sum = sum;
}
