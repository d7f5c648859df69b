/*
 * cross_entropy_ref.c: loss of a row = log sum exp(logits) - logits[label],
 * its gradient = softmax(logits) - onehot(label); rows with a label < 0 have
 * neither.
 */
#include <math.h>

#include "entries.h"

/* n >= 1. */
static double log_sum_exp(const double *x, int64_t n)
{
    double max = x[0];
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    double sum = exp(x[0] - max);
    for (int64_t i = 1; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

size_t NAME(cross_entropy_workspace)(const cpl_cross_entropy *p)
{
    (void)p;
    return 0;
}

void NAME(cross_entropy)(const cpl_cross_entropy *p)
{
    double scale = p->grad_scale * (p->scale != NULL ? *p->scale : 1);
    double loss = 0;
    for (int64_t row = 0; row < p->n_rows; row++) {
        const double *logits = (const double *)p->logits + row * p->vocab;
        double *dlogits =
            p->dlogits == NULL ? NULL : (double *)p->dlogits + row * p->vocab;
        int64_t label = p->labels[row];
        double lse = label < 0 ? 0 : log_sum_exp(logits, p->vocab);
        if (label >= 0)
            loss += lse - logits[label];
        for (int64_t i = 0; dlogits != NULL && i < p->vocab; i++) {
            double onehot = i == label ? 1 : 0;
            dlogits[i] =
                label < 0 ? 0 : (exp(logits[i] - lse) - onehot) * scale;
        }
    }
    *p->loss_sum = loss == loss ? loss : (double)NAN; /* one NaN for Lua */
}
