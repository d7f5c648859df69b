/*
 * plan.c: one rank's part of a route, bound to a group and a row. Making a
 * plan decides everything and takes all memory, and all ranks agree on it.
 */
#include "plan.h"

/* The methods, best first; "auto" takes the first one that applies. */
static const cpli_method *const methods[] = {&cpli_method_copy};
enum { N_METHODS = sizeof methods / sizeof *methods };
static const char method_names[] = "copy";

/* ---- making: arguments ---- */

/* NULL or "auto": the first one that works on the transport. */
static cpl_status find_method(const char *name, const cpl_comm *comm,
                              const cpli_method **out)
{
    const char *wanted = name == NULL ? "auto" : name;
    bool is_auto = strcmp(wanted, "auto") == 0;
    bool is_known = is_auto;
    for (int i = 0; i < N_METHODS; i++) {
        bool fits = is_auto || strcmp(wanted, methods[i]->name) == 0;
        is_known = is_known || fits;
        if (fits && methods[i]->applies(comm)) {
            *out = methods[i];
            return CPL_OK;
        }
    }
    if (is_known)
        return cpli_fail(CPL_UNSUPPORTED,
                         "exchange: method \"%s\" does not work on the %s "
                         "transport",
                         wanted, cpl_comm_transport(comm));
    return cpli_fail(CPL_INVALID,
                     "exchange: no method \"%s\"; there are: %s, auto", wanted,
                     method_names);
}

static cpl_status check_row(const cpl_route_part *part, cpl_dtype dtype,
                            int64_t width)
{
    if ((unsigned)dtype >= CPL_N_DTYPES)
        return cpli_fail(CPL_INVALID, "exchange: unknown dtype %d", (int)dtype);
    if (width < 1)
        return cpli_fail(CPL_INVALID,
                         "exchange: a row of %lld elements, not >= 1",
                         (long long)width);
    int64_t rows = cpli_max(part->n_source_rows, part->n_target_rows);
    int64_t bytes;
    if (__builtin_mul_overflow(width, (int64_t)cpl_dtype_bytes(dtype),
                               &bytes) ||
        __builtin_mul_overflow(bytes, cpli_max(rows, 1), &bytes))
        return cpli_fail(CPL_INVALID,
                         "exchange: %lld rows of %lld elements are more than "
                         "2^63 bytes",
                         (long long)rows, (long long)width);
    return CPL_OK;
}

static cpl_status check_segments(const cpl_segment *segments, int64_t n,
                                 int64_t n_rows, int n_ranks)
{
    for (int64_t i = 0; i < n; i++) {
        const cpl_segment *s = &segments[i];
        if (s->peer < 0 || s->peer >= n_ranks || s->length < 1 || s->slot < 0 ||
            s->slot > n_rows - s->length || s->peer_slot < 0 ||
            (i > 0 && s->peer < s[-1].peer))
            return cpli_fail(CPL_INVALID,
                             "exchange: segment %lld (peer %d, slot %lld, "
                             "length %lld) does not fit %d ranks and %lld "
                             "rows in peer order",
                             (long long)i, s->peer, (long long)s->slot,
                             (long long)s->length, n_ranks, (long long)n_rows);
    }
    return CPL_OK;
}

static cpl_status check_part(const cpl_route_part *part, int n_ranks)
{
    CPL_TRY(check_segments(part->sends, part->n_sends, part->n_source_rows,
                           n_ranks));
    return check_segments(part->receives, part->n_receives, part->n_target_rows,
                          n_ranks);
}

/* ---- making: one rank ---- */

static cpli_traffic measure(const cpl_segment *segments, int64_t n, int rank,
                            int64_t row_bytes)
{
    cpli_traffic sum = {0};
    for (int64_t i = 0; i < n; i++) {
        if (segments[i].peer == rank)
            continue;
        sum.bytes += segments[i].length * row_bytes;
        sum.messages += i == 0 || segments[i].peer != segments[i - 1].peer;
    }
    return sum;
}

