/*
 * execute.c: carrying a plan out. Checks the tensors before anything moves,
 * lets the method move the rows, and says whose rows the target holds then.
 */
#include <stdio.h>

#include "plan.h"
#include "tensor/tensor.h"

/* ---- executing: checks ---- */

/* One side of an execution: what the plan expects of a tensor. */
typedef struct side {
    const char *name;
    int64_t n_rows;
    uint64_t digest;
} side;

/* A plan moves rows where the memory of its group is, and nowhere else. */
static cpl_status check_device(const cpl_plan *plan, const cpl_tensor *tensor,
                               side expected)
{
    const cpl_comm *group = plan->rows.comm;
    const cpli_device_ops *device = cpli_device_of(group);
    char here[64] = "cpu";
    if (cpli_device_of(tensor->comm) == device &&
        (device == NULL || tensor->comm == group))
        return CPL_OK;
    if (device != NULL)
        snprintf(here, sizeof here, "%s %d", device->name,
                 device->number(group));
    return cpli_fail(CPL_MISMATCH,
                     "exchange: %s lies on %s, but rank %d of %s moves rows on "
                     "%s",
                     expected.name, cpl_tensor_device(tensor),
                     cpl_comm_rank(plan->comm), plan->text, here);
}

static cpl_status check_tensor(const cpl_plan *plan, const cpl_tensor *tensor,
                               side expected)
{
    CPL_TRY(check_device(plan, tensor, expected));
    if (tensor->dtype == plan->dtype &&
        cpl_tensor_n_rows(tensor) == expected.n_rows &&
        cpl_tensor_width(tensor) == plan->width)
        return CPL_OK;
    return cpli_fail(CPL_MISMATCH,
                     "exchange: %s has %lld rows of %lld %s, but rank %d of %s "
                     "needs %lld rows of %lld %s",
                     expected.name, (long long)cpl_tensor_n_rows(tensor),
                     (long long)cpl_tensor_width(tensor),
                     cpl_dtype_name(tensor->dtype), cpl_comm_rank(plan->comm),
                     plan->text, (long long)expected.n_rows,
                     (long long)plan->width, cpl_dtype_name(plan->dtype));
}

static cpl_status check_mark(const cpl_plan *plan, const cpl_tensor *tensor,
                             side expected)
{
    if (!plan->has_marks || tensor->layout == 0 ||
        tensor->layout == expected.digest)
        return CPL_OK;
    return cpli_fail(CPL_MISMATCH,
                     "exchange: %s holds rows of layout %016llx, but %s takes "
                     "rows of layout %016llx",
                     expected.name, (unsigned long long)tensor->layout,
                     plan->text, (unsigned long long)expected.digest);
}

static cpl_status check_overlap(const cpl_plan *plan, const cpl_tensor *src,
                                const cpl_tensor *dst)
{
    uintptr_t a = (uintptr_t)src->data;
    uintptr_t b = (uintptr_t)dst->data;
    size_t src_bytes = cpl_tensor_bytes(src);
    size_t dst_bytes = cpl_tensor_bytes(dst);
    if (src_bytes == 0 || dst_bytes == 0 || a + src_bytes <= b ||
        b + dst_bytes <= a)
        return CPL_OK;
    if (a != b)
        return cpli_fail(CPL_INVALID, "exchange: src and dst overlap in part");
    if (!plan->is_in_place)
        return cpli_fail(CPL_INVALID,
                         "exchange: src is dst, but rank %d of %s has %lld "
                         "rows before and %lld after, or rows that repeat",
                         cpl_comm_rank(plan->comm), plan->text,
                         (long long)plan->n_source_rows,
                         (long long)plan->n_target_rows);
    return CPL_OK;
}

static cpl_status check_idle(const cpl_plan *plan)
{
    if (plan->is_flying)
        return cpli_fail(CPL_INVALID,
                         "exchange: start of %s before the last finish",
                         plan->text);
    return CPL_OK;
}

