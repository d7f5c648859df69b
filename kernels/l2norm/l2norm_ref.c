/*
 * l2norm_ref.c: y = x r with r = 1 / sqrt(sum x^2 + eps): eps inside the root,
 * so that a zero row has a finite gradient. dx = r (dy - y (dy . y)).
 */
#include <math.h>

#include "entries.h"

static double inverse_norm(const double *x, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum + eps);
}

void NAME(l2norm)(const cpl_l2norm *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = head * p->width;
            const double *x = (const double *)p->x + row * p->x_stride + at;
            double *y = (double *)p->y + row * p->y_stride + at;
            double r = inverse_norm(x, p->width, p->eps);
            for (int64_t i = 0; i < p->width; i++)
                y[i] = x[i] * r;
        }
}

void NAME(l2norm_backward)(const cpl_l2norm_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = head * p->width;
            const double *x = (const double *)p->x + row * p->x_stride + at;
            const double *dy = (const double *)p->dy + row * p->dy_stride + at;
            double *dx = (double *)p->dx + row * p->dx_stride + at;
            double r = inverse_norm(x, p->width, p->eps);
            double along = 0;
            for (int64_t i = 0; i < p->width; i++)
                along += dy[i] * x[i] * r;
            for (int64_t i = 0; i < p->width; i++)
                dx[i] = r * (dy[i] - x[i] * r * along);
        }
}
