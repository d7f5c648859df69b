/*
 * comm.h: ranks and bytes. A transport is a small table of functions; above it
 * nobody knows how bytes move.
 *
 * The one movement is the *transfer*: each rank says which pieces of its src
 * others take, and which pieces of others' src (or of its own) come into its
 * dst. Both sides list the pieces of a pair in the same order and sizes, so no
 * index travels. Transfers between two ranks match in the order in which both
 * make them; ranks without a common piece need not take part (but in an
 * all-to-all).
 */
#ifndef CPLI_COMM_H
#define CPLI_COMM_H

#include "base.h"
#include "kernels.h"

typedef struct cpli_piece {
    int peer;            /* a rank of the group that carries: cpli_comm_whole */
    int64_t offset;      /* bytes: in src for a send, in dst for a receive */
    int64_t peer_offset; /* bytes: in the peer's dst, or in its src; read by
                            PULL, and of own pieces */
    int64_t bytes;       /* > 0; with room 0, too */
} cpli_piece;

/* How received bytes meet what dst holds. ADD and SWAP touch dst in finish
 * only. */
typedef enum cpli_combine {
    CPLI_COPY, /* they replace it */
    CPLI_ADD,  /* they are added, elements of `dtype`, piece by piece in order:
                  the same bits in every run */
    CPLI_SWAP, /* each piece changes places with the peer's piece, which the
                  peer lists too: src == dst on both sides */
    CPLI_FILL  /* of carries alone: nothing is read, a byte is written */
} cpli_combine;

/* How the bytes travel; where ranks are threads all three are the same. */
typedef enum cpli_way {
    CPLI_PULL, /* the receiver takes them straight from the sender's memory */
    CPLI_MESSAGES, /* a message a piece; COPY only */
    CPLI_ALLTOALL  /* one all-to-all of the group: every rank takes part, a pair
                      of ranks has at most one piece; COPY only */
} cpli_way;

/* Transfers that one rank may have started and not finished. */
enum { CPLI_IN_FLIGHT = 16 };

typedef struct cpli_transfer {
    const void *src;
    void *dst;
    const cpli_piece *sends;    /* to others or to itself, in peer order */
    const cpli_piece *receives; /* in peer order, then the senders' order */
    int64_t n_sends, n_receives;
    cpli_way way;
    cpli_combine combine;
    cpl_dtype dtype;
    bool is_large; /* the group reads and writes more than the caches hold */
    int64_t row_bytes; /* > 0: with room (cpli_has_room), and all offsets and
                          sizes are multiples of it; 0: without */
    bool is_host; /* src and dst lie in the host's memory, wherever the tensors
                     of the group do */
    void *tables; /* what reserve made for it; the transport's own */
    void *graph;  /* of cpli_device_ops: carries the pieces out; NULL: none */
} cpli_transfer;

/* ---- what a rank moves by itself ---- */

/* Bytes on their way within a rank, from one of several places to one. */
typedef struct cpli_carry {
    int from; /* number of the place */
    int64_t from_offset;
    int64_t to_offset;
    int64_t bytes;
} cpli_carry;

/* A list of them, carried out in this order; no two copies overlap. */
typedef struct cpli_carries {
    cpli_carry *items;
    int64_t n;
    cpli_combine combine; /* COPY, ADD, or FILL */
    int fill;             /* FILL: the byte */
    cpl_dtype dtype;
    bool is_large;     /* see cpli_transfer */
    int64_t row_bytes; /* likewise */
    void *tables;      /* the device's own */
} cpli_carries;

/* The most places that a list names. */
enum { CPLI_CARRY_PLACES = 4 };

/* ---- positions that travel with rows ---- */

/* A comparison of positions with runs (where start < 0, -1 is expected), and
 * what is said where they differ: the number of the check, from 1, who asks,
 * and for which rank's rows. */
typedef struct cpli_comparison {
    const int64_t *trace;
    int64_t n_rows;
    const cpl_run *runs;
    int64_t n_runs;
    int64_t check;
    const char *who;
    int rank;
} cpli_comparison;

/* Wrong rows, and the first of them in the first check that met one. */
typedef struct cpli_wrong {
    int64_t rows;
    int64_t check;
    const char *who;
    int rank;
    int64_t slot, expected, found;
} cpli_wrong;

