/*
 * graph.c: exchanges and adjoints through captured graphs. A direct transport
 * has one graph for all routes; else a route is captured when it first comes,
 * and found again by its digest.
 */
#include "plan.h"

/* What was captured of one route. */
typedef struct captured {
    uint64_t source, target; /* digests */
    void *graph;
} captured;

struct cpl_graph {
    cpl_comm *comm; /* that carries */
    const cpl_tensor *from;
    cpl_tensor *to;
    bool is_adjoint; /* from the rows of a plan's target to those of its source
                      */
    cpl_dtype dtype;
    int64_t width, n_source_rows, n_target_rows, room;
    void *any_route; /* of a direct transport; NULL: captures */
    captured *captures;
    int64_t n_captures;
};

static cpl_status check_room(const cpl_plan *plan, int64_t room)
{
    if (cpli_device_of(plan->rows.comm) == NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "graph: rows on the cpu are not captured");
    if (room < 1)
        return cpli_fail(CPL_INVALID, "graph: room for %lld, not >= 1",
                         (long long)room);
    return CPL_OK;
}

static bool is_direct(const cpl_graph *graph)
{
    return graph->comm->ops->make_graph != NULL;
}

static bool is_in_place(const cpl_graph *graph)
{
    return graph->from->data == graph->to->data;
}

/* A graph of any route is one launch of one kernel, which moves rows or swaps
 * them. */
static cpl_status check_direct(const cpl_graph *graph, const cpl_plan *plan)
{
    if (plan->method != &cpli_method_copy)
        return cpli_fail(CPL_MISMATCH,
                         "graph: it carries plans by \"copy\", not by \"%s\"",
                         plan->method->name);
    if (graph->is_adjoint && !plan->is_partition)
        return cpli_fail(CPL_MISMATCH,
                         "graph: along %s rows repeat, and the adjoint would "
                         "add them: it only moves them",
                         plan->text);
    if (is_in_place(graph) && !plan->swaps_only)
        return cpli_fail(CPL_MISMATCH,
                         "graph: in place it only swaps rows between pairs of "
                         "ranks, and %s needs more",
                         plan->text);
    return CPL_OK;
}

/* Whether the plan may go through the graph. */
static cpl_status check_plan(const cpl_graph *graph, const cpl_plan *plan)
{
    if (plan->rows.comm != graph->comm)
        return cpli_fail(CPL_MISMATCH, "graph: %s is of another group",
                         plan->text);
    if (plan->dtype != graph->dtype || plan->width != graph->width ||
        plan->n_source_rows != graph->n_source_rows ||
        plan->n_target_rows != graph->n_target_rows)
        return cpli_fail(
            CPL_MISMATCH,
            "graph: captured for %lld -> %lld rows of %lld %s, "
            "but %s moves %lld -> %lld rows of %lld %s",
            (long long)graph->n_source_rows, (long long)graph->n_target_rows,
            (long long)graph->width, cpl_dtype_name(graph->dtype), plan->text,
            (long long)plan->n_source_rows, (long long)plan->n_target_rows,
            (long long)plan->width, cpl_dtype_name(plan->dtype));
    return is_direct(graph) ? check_direct(graph, plan) : CPL_OK;
}

static cpl_status prepare(cpl_graph *graph, const cpl_plan *plan)
{
    cpli_wish wish = {.src = graph->from->data,
                      .dst = graph->to->data,
                      .combine = is_in_place(graph) ? CPLI_SWAP : CPLI_COPY,
                      .room = graph->room,
                      .row_bytes = cpli_plan_row_bytes(plan)};
    if (is_direct(graph))
        return graph->comm->ops->make_graph(graph->comm, &wish,
                                            &graph->any_route);
    return cpl_comm_agree(graph->comm,
                          CPL_ALLOC(graph->room, &graph->captures));
}

/* Fills the graph, to be given up where this fails. */
static cpl_status begin(const cpl_plan *plan, int64_t room, cpl_graph *graph)
{
    CPL_TRY(check_room(plan, room));
    CPL_TRY(graph->is_adjoint
                ? cpli_plan_check_adjoint(plan, graph->from, graph->to, false)
                : cpli_plan_check(plan, graph->from, graph->to));
    graph->comm = plan->rows.comm;
    graph->dtype = plan->dtype;
    graph->width = plan->width;
    graph->n_source_rows = plan->n_source_rows;
    graph->n_target_rows = plan->n_target_rows;
    graph->room = room;
    return check_plan(graph, plan);
}

