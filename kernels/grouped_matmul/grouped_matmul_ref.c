/*
 * grouped_matmul_ref.c: products of groups of rows, one matrix for each.
 */
#include "entries.h"

void NAME(grouped_matmul)(const cpl_grouped_matmul *p)
{
    const double *x = p->x;
    double *y = p->y;
    for (int64_t e = 0; e < p->groups; e++) {
        const double *w = (const double *)p->w + e * p->w_step;
        for (int64_t i = p->offsets[e]; i < p->offsets[e + 1]; i++)
            for (int64_t o = 0; o < p->out; o++) {
                double sum = 0;
                for (int64_t j = 0; j < p->in; j++)
                    sum += x[i * p->x_stride + j] * w[o * p->w_stride + j];
                y[i * p->y_stride + o] = sum;
            }
    }
}

static void row_gradient(const cpl_grouped_matmul_backward *p, const double *w,
                         const double *dy, double *dx)
{
    const cpl_grouped_matmul *f = &p->forward;
    for (int64_t j = 0; j < f->in; j++) {
        double sum = 0;
        for (int64_t o = 0; o < f->out; o++)
            sum += dy[o] * w[o * f->w_stride + j];
        dx[j] = (p->accumulate ? dx[j] : 0) + sum;
    }
}

static void add_weight_gradient(const cpl_grouped_matmul *f, const double *x,
                                const double *dy, double *grad_w)
{
    for (int64_t o = 0; o < f->out; o++)
        for (int64_t j = 0; j < f->in; j++)
            grad_w[o * f->w_stride + j] += dy[o] * x[j];
}

void NAME(grouped_matmul_backward)(const cpl_grouped_matmul_backward *p)
{
    const cpl_grouped_matmul *f = &p->forward;
    for (int64_t e = 0; e < f->groups; e++)
        for (int64_t i = f->offsets[e]; i < f->offsets[e + 1]; i++) {
            const double *dy = (const double *)p->dy + i * p->dy_stride;
            if (p->grad_w != NULL)
                add_weight_gradient(f, (const double *)f->x + i * f->x_stride,
                                    dy, (double *)p->grad_w + e * f->w_step);
            if (p->dx != NULL)
                row_gradient(p, (const double *)f->w + e * f->w_step, dy,
                             (double *)p->dx + i * p->dx_stride);
        }
}
