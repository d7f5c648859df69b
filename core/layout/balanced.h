/*
 * balanced.h: what the files of the balanced layout share. CP ranks only; group
 * ranks and windows are balanced.c's.
 *
 * The one idea: every rank starts with its *home*, the rows that it holds in
 * the layout nearby. An overloaded rank swaps the tail of a document, which is
 * its heaviest part, for the lightest window of an idle one, as many rows as it
 * gives. Rows that are not swapped keep their slots, and a row that comes in
 * takes the slot of the one that it is swapped for.
 *
 * Work is exact, in integers. Doubles stand where a ratio is meant: the
 * tolerance, the price of a swap per work that it moves, and the lower bound.
 */
#ifndef CPLI_BALANCED_H
#define CPLI_BALANCED_H

#include "layout.h"

/* Loads stay below this, so that no sum or small multiple of them overflows and
 * their comparisons with doubles are exact enough to be the same everywhere. */
#define CPLI_MAX_WORK ((int64_t)1 << 59)

/* ---- homes ---- */

/* Consecutive rows of one rank in one sequence: all real, or all padding. */
typedef struct cpli_piece {
    int64_t sequence;
    int64_t position; /* of the first row */
    int64_t offset;   /* of the first row inside its sequence */
    int64_t slot;     /* of the first row on its CP rank */
    int64_t length;
    bool is_real; /* padding is no work */
} cpli_piece;

typedef struct cpli_home {
    const cpl_stream *stream;
    int cp;
    int64_t n_local; /* rows of a CP rank, the same on all */
    cpli_piece *pieces;
    int64_t *first; /* CP rank -> its first piece, in stream order; cp + 1 */
    int64_t *work;  /* of each CP rank */
    double mean;
} cpli_home;

/*
 * The rows of each CP rank in `near`: those of the tp group ranks that `order`
 * puts there (NULL: near's own order). Errors, in the name of `who`: INVALID
 * (ranks with unequal rows; work of 2^59 or more), MEMORY.
 */
cpl_status cpli_home_create(const char *who, const cpl_layout *near,
                            const int *order, cpli_home **out);
void cpli_home_destroy(cpli_home *home);

/* The work of the first n rows of a piece: a row at offset o sees o + 1 keys.
 */
static inline int64_t cpli_piece_work(const cpli_piece *piece, int64_t n)
{
    return piece->is_real ? n * piece->offset + n * (n + 1) / 2 : 0;
}

/* The end of a piece, as an offset: what its last row sees. */
static inline int64_t cpli_piece_end(const cpli_piece *piece)
{
    return piece->offset + piece->length;
}

/* ---- shares: what each rank still has of its home, and what it got ---- */

typedef struct cpli_share {
    const cpli_piece *home; /* as it was */
    int64_t n_home;
    cpli_piece *pieces; /* what is left of it, in stream order */
    int64_t n;
    int64_t *tokens;   /* rows before each piece; n + 1 */
    int64_t *work;     /* their work */
    int64_t *stretch;  /* one past the last piece that follows without a gap */
    bool is_summed;    /* whether the three are up to date */
    int64_t load;      /* work of all that the rank has now */
    int64_t last_gain; /* the newest of its gains, or -1 */
} cpli_share;

/* What a rank got: rows of one sequence, at its slots. */
typedef struct cpli_gain {
    cpli_holding held;
    int64_t sequence;
    int64_t end;  /* offset of the end of its real rows, 0 for padding */
    int64_t next; /* the gain before this of the same rank, or -1 */
} cpli_gain;

typedef struct cpli_shares {
    const cpli_home *home;
    cpli_share *items; /* one for each CP rank */
    cpli_piece *pieces;
    int64_t *sums;
    cpli_gain *gains;
    int64_t n_gains;
    int64_t gain_capacity;
} cpli_shares;

cpl_status cpli_shares_create(const cpli_home *home, cpli_shares **out);
void cpli_shares_destroy(cpli_shares *shares);

/* The work of the n rows from piece `piece` on, which lie in its stretch. */
int64_t cpli_window_work(const cpli_share *share, int64_t piece, int64_t n);
/* The piece at which the lightest window of n rows begins, and its work; -1 if
 * no stretch is that long. */
int64_t cpli_window_lightest(cpli_share *share, int64_t n, int64_t *work);
/* The same, of n rows or of half as many until there is one; *n is adapted. */
int64_t cpli_window_find(cpli_share *share, int64_t *n, int64_t *work);

/* The end of the prefix of a sequence whose keys the rank gathers anyway. */
int64_t cpli_share_need(const cpli_shares *shares, int rank, int64_t sequence);

/* Swaps the last n rows of a piece of `from` for n rows of `to` from piece
 * `window` on. The loads are the caller's. */
cpl_status cpli_shares_swap(cpli_shares *shares, int from, int64_t piece,
                            int to, int64_t window, int64_t n);

/* How often the pieces of a share may be cut in two. */
enum { CPLI_SPARE_PIECES = 16 };

/* Cuts a piece before its row `rows`, which must be inside it; the share must
 * have a spare piece. */
void cpli_share_cut(cpli_share *share, int64_t piece, int64_t rows);

/* ---- the sorted sweep ---- */

typedef struct cpli_sweep_options {
    double tolerance;
    int64_t block;   /* rows that a swap moves a multiple of, where it can */
    const int *node; /* CP rank -> node */
    int node_size;
    bool is_plain;
} cpli_sweep_options;

/* Swaps until no load is above (1 + tolerance) * mean, or none can be lowered.
 */
cpl_status cpli_sweep(cpli_shares *shares, const cpli_sweep_options *options);

/* Swaps single rows while that lowers a load above cap. */
cpl_status cpli_mend(cpli_shares *shares, int64_t cap);

/* ---- the lower bound ---- */

/* Tokens of similar work: how many each rank has, and their mean work. */
typedef struct cpli_cells {
    int64_t n;
    int cp;
    double *work;  /* of a token, in units of mean / n_local */
    double *count; /* n * cp */
} cpli_cells;

/*
 * Climbs the smoothed dual at temperature tau, with C = limit * mean. `prices`
 * are where it starts and ends: those of a token on each CP rank, then the
 * square roots of those of work (in units of mean / n_local).
 */
cpl_status cpli_prices_climb(const cpli_cells *cells, double n_local,
                             double limit, double tau, double *prices);

#endif
