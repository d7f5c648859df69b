/*
 * plan.h: what a plan holds. Made in plan.c, executed in execute.c.
 */
#ifndef CPLI_PLAN_H
#define CPLI_PLAN_H

#include "exchange.h"

enum { CPLI_TRACE_BYTES = sizeof(int64_t) };

/* What goes to other ranks in one execution. */
typedef struct cpli_traffic {
    int64_t bytes;
    int64_t messages;
} cpli_traffic;

struct cpl_plan {
    cpl_comm *comm;
    const cpli_method *method;
    const char *text; /* of the route */
    cpl_dtype dtype;
    int64_t width;
    int64_t n_source_rows, n_target_rows;
    uint64_t source_digest, target_digest;
    bool has_marks;    /* made from a route: tensors are marked and traced */
    bool is_partition; /* on all ranks: nothing repeats, nothing is fill */
    bool is_in_place;  /* on this rank */
    bool swaps_only;   /* on all ranks */
    cpli_traffic sent, sent_back;
    cpli_split split;
    cpli_moves rows;
    cpli_moves trace;
    cpl_run *fills; /* slots of the target without a source */
    int64_t n_fills;
    /* the execution in flight */
    bool is_flying, is_traced, is_adjoint, is_accumulating;
    cpl_tensor *target;
};

static inline int64_t cpli_plan_row_bytes(const cpl_plan *plan)
{
    return plan->width * (int64_t)cpl_dtype_bytes(plan->dtype);
}

#endif
