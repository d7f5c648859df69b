/*
 * l2norm_cpu.c: heads one after the other, vectorised over the width.
 */
#include "real.h"

void NAME(l2norm)(const cpl_l2norm *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = head * p->width;
            const real *x = (const real *)p->x + row * p->x_stride + at;
            real *y = (real *)p->y + row * p->y_stride + at;
            real r = 1 / SQRT(dot(x, x, p->width) + REAL(p->eps));
#pragma omp simd
            for (int64_t i = 0; i < p->width; i++)
                y[i] = x[i] * r;
        }
}

void NAME(l2norm_backward)(const cpl_l2norm_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = head * p->width;
            const real *x = (const real *)p->x + row * p->x_stride + at;
            const real *dy = (const real *)p->dy + row * p->dy_stride + at;
            real *dx = (real *)p->dx + row * p->dx_stride + at;
            real r = 1 / SQRT(dot(x, x, p->width) + REAL(p->eps));
            real pull = r * r * dot(dy, x, p->width);
#pragma omp simd
            for (int64_t i = 0; i < p->width; i++)
                dx[i] = r * (dy[i] - x[i] * pull);
        }
}
