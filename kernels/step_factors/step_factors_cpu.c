/*
 * step_factors_cpu.c: a handful of numbers in double, whatever the table's
 * dtype is.
 */
#include "real.h"

void NAME(step_factors)(const cpl_step_factors *p)
{
    p->factors[0] = 1;
    if (p->squares != NULL) {
        const double share = p->clip / (sqrt(*p->squares) + 1e-6);
        p->factors[0] = share >= 1 ? 1 : share; /* a NaN stays one */
    }
    if (p->step == NULL)
        return;
    const double step = (double)++*p->step;
    p->factors[1] = 1 - pow(p->beta1, step);
    p->factors[2] = 1 - pow(p->beta2, step);
}
