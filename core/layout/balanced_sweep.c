/*
 * balanced_sweep.c: the sorted sweep. Overloaded ranks stand in one order, idle
 * ranks in another, and each overloaded rank trades with the next idle ones
 * until it is light enough. Every swap ends the overload of one rank or fills
 * another, unless a piece or a window runs out, so swaps are few and long.
 *
 * Every swap lowers a load that is too high, lifts none above what is allowed,
 * and gives away rows of a home for good: the sweep ends. It is deterministic:
 * ties go to the lower rank, and the few doubles (prices per work) are made of
 * integers by the same four operations everywhere.
 */
#include <math.h>
#include <stdlib.h>

#include "balanced.h"

enum {
    LOOK = 8,      /* idle ranks that are priced for every swap */
    TOPS = 3,      /* pieces of the overloaded rank that are */
    LEFTOVERS = 4, /* sweeps that may fill the last bit of idle ranks */
};

/* Prices in KiB: of a row that moves (there and back, of 8 KiB), of a key and
 * value to gather, of one more swap; and what an exchange inside a node costs
 * of one between nodes. */
static const double ROW_PRICE = 16, KEY_PRICE = 2, SWAP_PRICE = 4096;
static const double NODE_PRICE = 46.0 / 380.0;

typedef struct sweep {
    cpli_shares *shares;
    const cpli_sweep_options *options;
    int64_t cap;   /* no load may pass this */
    int64_t goal;  /* what an overloaded rank is brought down to */
    int64_t room;  /* idle ranks have more than this left */
    double coarse; /* a block of more work than this is cut */
} sweep;

/* One swap: the last n rows of a piece of an overloaded rank for the n rows of
 * rank `to` from piece `window` on. */
typedef struct swap {
    int to;
    int64_t piece;
    int64_t window;
    int64_t n;
    int64_t work;   /* that moves */
    double price;   /* per work */
    int64_t most;   /* rows that it could have */
    int64_t wanted; /* work that should move */
} swap;

static cpli_share *share_of(const sweep *s, int rank)
{
    return &s->shares->items[rank];
}

/* ---- the price of one swap ---- */

/* The work that moves if n rows are swapped. */
static int64_t work_moved(const sweep *s, int from, const swap *t, int64_t n)
{
    const cpli_piece *piece = &share_of(s, from)->pieces[t->piece];
    int64_t kept = piece->length - n;
    return cpli_piece_work(piece, piece->length) -
           cpli_piece_work(piece, kept) -
           cpli_window_work(share_of(s, t->to), t->window, n);
}

