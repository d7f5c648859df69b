/*
 * matmul_cpu.c: the matrix library's gemm.
 */
#include "real.h"

void NAME(matmul)(const cpl_matmul *p)
{
    for (int64_t i = 0; i < cpli_max(p->batch, 1); i++) {
        const real *a = (const real *)p->a + i * p->a_step;
        const real *b = (const real *)p->b + i * p->b_step;
        gemm(p->m, p->n, p->k, REAL(p->alpha),
             (matrix){a, p->lda, p->transpose_a},
             (matrix){b, p->ldb, p->transpose_b}, REAL(p->beta),
             (real *)p->c + i * p->c_step, p->ldc);
    }
}
