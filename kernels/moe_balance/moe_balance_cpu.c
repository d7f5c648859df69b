/*
 * moe_balance_cpu.c: the load row by row, so that probs are read once; the
 * balance as it is written down.
 */
#include "real.h"

void NAME(moe_load)(const cpl_moe_load *p)
{
    double *sums = p->load + p->experts;
    for (int64_t e = 0; e < p->experts; e++) {
        p->load[e] = (double)(p->offsets[e + 1] - p->offsets[e]);
        sums[e] = 0;
    }
    for (int64_t row = 0; row < p->n_rows; row++) {
        const real *probs = (const real *)p->probs + row * p->experts;
#pragma omp simd
        for (int64_t e = 0; e < p->experts; e++)
            sums[e] += (double)probs[e];
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
