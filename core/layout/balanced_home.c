/*
 * balanced_home.c: the rows of every CP rank in the layout that balanced starts
 * from, cut at sequences and where padding begins.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "balanced.h"

typedef struct pieces {
    cpli_piece *items;
    int64_t n;
    int64_t capacity;
} pieces;

static cpl_status push(pieces *list, cpli_piece piece)
{
    if (piece.length <= 0)
        return CPL_OK;
    CPL_TRY(cpli_grow((void **)&list->items, list->n, &list->capacity,
                      sizeof *list->items));
    list->items[list->n++] = piece;
    return CPL_OK;
}

/* Cuts one run; `slot` is that of its first row on the CP rank. */
static cpl_status cut(const cpl_stream *stream, const cpli_holding *run,
                      int64_t slot, cpli_cursor *at, pieces *list)
{
    int64_t end = run->start + run->length;
    for (int64_t p = run->start; p < end;) {
        int64_t i = cpli_stream_find(stream, p, at);
        int64_t real_end = stream->cu[i] + stream->real[i];
        bool is_real = p < real_end;
        int64_t stop = cpli_min(end, is_real ? real_end : stream->cu[i + 1]);
        CPL_TRY(push(list, (cpli_piece){
                               .sequence = i,
                               .position = p,
                               .offset = p - stream->cu[i],
                               .slot = slot + p - run->start,
                               .length = stop - p,
                               .is_real = is_real,
                           }));
        p = stop;
    }
    return CPL_OK;
}

static int compare_positions(const void *a, const void *b)
{
    int64_t x = ((const cpli_piece *)a)->position;
    int64_t y = ((const cpli_piece *)b)->position;
    return (x > y) - (x < y);
}

/* Adds the pieces of one group rank, whose first slot on its CP rank is given.
 */
static cpl_status add_rank(const cpl_layout *near, int rank, int64_t first_slot,
                           pieces *list)
{
    cpli_walk walk = cpli_walk_begin(near, rank);
    cpli_cursor at = {0};
    cpli_holding run;
    while (cpli_walk_next(&walk, &run))
        CPL_TRY(cut(near->stream, &run, first_slot + run.slot, &at, list));
    return CPL_OK;
}

static cpl_status check_rows(const char *who, const cpl_layout *near,
                             int64_t window)
{
    for (int rank = 0; rank < cpl_layout_n_ranks(near); rank++)
        if (cpli_n_local(near, rank) != window)
            return cpli_fail(
                CPL_INVALID,
                "%s: every rank must hold equally many rows, but "
                "rank 0 holds %" PRId64 " and rank %d %" PRId64 " in %s",
                who, window, rank, cpli_n_local(near, rank), near->text);
    return CPL_OK;
}

static cpl_status check_work(const char *who, const cpl_stream *stream)
{
    int64_t total = 0;
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        int64_t n = stream->real[i], work = CPLI_MAX_WORK;
        if (n < (int64_t)1 << 30)
            work = n * (n + 1) / 2;
        total += cpli_min(work, CPLI_MAX_WORK);
        if (total >= CPLI_MAX_WORK)
            return cpli_fail(CPL_INVALID,
                             "%s: the causal work of %s reaches 2^59", who,
                             stream->text);
    }
    return CPL_OK;
}

static cpl_status collect(const cpl_layout *near, const int *order,
                          cpli_home *home, pieces *list)
{
    int64_t window = home->n_local / near->tp, total = 0;
    for (int c = 0; c < home->cp; c++) {
        int64_t begin = list->n;
        home->first[c] = begin;
        for (int t = 0; t < near->tp; t++)
            CPL_TRY(add_rank(near, order[c * near->tp + t], t * window, list));
        if (list->n > begin)
            qsort(list->items + begin, (size_t)(list->n - begin),
                  sizeof *list->items, compare_positions);
        for (int64_t i = begin; i < list->n; i++)
            home->work[c] +=
                cpli_piece_work(&list->items[i], list->items[i].length);
        total += home->work[c];
    }
    home->first[home->cp] = list->n;
    home->mean = (double)total / home->cp;
    return CPL_OK;
}

cpl_status cpli_home_create(const char *who, const cpl_layout *near,
                            const int *order, cpli_home **out)
{
    cpl_status status;
    cpli_home *home;
    pieces list = {0};
    int64_t window = cpli_n_local(near, 0);
    CPL_TRY(check_rows(who, near, window));
    CPL_TRY(check_work(who, near->stream));
    CPL_TRY(CPL_ALLOC(1, &home));
    home->stream = near->stream;
    home->cp = near->cp;
    home->n_local = window * near->tp;
    CPL_TRY_GO(CPL_ALLOC(home->cp + 1, &home->first), fail);
    CPL_TRY_GO(CPL_ALLOC(home->cp, &home->work), fail);
    status = collect(near, order != NULL ? order : near->order, home, &list);
    home->pieces = list.items;
    if (status != CPL_OK)
        goto fail;
    *out = home;
    return CPL_OK;
fail:
    cpli_home_destroy(home);
    return status;
}

void cpli_home_destroy(cpli_home *home)
{
    if (home == NULL)
        return;
    cpli_free(home->work);
    cpli_free(home->first);
    cpli_free(home->pieces);
    cpli_free(home);
}
