/*
 * gated_rms_norm_cpu.c: rows one after the other, vectorised over the width.
 */
#include "real.h"

/* Row i is head i % heads of token i / heads. */
static int64_t gate_offset(int64_t i, int64_t heads, int64_t stride, int64_t d)
{
    return (i / heads) * stride + (i % heads) * d;
}

static real inverse_rms(const real *x, int64_t n, double eps)
{
    return 1 / SQRT(dot(x, x, n) / REAL(n) + REAL(eps));
}

void NAME(gated_rms_norm)(const cpl_gated_rms_norm *p)
{
    const int64_t n = p->width;
    const real *weight = p->weight;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *x = (const real *)p->x + row * n;
        const real *z =
            (const real *)p->z + gate_offset(row, p->heads, p->z_stride, n);
        real *y = (real *)p->y + row * n;
        real r = inverse_rms(x, n, p->eps);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * r * weight[i] * real_silu(z[i]);
    }
}

/* dx holds t = dy weight silu(z) on return; so the gate is computed once. */
static void backward_gate(const cpl_gated_rms_norm_backward *p, const real *x,
                          const real *z, const real *dy, real r, real *dx,
                          real *dz)
{
    const real *weight = p->weight;
    real *grad_weight = p->grad_weight;
    if (grad_weight != NULL)
#pragma omp simd
        for (int64_t i = 0; i < p->width; i++)
            grad_weight[i] += dy[i] * x[i] * r * real_silu(z[i]);
#pragma omp simd
    for (int64_t i = 0; i < p->width; i++) {
        real s = real_sigmoid(z[i]);
        real t = dy[i] * weight[i];
        dx[i] = t * z[i] * s;
        dz[i] = t * x[i] * r * s * (1 + z[i] * (1 - s));
    }
}

void NAME(gated_rms_norm_backward)(const cpl_gated_rms_norm_backward *p)
{
    const int64_t n = p->width;
    for (int64_t row = 0; row < p->n_rows; row++) {
        int64_t gate = gate_offset(row, p->heads, p->z_stride, n);
        const real *x = (const real *)p->x + row * n;
        real *dx = (real *)p->dx + row * n;
        real r = inverse_rms(x, n, p->eps);
        backward_gate(p, x, (const real *)p->z + gate,
                      (const real *)p->dy + row * n, r, dx,
                      (real *)p->dz + gate);
        real pull = r * r * dot(dx, x, n) / REAL(n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = r * (dx[i] - x[i] * pull);
    }
}
