/*
 * plan.h: what a plan holds. Made in plan.c, executed in execute.c.
 */
#ifndef CPLI_PLAN_H
#define CPLI_PLAN_H

#include "costs.h"
#include "exchange.h"

enum { CPLI_N_METHODS = 5 };

/* Every method; the order of all tables over them. */
extern const cpli_method *const cpli_methods[CPLI_N_METHODS];

/* Local. The method of a plan for `route`; NULL: to be chosen ("auto"). Errors:
 * INVALID (no such method), UNSUPPORTED (route or transport). */
cpl_status cpli_method_named(const char *name, const cpl_comm *comm,
                             const cpl_route *route, const cpli_method **out);
/* What plain segments use: no decision that ranks would have to share. */
const cpli_method *cpli_method_for_parts(const cpl_comm *comm);
/* What each method would take this rank, by the table of costs. */
void cpli_methods_estimate(const cpl_comm *comm, const cpli_census *census,
                           double *seconds);
/* The cheapest of those that "auto" may choose here. */
const cpli_method *cpli_method_cheapest(const cpl_comm *comm,
                                        const double *seconds);

/* What goes to other ranks in one execution. */
typedef struct cpli_traffic {
    int64_t bytes;
    int64_t messages; /* ranks that get some; composed: in both its steps */
} cpli_traffic;

struct cpl_plan {
    cpl_comm *comm;
    const cpli_method *method;
    double estimate;  /* seconds, of the busiest rank */
    const char *text; /* of the route */
    cpl_dtype dtype;
    int64_t width;
    int64_t n_source_rows, n_target_rows;
    int64_t rows_of_all;   /* target rows of the group, at most */
    int64_t most_receives; /* pieces that a rank of the group receives */
    int64_t most_sends;
    uint64_t source_digest, target_digest;
    const char *source_kind, *target_kind; /* of layouts; of a view NULL */
    bool has_marks;    /* made from a route: tensors are marked and traced */
    bool is_partition; /* on all ranks: nothing repeats, nothing is fill */
    int64_t copies;    /* of every source row, that ranks see; 0: not alike */
    bool may_fill;     /* a view may show rows without a source */
    bool is_in_place;  /* on this rank */
    bool swaps_only;   /* on all ranks; with room nobody relies on it */
    cpli_traffic sent, sent_back;
    cpli_split split;
    cpli_moves rows;
    cpli_moves trace;
    cpl_run *fills; /* slots of the target without a source */
    int64_t n_fills;
    /* the execution in flight */
    bool is_flying, is_traced, is_adjoint, is_accumulating;
    bool is_adding; /* rows; and positions, which then come `copies` times */
    cpl_tensor *target;
};

static inline int64_t cpli_plan_row_bytes(const cpl_plan *plan)
{
    return plan->width * (int64_t)cpl_dtype_bytes(plan->dtype);
}

/* What the moves of a plan carry. */
typedef struct cpli_row {
    cpl_dtype dtype;
    int64_t bytes;
    bool is_added; /* by some execution */
    int fill;      /* the byte of rows without a source */
} cpli_row;

/* Local. The recipes of the plan's method for one size of row; the plan says
 * all else. On failure `out` holds what is to be destroyed. */
cpl_status cpli_moves_prepare(const cpl_plan *plan, cpl_route *route,
                              const cpl_route_part *part, cpli_row row,
                              cpli_moves *out);
/* Local. Whether the tensors are those of an execution. */
cpl_status cpli_plan_check(const cpl_plan *plan, const cpl_tensor *src,
                           const cpl_tensor *dst);
cpl_status cpli_plan_check_adjoint(const cpl_plan *plan,
                                   const cpl_tensor *d_dst,
                                   const cpl_tensor *d_src, bool accumulate);
/* Local. An execution, or an adjoint, from `from` to `to`, that something else
 * carries out: checks, marks and counts as if the plan had. */
cpl_status cpli_plan_account(cpl_plan *plan, const cpl_tensor *from,
                             cpl_tensor *to, bool is_adjoint);
/* What this rank sends to others by a recipe. */
cpli_traffic cpli_moves_traffic(const cpli_moves *moves, cpli_mode mode);

#endif
