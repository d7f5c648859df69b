/*
 * rope_ref.c: rotary position embedding, half-split. Of each head, dims i and
 * i + rotary_dim/2 are turned by the angle position * theta^(-2i/rotary_dim);
 * the dims after rotary_dim are copied. A rotation's adjoint is its inverse.
 */
#include <math.h>

#include "entries.h"

static void turn_head(const cpl_rope *p, int64_t position, const double *x,
                      double *y)
{
    int64_t half = p->rotary_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency =
            pow(p->theta, -2.0 * (double)i / (double)p->rotary_dim);
        double angle = (double)position * frequency;
        double c = cos(angle);
        double s = p->inverse ? -sin(angle) : sin(angle);
        double first = x[i];
        double second = x[i + half];
        y[i] = first * c - second * s;
        y[i + half] = second * c + first * s;
    }
    for (int64_t i = 2 * half; i < p->width; i++)
        y[i] = x[i];
}

void NAME(rope)(const cpl_rope *p)
{
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            const double *x = (const double *)p->x + row * p->x_stride;
            double *y = (double *)p->y + row * p->y_stride;
            turn_head(p, p->positions[row], x + head * p->width,
                      y + head * p->width);
        }
}
