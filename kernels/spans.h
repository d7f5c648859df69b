/*
 * spans.h: rows that no span holds. Kernels over spans write zeros there, so
 * that a padded row is never left as it was found.
 */
#ifndef CPLI_SPANS_H
#define CPLI_SPANS_H

#include <string.h>

#include "cplab.h"

/* Rows first .. last-1 become zero; width and stride in bytes. */
static inline void zero_rows(void *rows, size_t width, size_t stride,
                             int64_t first, int64_t last)
{
    char *row = (char *)rows;
    if (width == stride && last > first) {
        memset(row + (size_t)first * stride, 0, (size_t)(last - first) * width);
        return;
    }
    for (int64_t i = first; i < last; i++)
        memset(row + (size_t)i * stride, 0, width);
}

/* Rows outside of the spans, which stand in slot order, become zero. */
static inline void zero_gaps(void *rows, size_t width, size_t stride,
                             const cpl_span *spans, int64_t n_spans,
                             int64_t n_rows)
{
    int64_t done = 0;
    for (int64_t i = 0; i < n_spans; i++) {
        if (spans[i].length == 0)
            continue;
        zero_rows(rows, width, stride, done, spans[i].slot);
        done = spans[i].slot + spans[i].length;
    }
    zero_rows(rows, width, stride, done, n_rows);
}

#endif
