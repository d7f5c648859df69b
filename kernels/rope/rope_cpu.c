/*
 * rope_cpu.c: the angles of a row are computed once for all heads, some
 * frequencies at a time, always in double.
 */
#include "real.h"

enum { FREQUENCIES = 64 };

typedef struct angles {
    int64_t first, n; /* frequencies first .. first + n - 1 */
    double frequency[FREQUENCIES];
    real cosine[FREQUENCIES];
    real sine[FREQUENCIES];
} angles;

static void set_frequencies(angles *a, const cpl_rope *p, int64_t first)
{
    a->first = first;
    a->n = cpli_min(p->rotary_dim / 2 - first, FREQUENCIES);
    for (int64_t i = 0; i < a->n; i++)
        a->frequency[i] =
            pow(p->theta, -2.0 * (double)(first + i) / (double)p->rotary_dim);
}

static void set_position(angles *a, int64_t position, bool inverse)
{
    for (int64_t i = 0; i < a->n; i++) {
        double angle = (double)position * a->frequency[i];
        a->cosine[i] = REAL(cos(angle));
        a->sine[i] = REAL(inverse ? -sin(angle) : sin(angle));
    }
}

static void turn_head(const angles *a, int64_t half, const real *x, real *y)
{
    const real *x_first = x + a->first;
    const real *x_second = x_first + half;
    real *y_first = y + a->first;
    real *y_second = y_first + half;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) {
        real first = x_first[i];
        real second = x_second[i];
        y_first[i] = first * a->cosine[i] - second * a->sine[i];
        y_second[i] = second * a->cosine[i] + first * a->sine[i];
    }
}

static void copy_rest(const cpl_rope *p)
{
    int64_t rotated = p->rotary_dim / 2 * 2;
    if (p->x == p->y || rotated == p->width)
        return;
    size_t bytes = (size_t)(p->width - rotated) * sizeof(real);
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t at = head * p->width + rotated;
            memcpy((real *)p->y + row * p->y_stride + at,
                   (const real *)p->x + row * p->x_stride + at, bytes);
        }
}

void NAME(rope)(const cpl_rope *p)
{
    angles a;
    int64_t half = p->rotary_dim / 2;
    for (int64_t first = 0; first < half; first += FREQUENCIES) {
        set_frequencies(&a, p, first);
        for (int64_t row = 0; row < p->n_rows; row++) {
            const real *x = (const real *)p->x + row * p->x_stride;
            real *y = (real *)p->y + row * p->y_stride;
            set_position(&a, p->positions[row], p->inverse);
            for (int64_t head = 0; head < p->heads; head++)
                turn_head(&a, half, x + head * p->width, y + head * p->width);
        }
    }
    copy_rest(p);
}
