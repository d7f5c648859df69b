/*
 * balanced_shares.c: what each rank still has of its home and what it got, the
 * lightest windows of a rank, and the swap of two equally long stretches.
 *
 * The lightest window of n rows begins at a piece, or ends its stretch; only
 * the first is looked for, in one pass over the pieces. Only rows of the home
 * are ever given away, so no row moves twice.
 */
#include "balanced.h"

/* ---- life ---- */

static void deal(cpli_shares *shares)
{
    const cpli_home *home = shares->home;
    for (int c = 0; c < home->cp; c++) {
        int64_t first = home->first[c], n = home->first[c + 1] - first;
        int64_t place = first + (int64_t)CPLI_SPARE_PIECES * c;
        int64_t *sums = shares->sums + 3 * (place + c);
        int64_t most = n + CPLI_SPARE_PIECES + 1;
        shares->items[c] = (cpli_share){
            .home = home->pieces + first,
            .n_home = n,
            .pieces = shares->pieces + place,
            .n = n,
            .tokens = sums,
            .work = sums + most,
            .stretch = sums + 2 * most,
            .load = home->work[c],
            .last_gain = -1,
        };
        if (n > 0)
            memcpy(shares->items[c].pieces, home->pieces + first,
                   (size_t)n * sizeof *home->pieces);
    }
}

cpl_status cpli_shares_create(const cpli_home *home, cpli_shares **out)
{
    cpl_status status;
    cpli_shares *shares;
    int64_t n = home->first[home->cp] + (int64_t)CPLI_SPARE_PIECES * home->cp;
    CPL_TRY(CPL_ALLOC(1, &shares));
    shares->home = home;
    CPL_TRY_GO(CPL_ALLOC(home->cp, &shares->items), fail);
    CPL_TRY_GO(CPL_ALLOC(n, &shares->pieces), fail);
    CPL_TRY_GO(CPL_ALLOC(3 * (n + home->cp), &shares->sums), fail);
    deal(shares);
    *out = shares;
    return CPL_OK;
fail:
    cpli_shares_destroy(shares);
    return status;
}

void cpli_shares_destroy(cpli_shares *shares)
{
    if (shares == NULL)
        return;
    cpli_free(shares->gains);
    cpli_free(shares->sums);
    cpli_free(shares->pieces);
    cpli_free(shares->items);
    cpli_free(shares);
}

/* ---- windows ---- */

static void sum_up(cpli_share *share)
{
    if (share->is_summed)
        return;
    share->tokens[0] = share->work[0] = 0;
    for (int64_t i = 0; i < share->n; i++) {
        const cpli_piece *piece = &share->pieces[i];
        share->tokens[i + 1] = share->tokens[i] + piece->length;
        share->work[i + 1] =
            share->work[i] + cpli_piece_work(piece, piece->length);
    }
    for (int64_t i = share->n - 1; i >= 0; i--) {
        const cpli_piece *piece = &share->pieces[i];
        bool goes_on = i + 1 < share->n &&
                       piece[1].position == piece->position + piece->length;
        share->stretch[i] = goes_on ? share->stretch[i + 1] : i + 1;
    }
    share->is_summed = true;
}

/* The work of the rows of pieces first .. last, of the last only those before
 * row `end` of the prefix sums. */
static int64_t work_between(const cpli_share *share, int64_t first,
                            int64_t last, int64_t end)
{
    return share->work[last] - share->work[first] +
           cpli_piece_work(&share->pieces[last], end - share->tokens[last]);
}

