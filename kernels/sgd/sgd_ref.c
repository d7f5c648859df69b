/*
 * sgd_ref.c: w -= lr factors[0] grad, one number after the other.
 */
#include "entries.h"

void NAME(sgd)(const cpl_sgd *p)
{
    const double *grad = p->grad;
    double *w = p->w;
    double lr = p->rate != NULL ? *p->rate : p->lr;
    for (int64_t i = 0; i < p->n; i++)
        w[i] -= lr * p->factors[0] * grad[i];
}
