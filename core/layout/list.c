/*
 * list.c: lists that grow while a walk fills them. Runs merge as they are
 * pushed, so that every list of runs is maximal.
 */
#include "layout.h"

enum { FIRST_CAPACITY = 16 };

cpl_status cpli_grow(void **items, int64_t n, int64_t *capacity, size_t size)
{
    if (n < *capacity)
        return CPL_OK;
    int64_t larger = *capacity > 0 ? 2 * *capacity : FIRST_CAPACITY;
    CPL_TRY(cpli_realloc(items, (size_t)larger, size));
    *capacity = larger;
    return CPL_OK;
}

static bool run_goes_on(const cpl_run *last, int64_t start)
{
    if (start < 0 || last->start < 0)
        return start < 0 && last->start < 0;
    return start == last->start + last->length;
}

cpl_status cpli_runs_push(cpli_runs *runs, int64_t start, int64_t length)
{
    if (length <= 0)
        return CPL_OK;
    if (runs->n > 0 && run_goes_on(&runs->items[runs->n - 1], start)) {
        runs->items[runs->n - 1].length += length;
        return CPL_OK;
    }
    CPL_TRY(cpli_grow((void **)&runs->items, runs->n, &runs->capacity,
                      sizeof *runs->items));
    runs->items[runs->n++] = (cpl_run){start, length};
    return CPL_OK;
}
