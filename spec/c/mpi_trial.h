/*
 * mpi_trial.h: for mpi_driver.c: transfers whose every byte is known. All ranks
 * draw the same pieces from a key, so that each knows what the others send.
 */
#ifndef MPI_TRIAL_H
#define MPI_TRIAL_H

#include "mpi_open.h"

enum { MAX_PIECES = 400 };

/* A reproducible number below n, the same on all ranks. */
static int64_t draw(uint64_t key, int64_t i, int64_t n)
{
    return (int64_t)(cpl_random_bits(key, (uint64_t)i) % (uint64_t)n);
}

/* ---- transfers whose every byte is known ---- */

typedef struct trial {
    cpl_comm *comm;
    uint64_t key;
    int64_t pieces; /* of a pair, at most */
    int64_t unit;   /* sizes and offsets are multiples of it */
    bool in_windows;
    cpli_transfer transfer;
    cpli_piece sends[MAX_PIECES];
    cpli_piece receives[MAX_PIECES];
    void *src;
    void *dst;
    size_t src_bytes;
    size_t dst_bytes;
} trial;

static int32_t source_word(const trial *t, int rank, int64_t offset)
{
    return (int32_t)(cpl_random_bits(t->key + (uint64_t)rank + 1,
                                     (uint64_t)offset / 4) >>
                     40);
}

/* The size of piece i between two ranks; 0: there is none. A rank in four has
 * nothing for anybody, a pair in three has nothing for each other. */
static int64_t piece_bytes(const trial *t, int from, int to, int64_t i)
{
    int64_t pair = ((int64_t)from * MAX_RANKS + to) * MAX_RANKS;
    if (draw(t->key, 1000000 + from, 4) == 0 ||
        draw(t->key, 2000000 + pair, 3) == 0)
        return 0;
    if (draw(t->key, 3000000 + pair, t->pieces + 1) < i)
        return 0;
    return t->unit * draw(t->key, pair * 64 + i, 300);
}

/* Lists the pieces of all pairs; every rank keeps its own. */
static void list_pieces(trial *t)
{
    int n = t->comm->size;
    int mine = t->comm->rank;
    int64_t in[MAX_RANKS] = {0};
    for (int from = 0; from < n; from++) {
        int64_t out = 0;
        for (int to = 0; to < n; to++)
            for (int64_t i = 0; i < t->pieces; i++) {
                int64_t bytes = piece_bytes(t, from, to, i);
                if (bytes == 0)
                    continue;
                if (from == mine)
                    t->sends[t->transfer.n_sends++] =
                        (cpli_piece){to, out, in[to], bytes};
                if (to == mine)
                    t->receives[t->transfer.n_receives++] =
                        (cpli_piece){from, in[to], out, bytes};
                out += bytes + t->unit;
                in[to] += bytes + t->unit;
            }
        if (from == mine)
            t->src_bytes = (size_t)out;
    }
    t->dst_bytes = (size_t)in[mine];
}

/* Pieces that change places: one list is both sides', and src is dst. */
static void list_swaps(trial *t)
{
    int n = t->comm->size;
    int mine = t->comm->rank;
    int64_t at[MAX_RANKS] = {0};
    for (int rank = 0; rank < n; rank++)
        at[rank] = rank * t->unit; /* other places on the two sides */
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++)
            for (int64_t i = 0; i < t->pieces; i++) {
                int64_t bytes = piece_bytes(t, a, b, i);
                if (bytes == 0)
                    continue;
                if (a == mine)
                    t->sends[t->transfer.n_sends++] =
                        (cpli_piece){b, at[a], at[b], bytes};
                if (b == mine)
                    t->sends[t->transfer.n_sends++] =
                        (cpli_piece){a, at[b], at[a], bytes};
                at[a] += bytes + t->unit;
                at[b] += bytes + t->unit;
            }
    t->transfer.n_receives = t->transfer.n_sends;
    t->src_bytes = (size_t)at[mine];
}

static void *take(trial *t, size_t bytes)
{
    void *memory = NULL;
    cpl_comm *whose = t->in_windows ? t->comm : cpl_comm_self();
    if (cpli_comm_alloc(whose, bytes, &memory) != CPL_OK)
        abort();
    return memory;
}

static void give(trial *t, void *memory)
{
    cpli_comm_free(t->in_windows ? t->comm : cpl_comm_self(), memory);
}

