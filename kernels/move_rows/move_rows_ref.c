/*
 * move_rows_ref.c: y[to[i]] = x[from[i]], or += it.
 */
#include "entries.h"

void NAME(move_rows)(const cpl_move_rows *p)
{
    const double *x = p->x;
    double *y = p->y;
    for (int64_t i = 0; i < p->n; i++) {
        int64_t from = p->from != NULL ? p->from[i] : i;
        int64_t to = p->to != NULL ? p->to[i] : i;
        for (int64_t j = 0; to >= 0 && j < p->width; j++) {
            double value = from < 0 ? 0 : x[from * p->x_stride + j];
            double before = p->add ? y[to * p->y_stride + j] : 0;
            y[to * p->y_stride + j] = before + value;
        }
    }
}
