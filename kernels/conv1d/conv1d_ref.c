/*
 * conv1d_ref.c: depthwise causal convolution over spans.
 *   pre[t, c] = bias[c] + sum_j weight[c, j] x[t - (W-1) + j, c],  y =
 * silu(pre) Row t < 0 of a span is row W-1 + t of its halo. Backward, dpre = dy
 * silu'(pre): dx[t - (W-1) + j] += weight[j] dpre[t], grad_weight[j] += sum_t
 * dpre[t] x[t - (W-1) + j],  grad_bias += sum_t dpre.
 */
#include <math.h>

#include "entries.h"
#include "spans.h"

/* Row t of a span's own rows, or of its halo where t < 0; NULL: none. */
static double *row_at(const double *x, int64_t stride, const double *halo,
                      const cpl_span *span, int64_t i, int64_t width,
                      int64_t channels, int64_t t)
{
    const double *row = NULL;
    if (t >= 0)
        row = x + (span->slot + t) * stride;
    else if (halo != NULL)
        row = halo + ((i + 1) * (width - 1) + t) * channels;
    return (double *)row;
}

static double silu_or_not(double x, bool silu)
{
    return silu ? x / (1 + exp(-x)) : x;
}

static double slope(double x, bool silu)
{
    double s = 1 / (1 + exp(-x));
    return silu ? s * (1 + x * (1 - s)) : 1;
}

void NAME(conv1d)(const cpl_conv1d *p)
{
    const double *weight = p->weight;
    const double *bias = p->bias;
    const int64_t last = p->width - 1;
    size_t row_bytes = (size_t)p->channels * sizeof(double);
    zero_gaps(p->y, row_bytes, row_bytes, p->spans, p->n_spans, p->n_rows);
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t t = 0; t < p->spans[i].length; t++)
            for (int64_t c = 0; c < p->channels; c++) {
                double pre = bias != NULL ? bias[c] : 0;
                for (int64_t j = 0; j <= last; j++) {
                    const double *x =
                        row_at(p->x, p->x_stride, p->halo, &p->spans[i], i,
                               p->width, p->channels, t - last + j);
                    if (x != NULL)
                        pre += weight[c * p->width + j] * x[c];
                }
                double *y =
                    (double *)p->y + (p->spans[i].slot + t) * p->channels;
                y[c] = silu_or_not(pre, p->silu);
            }
}

/* One output element's share of every gradient. */
static void backward_element(const cpl_conv1d_backward *p, int64_t i, int64_t t,
                             int64_t c)
{
    const cpl_span *span = &p->spans[i];
    const int64_t last = p->width - 1;
    const double *weight = (const double *)p->weight + c * p->width;
    double *grad_weight = p->grad_weight;
    double *grad_bias = p->grad_bias;
    double pre = p->bias != NULL ? ((const double *)p->bias)[c] : 0;
    for (int64_t j = 0; j <= last; j++) {
        const double *x = row_at(p->x, p->x_stride, p->halo, span, i, p->width,
                                 p->channels, t - last + j);
        if (x != NULL)
            pre += weight[j] * x[c];
    }
    const double *dy = (const double *)p->dy + (span->slot + t) * p->channels;
    double dpre = dy[c] * slope(pre, p->silu);
    if (grad_bias != NULL)
        grad_bias[c] += dpre;
    for (int64_t j = 0; j <= last; j++) {
        const double *x = row_at(p->x, p->x_stride, p->halo, span, i, p->width,
                                 p->channels, t - last + j);
        double *dx = row_at(p->dx, p->dx_stride, p->dhalo, span, i, p->width,
                            p->channels, t - last + j);
        if (x != NULL && grad_weight != NULL)
            grad_weight[c * p->width + j] += dpre * x[c];
        if (dx != NULL)
            dx[c] += dpre * weight[j];
    }
}

void NAME(conv1d_backward)(const cpl_conv1d_backward *p)
{
    size_t row_bytes = (size_t)p->channels * sizeof(double);
    zero_rows(p->dx, row_bytes, (size_t)p->dx_stride * sizeof(double), 0,
              p->n_rows);
    if (p->dhalo != NULL)
        zero_rows(p->dhalo, row_bytes, row_bytes, 0,
                  p->n_spans * (p->width - 1));
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t t = 0; t < p->spans[i].length; t++)
            for (int64_t c = 0; c < p->channels; c++)
                backward_element(p, i, t, c);
}
