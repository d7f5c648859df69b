/*
 * real.h: what the fast kernels share. `real` is the element type of this
 * compilation (CPLI_F64 or CPLI_F32); matrix products go to CBLAS; exp is our
 * own, because loops over it must vectorise; workspaces are carved by an
 * arena, by the same code that measures them.
 */
#ifndef CPLI_REAL_H
#define CPLI_REAL_H

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "base.h"
#include "entries.h"

#ifdef CPLI_F32
typedef float real;
typedef uint32_t real_bits;
#define CPLI_GEMM cblas_sgemm
#define SQRT sqrtf
#define LOG logf
#define LOG1P log1pf
#define EXP_LOWEST (-86.5F)
#define EXP_HIGHEST 88.7228F
#define EXP_ROUND 0x1.8p23F
#define EXP_MANTISSA 23
#define EXP_BIAS 126 /* 127 - 1: the result is doubled at the end */
#define EXP_LN2_HIGH 0x1.62e4p-1F
#define EXP_LN2_LOW 0x1.7f7d1cp-20F
#define EXP_DEGREE 7
#define REAL_TINY 1e-30F /* its product with a rounding error is normal */
#else
typedef double real;
typedef uint64_t real_bits;
#define CPLI_GEMM cblas_dgemm
#define SQRT sqrt
#define LOG log
#define LOG1P log1p
#define EXP_LOWEST (-707.5)
#define EXP_HIGHEST 709.7827
#define EXP_ROUND 0x1.8p52
#define EXP_MANTISSA 52
#define EXP_BIAS 1022
#define EXP_LN2_HIGH 0x1.62e42fefap-1
#define EXP_LN2_LOW 0x1.cf79abc9e3b3ap-40
#define EXP_DEGREE 13
#define REAL_TINY 1e-290
#endif

#define REAL(x) ((real)(x))

/*
 * e^x within 2 units of the last place; 0 where the result would be the
 * smallest normal numbers or less, inf where it would be too large, NaN for
 * NaN. No branch and no call. x = n ln 2 + r with |r| <= ln 2 / 2; adding
 * EXP_ROUND leaves n in the low bits of the mantissa.
 */
static inline real real_exp(real x)
{
    static const real inverse_factorial[14] = {REAL(1.0),
                                               REAL(1.0),
                                               REAL(1.0 / 2),
                                               REAL(1.0 / 6),
                                               REAL(1.0 / 24),
                                               REAL(1.0 / 120),
                                               REAL(1.0 / 720),
                                               REAL(1.0 / 5040),
                                               REAL(1.0 / 40320),
                                               REAL(1.0 / 362880),
                                               REAL(1.0 / 3628800),
                                               REAL(1.0 / 39916800),
                                               REAL(1.0 / 479001600),
                                               REAL(1.0 / 6227020800)};
    real shifted = x * REAL(1.4426950408889634) + EXP_ROUND;
    real n = shifted - EXP_ROUND;
    real r = (x - n * EXP_LN2_HIGH) - n * EXP_LN2_LOW;
    real y = inverse_factorial[EXP_DEGREE];
    for (int i = EXP_DEGREE - 1; i >= 0; i--)
        y = y * r + inverse_factorial[i];
    union {
        real value;
        real_bits bits;
    } scale = {.value = shifted};
    scale.bits = (scale.bits + EXP_BIAS) << EXP_MANTISSA;
    y = y * scale.value * 2;
    y = x < EXP_LOWEST ? 0 : y;
    return x > EXP_HIGHEST ? REAL(INFINITY) : y;
}

static inline real real_sigmoid(real x)
{
    return 1 / (1 + real_exp(-x));
}

static inline real real_silu(real x)
{
    return x * real_sigmoid(x);
}

/* d silu(x) / dx */
static inline real real_silu_slope(real x)
{
    real s = real_sigmoid(x);
    return s * (1 + x * (1 - s));
}

static inline real dot(const real *a, const real *b, int64_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* y += a x */
static inline void add_scaled(real *y, real a, const real *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* Whether no number is NaN or Inf: x - x is 0, or NaN. */
static inline bool all_finite(const real *x, int64_t n)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] - x[i];
    return sum == 0;
}

/* The same of rows. */
static inline bool rows_finite(const real *rows, int64_t n, int64_t width,
                               int64_t stride)
{
    bool all = true;
    for (int64_t i = 0; i < n; i++)
        all = all && all_finite(rows + i * stride, width);
    return all;
}

/* A matrix in row-major order, as gemm sees it. */
typedef struct matrix {
    const real *data;
    int64_t stride; /* elements between rows, as stored */
    bool transposed;
} matrix;

static inline matrix plain(const real *data, int64_t stride)
{
    return (matrix){data, stride, false};
}

static inline matrix turned(const real *data, int64_t stride)
{
    return (matrix){data, stride, true};
}

static inline matrix transpose(matrix m)
{
    m.transposed = !m.transposed;
    return m;
}

/* c[m, n] = alpha a[m, k] b[k, n] + beta c; sizes after transposition. */
static inline void gemm(int64_t m, int64_t n, int64_t k, real alpha, matrix a,
                        matrix b, real beta, real *c, int64_t c_stride)
{
    if (m == 0 || n == 0)
        return;
    CPLI_GEMM(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
              b.transposed ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n,
              (blasint)k, alpha, a.data, (blasint)a.stride, b.data,
              (blasint)b.stride, beta, c, (blasint)c_stride);
}

/* Hands out pieces of a workspace; with base NULL it only measures. */
typedef struct arena {
    char *base;
    size_t used;
} arena;

static inline real *take(arena *a, int64_t n)
{
    char *piece = a->base == NULL ? NULL : a->base + a->used;
    a->used += ((size_t)n * sizeof(real) + 63) / 64 * 64;
    return (real *)(void *)piece;
}

#endif
