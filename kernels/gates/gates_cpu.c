/*
 * gates_cpu.c: one value a head and token; the logarithm is the only call.
 */
#include "real.h"

static real softplus(real x)
{
    real magnitude = x > 0 ? x : -x;
    return (x > 0 ? x : 0) + LOG1P(real_exp(-magnitude));
}

void NAME(gates)(const cpl_gates *p)
{
    const real *a_log = p->a_log;
    const real *dt_bias = p->dt_bias;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *a = (const real *)p->a + row * p->a_stride;
        const real *b = (const real *)p->b + row * p->b_stride;
        real *g = (real *)p->g + row * p->heads;
        real *beta = (real *)p->beta + row * p->heads;
        for (int64_t h = 0; h < p->heads; h++)
            g[h] = -real_exp(a_log[h]) * softplus(a[h] + dt_bias[h]);
#pragma omp simd
        for (int64_t h = 0; h < p->heads; h++)
            beta[h] = real_sigmoid(b[h]);
    }
}

static void backward_parameters(const cpl_gates_backward *p, const real *a,
                                const real *dg, const real *da)
{
    const real *a_log = p->a_log;
    const real *dt_bias = p->dt_bias;
    real *grad_a_log = p->grad_a_log;
    real *grad_dt_bias = p->grad_dt_bias;
    if (grad_a_log != NULL)
        for (int64_t h = 0; h < p->heads; h++)
            grad_a_log[h] -=
                dg[h] * real_exp(a_log[h]) * softplus(a[h] + dt_bias[h]);
    if (grad_dt_bias != NULL)
        for (int64_t h = 0; h < p->heads; h++)
            grad_dt_bias[h] += da[h];
}

void NAME(gates_backward)(const cpl_gates_backward *p)
{
    const real *a_log = p->a_log;
    const real *dt_bias = p->dt_bias;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *a = (const real *)p->a + row * p->a_stride;
        const real *b = (const real *)p->b + row * p->b_stride;
        const real *dg = (const real *)p->dg + row * p->heads;
        const real *dbeta = (const real *)p->dbeta + row * p->heads;
        real *da = (real *)p->da + row * p->da_stride;
        real *db = (real *)p->db + row * p->db_stride;
#pragma omp simd
        for (int64_t h = 0; h < p->heads; h++) {
            real beta = real_sigmoid(b[h]);
            da[h] =
                -dg[h] * real_exp(a_log[h]) * real_sigmoid(a[h] + dt_bias[h]);
            db[h] = dbeta[h] * beta * (1 - beta);
        }
        backward_parameters(p, a, dg, da);
    }
}
