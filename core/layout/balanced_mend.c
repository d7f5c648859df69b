/*
 * balanced_mend.c: single rows, where the sweep found no stretch that fits.
 *
 * On tiny packs one token may weigh more than what an idle rank has room for.
 * The last row of a piece of an overloaded rank is then swapped for any row of
 * another rank, the pair that comes nearest to what is wanted. Every swap
 * lowers the larger of two loads, so the sum of their squares falls: it ends;
 * and it ends early, for packs that small need few.
 */
#include "balanced.h"

enum { SWAPS = 16, SWAPS_PER_RANK = 4 };

typedef struct mend {
    int to;
    int64_t piece;  /* of the overloaded rank: its last row goes */
    int64_t window; /* of the other: the piece that a row comes from */
    int64_t row;    /* which of its rows */
    int64_t work;   /* that moves */
    int64_t load;   /* the larger of the two after that, or cap */
} mend;

/* The row of a light piece that is best swapped for a row of work `heavy`;
 * false if none makes the larger of the loads smaller. */
static bool choose_row(int64_t heavy, const cpli_piece *light, int64_t load,
                       int64_t other, int64_t cap, mend *m)
{
    int64_t least = 0, most = 0; /* work of the rows of a piece */
    if (light->is_real) {
        least = light->offset + 1;
        most = cpli_piece_end(light);
    }
    int64_t over = load - cap, wanted = (load - other) / 2;
    if (over <= cap - other)
        wanted = over;
    m->work = cpli_max(cpli_min(wanted, heavy - least), heavy - most);
    if (m->work <= 0 || m->work >= load - other)
        return false;
    m->row = light->is_real ? heavy - m->work - least : 0;
    m->load = cpli_max(cap, cpli_max(load - m->work, other + m->work));
    return true;
}

/* A piece can be cut in two while its share has room for one more. */
static bool can_cut(const cpli_share *share, const mend *m)
{
    return m->row == 0 || share->n < share->n_home + CPLI_SPARE_PIECES;
}

/* The best swap of one piece with one rank, if it is better than the best. */
static void try_rank(const cpli_shares *shares, int from, int64_t piece, int to,
                     int64_t cap, mend *best)
{
    const cpli_share *share = &shares->items[from], *other = &shares->items[to];
    int64_t heavy = cpli_piece_end(&share->pieces[piece]);
    for (int64_t i = 0; i < other->n; i++) {
        mend m = {.to = to, .piece = piece, .window = i};
        if (choose_row(heavy, &other->pieces[i], share->load, other->load, cap,
                       &m) &&
            m.load < best->load && can_cut(other, &m))
            *best = m;
    }
}

static bool find_best(const cpli_shares *shares, int from, int64_t cap,
                      mend *best)
{
    const cpli_share *share = &shares->items[from];
    best->load = share->load;
    for (int to = 0; to < shares->home->cp; to++)
        for (int64_t i = 0; i < share->n && best->load > cap; i++)
            if (to != from && share->pieces[i].is_real)
                try_rank(shares, from, i, to, cap, best);
    return best->load < share->load;
}

static cpl_status swap_row(cpli_shares *shares, int from, const mend *m)
{
    int64_t window = m->window;
    if (m->row > 0)
        cpli_share_cut(&shares->items[m->to], window++, m->row);
    CPL_TRY(cpli_shares_swap(shares, from, m->piece, m->to, window, 1));
    shares->items[from].load -= m->work;
    shares->items[m->to].load += m->work;
    return CPL_OK;
}

/* The most loaded rank above cap of those that are not given up; -1 if none. */
static int most_loaded(const cpli_shares *shares, int64_t cap,
                       const bool *is_stuck)
{
    int most = -1;
    for (int c = 0; c < shares->home->cp; c++)
        if (shares->items[c].load > cap && !is_stuck[c] &&
            (most < 0 || shares->items[c].load > shares->items[most].load))
            most = c;
    return most;
}

cpl_status cpli_mend(cpli_shares *shares, int64_t cap)
{
    bool *is_stuck;
    cpl_status status = CPL_ALLOC(shares->home->cp, &is_stuck);
    if (status != CPL_OK)
        return status;
    int64_t left = SWAPS + (int64_t)SWAPS_PER_RANK * shares->home->cp;
    int from = most_loaded(shares, cap, is_stuck);
    while (from >= 0 && left > 0) {
        mend best = {0};
        is_stuck[from] = !find_best(shares, from, cap, &best);
        if (!is_stuck[from]) {
            CPL_TRY_GO(swap_row(shares, from, &best), done);
            left--;
        }
        from = most_loaded(shares, cap, is_stuck);
    }
done:
    cpli_free(is_stuck);
    return status;
}
