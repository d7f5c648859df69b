/*
 * sigmoid_gate_ref.c: y = x s with s = sigmoid(gate).
 *   dx = dy s,  dgate = dy x s (1 - s)
 */
#include <math.h>

#include "entries.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void NAME(sigmoid_gate)(const cpl_sigmoid_gate *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = (row * p->heads + head) * p->width;
            const double *x = (const double *)p->x + at;
            const double *gate = (const double *)p->gate +
                                 row * p->gate_stride +
                                 head * p->gate_head_stride;
            double *y = (double *)p->y + at;
            for (int64_t i = 0; i < p->width; i++)
                y[i] = x[i] * sigmoid(gate[i]);
        }
}

void NAME(sigmoid_gate_backward)(const cpl_sigmoid_gate_backward *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = (row * p->heads + head) * p->width;
            int64_t gate_at = row * p->gate_stride + head * p->gate_head_stride;
            const double *x = (const double *)p->x + at;
            const double *dy = (const double *)p->dy + at;
            const double *gate = (const double *)p->gate + gate_at;
            double *dx = (double *)p->dx + at;
            double *dgate = (double *)p->dgate + gate_at;
            for (int64_t i = 0; i < p->width; i++) {
                double s = sigmoid(gate[i]);
                dx[i] = dy[i] * s;
                dgate[i] = dy[i] * x[i] * s * (1 - s);
            }
        }
}
