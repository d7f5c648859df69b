/*
 * plan.c: one rank's part of a route, bound to a group and a row. Making a
 * plan decides everything and takes all memory, and all ranks agree on it.
 */
#include "plan.h"
#include "layout/layout.h"

/* ---- making: arguments ---- */

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

/* Whether the i-th segment is the first of its peer. */
static bool is_first(const cpl_segment *segments, int64_t i)
{
    return i == 0 || segments[i].peer != segments[i - 1].peer;
}

static cpli_census count_part(const cpl_plan *plan, const cpl_route_part *part,
                              int tp)
{
    int64_t bytes = cpli_plan_row_bytes(plan);
    int rank = cpl_comm_rank(plan->comm);
    cpli_census census = {.n_ranks = cpl_comm_size(plan->comm), .tp = tp};
    for (int64_t i = 0; i < part->n_sends; i++) {
        const cpl_segment *segment = &part->sends[i];
        if (segment->peer == rank)
            continue;
        census.peers_out += is_first(part->sends, i);
        census.pieces_out++;
        census.bytes_out += segment->length * bytes;
    }
    for (int64_t i = 0; i < part->n_receives; i++) {
        const cpl_segment *segment = &part->receives[i];
        bool is_own = segment->peer == rank;
        census.peers_in += !is_own && is_first(part->receives, i);
        *(is_own ? &census.pieces_own : &census.pieces_in) += 1;
        *(is_own ? &census.bytes_own : &census.bytes_in) +=
            segment->length * bytes;
    }
    return census;
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
    return CPL_OK;
}

/* What the marks that the plan leaves are called. */
static void name_ends(cpl_plan *plan, const cpli_ends *ends)
{
    const cpl_layout *to = ends->view != NULL ? ends->view->onto : ends->to;
    plan->source_kind = cpl_layout_kind(ends->from);
    plan->target_kind = to != NULL ? cpl_layout_kind(to) : NULL;
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
    name_ends(plan, cpli_route_ends(route));
    plan->has_marks = true;
    plan->copies = cpli_view_copies(cpli_route_ends(route)->view);
    plan->may_fill = cpli_route_ends(route)->view != NULL;
    CPL_TRY(cpli_split_create(part, &plan->split));
    if (plan->split.is_exact)
        cpli_split_decide(&plan->split, part, rank, true);
    return find_fills(plan, part);
}

/* ---- making: all ranks ---- */

/* What a rank says of its part; the group hears the maximum of each. A hash and
 * its negative, in halves that a double holds: maximum and minimum are equal if
 * all ranks plan the same. */
typedef struct votes {
    double repeats, changes_rows, needs_buffer;
    double n_target_rows, n_receives, n_sends;
    double high, minus_high, low, minus_low;
    double seconds[CPLI_N_METHODS]; /* what each method would take */
} votes;

static uint64_t hash_arguments(const cpl_plan *plan)
{
    const char *name = plan->method == NULL ? "auto" : plan->method->name;
    uint64_t hash = cpl_hash(0, &plan->source_digest, sizeof(uint64_t));
    hash = cpl_hash(hash, &plan->target_digest, sizeof(uint64_t));
    hash = cpl_hash(hash, &plan->width, sizeof plan->width);
    hash = cpl_hash(hash, &plan->dtype, sizeof plan->dtype);
    return cpl_hash(hash, name, strlen(name));
}

static votes vote(const cpl_plan *plan, const cpl_route *route,
                  const cpl_route_part *part)
{
    uint64_t hash = hash_arguments(plan);
    double high = (double)(hash >> 32);
    double low = (double)(hash & 0xffffffffu);
    const cpli_split *split = &plan->split;
    votes mine = {
        .repeats = !split->is_exact,
        .changes_rows = plan->n_source_rows != plan->n_target_rows,
        .needs_buffer = split->n_sends + split->n_receives > 0,
        .n_target_rows = (double)plan->n_target_rows,
        .n_receives = (double)part->n_receives,
        .n_sends = (double)part->n_sends,
        .high = high,
        .minus_high = -high,
        .low = low,
        .minus_low = -low,
    };
    int tp = cpl_layout_tp(cpli_route_ends(route)->from);
    cpli_census census = count_part(plan, part, tp);
    cpli_methods_estimate(plan->comm, &census, mine.seconds);
    return mine;
}

