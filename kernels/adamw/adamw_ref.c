/*
 * adamw_ref.c: Adam with decoupled weight decay, one number after the other.
 * As in PyTorch the decay is a factor (a weight that is infinite stays so),
 * and the roots are divided.
 */
#include <math.h>

#include "entries.h"

void NAME(adamw)(const cpl_adamw *p)
{
    const double *grad = p->grad;
    double *w = p->w;
    double *m = p->m;
    double *v = p->v;
    double bias1 = p->factors[1];
    double root2 = sqrt(p->factors[2]);
    double lr = p->rate != NULL ? *p->rate : p->lr;
    for (int64_t i = 0; i < p->n; i++) {
        double g = p->factors[0] * grad[i];
        m[i] = p->beta1 * m[i] + (1 - p->beta1) * g;
        v[i] = p->beta2 * v[i] + (1 - p->beta2) * g * g;
        double direction = m[i] / bias1 / (sqrt(v[i]) / root2 + p->eps);
        w[i] = (1 - lr * p->weight_decay) * w[i] - lr * direction;
    }
}
