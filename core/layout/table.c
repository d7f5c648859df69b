/*
 * table.c: layouts without a closed form, kept as their holdings, sorted
 * once by rank and slot and once by position; both questions are answered by
 * binary search.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "layout.h"

static int compare_starts(const void *a, const void *b)
{
    int64_t x = ((const cpli_holding *)a)->start;
    int64_t y = ((const cpli_holding *)b)->start;
    return (x > y) - (x < y);
}

void cpli_sort_holdings(cpli_holding *holdings, int64_t n)
{
    qsort(holdings, (size_t)n, sizeof *holdings, compare_starts);
}

static cpl_status check_run(const char *who, const cpl_run *run, int rank,
                            int64_t i, int64_t n_positions)
{
    if (run->length > 0 && run->start >= 0 && run->start < n_positions &&
        run->length <= n_positions - run->start)
        return CPL_OK;
    return cpli_fail(CPL_INVALID,
                     "%s: run %" PRId64 " of rank %d, (start %" PRId64
                     ", length %" PRId64 "), is empty or not in 0 .. %" PRId64,
                     who, i, rank, run->start, run->length, n_positions - 1);
}

/* Fills by_slot and first. */
static cpl_status place(cpli_table *table, const char *who, int64_t n_positions,
                        int n_ranks, const cpl_run *runs, const int64_t *n_runs)
{
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t slot = 0;
        table->first[rank] = table->n_holdings;
        for (int64_t i = 0; i < n_runs[rank]; i++, runs++) {
            CPL_TRY(check_run(who, runs, rank, i, n_positions));
            table->by_slot[table->n_holdings++] =
                (cpli_holding){rank, runs->start, slot, runs->length};
            slot += runs->length;
        }
    }
    table->first[n_ranks] = table->n_holdings;
    return CPL_OK;
}

static cpl_status check_partition(const cpli_table *table, const char *who,
                                  int64_t n_positions)
{
    int64_t next = 0;
    for (int64_t i = 0; i < table->n_holdings; i++) {
        const cpli_holding *holding = &table->by_position[i];
        if (holding->start < next)
            return cpli_fail(CPL_INVALID,
                             "%s: position %" PRId64
                             " is held twice, by rank %d and rank %d",
                             who, holding->start, holding[-1].rank,
                             holding->rank);
        if (holding->start > next)
            break;
        next += holding->length;
    }
    if (next < n_positions)
        return cpli_fail(CPL_INVALID,
                         "%s: position %" PRId64 " is held by no rank", who,
                         next);
    return CPL_OK;
}

static int64_t total(const int64_t *n_runs, int n_ranks)
{
    int64_t sum = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        sum += n_runs[rank];
    return sum;
}

cpl_status cpli_table_create(const char *who, int64_t n_positions, int n_ranks,
                             const cpl_run *runs, const int64_t *n_runs,
                             cpli_table **out)
{
    cpl_status status;
    cpli_table *table;
    int64_t n = total(n_runs, n_ranks);
    CPL_TRY(CPL_ALLOC(1, &table));
    CPL_TRY_GO(CPL_ALLOC(n, &table->by_slot), fail);
    CPL_TRY_GO(CPL_ALLOC(n, &table->by_position), fail);
    CPL_TRY_GO(CPL_ALLOC(n_ranks + 1, &table->first), fail);
    CPL_TRY_GO(place(table, who, n_positions, n_ranks, runs, n_runs), fail);
    memcpy(table->by_position, table->by_slot,
           (size_t)table->n_holdings * sizeof *table->by_slot);
    cpli_sort_holdings(table->by_position, table->n_holdings);
    CPL_TRY_GO(check_partition(table, who, n_positions), fail);
    *out = table;
    return CPL_OK;
fail:
    cpli_table_destroy(table);
    return status;
}

void cpli_table_destroy(cpli_table *table)
{
    if (table == NULL)
        return;
    cpli_free(table->first);
    cpli_free(table->by_position);
    cpli_free(table->by_slot);
    cpli_free(table);
}
