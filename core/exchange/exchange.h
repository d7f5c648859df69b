/*
 * exchange.h: carrying out routes on rows. A plan turns the segments of a
 * route into pieces of bytes once, when it is made; a method moves pieces.
 */
#ifndef CPLI_EXCHANGE_H
#define CPLI_EXCHANGE_H

#include "base.h"
#include "comm/comm.h"

/*
 * Local. A plan from plain segments instead of a route; copies them. Only
 * ranks that have segments take part in executing it; rows of the target that
 * nobody sends to stay untouched; marks and traces of the tensors too. Borrows
 * the comm. Errors: INVALID, MEMORY.
 */
CPL_API cpl_status cpli_plan_from_parts(const cpl_route_part *part,
                                        cpl_comm *comm, cpl_dtype dtype,
                                        int64_t width, cpl_plan **out);

/* ---- which rows move in place ---- */

/*
 * The segments of a part, sorted out for an exchange in place: rows that stay
 * in their slot are left out, segments that go both ways between the same two
 * places are swaps, and the rest has to pass through a buffer.
 */
typedef struct cpli_split {
    cpl_segment *sends_by_slot; /* the part's, in the order of their slots */
    cpl_segment *receives_by_slot;
    bool is_exact; /* each source row goes to one place, each target row comes
                      from one: what a route between partitions is */
    cpl_segment *swaps; /* both partners have them in the same order */
    cpl_segment *sends; /* the rest, in the part's order */
    cpl_segment *receives;
    int64_t n_swaps, n_sends, n_receives;
} cpli_split;

/* Local. Takes all memory, sorts, and finds is_exact. */
cpl_status cpli_split_create(const cpl_route_part *part, cpli_split *out);
void cpli_split_destroy(cpli_split *split);
/* Fills swaps, sends and receives of an exact part; without `may_swap` there
 * are no swaps. Can be called again. */
void cpli_split_decide(cpli_split *split, const cpl_route_part *part, int rank,
                       bool may_swap);

/* ---- pieces for one size of row ---- */

typedef struct cpli_pieces {
    cpli_piece *items;
    int64_t n;
} cpli_pieces;

/* One execution; the adjoint goes from the target side to the source side. */
typedef struct cpli_execution {
    const void *src;
    void *dst;
    bool in_place; /* src == dst */
    bool adjoint;
    bool add; /* to what dst holds, elements of dtype */
    cpl_dtype dtype;
} cpli_execution;

/* Everything that moves rows of one size, and what is in flight of it. */
typedef struct cpli_moves {
    cpli_pieces out; /* all pieces as the source side lists them */
    cpli_pieces in;  /* and the target side */
    cpli_pieces swaps;
    cpli_pieces rest_out, rest_in;
    cpli_pieces landing_out, landing_in; /* the same, offsets in the staging */
    char *staging;
    cpli_execution execution;
    cpli_transfer transfers[2];
    int n_transfers;
} cpli_moves;

/* Local. `split` is NULL where nothing ever moves in place. On failure `out`
 * holds what is to be destroyed. */
cpl_status cpli_moves_create(const cpl_route_part *part,
                             const cpli_split *split, int64_t row_bytes,
                             cpli_moves *out);
void cpli_moves_destroy(cpli_moves *moves);

/* ---- methods ---- */

/* A way to carry out an execution. Starting and finishing allocate nothing and
 * decide nothing. */
typedef struct cpli_method {
    const char *name;
    bool (*applies)(const cpl_comm *comm);
    cpl_status (*start)(cpl_comm *comm, cpli_moves *moves);
    cpl_status (*finish)(cpl_comm *comm, cpli_moves *moves);
} cpli_method;

extern const cpli_method cpli_method_copy;

#endif