/* With room it is the one that can carry any route. */
static void choose_method(cpl_plan *plan, const double *seconds)
{
    if (plan->method == NULL)
        plan->method = cpli_has_room(plan->comm)
                           ? &cpli_method_copy
                           : cpli_method_cheapest(plan->comm, seconds);
    for (int i = 0; i < CPLI_N_METHODS; i++)
        if (plan->method == cpli_methods[i])
            plan->estimate = seconds[i];
}

/* With room, whether rows would repeat in another stream: the adjoint of such a
 * view adds, whatever this one is. */
static bool may_repeat(const cpl_plan *plan, const cpl_route *route)
{
    const cpl_view *view = cpli_route_ends(route)->view;
    return cpli_has_room(plan->comm) && view != NULL && view->onto == NULL &&
           !view->is_sliced;
}

static cpl_status settle(cpl_plan *plan, const cpl_route *route,
                         const cpl_route_part *part)
{
    votes all = vote(plan, route, part);
    CPL_TRY(
        cpl_comm_max(plan->comm, (double *)&all, sizeof all / sizeof(double)));
    if (all.high != -all.minus_high || all.low != -all.minus_low)
        return cpli_fail(CPL_MISMATCH,
                         "exchange: the ranks plan different exchanges; rank "
                         "%d: rows of %lld %s, %s, by %s",
                         cpl_comm_rank(plan->comm), (long long)plan->width,
                         cpl_dtype_name(plan->dtype), plan->text,
                         plan->method == NULL ? "auto" : plan->method->name);
    choose_method(plan, all.seconds);
    plan->rows_of_all = (int64_t)all.n_target_rows * cpl_comm_size(plan->comm);
    plan->most_receives = (int64_t)all.n_receives;
    plan->most_sends = (int64_t)all.n_sends;
    plan->is_partition = all.repeats == 0 && !may_repeat(plan, route);
    plan->is_in_place =
        plan->is_partition && plan->n_source_rows == plan->n_target_rows;
    /* Both partners of a swap must be in place. */
    bool may_swap =
        plan->is_partition && all.changes_rows == 0 && plan->method->can_swap;
    plan->swaps_only =
        may_swap && all.needs_buffer == 0 && !cpli_has_room(plan->comm);
    if (plan->is_in_place && !may_swap)
        cpli_split_decide(&plan->split, part, cpl_comm_rank(plan->comm), false);
    return CPL_OK;
}

static cpl_status take_moves(cpl_plan *plan, cpl_route *route,
                             const cpl_route_part *part)
{
    cpli_row row = {plan->dtype, cpli_plan_row_bytes(plan), true, 0};
    /* -1: no position */
    cpli_row trace = {CPL_I64, sizeof(int64_t), plan->copies > 0, 0xff};
    CPL_TRY(cpli_moves_prepare(plan, route, part, row, &plan->rows));
    if (plan->has_marks)
        CPL_TRY(cpli_moves_prepare(plan, route, part, trace, &plan->trace));
    plan->sent = cpli_moves_traffic(&plan->rows, CPLI_FORWARD);
    plan->sent_back = cpli_moves_traffic(
        &plan->rows, plan->is_partition ? CPLI_BACK : CPLI_BACK_ADDING);
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
        status = cpli_method_named(method, comm, route, &plan->method);
    CPL_TRY_GO(cpl_comm_agree(comm, status), fail);
    CPL_TRY_GO(settle(plan, route, &part), fail);
    CPL_TRY_GO(cpl_comm_agree(comm, take_moves(plan, route, &part)), fail);
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
    plan->method = cpli_method_for_parts(comm);
    plan->rows_of_all = plan->n_target_rows;
    CPL_TRY_GO(take_moves(plan, NULL, part), fail);
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

double cpl_plan_estimate(const cpl_plan *plan)
{
    return plan->estimate;
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
