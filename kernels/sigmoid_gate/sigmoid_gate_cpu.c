/*
 * sigmoid_gate_cpu.c: heads one after the other, vectorised over the width.
 */
#include "real.h"

void NAME(sigmoid_gate)(const cpl_sigmoid_gate *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = (row * p->heads + head) * p->width;
            const real *x = (const real *)p->x + at;
            const real *gate = (const real *)p->gate + row * p->gate_stride +
                               head * p->gate_head_stride;
            real *y = (real *)p->y + at;
#pragma omp simd
            for (int64_t i = 0; i < p->width; i++)
                y[i] = x[i] * real_sigmoid(gate[i]);
        }
}

void NAME(sigmoid_gate_backward)(const cpl_sigmoid_gate_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = (row * p->heads + head) * p->width;
            int64_t gate_at = row * p->gate_stride + head * p->gate_head_stride;
            const real *x = (const real *)p->x + at;
            const real *dy = (const real *)p->dy + at;
            const real *gate = (const real *)p->gate + gate_at;
            real *dx = (real *)p->dx + at;
            real *dgate = (real *)p->dgate + gate_at;
#pragma omp simd
            for (int64_t i = 0; i < p->width; i++) {
                real s = real_sigmoid(gate[i]);
                dx[i] = dy[i] * s;
                dgate[i] = dy[i] * x[i] * s * (1 - s);
            }
        }
}
