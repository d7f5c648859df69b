/*
 * embedding_ref.c: rows of a table, and their gradients added to its rows.
 */
#include "entries.h"

void NAME(embedding)(const cpl_embedding *p)
{
    const double *table = p->table;
    double *y = p->y;
    for (int64_t row = 0; row < p->n_rows; row++)
        for (int64_t i = 0; i < p->width; i++) {
            int64_t token = p->tokens[row];
            y[row * p->width + i] = token < 0 ? 0 : table[token * p->width + i];
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
            if (token >= 0)
                grad_table[token * p->width + i] += dy[row * p->width + i];
        }
}
