/*
 * move_rows_cpu.c: y[to[i]] = x[from[i]], or += it, a row at a time.
 */
#include "real.h"

static void move(const cpl_move_rows *p, const real *x, real *y)
{
    size_t bytes = (size_t)p->width * sizeof(real);
    if (p->add && x != NULL)
        add_scaled(y, 1, x, p->width);
    else if (x != NULL)
        memcpy(y, x, bytes);
    else if (!p->add)
        memset(y, 0, bytes);
}

void NAME(move_rows)(const cpl_move_rows *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        int64_t from = p->from != NULL ? p->from[i] : i;
        int64_t to = p->to != NULL ? p->to[i] : i;
        if (to < 0)
            continue;
        move(p, from < 0 ? NULL : (const real *)p->x + from * p->x_stride,
             (real *)p->y + to * p->y_stride);
    }
}
