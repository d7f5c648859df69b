/*
 * embedding_cpu.c: one copy, or one addition, a row.
 */
#include "real.h"

static bool is_beyond(int64_t token, int64_t vocabulary)
{
    return vocabulary > 0 && token >= vocabulary;
}

void NAME(embedding)(const cpl_embedding *p)
{
    const real *table = p->table;
    size_t bytes = (size_t)p->width * sizeof(real);
    for (int64_t row = 0; row < p->n_rows; row++) {
        real *y = (real *)p->y + row * p->width;
        int64_t token = p->tokens[row];
        if (token < 0)
            memset(y, 0, bytes);
        else if (is_beyond(token, p->vocabulary))
            memset(y, 0xff, bytes); /* NaN */
        else
            memcpy(y, table + token * p->width, bytes);
    }
}

void NAME(embedding_backward)(const cpl_embedding_backward *p)
{
    if (p->grad_table == NULL)
        return;
    for (int64_t row = 0; row < p->n_rows; row++) {
        int64_t token = p->tokens[row];
        if (token >= 0 && !is_beyond(token, p->vocabulary))
            add_scaled((real *)p->grad_table + token * p->width, 1,
                       (const real *)p->dy + row * p->width, p->width);
    }
}