/* The gaps between the receives; at most one more than there are of them. */
static cpl_status find_fills(cpl_plan *plan, const cpl_route_part *part)
{
    if (part->n_fill_rows == 0)
        return CPL_OK;
    CPL_TRY(CPL_ALLOC(part->n_receives + 1, &plan->fills));
    int64_t next = 0;
    for (int64_t i = 0; i <= part->n_receives; i++) {
        const cpl_segment *segment = &plan->split.receives_by_slot[i];
        bool is_end = i == part->n_receives;
        int64_t begin = is_end ? part->n_target_rows : segment->slot;
        if (begin > next)
            plan->fills[plan->n_fills++] = (cpl_run){next, begin - next};
        if (!is_end)
            next = begin + segment->length;
    }
    return CPL_OK;
}

/* What does not depend on other ranks. On failure *out is to be destroyed. */
static cpl_status begin(const cpl_route_part *part, cpl_comm *comm,
                        cpl_dtype dtype, int64_t width, cpl_plan **out)
{
    CPL_TRY(check_part(part, cpl_comm_size(comm)));
    CPL_TRY(check_row(part, dtype, width));
    CPL_TRY(CPL_ALLOC(1, out));
    cpl_plan *plan = *out;
    plan->comm = comm;
    plan->dtype = dtype;
    plan->width = width;
    plan->n_source_rows = part->n_source_rows;
    plan->n_target_rows = part->n_target_rows;
    int rank = cpl_comm_rank(comm);
    plan->sent =
        measure(part->sends, part->n_sends, rank, cpli_plan_row_bytes(plan));
    plan->sent_back = measure(part->receives, part->n_receives, rank,
                              cpli_plan_row_bytes(plan));
    return CPL_OK;
}

static cpl_status begin_from_route(cpl_route *route, cpl_comm *comm,
                                   cpl_dtype dtype, int64_t width,
                                   cpl_route_part *part, cpl_plan **out)
{
    if (cpl_route_n_ranks(route) != cpl_comm_size(comm))
        return cpli_fail(CPL_MISMATCH,
                         "exchange: %s has %d ranks, the group has %d",
                         cpl_route_describe(route), cpl_route_n_ranks(route),
                         cpl_comm_size(comm));
    int rank = cpl_comm_rank(comm);
    CPL_TRY(cpl_route_rank(route, rank, part));
    CPL_TRY(begin(part, comm, dtype, width, out));
    cpl_plan *plan = *out;
    plan->text = cpl_route_describe(route);
    plan->source_digest = cpl_route_source_digest(route);
    plan->target_digest = cpl_route_target_digest(route);
    plan->has_marks = true;
    CPL_TRY(cpli_split_create(part, &plan->split));
    if (plan->split.is_exact)
        cpli_split_decide(&plan->split, part, rank, true);
    return find_fills(plan, part);
}

/* ---- making: all ranks ---- */

enum { N_VOTES = 7 };

/* What a rank says of its part; the group hears the maximum of each. The last
 * four are a hash of the arguments and its negative, in halves that a double
 * holds: maximum and minimum are equal if all ranks plan the same. */
static void vote(const cpl_plan *plan, double *votes)
{
    uint64_t hash = cpl_hash(0, &plan->source_digest, sizeof(uint64_t));
    hash = cpl_hash(hash, &plan->target_digest, sizeof(uint64_t));
    hash = cpl_hash(hash, &plan->width, sizeof plan->width);
    hash = cpl_hash(hash, &plan->dtype, sizeof plan->dtype);
    hash = cpl_hash(hash, plan->method->name, strlen(plan->method->name));
    double high = (double)(hash >> 32);
    double low = (double)(hash & 0xffffffffu);
    const cpli_split *split = &plan->split;
    votes[0] = split->is_exact ? 0 : 1;
    votes[1] = plan->n_source_rows == plan->n_target_rows ? 0 : 1;
    votes[2] = split->n_sends + split->n_receives > 0 ? 1 : 0;
    votes[3] = high;
    votes[4] = -high;
    votes[5] = low;
    votes[6] = -low;
}

