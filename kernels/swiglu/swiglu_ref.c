/*
 * swiglu_ref.c: y = silu(gate) up with silu(x) = x s, s = sigmoid(x).
 *   dup = dy silu(gate),  dgate = dy up s (1 + gate (1 - s))
 */
#include <math.h>

#include "entries.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void NAME(swiglu)(const cpl_swiglu *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *gate = (const double *)p->gate + row * p->stride;
        const double *up = (const double *)p->up + row * p->stride;
        double *y = (double *)p->y + row * p->width;
        for (int64_t i = 0; i < p->width; i++)
            y[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

void NAME(swiglu_backward)(const cpl_swiglu_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *gate = (const double *)p->gate + row * p->stride;
        const double *up = (const double *)p->up + row * p->stride;
        const double *dy = (const double *)p->dy + row * p->width;
        double *dgate = (double *)p->dgate + row * p->stride;
        double *dup = (double *)p->dup + row * p->stride;
        for (int64_t i = 0; i < p->width; i++) {
            double s = sigmoid(gate[i]);
            dup[i] = dy[i] * gate[i] * s;
            dgate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
        }
    }
}