/*
 * What cpl_mould and cpl_rehearsal ask of a device (cuda_mould.c); all of it is
 * local. NULL where there is nothing to capture.
 */
typedef struct cpli_mould_ops {
    /* Errors: UNSUPPORTED (by NCCL), MEMORY. */
    cpl_status (*make)(cpl_comm *comm, void **out);
    void (*drop)(cpl_comm *comm, void *mould);
    /* From here on the mould is used, with `anew` from its first block on;
     * NULL: none is. */
    void (*use)(cpl_comm *comm, void *mould, bool anew);
    bool (*is_open)(const cpl_comm *comm);
    /* See cpli_room and cpli_most. */
    int64_t (*room)(cpl_comm *comm, int64_t n, bool is_exact);
    /* Of what lies between them the device is told nothing; the digest is that
     * of what it would have been told, in this order. */
    cpl_status (*begin_rehearsal)(cpl_comm *comm);
    cpl_status (*end_rehearsal)(cpl_comm *comm, uint64_t *digest);
} cpli_mould_ops;

/*
 * Memory that the host does not reach: what is done to it; by the group that
 * it comes from (cpli_comm_whole). All of it goes into the rank's own order of
 * work there and returns at once, but upload, download and wait, which wait and
 * count a host_sync, and found, which waits. Errors: SYSTEM (what the device
 * says), MEMORY, ABORTED and DEADLINE (other ranks do not come).
 */
typedef struct cpli_device_ops {
    const char *name;                    /* "cuda" */
    int (*number)(const cpl_comm *comm); /* of the device, from 0 */
    /* The table of its kernels, or of the naive ones; NULL: none for that
     * dtype. They work for the rank whose thread calls. */
    const cpl_kernels *(*kernels)(cpl_dtype dtype, bool naive);
    cpl_status (*upload)(cpl_comm *comm, void *to, const void *from,
                         size_t bytes);
    /* The same, but nobody waits, and `from` may change at once. Refused while
     * a capture is made (UNSUPPORTED). */
    cpl_status (*send)(cpl_comm *comm, void *to, const void *from,
                       size_t bytes);
    cpl_status (*download)(cpl_comm *comm, void *to, const void *from,
                           size_t bytes);
    cpl_status (*copy)(cpl_comm *comm, void *to, const void *from,
                       size_t bytes);
    /* n times the same element of 1, 2, 4 or 8 bytes. */
    cpl_status (*fill)(cpl_comm *comm, void *to, const void *element,
                       size_t element_bytes, int64_t n);
    /* Positions. Runs are sent there when they first come, and kept. `found`
     * says what was wrong in all comparisons since it was last asked, those of
     * replayed graphs too; where there ever were some it waits, which is no
     * part of a step and not counted. `who` stays the device's. */
    cpl_status (*write_runs)(cpl_comm *comm, int64_t *trace, int64_t n_rows,
                             const cpl_run *runs, int64_t n_runs);
    cpl_status (*compare)(cpl_comm *comm, const cpli_comparison *what);
    cpl_status (*found)(cpl_comm *comm, cpli_wrong *out);
    /* t / by where `by` divides it, else -1. */
    cpl_status (*divide)(cpl_comm *comm, int64_t *t, int64_t n, int64_t by);
    /* Takes what carrying out the list needs, so that carry takes nothing. */
    cpl_status (*reserve)(cpl_comm *comm, cpli_carries *list);
    void (*release)(cpl_comm *comm, cpli_carries *list);
    cpl_status (*carry)(cpl_comm *comm, const cpli_carries *list,
                        char *const *at, void *to);
    /* Marks in the rank's order of work, with the device's time of each; the
     * seconds between two are of ranks on one device, which have come past
     * both. wait: until all that is there is done; a host_sync. */
    cpl_status (*make_marks)(cpl_comm *comm, int64_t n, void **out);
    void (*drop_marks)(cpl_comm *comm, void *marks);
    cpl_status (*mark)(cpl_comm *comm, void *marks, int64_t i);
    cpl_status (*seconds)(cpl_comm *comm, const void *from_marks, int64_t from,
                          const void *to_marks, int64_t to, double *out);
    cpl_status (*wait)(cpl_comm *comm);
    /* Of what follows on the rank's order of work until end: nothing is done,
     * and all of it is what `launch` does. */
    cpl_status (*begin_capture)(cpl_comm *comm);
    cpl_status (*end_capture)(cpl_comm *comm, void **graph);
    cpl_status (*launch)(cpl_comm *comm, void *graph);
    void (*drop)(cpl_comm *comm, void *graph);
    const cpli_mould_ops *moulds;
} cpli_device_ops;