static cpl_status settle(cpl_plan *plan, const cpl_route_part *part)
{
    double votes[N_VOTES];
    vote(plan, votes);
    CPL_TRY(cpl_comm_max(plan->comm, votes, N_VOTES));
    if (votes[3] != -votes[4] || votes[5] != -votes[6])
        return cpli_fail(CPL_MISMATCH,
                         "exchange: the ranks plan different exchanges; rank "
                         "%d: rows of %lld %s, %s, by %s",
                         cpl_comm_rank(plan->comm), (long long)plan->width,
                         cpl_dtype_name(plan->dtype), plan->text,
                         plan->method->name);
    plan->is_partition = votes[0] == 0;
    plan->is_in_place =
        plan->is_partition && plan->n_source_rows == plan->n_target_rows;
    /* Both partners of a swap must be in place. */
    bool may_swap = plan->is_partition && votes[1] == 0;
    plan->swaps_only = may_swap && votes[2] == 0;
    if (plan->is_in_place && !may_swap)
        cpli_split_decide(&plan->split, part, cpl_comm_rank(plan->comm), false);
    return CPL_OK;
}

static cpl_status take_moves(cpl_plan *plan, const cpl_route_part *part)
{
    const cpli_split *split = plan->is_in_place ? &plan->split : NULL;
    CPL_TRY(
        cpli_moves_create(part, split, cpli_plan_row_bytes(plan), &plan->rows));
    if (plan->has_marks)
        CPL_TRY(cpli_moves_create(part, split, CPLI_TRACE_BYTES, &plan->trace));
    cpli_split_destroy(&plan->split);
    return CPL_OK;
}

cpl_status cpl_plan_create(cpl_route *route, cpl_comm *comm, cpl_dtype dtype,
                           int64_t width, const char *method, cpl_plan **out)
{
    cpl_plan *plan = NULL;
    cpl_route_part part;
    cpl_status status =
        begin_from_route(route, comm, dtype, width, &part, &plan);
    if (status == CPL_OK)
        status = find_method(method, comm, &plan->method);
    CPL_TRY_GO(cpl_comm_agree(comm, status), fail);
    CPL_TRY_GO(settle(plan, &part), fail);
    CPL_TRY_GO(cpl_comm_agree(comm, take_moves(plan, &part)), fail);
    *out = plan;
    return CPL_OK;
fail:
    cpl_plan_destroy(plan);
    return status;
}

cpl_status cpli_plan_from_parts(const cpl_route_part *part, cpl_comm *comm,
                                cpl_dtype dtype, int64_t width, cpl_plan **out)
{
    cpl_status status;
    cpl_plan *plan = NULL;
    CPL_TRY_GO(begin(part, comm, dtype, width, &plan), fail);
    plan->text = "plain segments";
    CPL_TRY_GO(find_method(NULL, comm, &plan->method), fail);
    CPL_TRY_GO(take_moves(plan, part), fail);
    *out = plan;
    return CPL_OK;
fail:
    cpl_plan_destroy(plan);
    return status;
}

void cpl_plan_destroy(cpl_plan *plan)
{
    if (plan == NULL)
        return;
    cpli_moves_destroy(&plan->trace);
    cpli_moves_destroy(&plan->rows);
    cpli_split_destroy(&plan->split);
    cpli_free(plan->fills);
    cpli_free(plan);
}

/* ---- getters ---- */

const char *cpl_plan_method(const cpl_plan *plan)
{
    return plan->method->name;
}

const char *cpl_plan_methods(void)
{
    return method_names;
}

int64_t cpl_plan_sent_bytes(const cpl_plan *plan)
{
    return plan->sent.bytes;
}

int64_t cpl_plan_sent_messages(const cpl_plan *plan)
{
    return plan->sent.messages;
}

bool cpl_plan_in_place(const cpl_plan *plan)
{
    return plan->is_in_place;
}

bool cpl_plan_swaps(const cpl_plan *plan)
{
    return plan->swaps_only;
}
