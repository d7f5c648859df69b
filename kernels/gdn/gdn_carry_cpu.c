/*
 * gdn_carry_cpu.c: states that go on by summaries, by the matrix library.
 */
#include "real.h"

static void carry(const cpl_gdn_carry *p, int64_t i, int64_t head)
{
    int64_t K = p->key_dim;
    int64_t V = p->value_dim;
    int64_t t = p->transition_of[i];
    const real *offset =
        (const real *)p->offset + (p->offset_of[i] * p->heads + head) * K * V;
    const real *m = (const real *)p->transition + (t * p->heads + head) * K * K;
    const real *in =
        (const real *)p->in + (p->span[i] * p->heads + head) * K * V;
    real *out = (real *)p->out + (p->span[i] * p->heads + head) * K * V;
    memcpy(out, offset, (size_t)(K * V) * sizeof(real));
    if (t >= 0)
        gemm(K, V, K, 1, (matrix){m, K, p->transpose}, (matrix){in, V, false},
             1, out, V);
}

void NAME(gdn_carry)(const cpl_gdn_carry *p)
{
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t head = 0; p->span[i] >= 0 && head < p->heads; head++)
            carry(p, i, head);
}
