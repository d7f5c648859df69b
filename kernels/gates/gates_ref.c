/*
 * gates_ref.c: the gates of the delta rule, per value head.
 *   g = -exp(a_log) softplus(a + dt_bias),  beta = sigmoid(b)
 *   da = -dg exp(a_log) sigmoid(a + dt_bias),  db = dbeta beta (1 - beta)
 *   grad_a_log += sum dg g,  grad_dt_bias += sum da
 */
#include <math.h>

#include "entries.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* log(1 + e^x), without overflow. */
static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

void NAME(gates)(const cpl_gates *p)
{
    const double *a_log = p->a_log;
    const double *dt_bias = p->dt_bias;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *a = (const double *)p->a + row * p->a_stride;
        const double *b = (const double *)p->b + row * p->b_stride;
        double *g = (double *)p->g + row * p->heads;
        double *beta = (double *)p->beta + row * p->heads;
        for (int64_t h = 0; h < p->heads; h++) {
            g[h] = -exp(a_log[h]) * softplus(a[h] + dt_bias[h]);
            beta[h] = sigmoid(b[h]);
        }
    }
}

void NAME(gates_backward)(const cpl_gates_backward *p)
{
    const double *a_log = p->a_log;
    const double *dt_bias = p->dt_bias;
    double *grad_a_log = p->grad_a_log;
    double *grad_dt_bias = p->grad_dt_bias;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *a = (const double *)p->a + row * p->a_stride;
        const double *b = (const double *)p->b + row * p->b_stride;
        const double *dg = (const double *)p->dg + row * p->heads;
        const double *dbeta = (const double *)p->dbeta + row * p->heads;
        double *da = (double *)p->da + row * p->da_stride;
        double *db = (double *)p->db + row * p->db_stride;
        for (int64_t h = 0; h < p->heads; h++) {
            double rate = -exp(a_log[h]);
            double beta = sigmoid(b[h]);
            da[h] = dg[h] * rate * sigmoid(a[h] + dt_bias[h]);
            db[h] = dbeta[h] * beta * (1 - beta);
            if (grad_a_log != NULL)
                grad_a_log[h] += dg[h] * rate * softplus(a[h] + dt_bias[h]);
            if (grad_dt_bias != NULL)
                grad_dt_bias[h] += da[h];
        }
    }
}
