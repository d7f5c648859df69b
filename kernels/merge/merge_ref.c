/*
 * merge_ref.c: joins two attention results over disjoint keys. The weights are
 * w = e^(lse - m), w_b = e^(lse_b - m) with m = max(lse, lse_b);
 *   o = (w o + w_b o_b) / (w + w_b),  lse = m + log(w + w_b).
 * A side with lse = -inf saw no key: the other side stands alone.
 */
#include <math.h>

#include "entries.h"

void NAME(merge)(const cpl_merge *p)
{
    double *lse = p->lse;
    const double *lse_b = p->lse_b;
    for (int64_t i = 0; i < p->n_rows * p->heads; i++) {
        double *o = (double *)p->o + i * p->width;
        const double *o_b = (const double *)p->o_b + i * p->width;
        if (lse_b[i] == -INFINITY)
            continue;
        double m = lse[i] > lse_b[i] ? lse[i] : lse_b[i];
        double w = exp(lse[i] - m);
        double w_b = exp(lse_b[i] - m);
        for (int64_t j = 0; j < p->width; j++)
            o[j] = (w * o[j] + w_b * o_b[j]) / (w + w_b);
        lse[i] = m + log(w + w_b);
    }
}

void NAME(merge_backward)(const cpl_merge_backward *p)
{
    const double *lse = p->lse, *lse_b = p->lse_b, *d_lse = p->d_lse;
    double *d_lse_a = p->d_lse_a, *d_lse_b = p->d_lse_b;
    for (int64_t i = 0; i < p->n_rows * p->heads; i++) {
        double m = lse[i] > lse_b[i] ? lse[i] : lse_b[i];
        double w = lse_b[i] == -INFINITY ? 1 : exp(lse[i] - m);
        double w_b = lse_b[i] == -INFINITY ? 0 : exp(lse_b[i] - m);
        double share = w / (w + w_b), share_b = w_b / (w + w_b), moved = 0;
        for (int64_t j = i * p->width; j < (i + 1) * p->width; j++) {
            double d_o = ((const double *)p->d_o)[j];
            double o = ((const double *)p->o)[j];
            moved += d_o * (((const double *)p->o_b)[j] - o);
            ((double *)p->d_o_a)[j] = share * d_o;
            ((double *)p->d_o_b)[j] = share_b * d_o;
        }
        double own = d_lse == NULL ? 0 : d_lse[i];
        d_lse_a[i] = share * own - share * share_b * moved;
        d_lse_b[i] = share_b * own + share * share_b * moved;
    }
}
