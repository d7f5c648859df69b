/*
 * axpby_ref.c: y = alpha x + beta y. With beta = 0, y is only written, with
 * alpha = 0, x is not read.
 */
#include "entries.h"

void NAME(axpby)(const cpl_axpby *p)
{
    const double *x = p->x;
    double *y = p->y;
    for (int64_t i = 0; i < p->n; i++)
        y[i] = (p->alpha == 0 ? 0 : p->alpha * x[i]) +
               (p->beta == 0 ? 0 : p->beta * y[i]);
}
