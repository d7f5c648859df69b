/*
 * gdn_carry_ref.c: states that go on by summaries, number by number.
 */
#include "entries.h"

static void carry(const cpl_gdn_carry *p, int64_t i, int64_t head)
{
    int64_t K = p->key_dim;
    int64_t V = p->value_dim;
    int64_t t = p->transition_of[i];
    const double *offset =
        (const double *)p->offset + (p->offset_of[i] * p->heads + head) * K * V;
    const double *m =
        (const double *)p->transition + (t * p->heads + head) * K * K;
    const double *in =
        (const double *)p->in + (p->span[i] * p->heads + head) * K * V;
    double *out = (double *)p->out + (p->span[i] * p->heads + head) * K * V;
    for (int64_t row = 0; row < K; row++)
        for (int64_t column = 0; column < V; column++) {
            double sum = offset[row * V + column];
            for (int64_t l = 0; t >= 0 && l < K; l++)
                sum += m[p->transpose ? l * K + row : row * K + l] *
                       in[l * V + column];
            out[row * V + column] = sum;
        }
}

void NAME(gdn_carry)(const cpl_gdn_carry *p)
{
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t head = 0; p->span[i] >= 0 && head < p->heads; head++)
            carry(p, i, head);
}
