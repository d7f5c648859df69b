/*
 * rms_norm_ref.c: y = x r (weight + offset) with r = 1 / sqrt(mean x^2 + eps).
 * Backward, with t = dy (weight + offset) and xh = x r:
 *   dx = r (t - xh mean(t xh)),  grad_weight += sum over rows of dy xh.
 */
#include <math.h>

#include "entries.h"

static double inverse_rms(const double *x, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)n + eps);
}

void NAME(rms_norm)(const cpl_rms_norm *p)
{
    const double *weight = p->weight;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *x = (const double *)p->x + row * p->x_stride;
        double *y = (double *)p->y + row * p->y_stride;
        double r = inverse_rms(x, p->width, p->eps);
        for (int64_t i = 0; i < p->width; i++)
            y[i] = x[i] * r * (weight[i] + p->weight_offset);
    }
}

size_t NAME(rms_norm_backward_workspace)(const cpl_rms_norm_backward *p)
{
    (void)p;
    return 0;
}

void NAME(rms_norm_backward)(const cpl_rms_norm_backward *p)
{
    const double *weight = p->weight;
    double *grad_weight = p->grad_weight;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *x = (const double *)p->x + row * p->x_stride;
        const double *dy = (const double *)p->dy + row * p->dy_stride;
        double *dx = (double *)p->dx + row * p->dx_stride;
        double r = inverse_rms(x, p->width, p->eps);
        double mean = 0;
        for (int64_t i = 0; i < p->width; i++)
            mean += dy[i] * (weight[i] + p->weight_offset) * x[i] * r;
        mean /= (double)p->width;
        for (int64_t i = 0; i < p->width; i++) {
            double t = dy[i] * (weight[i] + p->weight_offset);
            if (grad_weight != NULL)
                grad_weight[i] += dy[i] * x[i] * r;
            dx[i] = r * (t - x[i] * r * mean);
        }
    }
}
