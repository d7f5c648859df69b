/*
 * cuda_graph.c: captured work. What NCCL does is captured with its counts, so a
 * graph is good for one route. Where ranks reach each other's memory a graph is
 * one launch that reads its list when it runs: the list of another route is
 * copied over the old one, from device memory to device memory, and the same
 * graph moves the rows of the next microbatch.
 */
#include "cuda_rank.h"

/* ---- capturing ---- */

cpl_status cpli_cuda_refuse_capture(const cpli_cuda *device, const char *doing)
{
    if (!device->is_capturing)
        return CPL_OK;
    return cpli_fail(CPL_UNSUPPORTED,
                     "%s %d: %s in a capture: nothing there may wait for the "
                     "device or take its memory",
                     cpli_cuda_name, device->number, doing);
}

/* Relaxed: another thread ends the work of a graph of all ranks, and what a
 * graph cannot hold is refused by ourselves, with a sentence. */
cpl_status cpli_cuda_begin_capture(cpl_comm *comm)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    CPL_TRY(cpli_cuda_refuse_capture(device, "a capture"));
    CPL_TRY(cpli_cuda_check(
        device,
        cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeRelaxed),
        "beginning a capture"));
    device->is_capturing = true;
    return CPL_OK;
}

cpl_status cpli_cuda_end_capture(cpl_comm *comm, void **graph)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    cudaGraph_t captured = NULL;
    cudaGraphExec_t ready = NULL;
    device->is_capturing = false;
    CPL_TRY(cpli_cuda_check(device,
                            cudaStreamEndCapture(device->stream, &captured),
                            "ending a capture"));
    cudaError_t error = cudaGraphInstantiate(&ready, captured, 0);
    cudaGraphDestroy(captured);
    CPL_TRY(cpli_cuda_check(device, error, "making a graph"));
    *graph = ready;
    return CPL_OK;
}

cpl_status cpli_cuda_launch(cpl_comm *comm, void *graph)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    return cpli_cuda_check(device, cudaGraphLaunch(graph, device->stream),
                           "launching a graph");
}

void cpli_cuda_drop(cpl_comm *comm, void *graph)
{
    if (graph == NULL)
        return;
    cpli_cuda_settle(cpli_cuda_of(comm));
    cudaGraphExecDestroy(graph);
}

/* ---- a graph for any route ---- */

typedef struct any_route {
    cudaGraphExec_t ready;
    int64_t room;
    void *count, *pieces, *tile_ends; /* in one block of the device */
    void *bases[CPL_CUDA_BASES];      /* by rank, as captured */
} any_route;

static int unit_of(int64_t row_bytes)
{
    int64_t all = row_bytes | 16;
    return (int)(all & -all);
}

static cpl_status capture(cpl_comm *comm, const cpli_wish *wish,
                          any_route *graph)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    cpl_cuda_move move = {.mine = wish->dst,
                          .pieces = graph->pieces,
                          .tile_ends = graph->tile_ends,
                          .n_pieces = graph->count,
                          .max_tiles = graph->room,
                          .way = CPL_CUDA_PULL,
                          .unit = unit_of(wish->row_bytes)};
    bool swaps = wish->combine == CPLI_SWAP;
    memcpy(move.theirs.few, graph->bases, sizeof graph->bases);
    CPL_TRY(cpli_cuda_begin_capture(comm));
    cpl_status launched = cpli_cuda_launched(
        device, (swaps ? cpl_cuda_swap : cpl_cuda_copy)(&move, device->stream),
        swaps ? "cpl_cuda_swap" : "cpl_cuda_copy");
    CPL_TRY(cpli_cuda_end_capture(comm, (void **)&graph->ready));
    return launched;
}

/* The list, empty still. */
static cpl_status take_list(cpl_comm *comm, any_route *graph)
{
    char *block = NULL;
    size_t n = (size_t)graph->room;
    size_t pieces = n * sizeof(cpl_cuda_piece);
    CPL_TRY(cpli_cuda_alloc(comm, 16 + pieces + n * sizeof(int64_t),
                            (void **)&block));
    graph->count = block;
    graph->pieces = block + 16;
    graph->tile_ends = block + 16 + pieces;
    return CPL_OK;
}

static cpl_status make(cpl_comm *comm, const cpli_wish *wish, any_route *graph)
{
    graph->room = wish->room;
    if (comm->size > CPL_CUDA_BASES)
        return cpli_fail(CPL_UNSUPPORTED,
                         "graph: %d ranks, more than the %d whose addresses a "
                         "graph keeps",
                         comm->size, CPL_CUDA_BASES);
    CPL_TRY(take_list(comm, graph));
    return capture(comm, wish, graph);
}

cpl_status cpli_graph_make(cpl_comm *comm, const cpli_wish *wish, void **out)
{
    void *mine = (void *)wish->src;
    any_route *graph = NULL;
    void **bases = NULL;
    cpl_status status = CPL_ALLOC(comm->size, &bases);
    if (status == CPL_OK)
        status = CPL_ALLOC(1, &graph);
    status = cpl_comm_agree(comm, status);
    if (status == CPL_OK)
        status = cpl_comm_gather(comm, &mine, sizeof mine, bases);
    if (status == CPL_OK) {
        memcpy(graph->bases, bases,
               (size_t)cpli_min(comm->size, CPL_CUDA_BASES) * sizeof *bases);
        status = cpl_comm_agree(comm, make(comm, wish, graph));
    }
    cpli_free(bases);
    if (status != CPL_OK) {
        cpli_graph_drop(comm, graph);
        return status;
    }
    *out = graph;
    return CPL_OK;
}

void cpli_graph_drop(cpl_comm *comm, void *handle)
{
    any_route *graph = handle;
    if (graph == NULL)
        return;
    cpli_cuda_drop(comm, graph->ready);
    cpli_cuda_free(comm, graph->count);
    cpli_free(graph);
}

cpl_status cpli_graph_replay(cpl_comm *comm, const cpli_transfer *transfer,
                             void *const *bases)
{
    const any_route *graph = transfer->graph;
    CPL_ASSERT(transfer->n_receives <= graph->room);
    for (int64_t i = 0; i < transfer->n_receives; i++) {
        int peer = transfer->receives[i].peer;
        if (bases[peer] != graph->bases[peer])
            return cpli_fail(CPL_MISMATCH,
                             "graph: the rows of rank %d are not where they "
                             "were when it was captured",
                             peer);
    }
    CPL_TRY(cpli_table_copy_list(comm, transfer->tables, graph->count,
                                 graph->pieces, graph->tile_ends));
    return cpli_cuda_launch(comm, graph->ready);
}
