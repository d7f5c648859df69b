/*
 * gated_rms_norm_ref.c: y = xh weight silu(z), xh = x r, r = 1 / sqrt(mean x^2
 * + eps): normalised first, gated after. Backward, with t = dy weight silu(z):
 *   dx = r (t - xh mean(t xh)),  dz = dy weight xh silu'(z),
 *   grad_weight += sum over rows of dy xh silu(z).
 */
#include <math.h>

#include "entries.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double inverse_rms(const double *x, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)n + eps);
}

/* Row i is head i % heads of token i / heads. */
static int64_t gate_offset(int64_t i, int64_t heads, int64_t stride, int64_t d)
{
    return (i / heads) * stride + (i % heads) * d;
}

void NAME(gated_rms_norm)(const cpl_gated_rms_norm *p)
{
    const int64_t n = p->width;
    const double *weight = p->weight;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *x = (const double *)p->x + row * n;
        const double *z =
            (const double *)p->z + gate_offset(row, p->heads, p->z_stride, n);
        double *y = (double *)p->y + row * n;
        double r = inverse_rms(x, n, p->eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * r * weight[i] * z[i] * sigmoid(z[i]);
    }
}

void NAME(gated_rms_norm_backward)(const cpl_gated_rms_norm_backward *p)
{
    const int64_t n = p->width;
    const double *weight = p->weight;
    double *grad_weight = p->grad_weight;
    for (int64_t row = 0; row < p->n_rows; row++) {
        int64_t gate = gate_offset(row, p->heads, p->z_stride, n);
        const double *x = (const double *)p->x + row * n;
        const double *dy = (const double *)p->dy + row * n;
        const double *z = (const double *)p->z + gate;
        double *dz = (double *)p->dz + gate;
        double *dx = (double *)p->dx + row * n;
        double r = inverse_rms(x, n, p->eps);
        double mean = 0;
        for (int64_t i = 0; i < n; i++)
            mean += dy[i] * weight[i] * z[i] * sigmoid(z[i]) * x[i] * r;
        mean /= (double)n;
        for (int64_t i = 0; i < n; i++) {
            double s = sigmoid(z[i]);
            double xh = x[i] * r;
            if (grad_weight != NULL)
                grad_weight[i] += dy[i] * xh * z[i] * s;
            dx[i] = r * (dy[i] * weight[i] * z[i] * s - xh * mean);
            dz[i] = dy[i] * weight[i] * xh * s * (1 + z[i] * (1 - s));
        }
    }
}
