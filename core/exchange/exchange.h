/*
 * exchange.h: carrying out routes on rows.
 *
 * A *method* turns the pieces of a route into *recipes* when a plan is made,
 * one for each way to execute it: forward, back, in place or not. A recipe
 * says what is packed, which transfers carry it, and what is unpacked; so
 * executing is the same few loops for every method (recipe.c), allocates
 * nothing and decides nothing.
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

/* ---- recipes ---- */

/* Where bytes of an execution lie. */
typedef enum cpli_where {
    CPLI_SRC,
    CPLI_DST,
    CPLI_OUTBOX, /* rows on their way out; composed: those of a CP rank */
    CPLI_INBOX,  /* rows that have come and wait for their place */
    CPLI_N_WHERES
} cpli_where;

typedef struct cpli_pieces {
    cpli_piece *items;
    int64_t n;
} cpli_pieces;

/* A cpli_carry's place is a cpli_where. */
_Static_assert(CPLI_N_WHERES <= (int)CPLI_CARRY_PLACES, "too many places");

/* A transfer, and where its two ends lie. */
typedef struct cpli_leg {
    cpli_where src, dst;
    cpli_transfer transfer;
} cpli_leg;

enum { CPLI_MAX_LEGS = 2 };

typedef struct cpli_recipe {
    cpli_carries load; /* from src into the outbox, before all legs: COPY */
    cpli_leg legs[CPLI_MAX_LEGS];
    int n_legs;
    bool in_turn;        /* a leg begins when the one before it has ended */
    cpli_carries unload; /* into dst, after all legs: COPY, or ADD */
    int64_t outbox_bytes;
    int64_t inbox_bytes;
} cpli_recipe;

/* The ways to execute a plan; each has a recipe of its own. */
typedef enum cpli_mode {
    CPLI_FORWARD,
    CPLI_BACK, /* rows are moved, not added */
    CPLI_BACK_ADDING,
    CPLI_FORWARD_IN_PLACE,
    CPLI_BACK_IN_PLACE,
    CPLI_N_MODES
} cpli_mode;

enum { CPLI_MAX_LISTS = 48 };

/* Everything that moves rows of one size, and what is in flight of it. */
typedef struct cpli_moves {
    cpl_comm *comm; /* that carries: cpli_comm_whole of the plan's */
    cpli_recipe recipes[CPLI_N_MODES];
    cpli_carries fills;          /* rows of the target without a source */
    void *lists[CPLI_MAX_LISTS]; /* owned; recipes share them */
    int n_lists;
    void *outbox, *inbox;
    cpli_recipe *flying;
    char *at[CPLI_N_WHERES]; /* while it flies */
} cpli_moves;

/* Begins a recipe and ends it. */
cpl_status cpli_moves_start(cpli_moves *moves, cpli_mode mode, const void *src,
                            void *dst);
cpl_status cpli_moves_finish(cpli_moves *moves);
/* Local. Fills the rows of `dst` that have no source. */
cpl_status cpli_moves_fill(const cpli_moves *moves, void *dst);
/* Local. Sets all of `bytes` bytes to 0. */
cpl_status cpli_moves_clear(const cpli_moves *moves, void *dst, size_t bytes);
void cpli_moves_destroy(cpli_moves *moves);

/* ---- methods ---- */

/* One recipe to be made. */
typedef struct cpli_task {
    cpli_moves *moves;    /* takes the lists */
    const cpl_comm *comm; /* the plan's: whose ranks segments and route name */
    cpl_route *route;     /* NULL: plain segments */
    cpli_pieces sends;    /* of src, in peer order, own rows too; in place */
    cpli_pieces receives; /* without those that stay or swap */
    cpli_pieces swaps;
    bool is_back, in_place;
    cpli_combine combine; /* COPY, or ADD (never in place) */
    cpl_dtype dtype;
    int64_t row_bytes;
    bool is_large;
    bool has_room; /* see cpli_has_room */
} cpli_task;

/* What a rank's part of a route counts; own: what stays on the rank. */
typedef struct cpli_census {
    int n_ranks, tp;
    int64_t peers_out, peers_in; /* without itself */
    int64_t pieces_out, pieces_in, pieces_own;
    int64_t bytes_out, bytes_in, bytes_own;
} cpli_census;

/* What one execution asks of a rank: the quantities that have a price. */
typedef struct cpli_effort {
    int64_t messages; /* ranks that it sends to, and that it hears from */
    int64_t pieces;   /* of memory: packed, unpacked, copied, or sent */
    int64_t crossing; /* bytes from or to others, whichever are more */
    int64_t carried;  /* bytes packed, unpacked, or moved within the rank */
} cpli_effort;

typedef struct cpli_method {
    const char *name;
    cpli_way way;  /* that the transport must offer */
    bool can_swap; /* in place, rows that change places need no buffer */
    bool is_fused; /* a row crosses at most once: "auto" may choose it */
    /* UNSUPPORTED, in one sentence, where it cannot do the route; NULL: it does
     * every route, and plain segments. */
    cpl_status (*check)(const cpl_route *route);
    cpl_status (*prepare)(const cpli_task *task, cpli_recipe *out);
    cpli_effort (*effort)(const cpli_census *census);
} cpli_method;

extern const cpli_method cpli_method_copy;
extern const cpli_method cpli_method_direct;
extern const cpli_method cpli_method_packed;
extern const cpli_method cpli_method_alltoallv;
extern const cpli_method cpli_method_composed;

/* ---- what methods are made of ---- */

/* A list that lives as long as the moves. */
cpl_status cpli_list(const cpli_task *task, int64_t n, size_t size, void **out);
/* Typed spelling: CPLI_LIST(task, n, &array). */
#define CPLI_LIST(task, n, out) \
    cpli_list(task, n, sizeof(**(out)), (void **)(out))

/* Segments as pieces of bytes. */
cpl_status cpli_scale(const cpli_task *task, const cpl_segment *segments,
                      int64_t n, cpli_pieces *out);

/* Appends a transfer; `leg` says where from and to, which way, and how. */
void cpli_add_leg(const cpli_task *task, cpli_recipe *recipe, cpli_leg leg,
                  const cpli_pieces *sends, const cpli_pieces *receives);

/* The pieces that pass through boxes: in place all of them, else those of
 * others; own ones then go straight from src to dst. */
cpl_status cpli_boxed(const cpli_task *task, const cpli_pieces *pieces,
                      cpli_pieces *out);
/* The pieces one behind the other in a box of *bytes bytes. */
cpl_status cpli_land(const cpli_task *task, const cpli_pieces *pieces,
                     cpli_pieces *out, int64_t *bytes);
/* Unloads the receives from where cpli_land put the boxed ones. */
cpl_status cpli_unload(const cpli_task *task, cpli_recipe *recipe);

/* The recipe that packs: load, one piece a peer, unload. */
cpl_status cpli_pack(const cpli_task *task, cpli_way way, cpli_recipe *recipe);

#endif
