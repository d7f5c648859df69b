/*
 * cuda_graph.c: captured work. What NCCL does is captured with its counts, so a
 * graph is good for one route. Where ranks reach each other's memory a graph is
 * launches that read their lists when they run: the lists of another route are
 * copied over the old ones, from device memory to device memory, and the same
 * graph moves the rows of the next microbatch.
 */
#include "cuda_rank.h"

/* ---- capturing ---- */

cpl_status cpli_cuda_refuse_capture(const cpli_cuda *device, const char *doing)
{
    if (!device->is_capturing && !device->is_rehearsing)
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
    cudaError_t error = cudaStreamEndCapture(device->stream, &captured);
    cpli_cuda_give_rest(device);
    CPL_TRY(cpli_cuda_check(device, error, "ending a capture"));
    error = cudaGraphInstantiate(&ready, captured, 0);
    cudaGraphDestroy(captured);
    CPL_TRY(cpli_cuda_check(device, error, "making a graph"));
    *graph = ready;
    return CPL_OK;
}

cpl_status cpli_cuda_launch(cpl_comm *comm, void *graph)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    CPL_TRY(cpli_cuda_refuse_capture(device, "a graph"));
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

/* One launch for CPL_CUDA_BASES ranks from whom pieces may come. */
typedef struct part {
    void *count, *pieces, *tile_ends; /* device: its list */
} part;

typedef struct any_route {
    cudaGraphExec_t ready;
    int64_t room;
    char *lists; /* device: of all parts */
    part *parts;
    int n_parts;
    void **bases; /* by rank, as captured */
} any_route;

static int unit_of(int64_t row_bytes)
{
    int64_t all = row_bytes | 16;
    return (int)(all & -all);
}

static cpl_status launch_part(cpl_comm *comm, const cpli_wish *wish,
                              const any_route *graph, int i)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    bool swaps = wish->combine == CPLI_SWAP;
    int first = i * CPL_CUDA_BASES;
    cpl_cuda_move move = {.mine = wish->dst,
                          .pieces = graph->parts[i].pieces,
                          .tile_ends = graph->parts[i].tile_ends,
                          .n_pieces = graph->parts[i].count,
                          .max_tiles = graph->room,
                          .way = CPL_CUDA_PULL,
                          .unit = unit_of(wish->row_bytes)};
    memcpy(move.theirs.few, graph->bases + first,
           (size_t)cpli_min(comm->size - first, CPL_CUDA_BASES) *
               sizeof *graph->bases);
    return cpli_cuda_launched(
        device, (swaps ? cpl_cuda_swap : cpl_cuda_copy)(&move, device->stream),
        swaps ? "cpl_cuda_swap" : "cpl_cuda_copy");
}

static cpl_status capture(cpl_comm *comm, const cpli_wish *wish,
                          any_route *graph)
{
    cpl_status launched = CPL_OK;
    CPL_TRY(cpli_cuda_begin_capture(comm));
    for (int i = 0; launched == CPL_OK && i < graph->n_parts; i++)
        launched = launch_part(comm, wish, graph, i);
    CPL_TRY(cpli_cuda_end_capture(comm, (void **)&graph->ready));
    return launched;
}

/* The lists, empty still. */
static cpl_status take_lists(cpl_comm *comm, any_route *graph)
{
    size_t n = (size_t)graph->room;
    size_t pieces = 16;
    size_t tile_ends = pieces + n * sizeof(cpl_cuda_piece);
    size_t bytes = (tile_ends + n * sizeof(int64_t) + 15) / 16 * 16;
    CPL_TRY(cpli_cuda_alloc(comm, (size_t)graph->n_parts * bytes,
                            (void **)&graph->lists));
    for (int i = 0; i < graph->n_parts; i++) {
        char *list = graph->lists + (size_t)i * bytes;
        graph->parts[i] = (part){list, list + pieces, list + tile_ends};
    }
    return CPL_OK;
}

static cpl_status begin(cpl_comm *comm, const cpli_wish *wish, any_route **out)
{
    CPL_TRY(CPL_ALLOC(1, out));
    any_route *graph = *out;
    graph->room = wish->room;
    graph->n_parts = (comm->size + CPL_CUDA_BASES - 1) / CPL_CUDA_BASES;
    CPL_TRY(CPL_ALLOC(graph->n_parts, &graph->parts));
    CPL_TRY(CPL_ALLOC(comm->size, &graph->bases));
    return take_lists(comm, graph);
}

cpl_status cpli_graph_make(cpl_comm *comm, const cpli_wish *wish, void **out)
{
    void *mine = (void *)wish->src;
    any_route *graph = NULL;
    cpl_status status = cpl_comm_agree(comm, begin(comm, wish, &graph));
    if (status == CPL_OK)
        status = cpl_comm_gather(comm, &mine, sizeof mine, graph->bases);
    if (status == CPL_OK)
        status = cpl_comm_agree(comm, capture(comm, wish, graph));
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
    cpli_cuda_free(comm, graph->lists);
    cpli_free(graph->parts);
    cpli_free(graph->bases);
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
    for (int i = 0; i < graph->n_parts; i++)
        CPL_TRY(cpli_table_copy_list(
            comm, transfer->tables, i * CPL_CUDA_BASES, graph->parts[i].count,
            graph->parts[i].pieces, graph->parts[i].tile_ends));
    return cpli_cuda_launch(comm, graph->ready);
}