static trial *begin_trial(cpl_comm *comm, uint64_t key, cpli_way way,
                          cpli_combine combine, bool in_windows)
{
    trial *t = calloc(1, sizeof *t);
    t->comm = comm;
    t->key = cpl_random_key(key, "trial");
    t->pieces = way == CPLI_ALLTOALL ? 1 : 3;
    t->unit = 4 + 4 * draw(t->key, 0, 40);
    if (key % 6 >= 4) /* pieces that do not fit into a transport's buffers */
        t->unit = 4 * 173;
    t->in_windows = in_windows;
    if (combine == CPLI_SWAP)
        list_swaps(t);
    else
        list_pieces(t);
    t->src = take(t, t->src_bytes);
    t->dst = combine == CPLI_SWAP ? t->src : take(t, t->dst_bytes);
    for (size_t i = 0; i < t->src_bytes / 4; i++)
        ((int32_t *)t->src)[i] = source_word(t, comm->rank, (int64_t)i * 4);
    for (size_t i = 0; i < t->dst_bytes / 4; i++)
        ((int32_t *)t->dst)[i] = (int32_t)i;
    t->transfer.src = t->src;
    t->transfer.dst = t->dst;
    t->transfer.sends = t->sends;
    t->transfer.receives = combine == CPLI_SWAP ? t->sends : t->receives;
    t->transfer.way = way;
    t->transfer.combine = combine;
    t->transfer.dtype = CPL_I32;
    check_ok(cpli_transfer_reserve(comm, &t->transfer), "reserve");
    return t;
}

/* What stands where no piece came. */
static int32_t old_word(const trial *t, int64_t i)
{
    if (t->transfer.combine == CPLI_SWAP)
        return source_word(t, t->comm->rank, i * 4);
    return (int32_t)i;
}

static bool is_right(const trial *t)
{
    const int32_t *dst = t->dst;
    bool swaps = t->transfer.combine == CPLI_SWAP;
    int64_t n_words = (int64_t)(swaps ? t->src_bytes : t->dst_bytes) / 4;
    int64_t expected = 0; /* the next word that no piece has reached yet */
    for (int64_t i = 0; i < t->transfer.n_receives; i++) {
        const cpli_piece *piece = &t->transfer.receives[i];
        for (; expected < piece->offset / 4; expected++)
            if (dst[expected] != old_word(t, expected))
                return false;
        for (; expected < (piece->offset + piece->bytes) / 4; expected++) {
            int32_t word =
                source_word(t, piece->peer,
                            piece->peer_offset + expected * 4 - piece->offset);
            if (t->transfer.combine == CPLI_ADD)
                word += (int32_t)expected;
            if (dst[expected] != word)
                return false;
        }
    }
    for (; expected < n_words; expected++)
        if (dst[expected] != old_word(t, expected))
            return false;
    return true;
}

static void end_trial(trial *t)
{
    give(t, t->src);
    if (t->dst != t->src)
        give(t, t->dst);
    free(t);
}

/* ---- plain exchanges ---- */

/* So many words go from one rank to another in a plain exchange. */
static int words_between(int from, int to)
{
    return from == to ? 0 : (2 * from + to) % 5;
}

/* What cpl_comm_plain_exchange promises. */
static void try_plain(cpl_comm *comm)
{
    size_t to[MAX_RANKS] = {0}, from[MAX_RANKS] = {0};
    int32_t src[MAX_RANKS * MAX_RANKS], dst[MAX_RANKS * MAX_RANKS];
    int n = 0;
    bool right = true;
    for (int rank = 0; rank < comm->size; rank++) {
        to[rank] = sizeof *src * (size_t)words_between(comm->rank, rank);
        from[rank] = sizeof *src * (size_t)words_between(rank, comm->rank);
        for (int i = words_between(comm->rank, rank); i > 0; i--)
            src[n++] = comm->rank * 100 + rank;
    }
    check_ok(cpl_comm_plain_exchange(comm, src, to, dst, from), "plain");
    n = 0;
    for (int rank = 0; rank < comm->size; rank++)
        for (int i = words_between(rank, comm->rank); i > 0; i--)
            right = right && dst[n++] == rank * 100 + comm->rank;
    check(right, "the bytes of a plain exchange");
}

#endif