static int64_t least_rows(const sweep *s, int from, const swap *t)
{
    int64_t low = 1, high = t->most;
    if (work_moved(s, from, t, high) < t->wanted)
        return high;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (work_moved(s, from, t, middle) >= t->wanted)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Finds a window and the rows that move enough work. Each depends on the other:
 * two rounds settle it. False if there is no window. */
static bool settle(const sweep *s, int from, swap *t)
{
    const cpli_piece *piece = &share_of(s, from)->pieces[t->piece];
    cpli_share *light = share_of(s, t->to);
    int64_t end = cpli_piece_end(piece), work;
    t->n = cpli_max(1, cpli_min(piece->length, t->wanted / end));
    for (int round = 0; round < 2; round++) {
        int64_t n = t->n;
        t->window = cpli_window_find(light, &n, &work);
        if (t->window < 0)
            return false;
        int64_t last = light->stretch[t->window];
        t->most = cpli_min(piece->length,
                           light->tokens[last] - light->tokens[t->window]);
        t->n = least_rows(s, from, t);
    }
    return true;
}

/* Whole blocks, or smaller ones where a block of the piece is much work. */
static void round_rows(const sweep *s, int from, swap *t)
{
    const cpli_piece *piece = &share_of(s, from)->pieces[t->piece];
    int64_t load = share_of(s, from)->load, unit = s->options->block;
    int64_t left = s->cap - share_of(s, t->to)->load;
    while (unit > 1 && (double)(unit * cpli_piece_end(piece)) > s->coarse)
        unit /= 2;
    int64_t up = cpli_ceil_div(t->n, unit) * unit, down = t->n / unit * unit;
    if (up <= t->most && work_moved(s, from, t, up) <= left) {
        t->n = up;
    } else if (down > 0) {
        int64_t work = work_moved(s, from, t, down);
        if (load - work <= s->cap || 10 * work >= 9 * t->wanted)
            t->n = down;
    }
    while (t->n > 0 && work_moved(s, from, t, t->n) > left)
        t->n--;
}

static double price_of(const sweep *s, int from, const swap *t)
{
    const cpli_piece *piece = &share_of(s, from)->pieces[t->piece];
    const int *node = s->options->node;
    int64_t keys = 0;
    if (!s->options->is_plain)
        keys = cpli_piece_end(piece) -
               cpli_share_need(s->shares, t->to, piece->sequence);
    double bytes =
        ROW_PRICE * (double)t->n + KEY_PRICE * (double)cpli_max(0, keys);
    return bytes * (node[from] == node[t->to] ? NODE_PRICE : 1.0) + SWAP_PRICE;
}

/* Completes a swap of which piece and rank are given; false if there is none.
 */
static bool offer(const sweep *s, int from, swap *t)
{
    const cpli_share *light = share_of(s, t->to);
    t->wanted =
        cpli_min(share_of(s, from)->load - s->goal, s->cap - light->load);
    if (t->wanted <= 0 || light->n == 0 || !settle(s, from, t))
        return false;
    round_rows(s, from, t);
    t->work = t->n > 0 ? work_moved(s, from, t, t->n) : 0;
    if (t->work <= 0)
        return false;
    t->price = price_of(s, from, t) / (double)t->work;
    return true;
}

/* ---- the best swap of an overloaded rank ---- */

/* The pieces that end furthest into their sequence; returns how many. */
static int find_tops(const cpli_share *share, int64_t tops[TOPS])
{
    int n = 0;
    for (int64_t i = 0; i < share->n; i++) {
        const cpli_piece *piece = &share->pieces[i];
        if (!piece->is_real)
            continue;
        int k = n;
        while (k > 0 && cpli_piece_end(&share->pieces[tops[k - 1]]) <
                            cpli_piece_end(piece))
            k--;
        if (k == TOPS)
            continue;
        n = n < TOPS ? n + 1 : TOPS;
        memmove(&tops[k + 1], &tops[k], (size_t)(n - 1 - k) * sizeof tops[0]);
        tops[k] = i;
    }
    return n;
}

/* The cheapest swap with one of the next idle ranks; those after them are asked
 * only if none of these can. */
static bool best_swap(const sweep *s, int from, const int *idle, int n_idle,
                      swap *best)
{
    int64_t tops[TOPS];
    int n_tops = find_tops(share_of(s, from), tops);
    int look = s->options->is_plain ? 1 : LOOK;
    bool found = false;
    for (int i = 0; i < n_idle && !(found && i % look == 0); i++)
        for (int k = 0; k < n_tops; k++) {
            swap t = {.to = idle[i], .piece = tops[k]};
            if (!offer(s, from, &t) || (found && t.price >= best->price))
                continue;
            *best = t;
            found = true;
        }
    return found;
}

/* Ranks that still have room, or enough for what this one has too much. */
static int keep_idle(const sweep *s, int from, int *idle, int n_idle)
{
    int64_t over = share_of(s, from)->load - s->cap;
    int n = 0;
    for (int i = 0; i < n_idle; i++) {
        int64_t left = s->cap - share_of(s, idle[i])->load;
        if (left > s->room || left >= over)
            idle[n++] = idle[i];
    }
    return n;
}

static cpl_status lighten(const sweep *s, int from, int *idle, int *n_idle)
{
    cpli_share *share = share_of(s, from);
    while (share->load > s->cap) {
        swap t = {0};
        *n_idle = keep_idle(s, from, idle, *n_idle);
        if (!best_swap(s, from, idle, *n_idle, &t))
            break;
        CPL_TRY(
            cpli_shares_swap(s->shares, from, t.piece, t.to, t.window, t.n));
        share->load -= t.work;
        share_of(s, t.to)->load += t.work;
    }
    return CPL_OK;
}

/* ---- sorting ---- */

typedef struct entry {
    double key;
    int64_t load; /* the second key */
    int rank;     /* the third */
} entry;

static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->load != y->load)
        return x->load < y->load ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The end of the piece with the most work. */
static int64_t heaviness(const cpli_share *share)
{
    int64_t most = 0, end = 0;
    for (int64_t i = 0; i < share->n; i++) {
        const cpli_piece *piece = &share->pieces[i];
        int64_t work = cpli_piece_work(piece, piece->length);
        int64_t here = piece->is_real ? cpli_piece_end(piece) : 0;
        if (work > most || (work == most && here > end)) {
            most = work;
            end = here;
        }
    }
    return end;
}

/* Work per token of the lightest eighth of what a rank holds. */
static double lightness(const sweep *s, int rank)
{
    int64_t n = cpli_max(1, s->shares->home->n_local / 8), work;
    if (cpli_window_find(share_of(s, rank), &n, &work) < 0)
        return INFINITY;
    return (double)work / (double)n;
}

