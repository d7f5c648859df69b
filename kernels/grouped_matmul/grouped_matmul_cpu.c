/*
 * grouped_matmul_cpu.c: a product of the matrix library for each group.
 */
#include "real.h"

void NAME(grouped_matmul)(const cpl_grouped_matmul *p)
{
    for (int64_t e = 0; e < p->groups; e++) {
        int64_t first = p->offsets[e];
        const real *x = (const real *)p->x + first * p->x_stride;
        const real *w = (const real *)p->w + e * p->w_step;
        gemm(p->offsets[e + 1] - first, p->out, p->in, 1, plain(x, p->x_stride),
             turned(w, p->w_stride), 0, (real *)p->y + first * p->y_stride,
             p->y_stride);
    }
}

void NAME(grouped_matmul_backward)(const cpl_grouped_matmul_backward *p)
{
    const cpl_grouped_matmul *f = &p->forward;
    for (int64_t e = 0; e < f->groups; e++) {
        int64_t first = f->offsets[e];
        int64_t n = f->offsets[e + 1] - first;
        const real *x = (const real *)f->x + first * f->x_stride;
        const real *w = (const real *)f->w + e * f->w_step;
        const real *dy = (const real *)p->dy + first * p->dy_stride;
        if (p->grad_w != NULL && n > 0)
            gemm(f->out, f->in, n, 1, turned(dy, p->dy_stride),
                 plain(x, f->x_stride), 1, (real *)p->grad_w + e * f->w_step,
                 f->w_stride);
        if (p->dx != NULL)
            gemm(n, f->in, f->out, 1, plain(dy, p->dy_stride),
                 plain(w, f->w_stride), p->accumulate ? 1 : 0,
                 (real *)p->dx + first * p->dx_stride, p->dx_stride);
    }
}