/* One graph of the work of all ranks. All collective but stop. Where a begin
 * fails on one rank it fails on all, and nothing is captured. */
typedef struct cpli_capture_ops {
    cpl_status (*begin)(cpl_comm *comm);
    /* I go to the end at once: who waits for me before it fails with `why`.
     * NULL: I came. */
    void (*stop)(cpl_comm *comm, const char *why);
    cpl_status (*end)(cpl_comm *comm, void **graph);
    cpl_status (*replay)(cpl_comm *comm, void *graph);
} cpli_capture_ops;

/* A graph that carries out any transfer (PULL) between two tensors. */
typedef struct cpli_wish {
    const void *src;
    void *dst;
    cpli_combine combine; /* COPY; or SWAP: src is dst */
    int64_t room;         /* pieces that a rank receives, at most */
    int64_t row_bytes;
} cpli_wish;

typedef struct cpli_comm_ops {
    const char *name;
    bool is_one_process; /* all ranks share their memory and the store */
    /* Whether this group has a way, the same answer on all ranks; NULL: it has
     * all of them. */
    bool (*offers)(const cpl_comm *comm, cpli_way way);
    /* Zeroed memory that peers reach fastest; both NULL: the heap's will do. */
    cpl_status (*alloc)(cpl_comm *comm, size_t bytes, void **out);
    void (*free)(cpl_comm *comm, void *memory);
    /* Where memory of `alloc` is not the host's; NULL: it is. */
    const cpli_device_ops *device;
    /* Local. Takes what a transfer needs beside its pieces (requests, say), so
     * that start and finish take no memory; src and dst may be missing still.
     * NULL: nothing. */
    cpl_status (*reserve)(cpl_comm *comm, cpli_transfer *transfer);
    /* Local. Gives back what reserve took for this transfer alone; NULL:
     * nothing. */
    void (*release)(cpl_comm *comm, cpli_transfer *transfer);
    /* The transfer and its arrays stay untouched until finish returns; every
     * start has its finish, in any order. */
    cpl_status (*start)(cpl_comm *comm, const cpli_transfer *transfer);
    /* Collective. A graph for transfer.graph, and its end (local); NULL: each
     * exchange has to be captured by itself. */
    cpl_status (*make_graph)(cpl_comm *comm, const cpli_wish *wish, void **out);
    void (*drop_graph)(cpl_comm *comm, void *graph);
    /* Where ranks have one graph together; NULL: each captures its own. */
    const cpli_capture_ops *capture;
    cpl_status (*finish)(cpl_comm *comm, const cpli_transfer *transfer);
    cpl_status (*barrier)(cpl_comm *comm);
    /* `bytes` of every rank in rank order into out. */
    cpl_status (*gather)(cpl_comm *comm, const void *data, size_t bytes,
                         void *out);
    cpl_status (*sum)(cpl_comm *comm, void *data, int64_t n, cpl_dtype dtype);
    /* Local. What a wait is to hear that the group does not see, `doing`
     * something on a device for so long: OK; ABORTED with the sentence of the
     * rank that failed; DEADLINE. NULL: OK. */
    cpl_status (*watch)(cpl_comm *comm, double waited_s, const char *doing);
    /* See cpl_comm_plain_exchange; NULL: the transport has no such thing. */
    cpl_status (*plain_exchange)(cpl_comm *comm, const void *src,
                                 const size_t *to, void *dst,
                                 const size_t *from);
} cpli_comm_ops;

/* The head of every transport's own struct. */
struct cpl_comm {
    const cpli_comm_ops *ops;
    int rank;
    int size;
    cpl_comm *whole;  /* of a part (part.c): of which group; else NULL */
    const int *ranks; /* of a part: its members as the whole counts them */
    void *device;     /* where ops->device is: its own, of this rank */
};

/* The group that carries what `comm` moves, and that its memory comes from: of
 * a part the whole, which outlives all that was made with the part. */
