/*
 * embedding_ref.c: rows of a table, and their gradients added to its rows.
 */
#include "entries.h"

#include <math.h>

static bool is_beyond(int64_t token, int64_t vocabulary)
{
    return vocabulary > 0 && token >= vocabulary;
}

void NAME(embedding)(const cpl_embedding *p)
{
    const double *table = p->table;
    double *y = p->y;
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t i = 0; i < p->width; i++) {
            int64_t token = p->tokens[row];
            double value;
            if (is_beyond(token, p->vocabulary))
                value = NAN;
            else
                value = token < 0 ? 0 : table[token * p->width + i];
            y[row * p->width + i] = value;
        }
}

void NAME(embedding_backward)(const cpl_embedding_backward *p)
{
    const double *dy = p->dy;
    double *grad_table = p->grad_table;
    if (grad_table == NULL)
        return;
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t i = 0; i < p->width; i++) {
            int64_t token = p->tokens[row];
            if (token >= 0 && !is_beyond(token, p->vocabulary))
                grad_table[token * p->width + i] += dy[row * p->width + i];
        }
}
