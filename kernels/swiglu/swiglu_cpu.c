/*
 * swiglu_cpu.c: rows one after the other, vectorised over the width.
 */
#include "real.h"

void NAME(swiglu)(const cpl_swiglu *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *gate = (const real *)p->gate + row * p->stride;
        const real *up = (const real *)p->up + row * p->stride;
        real *y = (real *)p->y + row * p->width;
#pragma omp simd
        for (int64_t i = 0; i < p->width; i++)
            y[i] = real_silu(gate[i]) * up[i];
    }
}

void NAME(swiglu_backward)(const cpl_swiglu_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *gate = (const real *)p->gate + row * p->stride;
        const real *up = (const real *)p->up + row * p->stride;
        const real *dy = (const real *)p->dy + row * p->width;
        real *dgate = (real *)p->dgate + row * p->stride;
        real *dup = (real *)p->dup + row * p->stride;
#pragma omp simd
        for (int64_t i = 0; i < p->width; i++) {
            real s = real_sigmoid(gate[i]);
            dup[i] = dy[i] * gate[i] * s;
            dgate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
        }
    }
}
