/*
 * digest.c: one number for "the same rows on the same ranks". It must depend
 * on nothing but stream, group and runs, whatever kind they were made by, and
 * it must not enumerate the runs of all ranks of a layout in closed form. So a
 * layout is named by the first kind of the table that holds its runs under
 * some order of the ranks; that order is the only one possible, since the
 * first positions of its ranks fix it. Layouts that no such kind holds are
 * digested run by run.
 */
#include "layout.h"

/* Compares the first `limit` runs of a rank. */
static bool same_rank(const cpl_layout *a, const cpl_layout *b, int rank,
                      int64_t limit)
{
    cpli_walk walk_a = cpli_walk_begin(a, rank);
    cpli_walk walk_b = cpli_walk_begin(b, rank);
    cpli_holding run_a, run_b;
    if (walk_a.n_local != walk_b.n_local)
        return false;
    while (limit-- > 0 && cpli_walk_next(&walk_a, &run_a) &&
           cpli_walk_next(&walk_b, &run_b))
        if (run_a.start != run_b.start || run_a.length != run_b.length)
            return false;
    return true;
}

/* Most layouts that differ do so in the first run of some rank: that is looked
 * at first, since the runs may be many. */
static bool same_runs(const cpl_layout *a, const cpl_layout *b)
{
    int n = cpl_layout_n_ranks(a);
    for (int rank = 0; rank < n; rank++)
        if (!same_rank(a, b, rank, 1))
            return false;
    for (int rank = 0; rank < n; rank++)
        if (!same_rank(a, b, rank, INT64_MAX))
            return false;
    return true;
}

/* Gives the guess the only order that could fit: that of the ranks that hold
 * the first position of each of its ranks. False if that is no permutation. */
static bool fit_order(cpl_layout *guess, const cpl_layout *layout)
{
    int n = cpl_layout_n_ranks(guess);
    cpli_cursor at = {0}, layout_at = {0};
    for (int i = 0; i < n; i++)
        guess->order[i] = guess->logical[i] = i;
    for (int i = 0; i < n; i++) {
        cpli_holding first, found;
        cpli_at_slot(guess, i, 0, &at, &first);
        cpli_at_position(layout, first.start, &layout_at, &found);
        guess->order[i] = found.rank;
    }
    for (int i = 0; i < n; i++)
        guess->logical[i] = -1;
    for (int i = 0; i < n; i++) {
        if (guess->logical[guess->order[i]] >= 0)
            return false;
        guess->logical[guess->order[i]] = i;
    }
    return true;
}

static uint64_t name_digest(uint64_t seed, const cpl_layout *layout)
{
    const char *name = layout->kind->name;
    size_t n = (size_t)cpl_layout_n_ranks(layout);
    uint64_t hash = cpl_hash(seed, name, strlen(name));
    if (layout->kind->fit != NULL)
        hash = cpl_hash(hash, &layout->block, sizeof layout->block);
    return cpl_hash(hash, layout->order, n * sizeof *layout->order);
}

static uint64_t run_digest(uint64_t hash, const cpl_layout *layout)
{
    for (int rank = 0; rank < cpl_layout_n_ranks(layout); rank++) {
        cpli_walk walk = cpli_walk_begin(layout, rank);
        cpli_holding run;
        while (cpli_walk_next(&walk, &run)) {
            int64_t words[] = {rank, run.start, run.length};
            hash = cpl_hash(hash, words, sizeof words);
        }
    }
    return hash;
}

/* Whether the layout is of this kind, in an order left in the guess. */
static bool is_kind(const cpli_kind *kind, const cpl_layout *layout,
                    cpl_layout *guess)
{
    int64_t cp_local = cpl_stream_n_positions(layout->stream) / layout->cp;
    if (kind->check == NULL || cp_local % layout->tp != 0)
        return false;
    guess->kind = kind;
    guess->cp_local = cp_local;
    guess->window = cp_local / layout->tp;
    if (kind->fit != NULL)
        kind->fit(guess, layout);
    return kind->check(guess) == CPL_OK && fit_order(guess, layout) &&
           same_runs(guess, layout);
}

cpl_status cpli_layout_identify(const cpl_layout *layout, uint64_t *out)
{
    cpl_status status;
    int n = cpl_layout_n_ranks(layout);
    int64_t group[] = {layout->cp, layout->tp};
    uint64_t seed = cpl_hash(layout->stream->digest, group, sizeof group);
    if (cpl_stream_n_positions(layout->stream) == 0) {
        *out = seed; /* nobody holds anything, whatever the kind and order */
        return CPL_OK;
    }
    cpl_layout guess = *layout;
    guess.table = NULL;
    guess.order = guess.logical = NULL;
    CPL_TRY_GO(CPL_ALLOC(n, &guess.order), done);
    CPL_TRY_GO(CPL_ALLOC(n, &guess.logical), done);
    int i = 0;
    while (cpli_kind_at(i) != layout->kind &&
           !is_kind(cpli_kind_at(i), layout, &guess))
        i++;
    if (cpli_kind_at(i) != layout->kind)
        *out = name_digest(seed, &guess);
    else if (layout->table == NULL)
        *out = name_digest(seed, layout);
    else
        *out = run_digest(seed, layout);
done:
    cpli_free(guess.logical);
    cpli_free(guess.order);
    return status;
}