/* Adding needs a target that is not its own source. */
static cpl_status check_adding(const cpl_plan *plan, bool accumulate,
                               const cpl_tensor *src, const cpl_tensor *dst)
{
    if (plan->is_partition && !accumulate)
        return CPL_OK;
    if (src->data == dst->data && cpl_tensor_bytes(src) > 0)
        return cpli_fail(CPL_INVALID,
                         "exchange: an adjoint in place cannot accumulate");
    return CPL_OK;
}

/* ---- executing: one direction ---- */

static side source_side(const cpl_plan *plan, const char *name)
{
    return (side){name, plan->n_source_rows, plan->source_digest};
}

static side target_side(const cpl_plan *plan, const char *name)
{
    return (side){name, plan->n_target_rows, plan->target_digest};
}

static cpl_status fly(const cpl_plan *plan, cpli_moves *moves, const void *src,
                      void *dst, bool add)
{
    bool in_place = plan->is_in_place && src == dst;
    cpli_mode mode = in_place ? CPLI_FORWARD_IN_PLACE : CPLI_FORWARD;
    if (plan->is_adjoint)
        mode = in_place ? CPLI_BACK_IN_PLACE : CPLI_BACK;
    return cpli_moves_start(moves, add ? CPLI_BACK_ADDING : mode, src, dst);
}

static cpl_status take_off(cpl_plan *plan, const cpl_tensor *src,
                           cpl_tensor *dst)
{
    double since = cpl_clock();
    bool add = plan->is_adding;
    if (plan->is_traced)
        CPL_TRY(cpli_need_trace(dst));
    CPL_TRY(fly(plan, &plan->rows, src->data, dst->data, add));
    if (plan->is_traced)
        CPL_TRY(fly(plan, &plan->trace, src->trace, dst->trace, add));
    plan->target = dst;
    plan->is_flying = true;
    cpl_counters_here()->comm_seconds += cpl_clock() - since;
    return CPL_OK;
}

cpl_status cpli_plan_check(const cpl_plan *plan, const cpl_tensor *src,
                           const cpl_tensor *dst)
{
    CPL_TRY(check_idle(plan));
    CPL_TRY(check_tensor(plan, src, source_side(plan, "src")));
    CPL_TRY(check_mark(plan, src, source_side(plan, "src")));
    CPL_TRY(check_tensor(plan, dst, target_side(plan, "dst")));
    return check_overlap(plan, src, dst);
}

cpl_status cpl_plan_start(cpl_plan *plan, const cpl_tensor *src,
                          cpl_tensor *dst)
{
    CPL_TRY(cpli_plan_check(plan, src, dst));
    plan->is_adjoint = plan->is_adding = false;
    plan->is_accumulating = false;
    plan->is_traced = plan->has_marks && src->trace != NULL;
    return take_off(plan, src, dst);
}

cpl_status cpli_plan_check_adjoint(const cpl_plan *plan,
                                   const cpl_tensor *d_dst,
                                   const cpl_tensor *d_src, bool accumulate)
{
    CPL_TRY(check_idle(plan));
    CPL_TRY(check_tensor(plan, d_dst, target_side(plan, "d_dst")));
    CPL_TRY(check_mark(plan, d_dst, target_side(plan, "d_dst")));
    CPL_TRY(check_tensor(plan, d_src, source_side(plan, "d_src")));
    if (accumulate)
        CPL_TRY(check_mark(plan, d_src, source_side(plan, "d_src")));
    CPL_TRY(check_overlap(plan, d_dst, d_src));
    return check_adding(plan, accumulate, d_dst, d_src);
}

cpl_status cpl_plan_start_adjoint(cpl_plan *plan, const cpl_tensor *d_dst,
                                  cpl_tensor *d_src, bool accumulate)
{
    CPL_TRY(cpli_plan_check_adjoint(plan, d_dst, d_src, accumulate));
    plan->is_adjoint = true;
    plan->is_accumulating = accumulate;
    plan->is_adding = accumulate || !plan->is_partition;
    /* Positions travel where rows are only moved, or where as many copies of
     * each are added, which the sum can be divided by. */
    plan->is_traced = plan->has_marks && !accumulate &&
                      (!plan->is_adding || plan->copies > 0) &&
                      d_dst->trace != NULL;
    return take_off(plan, d_dst, d_src);
}

