/*
 * adamw_cpu.c: one vectorised pass over weights, gradients and moments. The
 * corrections of the bias are factors that do not depend on the element.
 */
#include "real.h"

void NAME(adamw)(const cpl_adamw *p)
{
    const real *grad = p->grad;
    real *w = p->w;
    real *m = p->m;
    real *v = p->v;
    const double lr = p->rate != NULL ? *p->rate : p->lr;
    const real beta1 = REAL(p->beta1);
    const real beta2 = REAL(p->beta2);
    const real fresh1 = REAL(1 - p->beta1);
    const real fresh2 = REAL(1 - p->beta2);
    const real rate = REAL(lr / p->factors[1]);
    const real scale = REAL(1 / sqrt(p->factors[2]));
    const real kept = REAL(1 - lr * p->weight_decay);
    const real eps = REAL(p->eps);
    const real grad_scale = REAL(p->factors[0]);
#pragma omp simd
    for (int64_t i = 0; i < p->n; i++) {
        real g = grad_scale * grad[i];
        m[i] = beta1 * m[i] + fresh1 * g;
        v[i] = beta2 * v[i] + fresh2 * g * g;
        w[i] = kept * w[i] - rate * m[i] / (scale * SQRT(v[i]) + eps);
    }
}