static cpl_status create(cpl_plan *plan, cpl_graph like, int64_t room,
                         cpl_graph **out)
{
    cpl_graph *graph = NULL;
    cpl_status status = CPL_ALLOC(1, &graph);
    if (status == CPL_OK) {
        *graph = like;
        status = begin(plan, room, graph);
    }
    status = cpl_comm_agree(plan->comm, status);
    if (status == CPL_OK)
        status = prepare(graph, plan);
    if (status != CPL_OK) {
        cpl_graph_destroy(graph);
        return status;
    }
    *out = graph;
    return CPL_OK;
}

cpl_status cpl_graph_create(cpl_plan *plan, const cpl_tensor *src,
                            cpl_tensor *dst, int64_t room, cpl_graph **out)
{
    return create(plan, (cpl_graph){.from = src, .to = dst}, room, out);
}

cpl_status cpl_graph_create_adjoint(cpl_plan *plan, const cpl_tensor *d_dst,
                                    cpl_tensor *d_src, int64_t room,
                                    cpl_graph **out)
{
    return create(plan,
                  (cpl_graph){.from = d_dst, .to = d_src, .is_adjoint = true},
                  room, out);
}

void cpl_graph_destroy(cpl_graph *graph)
{
    if (graph == NULL)
        return;
    if (graph->any_route != NULL)
        graph->comm->ops->drop_graph(graph->comm, graph->any_route);
    for (int64_t i = 0; i < graph->n_captures; i++)
        cpli_device_of(graph->comm)
            ->drop(graph->comm, graph->captures[i].graph);
    cpli_free(graph->captures);
    cpli_free(graph);
}

int64_t cpl_graph_captures(const cpl_graph *graph)
{
    return graph->any_route != NULL ? 1 : graph->n_captures;
}

static cpl_status execute(cpl_graph *graph, cpl_plan *plan)
{
    CPL_TRY(graph->is_adjoint
                ? cpl_plan_start_adjoint(plan, graph->from, graph->to, false)
                : cpl_plan_start(plan, graph->from, graph->to));
    return cpl_plan_finish(plan);
}

/* The leg that moves the rows; what others there are has nothing to do. */
static cpli_transfer *transfer_of(const cpl_graph *graph, cpl_plan *plan)
{
    cpli_mode mode = graph->is_adjoint ? CPLI_BACK : CPLI_FORWARD;
    if (is_in_place(graph))
        mode = graph->is_adjoint ? CPLI_BACK_IN_PLACE : CPLI_FORWARD_IN_PLACE;
    return &plan->rows.recipes[mode].legs[0].transfer;
}

static cpl_status replay_direct(cpl_graph *graph, cpl_plan *plan)
{
    cpli_transfer *transfer = transfer_of(graph, plan);
    int64_t pieces = graph->is_adjoint ? plan->most_sends : plan->most_receives;
    /* The same answer on all ranks. */
    if (pieces > graph->room)
        return cpli_fail(CPL_MISMATCH,
                         "graph: along %s a rank receives %lld pieces, but the "
                         "graph has room for %lld",
                         plan->text, (long long)pieces, (long long)graph->room);
    transfer->graph = graph->any_route;
    cpl_status status = execute(graph, plan);
    transfer->graph = NULL;
    return status;
}

/* The capture of the plan's route, or NULL. */
static void *find(const cpl_graph *graph, const cpl_plan *plan)
{
    for (int64_t i = 0; i < graph->n_captures; i++)
        if (graph->captures[i].source == plan->source_digest &&
            graph->captures[i].target == plan->target_digest)
            return graph->captures[i].graph;
    return NULL;
}

static cpl_status capture(cpl_graph *graph, cpl_plan *plan)
{
    const cpli_device_ops *device = cpli_device_of(graph->comm);
    captured one = {.source = plan->source_digest,
                    .target = plan->target_digest};
    if (graph->n_captures == graph->room)
        return cpli_fail(CPL_MISMATCH,
                         "graph: %s would be capture %lld, but it has room for "
                         "%lld routes",
                         plan->text, (long long)graph->n_captures + 1,
                         (long long)graph->room);
    CPL_TRY(device->begin_capture(graph->comm));
    cpl_status status = execute(graph, plan);
    CPL_TRY(device->end_capture(graph->comm, &one.graph));
    if (status == CPL_OK)
        graph->captures[graph->n_captures++] = one;
    else
        device->drop(graph->comm, one.graph);
    return status;
}

cpl_status cpl_graph_replay(cpl_graph *graph, cpl_plan *plan)
{
    CPL_TRY(check_plan(graph, plan));
    if (graph->any_route != NULL)
        return replay_direct(graph, plan);
    if (find(graph, plan) == NULL)
        CPL_TRY(capture(graph, plan)); /* marks and counts, too */
    else
        CPL_TRY(
            cpli_plan_account(plan, graph->from, graph->to, graph->is_adjoint));
    return cpli_device_of(graph->comm)->launch(graph->comm, find(graph, plan));
}
