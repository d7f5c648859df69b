/*
 * step_factors_ref.c: what all parameters share in a step of an optimizer.
 */
#include <math.h>

#include "entries.h"

static double share_of(const cpl_step_factors *p)
{
    if (p->squares == NULL)
        return 1;
    double norm = sqrt(*p->squares);
    if (isnan(norm))
        return norm;
    return fmin(1, p->clip / (norm + 1e-6));
}

void NAME(step_factors)(const cpl_step_factors *p)
{
    p->factors[0] = share_of(p);
    if (p->step == NULL)
        return;
    *p->step += 1;
    p->factors[1] = 1 - pow(p->beta1, (double)*p->step);
    p->factors[2] = 1 - pow(p->beta2, (double)*p->step);
}
