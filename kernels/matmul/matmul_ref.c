/*
 * matmul_ref.c: c = alpha op(a) op(b) + beta c. With beta = 0, c is only
 * written: what it held, even NaN, does not matter.
 */
#include "entries.h"

static void multiply(const cpl_matmul *p, const double *a, const double *b,
                     double *c)
{
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < p->k; l++) {
                double left =
                    p->transpose_a ? a[l * p->lda + i] : a[i * p->lda + l];
                double right =
                    p->transpose_b ? b[j * p->ldb + l] : b[l * p->ldb + j];
                sum += left * right;
            }
            double before = p->beta == 0 ? 0 : p->beta * c[i * p->ldc + j];
            c[i * p->ldc + j] = p->alpha * sum + before;
        }
}

void NAME(matmul)(const cpl_matmul *p)
{
    for (int64_t i = 0; i < (p->batch > 1 ? p->batch : 1); i++)
        multiply(p, (const double *)p->a + i * p->a_step,
                 (const double *)p->b + i * p->b_step,
                 (double *)p->c + i * p->c_step);
}