/* ---- executing: finish ---- */

/* Rows that nobody sends to: 0 before a sum, 0 where a view has no source. */
static cpl_status prepare_target(const cpl_plan *plan)
{
    cpl_tensor *target = plan->target;
    if (!plan->is_adjoint)
        CPL_TRY(cpli_moves_fill(&plan->rows, target->data));
    else if (!plan->is_partition && !plan->is_accumulating)
        CPL_TRY(cpli_moves_clear(&plan->rows, target->data,
                                 cpl_tensor_bytes(target)));
    if (plan->is_traced && plan->is_adding)
        CPL_TRY(cpli_moves_clear(&plan->trace, target->trace,
                                 (size_t)cpl_tensor_n_rows(target) *
                                     sizeof(int64_t)));
    return CPL_OK;
}

/* Of sums of positions; -1 where the copies were not of one position. */
static cpl_status divide_trace(const cpl_plan *plan, cpl_tensor *target)
{
    const cpli_device_ops *device = cpli_device_of(plan->rows.comm);
    int64_t n = cpl_tensor_n_rows(target);
    if (device != NULL)
        return device->divide(plan->rows.comm, target->trace, n, plan->copies);
    for (int64_t i = 0; i < n; i++)
        target->trace[i] = target->trace[i] % plan->copies == 0
                               ? target->trace[i] / plan->copies
                               : -1;
    return CPL_OK;
}

/* What the target holds now, and where it came from. */
static cpl_status mark_target(const cpl_plan *plan)
{
    cpl_tensor *target = plan->target;
    if (!plan->has_marks || plan->is_accumulating)
        return CPL_OK;
    bool is_source = plan->is_adjoint;
    target->layout = is_source ? plan->source_digest : plan->target_digest;
    target->layout_kind = is_source ? plan->source_kind : plan->target_kind;
    if (!plan->is_traced) {
        cpli_drop_trace(target);
        return CPL_OK;
    }
    if (!plan->is_adjoint)
        CPL_TRY(cpli_moves_fill(&plan->trace, target->trace));
    return plan->is_adding ? divide_trace(plan, target) : CPL_OK;
}

static void count(const cpl_plan *plan, double since)
{
    const cpli_traffic *sent =
        plan->is_adjoint ? &plan->sent_back : &plan->sent;
    cpl_counters *counters = cpl_counters_here();
    counters->exchanges++;
    counters->sent_bytes += sent->bytes;
    counters->sent_messages += sent->messages;
    counters->comm_seconds += cpl_clock() - since;
}

cpl_status cpl_plan_finish(cpl_plan *plan)
{
    double since = cpl_clock();
    if (!plan->is_flying)
        return cpli_fail(CPL_INVALID, "exchange: finish of %s before its start",
                         plan->text);
    plan->is_flying = false;
    CPL_TRY(prepare_target(plan));
    CPL_TRY(cpli_moves_finish(&plan->rows));
    if (plan->is_traced)
        CPL_TRY(cpli_moves_finish(&plan->trace));
    CPL_TRY(mark_target(plan));
    count(plan, since);
    return CPL_OK;
}

cpl_status cpli_plan_account(cpl_plan *plan, const cpl_tensor *from,
                             cpl_tensor *to, bool is_adjoint)
{
    CPL_TRY(is_adjoint ? cpli_plan_check_adjoint(plan, from, to, false)
                       : cpli_plan_check(plan, from, to));
    to->layout = is_adjoint ? plan->source_digest : plan->target_digest;
    to->layout_kind = is_adjoint ? plan->source_kind : plan->target_kind;
    plan->is_adjoint = is_adjoint;
    count(plan, cpl_clock());
    return CPL_OK;
}
