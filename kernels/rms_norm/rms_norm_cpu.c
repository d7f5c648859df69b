/*
 * rms_norm_cpu.c: rows one after the other, vectorised over the width.
 */
#include "real.h"

void NAME(rms_norm)(const cpl_rms_norm *p)
{
    const real *weight = p->weight;
    const real offset = REAL(p->weight_offset);
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *x = (const real *)p->x + row * p->x_stride;
        real *y = (real *)p->y + row * p->y_stride;
        real mean = dot(x, x, p->width) / REAL(p->width);
        real r = 1 / SQRT(mean + REAL(p->eps));
#pragma omp simd
        for (int64_t i = 0; i < p->width; i++)
            y[i] = x[i] * r * (weight[i] + offset);
    }
}

static real mean_of_products(const real *dy, const real *weight, real offset,
                             const real *x, int64_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += dy[i] * (weight[i] + offset) * x[i];
    return sum / REAL(n);
}

size_t NAME(rms_norm_backward_workspace)(const cpl_rms_norm_backward *p)
{
    (void)p;
    return 0;
}

void NAME(rms_norm_backward)(const cpl_rms_norm_backward *p)
{
    const real *weight = p->weight;
    const real offset = REAL(p->weight_offset);
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *x = (const real *)p->x + row * p->x_stride;
        const real *dy = (const real *)p->dy + row * p->dy_stride;
        real *dx = (real *)p->dx + row * p->dx_stride;
        real mean_square = dot(x, x, p->width) / REAL(p->width);
        real r = 1 / SQRT(mean_square + REAL(p->eps));
        real pull = r * r * mean_of_products(dy, weight, offset, x, p->width);
        real *grad_weight = p->grad_weight;
        if (grad_weight != NULL)
#pragma omp simd
            for (int64_t i = 0; i < p->width; i++)
                grad_weight[i] += dy[i] * x[i] * r;
#pragma omp simd
        for (int64_t i = 0; i < p->width; i++)
            dx[i] = r * (dy[i] * (weight[i] + offset) - x[i] * pull);
    }
}
