/* sums.c: from a list of pieces to the sums that they make. */
#include "sums.h"

#include <stdlib.h>

#include "base.h"

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Where pieces begin and end, rising, each once; returns how many. */
static int64_t find_cuts(const cpl_cuda_piece *pieces, int64_t n, int64_t *cuts)
{
    int64_t n_cuts = 0;
    for (int64_t i = 0; i < n; i++) {
        cuts[2 * i] = pieces[i].to;
        cuts[2 * i + 1] = pieces[i].to + pieces[i].bytes;
    }
    qsort(cuts, (size_t)(2 * n), sizeof *cuts, compare);
    for (int64_t i = 0; i < 2 * n; i++)
        if (n_cuts == 0 || cuts[i] != cuts[n_cuts - 1])
            cuts[n_cuts++] = cuts[i];
    return n_cuts;
}

/* The sum that begins at `to`, which is a cut. */
static int64_t sum_at(const int64_t *cuts, int64_t n_cuts, int64_t to)
{
    const int64_t *cut =
        bsearch(&to, cuts, (size_t)n_cuts, sizeof *cuts, compare);
    return cut - cuts;
}

/* How many sources each sum has, for now in `n`; returns how many in all. */
static int64_t count(const cpl_cuda_piece *pieces, int64_t n,
                     const int64_t *cuts, int64_t n_cuts, cpl_cuda_sum *sums)
{
    int64_t all = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t end = pieces[i].to + pieces[i].bytes;
        int64_t j = sum_at(cuts, n_cuts, pieces[i].to);
        for (; cuts[j] < end; j++, all++)
            sums[j].n++;
    }
    return all;
}

/* Gives each sum its place among the sources, and counts `n` from 0 anew. */
static void place(const int64_t *cuts, int64_t n_cuts, cpl_cuda_sum *sums)
{
    int64_t first = 0;
    for (int64_t j = 0; j + 1 < n_cuts; j++) {
        int64_t n = sums[j].n;
        sums[j] = (cpl_cuda_sum){
            .to = cuts[j], .bytes = cuts[j + 1] - cuts[j], .first = first};
        first += n;
    }
}

static void list_sources(const cpl_cuda_piece *pieces, int64_t n,
                         const int64_t *cuts, int64_t n_cuts, cpli_sums *out)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t end = pieces[i].to + pieces[i].bytes;
        int64_t j = sum_at(cuts, n_cuts, pieces[i].to);
        for (; cuts[j] < end; j++) {
            cpl_cuda_sum *sum = &out->sums[j];
            out->sources[sum->first + sum->n++] = (cpl_cuda_source){
                .from = pieces[i].from + (sum->to - pieces[i].to),
                .peer = pieces[i].peer};
        }
    }
}

/* Leaves out what lies between pieces, and counts tiles. */
static void close_up(int64_t n_cuts, cpli_sums *out)
{
    int64_t tiles = 0;
    out->n_sums = 0;
    for (int64_t j = 0; j + 1 < n_cuts; j++) {
        if (out->sums[j].n == 0)
            continue;
        tiles += (out->sums[j].bytes + CPL_CUDA_TILE - 1) / CPL_CUDA_TILE;
        out->tile_ends[out->n_sums] = tiles;
        out->sums[out->n_sums++] = out->sums[j];
    }
}

static cpl_status fill(const cpl_cuda_piece *pieces, int64_t n, int64_t *cuts,
                       cpli_sums *out)
{
    int64_t n_cuts = find_cuts(pieces, n, cuts);
    CPL_TRY(CPL_ALLOC(n_cuts, &out->sums));
    CPL_TRY(CPL_ALLOC(n_cuts, &out->tile_ends));
    out->n_sources = count(pieces, n, cuts, n_cuts, out->sums);
    CPL_TRY(CPL_ALLOC(out->n_sources, &out->sources));
    place(cuts, n_cuts, out->sums);
    list_sources(pieces, n, cuts, n_cuts, out);
    close_up(n_cuts, out);
    return CPL_OK;
}

cpl_status cpli_sums_create(const cpl_cuda_piece *pieces, int64_t n,
                            cpli_sums *out)
{
    cpli_sums made = {0};
    int64_t *cuts;
    CPL_TRY(CPL_ALLOC(2 * n, &cuts));
    cpl_status status = fill(pieces, n, cuts, &made);
    cpli_free(cuts);
    if (status == CPL_OK)
        *out = made;
    else
        cpli_sums_destroy(&made);
    return status;
}

void cpli_sums_destroy(cpli_sums *sums)
{
    cpli_free(sums->sums);
    cpli_free(sums->sources);
    cpli_free(sums->tile_ends);
    *sums = (cpli_sums){0};
}