static inline cpl_comm *cpli_comm_whole(cpl_comm *comm)
{
    return comm->whole != NULL ? comm->whole : comm;
}

/*
 * Lists that kernels read, and counts in their launches, while a mould is open
 * on the rank's device (has_room): a list of n gets room for as many as the
 * mould has seen at this place, at least for the next power of two; what is
 * beyond n is filled with entries that say nothing. `most` is the largest n
 * that the mould has seen at this place, for what all ranks must have alike.
 * Places are told apart by the order in which they ask, so that it must not
 * depend on sequences. Without a mould both are n.
 */
CPL_API bool cpli_has_room(const cpl_comm *comm);
CPL_API int64_t cpli_room(cpl_comm *comm, int64_t n);
CPL_API int64_t cpli_most(cpl_comm *comm, int64_t n);

/* A rank of `comm` as the carrying group counts it; keeps the order of ranks.
 */
static inline int cpli_peer(const cpl_comm *comm, int rank)
{
    return comm->whole != NULL ? comm->ranks[rank] : rank;
}

/* The device that the memory of `comm` is on; NULL: the host's memory, or no
 * comm. */
static inline const cpli_device_ops *cpli_device_of(const cpl_comm *comm)
{
    return comm != NULL ? comm->ops->device : NULL;
}

/* Exported for the driver programs of spec/c. */
CPL_API cpl_status cpli_comm_alloc(cpl_comm *comm, size_t bytes, void **out);
CPL_API void cpli_comm_free(cpl_comm *comm, void *memory);
CPL_API bool cpli_comm_offers(const cpl_comm *comm, cpli_way way);
CPL_API cpl_status cpli_transfer_reserve(cpl_comm *comm,
                                         cpli_transfer *transfer);
CPL_API void cpli_transfer_release(cpl_comm *comm, cpli_transfer *transfer);
/* The caller counts time, bytes and messages (trace.h). */
CPL_API cpl_status cpli_transfer_start(cpl_comm *comm,
                                       const cpli_transfer *transfer);
CPL_API cpl_status cpli_transfer_finish(cpl_comm *comm,
                                        const cpli_transfer *transfer);

/* A short sleep, between two looks, of one who has waited `waited_s`: first
 * none. */
CPL_API void cpli_pause(double waited_s);

/* Whether this machine's caches hold less than `bytes` bytes. */
CPL_API bool cpli_is_beyond_caches(int64_t bytes);
/* memcpy. With is_large it goes around the caches, which could not keep it, and
 * other ranks see the bytes only after cpli_copy_fence. */
CPL_API void cpli_copy_bytes(void *dst, const void *src, size_t bytes,
                             bool is_large);
CPL_API void cpli_copy_fence(void);
/* Of pieces one after the other: reads the beginning of the next one into the
 * cache, where the processor could not guess that it is next. */
void cpli_fetch_ahead(const void *src, int64_t bytes);
/* dst[i] += src[i] for n elements of dtype; integers wrap around, bf16 is added
 * in f32 and rounded. This and the following are exported for the plug-in. */
CPL_API void cpli_add_elements(cpl_dtype dtype, void *dst, const void *src,
                               int64_t n);
/* a and b, which do not overlap, change places. */
CPL_API void cpli_swap_bytes(void *a, void *b, size_t bytes);
/* Carries out a received piece whose sender is the rank itself. */
CPL_API void cpli_move_within(const cpli_transfer *transfer,
                              const cpli_piece *piece);
/* Carries out a received piece whose sender is another rank; `theirs` is where
 * the piece lies there, within reach. */
CPL_API void cpli_move_between(const cpli_transfer *mine,
                               const cpli_piece *piece, void *theirs, int rank);

/* Bytes begin .. end - 1. */
typedef struct cpli_range {
    int64_t begin;
    int64_t end;
} cpli_range;
/* What of a swapped piece `rank` carries out; the peer does the rest. */
CPL_API cpli_range cpli_swap_share(const cpli_piece *piece, int rank);

/* The end of the pieces of one peer that begin at `first`. */
static inline int64_t cpli_end_of_peer(const cpli_piece *pieces, int64_t n,
                                       int64_t first)
{
    int64_t end = first;
    while (end < n && pieces[end].peer == pieces[first].peer)
        end++;
    return end;
}

#endif