/* Sorts the entries and leaves their ranks. */
static void sort_ranks(entry *entries, int n, int *ranks)
{
    if (n > 0)
        qsort(entries, (size_t)n, sizeof *entries, compare_entries);
    for (int i = 0; i < n; i++)
        ranks[i] = entries[i].rank;
}

/* The most overloaded first, which spares the busiest rank and the keys; in the
 * plain form the least, which moves fewest rows. */
static int sort_heavy(const sweep *s, const int *group, int n, entry *entries,
                      int *heavy)
{
    int n_heavy = 0;
    double sign = s->options->is_plain ? 1 : -1;
    for (int i = 0; i < n; i++) {
        const cpli_share *share = share_of(s, group[i]);
        if (share->load > s->cap)
            entries[n_heavy++] =
                (entry){sign * (double)heaviness(share), 0, group[i]};
    }
    sort_ranks(entries, n_heavy, heavy);
    return n_heavy;
}

static int sort_idle(const sweep *s, const int *group, int n, entry *entries,
                     int *idle)
{
    int n_idle = 0;
    for (int i = 0; i < n; i++) {
        int64_t load = share_of(s, group[i])->load;
        if (s->cap - load > s->room)
            entries[n_idle++] = (entry){lightness(s, group[i]), load, group[i]};
    }
    sort_ranks(entries, n_idle, idle);
    return n_idle;
}

static cpl_status sweep_group(const sweep *s, const int *group, int n)
{
    cpl_status status;
    entry *entries = NULL;
    int *heavy = NULL, *idle = NULL;
    CPL_TRY_GO(CPL_ALLOC(n, &entries), done);
    CPL_TRY_GO(CPL_ALLOC(n, &heavy), done);
    CPL_TRY_GO(CPL_ALLOC(n, &idle), done);
    int n_heavy = sort_heavy(s, group, n, entries, heavy);
    int n_idle = sort_idle(s, group, n, entries, idle);
    for (int i = 0; i < n_heavy; i++)
        CPL_TRY_GO(lighten(s, heavy[i], idle, &n_idle), done);
done:
    cpli_free(idle);
    cpli_free(heavy);
    cpli_free(entries);
    return status;
}

/* ---- all of it ---- */

static int64_t most_load(const sweep *s)
{
    int64_t most = 0;
    for (int c = 0; c < s->shares->home->cp; c++)
        most = cpli_max(most, share_of(s, c)->load);
    return most;
}

/* Each node on its own; `group` is sorted by node. */
static cpl_status sweep_nodes(const sweep *s, const int *group, int n)
{
    const int *node = s->options->node;
    for (int i = 0; i < n;) {
        int end = i + 1;
        while (end < n && node[group[end]] == node[group[i]])
            end++;
        CPL_TRY(sweep_group(s, group + i, end - i));
        i = end;
    }
    return CPL_OK;
}

static cpl_status sweep_all(sweep *s, const int *group, int n)
{
    if (!s->options->is_plain && n > s->options->node_size)
        CPL_TRY(sweep_nodes(s, group, n));
    CPL_TRY(sweep_group(s, group, n));
    s->room = 0;
    for (int i = 0; i < LEFTOVERS && most_load(s) > s->cap; i++)
        CPL_TRY(sweep_group(s, group, n));
    return cpli_mend(s->shares, s->cap);
}

/* A multiple of the mean as a load; far above any when it does not fit. */
static int64_t load_of(double mean, double factor)
{
    double load = mean * factor;
    return load < (double)CPLI_MAX_WORK ? (int64_t)load : CPLI_MAX_WORK;
}

cpl_status cpli_sweep(cpli_shares *shares, const cpli_sweep_options *options)
{
    const cpli_home *home = shares->home;
    double tolerance = options->tolerance, mean = home->mean;
    sweep s = {
        .shares = shares,
        .options = options,
        .cap = load_of(mean, 1 + tolerance),
        .goal = load_of(mean, 1 + 0.9 * tolerance),
        .room = load_of(mean, tolerance / 2 < 0.02 ? tolerance / 2 : 0.02),
        .coarse = tolerance * mean / 2,
    };
    entry *entries;
    int *group;
    CPL_TRY(CPL_ALLOC(home->cp, &entries));
    cpl_status status = CPL_ALLOC(home->cp, &group);
    if (status == CPL_OK) {
        for (int c = 0; c < home->cp; c++)
            entries[c] = (entry){options->node[c], 0, c};
        sort_ranks(entries, home->cp, group);
        status = sweep_all(&s, group, home->cp);
        cpli_free(group);
    }
    cpli_free(entries);
    return status;
}