int64_t cpli_window_work(const cpli_share *share, int64_t piece, int64_t n)
{
    int64_t end = share->tokens[piece] + n, low = piece, high = share->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (share->tokens[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return work_between(share, piece, low - 1, end);
}

int64_t cpli_window_lightest(cpli_share *share, int64_t n, int64_t *work)
{
    int64_t best = -1, last = 0;
    sum_up(share);
    for (int64_t i = 0; i < share->n; i++) {
        int64_t end = share->tokens[i] + n;
        if (share->tokens[share->stretch[i]] < end)
            continue;
        last = cpli_max(last, i);
        while (share->tokens[last + 1] < end)
            last++;
        int64_t here = work_between(share, i, last, end);
        if (best >= 0 && here >= *work)
            continue;
        best = i;
        *work = here;
    }
    return best;
}

int64_t cpli_window_find(cpli_share *share, int64_t *n, int64_t *work)
{
    int64_t window = cpli_window_lightest(share, *n, work);
    while (window < 0 && *n > 1) {
        *n /= 2;
        window = cpli_window_lightest(share, *n, work);
    }
    return window;
}

/* ---- keys ---- */

/* Of a home in stream order: the end of the real rows that it has of a
 * sequence, which are before its padding. */
static int64_t home_need(const cpli_share *share, int64_t sequence)
{
    int64_t low = 0, high = share->n_home;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (share->home[middle].sequence <= sequence)
            low = middle + 1;
        else
            high = middle;
    }
    for (int64_t i = low - 1; i >= 0 && share->home[i].sequence == sequence;
         i--)
        if (share->home[i].is_real)
            return cpli_piece_end(&share->home[i]);
    return 0;
}

int64_t cpli_share_need(const cpli_shares *shares, int rank, int64_t sequence)
{
    const cpli_share *share = &shares->items[rank];
    int64_t end = home_need(share, sequence);
    for (int64_t i = share->last_gain; i >= 0; i = shares->gains[i].next)
        if (shares->gains[i].sequence == sequence)
            end = cpli_max(end, shares->gains[i].end);
    return end;
}

/* ---- swapping ---- */

/* Notes that `rank` gets the rows of a piece, from its slot `slot` on. */
static void gain(cpli_shares *shares, int rank, const cpli_piece *piece,
                 int64_t slot)
{
    cpli_share *share = &shares->items[rank];
    CPL_ASSERT(shares->n_gains < shares->gain_capacity);
    shares->gains[shares->n_gains] = (cpli_gain){
        .held = {rank, piece->position, slot, piece->length},
        .sequence = piece->sequence,
        .end = piece->is_real ? cpli_piece_end(piece) : 0,
        .next = share->last_gain,
    };
    share->last_gain = shares->n_gains++;
}

static void drop(cpli_share *share, int64_t first, int64_t n)
{
    share->n -= n;
    memmove(share->pieces + first, share->pieces + first + n,
            (size_t)(share->n - first) * sizeof *share->pieces);
}

/* The first n rows of a piece, and the piece without them. */
static cpli_piece take_front(cpli_piece *piece, int64_t n)
{
    cpli_piece front = *piece;
    front.length = n;
    piece->position += n;
    piece->offset += n;
    piece->slot += n;
    piece->length -= n;
    return front;
}

void cpli_share_cut(cpli_share *share, int64_t piece, int64_t rows)
{
    cpli_piece *at = share->pieces + piece;
    CPL_ASSERT(share->n < share->n_home + CPLI_SPARE_PIECES);
    memmove(at + 1, at, (size_t)(share->n - piece) * sizeof *at);
    share->n++;
    take_front(at + 1, rows);
    at->length = rows;
    share->is_summed = false;
}

static cpli_piece take_tail(cpli_share *share, int64_t piece, int64_t n)
{
    cpli_piece *whole = &share->pieces[piece];
    cpli_piece front = take_front(whole, whole->length - n), tail = *whole;
    *whole = front;
    if (front.length == 0)
        drop(share, piece, 1);
    share->is_summed = false;
    return tail;
}

/* Room for both sides of every piece of a window. */
static cpl_status reserve(cpli_shares *shares, const cpli_share *share)
{
    while (shares->n_gains + 2 * share->n > shares->gain_capacity)
        CPL_TRY(cpli_grow((void **)&shares->gains, shares->gain_capacity,
                          &shares->gain_capacity, sizeof *shares->gains));
    return CPL_OK;
}

cpl_status cpli_shares_swap(cpli_shares *shares, int from, int64_t piece,
                            int to, int64_t window, int64_t n)
{
    cpli_share *giver = &shares->items[to];
    CPL_TRY(reserve(shares, giver));
    cpli_piece tail = take_tail(&shares->items[from], piece, n);
    int64_t emptied = 0;
    while (tail.length > 0) {
        cpli_piece *light = &giver->pieces[window + emptied];
        int64_t rows = cpli_min(light->length, tail.length);
        cpli_piece there = take_front(light, rows);
        cpli_piece here = take_front(&tail, rows);
        gain(shares, from, &there, here.slot);
        gain(shares, to, &here, there.slot);
        emptied += light->length == 0;
    }
    drop(giver, window, emptied);
    giver->is_summed = false;
    return CPL_OK;
}
