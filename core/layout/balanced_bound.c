/*
 * balanced_bound.c: rows that every layout must move, however it is found.
 *
 * Let x[t,r] be the part of token t on rank r, h(t) its home, w(t) its work, n
 * the rows of a rank and C the largest load allowed. Least movement is a linear
 * program: minimise the sum of x[t,r] with r != h(t), where sum_r x[t,r] = 1,
 * sum_t x[t,r] = n and sum_t w(t) x[t,r] <= C. By weak duality, for any prices
 * a_r of a token and b_r >= 0 of work on rank r, and g(w) = min_r (a_r + b_r
 * w),
 *
 *     moved >= sum_t min(a_h(t) + b_h(t) w(t), 1 + g(w(t)))
 *              - n sum_r a_r - C sum_r b_r,
 *
 * whatever the prices: how good they are only decides how tight it is. They
 * come from balanced_prices.c, which climbs a smooth copy of the same function
 * over tokens gathered in cells. Here the cells are made, and the bound is
 * summed piece by piece: g is made of lines, and so is what is under the sum.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "balanced.h"

enum { CELLS = 160 };

static const double TEMPERATURES[] = {0.3, 0.1, 0.03, 0.01, 0.004};

/* ---- cells ---- */

static int compare_lengths(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sorted real lengths, and the sum of those before each. */
typedef struct lengths {
    int64_t n;
    int64_t *sorted;
    int64_t *before;
} lengths;

static cpl_status sort_lengths(const cpl_stream *stream, lengths *out)
{
    int64_t n = out->n = stream->n_sequences;
    CPL_TRY(CPL_ALLOC(n, &out->sorted));
    CPL_TRY(CPL_ALLOC(n + 1, &out->before));
    if (n == 0)
        return CPL_OK;
    memcpy(out->sorted, stream->real, (size_t)n * sizeof *out->sorted);
    qsort(out->sorted, (size_t)n, sizeof *out->sorted, compare_lengths);
    for (int64_t i = 0; i < n; i++)
        out->before[i + 1] = out->before[i] + out->sorted[i];
    return CPL_OK;
}

/* How many real tokens have an offset below this. */
static int64_t tokens_below(const lengths *all, int64_t offset)
{
    int64_t low = 0, high = all->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (all->sorted[middle] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return all->before[low] + offset * (all->n - low);
}

/* The least offset that so many tokens are below. */
static int64_t offset_above(const lengths *all, int64_t tokens)
{
    int64_t low = 0, high = all->sorted[all->n - 1];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (tokens_below(all, middle) < tokens)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Offsets between which the cells lie, from 0 to the greatest; returns how
 * many. There is at least one real token. */
static int find_edges(const lengths *all, int64_t edges[CELLS + 1])
{
    int n = 0;
    int64_t total = all->before[all->n];
    edges[n++] = 0;
    for (int k = 1; k <= CELLS; k++) {
        int64_t edge =
            offset_above(all, total / CELLS * k + total % CELLS * k / CELLS);
        if (edge > edges[n - 1])
            edges[n++] = edge;
    }
    return n;
}

/* Adds the tokens of a piece of rank c; cell 0 is the padding's, and cell k
 * lies between edges k-1 and k. */
static void add_piece(const cpli_piece *piece, int c, const int64_t *edges,
                      cpli_cells *cells)
{
    int64_t end = cpli_piece_end(piece);
    if (!piece->is_real) {
        cells->count[c] += (double)piece->length;
        return;
    }
    for (int64_t k = 1; k < cells->n; k++) {
        int64_t low = cpli_max(piece->offset, edges[k - 1]);
        int64_t high = cpli_min(end, edges[k]);
        if (low >= high)
            continue;
        double n = (double)(high - low);
        cells->count[k * cells->cp + c] += n;
        cells->work[k] += n * ((double)low + (n + 1) / 2);
    }
}

static void fill_cells(const cpli_home *home, const int64_t *edges,
                       cpli_cells *cells)
{
    for (int c = 0; c < home->cp; c++)
        for (int64_t i = home->first[c]; i < home->first[c + 1]; i++)
            add_piece(&home->pieces[i], c, edges, cells);
    double scale = (double)home->n_local / home->mean;
    for (int64_t k = 0; k < cells->n; k++) {
        double n = 0;
        for (int c = 0; c < home->cp; c++)
            n += cells->count[k * home->cp + c];
        cells->work[k] = n > 0 ? cells->work[k] / n * scale : 0;
    }
}

static cpl_status make_cells(const cpli_home *home, cpli_cells *cells)
{
    lengths all = {0};
    int64_t edges[CELLS + 1];
    cpl_status status = sort_lengths(home->stream, &all);
    if (status == CPL_OK) {
        cells->cp = home->cp;
        cells->n = find_edges(&all, edges);
        status = CPL_ALLOC(cells->n, &cells->work);
    }
    if (status == CPL_OK)
        status = CPL_ALLOC(cells->n * cells->cp, &cells->count);
    if (status == CPL_OK)
        fill_cells(home, edges, cells);
    cpli_free(all.before);
    cpli_free(all.sorted);
    return status;
}

/* ---- the bound at given prices ---- */

/* The value of work w on a rank: token + work * w. */
typedef struct line {
    double token;
    double work;
} line;

/* The lines of all ranks, and g: the lowest of them, from light work to heavy,
 * cuts[i] being where line i + 1 takes over. */
typedef struct envelope {
    line *ranks;
    line *lowest;
    double *cuts;
    int n;
    double least_token; /* g(0) */
} envelope;

static int compare_lines(const void *a, const void *b)
{
    const line *x = a, *y = b;
    if (x->work != y->work)
        return x->work > y->work ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static double meet(line a, line b)
{
    return (b.token - a.token) / (a.work - b.work);
}

static void set_lines(const cpli_home *home, const double *prices, envelope *e)
{
    double scale = (double)home->n_local / home->mean;
    e->least_token = DBL_MAX;
    for (int c = 0; c < home->cp; c++) {
        double root = prices[home->cp + c];
        e->ranks[c] = (line){prices[c], root * root * scale};
        e->least_token = fmin(e->least_token, prices[c]);
    }
}

static void find_lowest(int cp, envelope *e)
{
    line *lowest = e->lowest;
    int n = 0;
    memcpy(lowest, e->ranks, (size_t)cp * sizeof *lowest);
    qsort(lowest, (size_t)cp, sizeof *lowest, compare_lines);
    for (int i = 0; i < cp; i++) {
        line next = lowest[i];
        if (n > 0 && lowest[n - 1].work == next.work)
            continue;
        while (n > 0 && lowest[n - 1].token >= next.token)
            n--;
        while (n > 1 &&
               meet(lowest[n - 2], lowest[n - 1]) >= meet(lowest[n - 1], next))
            n--;
        lowest[n++] = next;
    }
    for (int i = 0; i + 1 < n; i++)
        e->cuts[i] = meet(lowest[i], lowest[i + 1]);
    e->n = n;
}

/* The sum of a line over work first + 1 .. last. */
static double sum_line(line l, int64_t first, int64_t last)
{
    double n = (double)(last - first);
    return n * (l.token + l.work * ((double)first + (n + 1) / 2));
}

/* The sum of the lower of two lines over work first + 1 .. last. */
static double sum_lower(line a, line b, int64_t first, int64_t last)
{
    double slope = a.work - b.work;
    if (slope < 0 || (slope == 0 && a.token > b.token))
        return sum_lower(b, a, first, last);
    double cut = slope > 0 ? floor((b.token - a.token) / slope) : DBL_MAX;
    int64_t middle = last;
    if (cut < (double)last)
        middle = cut > (double)first ? (int64_t)cut : first;
    return sum_line(a, first, middle) + sum_line(b, middle, last);
}

/* The first line of g whose cut lies beyond w. */
static int find_line(const envelope *e, double w)
{
    int low = 0, high = e->n - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (e->cuts[middle] <= w)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The sum of min(home's line, 1 + g) over a piece. */
static double sum_piece(const envelope *e, int c, const cpli_piece *piece)
{
    double sum = 0;
    int64_t at = piece->offset, end = cpli_piece_end(piece);
    if (!piece->is_real)
        return (double)piece->length *
               fmin(e->ranks[c].token, 1 + e->least_token);
    while (at < end) {
        int i = find_line(e, (double)(at + 1));
        int64_t stop = end;
        if (i < e->n - 1 && e->cuts[i] < (double)end)
            stop = cpli_max(at + 1, (int64_t)e->cuts[i]);
        line away = {e->lowest[i].token + 1, e->lowest[i].work};
        sum += sum_lower(e->ranks[c], away, at, stop);
        at = stop;
    }
    return sum;
}

static double sum_bound(const cpli_home *home, double limit,
                        const double *prices, envelope *e)
{
    double sum = 0, spent = 0;
    set_lines(home, prices, e);
    find_lowest(home->cp, e);
    for (int c = 0; c < home->cp; c++) {
        for (int64_t i = home->first[c]; i < home->first[c + 1]; i++)
            sum += sum_piece(e, c, &home->pieces[i]);
        spent += (double)home->n_local * e->ranks[c].token +
                 home->mean * limit * e->ranks[c].work;
    }
    return sum - spent;
}

/* ---- the best of some ---- */

static cpl_status best_bound(const cpli_home *home, const cpli_cells *cells,
                             double limit, double *prices, envelope *e,
                             double *out)
{
    int cp = home->cp;
    double best = 0;
    for (int c = 0; c < cp; c++)
        prices[cp + c] = 0.3;
    for (size_t i = 0; i < sizeof TEMPERATURES / sizeof *TEMPERATURES; i++) {
        CPL_TRY(cpli_prices_climb(cells, (double)home->n_local, limit,
                                  TEMPERATURES[i], prices));
        best = fmax(best, sum_bound(home, limit, prices, e));
    }
    /* What the sums above may have rounded up. */
    *out = fmax(0, best - 1e-10 * cp * (double)home->n_local);
    return CPL_OK;
}

static cpl_status bound(const cpli_home *home, double limit, double *out)
{
    cpl_status status;
    cpli_cells cells = {0};
    envelope e = {0};
    double *prices = NULL;
    CPL_TRY_GO(make_cells(home, &cells), done);
    CPL_TRY_GO(CPL_ALLOC(2 * home->cp, &prices), done);
    CPL_TRY_GO(CPL_ALLOC(home->cp, &e.ranks), done);
    CPL_TRY_GO(CPL_ALLOC(home->cp, &e.lowest), done);
    CPL_TRY_GO(CPL_ALLOC(home->cp, &e.cuts), done);
    CPL_TRY_GO(best_bound(home, &cells, limit, prices, &e, out), done);
done:
    cpli_free(e.cuts);
    cpli_free(e.lowest);
    cpli_free(e.ranks);
    cpli_free(prices);
    cpli_free(cells.count);
    cpli_free(cells.work);
    return status;
}

cpl_status cpl_layout_moved_bound(const cpl_layout *layout, double tolerance,
                                  double *out)
{
    cpli_home *home;
    if (!(tolerance >= 0) || !isfinite(tolerance))
        return cpli_fail(CPL_INVALID,
                         "layout.moved_bound: tolerance must be a number >= 0 "
                         "(got %g)",
                         tolerance);
    CPL_TRY(cpli_home_create("layout.moved_bound", layout, NULL, &home));
    cpl_status status = CPL_OK;
    if (home->mean > 0)
        status = bound(home, 1 + tolerance, out);
    else
        *out = 0;
    cpli_home_destroy(home);
    return status;
}
