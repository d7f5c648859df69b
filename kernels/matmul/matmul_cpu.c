/*
 * matmul_cpu.c: the matrix library's gemm.
 */
#include "real.h"

void NAME(matmul)(const cpl_matmul *p)
{
    matrix a = {p->a, p->lda, p->transpose_a};
    matrix b = {p->b, p->ldb, p->transpose_b};
    gemm(p->m, p->n, p->k, REAL(p->alpha), a, b, REAL(p->beta), p->c, p->ldc);
}
