/*
 * moe_balance_ref.c: how many rows each expert got, and the loss that wants
 * them to be as many as those of the others.
 */
#include "entries.h"

void NAME(moe_load)(const cpl_moe_load *p)
{
    const double *probs = p->probs;
    for (int64_t e = 0; e < p->experts; e++) {
        double sum = 0;
        for (int64_t row = 0; row < p->n_rows; row++)
            sum += probs[row * p->experts + e];
        p->load[e] = (double)(p->offsets[e + 1] - p->offsets[e]);
        p->load[p->experts + e] = sum;
    }
}

void NAME(moe_balance)(const cpl_moe_balance *p)
{
    double tokens = 0;
    for (int64_t e = 0; e < p->experts; e++)
        tokens += p->load[e] / (double)p->top_k;
    double factor =
        tokens > 0 ? p->coefficient * (double)p->experts / (tokens * tokens)
                   : 0;
    *p->loss = 0;
    for (int64_t e = 0; e < p->experts; e++) {
        *p->loss += factor * p->load[e] * p->load[p->experts + e];
        p->dprobs[e] = factor * p->load[e];
    }
}
