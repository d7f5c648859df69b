/*
 * cuda.c: the transport of rank threads whose rows are on devices: all on one,
 * or on several that reach each other's memory. Ranks meet on the host as
 * local.c has it, hand each other addresses and events, and go on; each pulls
 * its pieces in one launch, when its stream has come past the senders' events.
 * No host ever waits for a device here.
 *
 * Two events say all. `ready` of a flight: what its rank did before the start
 * is done, so that others may read. `done`: what its rank has pulled so far is
 * read, so that owners may write. Who waits for an event waits for the last
 * record before: one that is later than needed comes from work that was put
 * into its stream before the wait, so streams never wait in a circle.
 *
 * A capture of all ranks is one graph: the stream of rank 0 begins it, the
 * others' come into it behind an event of that stream, and their last events
 * lead back. No event is waited for on the other side of its beginning or end:
 * a transfer is finished by both its ranks where it was started.
 */
#include "cuda_rank.h"
#include "world.h"

typedef struct direct {
    cpli_cuda cuda; /* first: comm.device */
    cudaEvent_t ready[CPLI_IN_FLIGHT];
    cudaEvent_t done;
    cudaEvent_t before, after; /* of the ranks' common graph */
    void **bases; /* by rank, of the transfer that is carried out */
    cpli_comm_ops ops;
    const cpli_comm_ops *host_ops;
} direct;

static direct *direct_of(const cpli_member *member)
{
    return member->comm.device;
}

/* ---- transfers ---- */

static cpl_status record(direct *me, cudaEvent_t event)
{
    if (CPLI_CUDA_NOTES(&me->cuda, "record", event))
        return CPL_OK;
    return cpli_cuda_check(&me->cuda, cudaEventRecord(event, me->cuda.stream),
                           "recording an event");
}

static cpl_status follow(direct *me, cudaEvent_t event)
{
    if (CPLI_CUDA_NOTES(&me->cuda, "follow", event))
        return CPL_OK;
    return cpli_cuda_check(&me->cuda,
                           cudaStreamWaitEvent(me->cuda.stream, event, 0),
                           "waiting for an event");
}

static cpl_status begin(cpli_member *member, const cpli_transfer *mine,
                        int place)
{
    (void)mine;
    direct *me = direct_of(member);
    return record(me, me->ready[place]);
}

static cpl_status meet(cpli_member *member, const cpli_transfer *mine,
                       cpli_range receives, const cpli_source *from)
{
    direct *me = direct_of(member);
    int64_t first = receives.begin;
    me->bases[from->member->comm.rank] = (void *)from->transfer->src;
    for (int64_t i = first; mine->way != CPLI_PULL && i < receives.end; i++)
        cpli_table_set_from(mine->tables, i, from->pieces[i - first].offset);
    return follow(me, direct_of(from->member)->ready[from->place]);
}

static cpl_status move(cpli_member *member, const cpli_transfer *mine)
{
    direct *me = direct_of(member);
    if (mine->tables == NULL)
        return CPL_OK;
    me->bases[member->comm.rank] = (void *)mine->src;
    if (mine->graph != NULL)
        CPL_TRY(cpli_graph_replay(&member->comm, mine, me->bases));
    else
        CPL_TRY(cpli_table_launch(&member->comm, mine->tables, me->bases,
                                  mine->dst));
    /* Of ranks that the next transfer does not meet there are none. */
    memset(me->bases, 0, (size_t)member->comm.size * sizeof *me->bases);
    return record(me, me->done);
}

static cpl_status settle(cpli_member *member, const cpli_member *peer)
{
    return follow(direct_of(member), direct_of(peer)->done);
}

static const cpli_mover mover = {
    .begin = begin, .meet = meet, .move = move, .settle = settle};

/* ---- a graph of all ranks ---- */

static direct *rank_of(const cpl_comm *comm, int rank)
{
    const cpli_member *member = (const cpli_member *)comm;
    return direct_of(&member->world->members[rank]);
}

static cpl_status open_graph(cpl_comm *comm)
{
    direct *me = comm->device;
    if (comm->rank > 0)
        return cpli_cuda_refuse_capture(&me->cuda, "a capture");
    CPL_TRY(cpli_cuda_begin_capture(comm));
    return record(me, me->before);
}

static cpl_status come_in(cpl_comm *comm)
{
    direct *me = comm->device;
    me->cuda.is_capturing = true;
    return comm->rank > 0 ? follow(me, rank_of(comm, 0)->before) : CPL_OK;
}

static cpl_status close_graph(cpl_comm *comm, void **graph)
{
    direct *me = comm->device;
    cpl_status status = CPL_OK;
    me->cuda.is_capturing = false;
    if (comm->rank > 0)
        return CPL_OK;
    for (int rank = 1; status == CPL_OK && rank < comm->size; rank++)
        status = follow(me, rank_of(comm, rank)->after);
    cpl_status ended = cpli_cuda_end_capture(comm, graph);
    return status != CPL_OK ? status : ended;
}

static cpl_status end_all(cpl_comm *comm, void **graph)
{
    direct *me = comm->device;
    cpl_status status = cpl_comm_agree(comm, record(me, me->after));
    cpl_status closed = cpl_comm_agree(comm, close_graph(comm, graph));
    cpli_cuda_give_rest(&me->cuda);
    return status != CPL_OK ? status : closed;
}

static cpl_status begin_all(cpl_comm *comm)
{
    void *graph = NULL;
    CPL_TRY(cpl_comm_agree(comm, open_graph(comm)));
    cpl_status status = cpl_comm_agree(comm, come_in(comm));
    if (status != CPL_OK)
        end_all(comm, &graph);
    return status;
}

static void stop(cpl_comm *comm, const char *why)
{
    cpli_member_stop((cpli_member *)comm, why);
}

/* After all that the ranks did before; what they do later comes after it. */
static cpl_status launch_for_all(cpl_comm *comm, void *graph)
{
    direct *me = comm->device;
    for (int rank = 1; rank < comm->size; rank++)
        CPL_TRY(follow(me, rank_of(comm, rank)->before));
    CPL_TRY(cpli_cuda_launch(comm, graph));
    return record(me, me->after);
}

static cpl_status replay_all(cpl_comm *comm, void *graph)
{
    direct *me = comm->device;
    bool is_first = comm->rank == 0;
    CPL_TRY(cpl_comm_agree(comm, record(me, me->before)));
    CPL_TRY(
        cpl_comm_agree(comm, is_first ? launch_for_all(comm, graph) : CPL_OK));
    return is_first ? CPL_OK : follow(me, rank_of(comm, 0)->after);
}

static const cpli_capture_ops capture_ops = {
    .begin = begin_all, .end = end_all, .stop = stop, .replay = replay_all};

static void release(cpl_comm *comm, cpli_transfer *transfer)
{
    cpli_table_destroy(comm, transfer->tables);
    transfer->tables = NULL;
}

/* ---- joining ---- */

/* Neighbours share a device where there are fewer than ranks. */
static int device_of(int rank, int n_ranks, int n_devices)
{
    return (int)((int64_t)rank * cpli_min(n_devices, n_ranks) / n_ranks);
}

static cpl_status reach(direct *me, int other)
{
    int can = 0;
    CPL_TRY(cpli_cuda_check(
        &me->cuda, cudaDeviceCanAccessPeer(&can, me->cuda.number, other),
        "asking for peers"));
    if (can == 0)
        return cpli_fail(CPL_UNSUPPORTED,
                         "%s %d does not reach the memory of device %d: use "
                         "the transport nccl, or show one device only "
                         "(CUDA_VISIBLE_DEVICES)",
                         cpli_cuda_name, me->cuda.number, other);
    cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled)
        return cpli_cuda_check(&me->cuda, error, "reaching a peer");
    cudaGetLastError(); /* another rank of this device did it */
    return CPL_OK;
}

static cpl_status reach_all(direct *me, int n_ranks, int n_devices)
{
    for (int rank = 0; rank < n_ranks; rank++) {
        int other = device_of(rank, n_ranks, n_devices);
        if (other != me->cuda.number)
            CPL_TRY(reach(me, other));
    }
    return CPL_OK;
}

static cpl_status make_event(direct *me, cudaEvent_t *out)
{
    return cpli_cuda_check(
        &me->cuda, cudaEventCreateWithFlags(out, cudaEventDisableTiming),
        "making an event");
}

static cpl_status open_device(direct *me, const cpl_comm *host)
{
    int n_devices = 0;
    CPL_TRY(cpli_cuda_count(&n_devices));
    CPL_TRY(CPL_ALLOC(host->size, &me->bases));
    CPL_TRY(cpli_cuda_open(&me->cuda,
                           device_of(host->rank, host->size, n_devices)));
    CPL_TRY(reach_all(me, host->size, n_devices));
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        CPL_TRY(make_event(me, &me->ready[i]));
    CPL_TRY(make_event(me, &me->before));
    CPL_TRY(make_event(me, &me->after));
    return make_event(me, &me->done);
}

static void drop_event(cudaEvent_t event)
{
    if (event != NULL)
        cudaEventDestroy(event);
}

static void close_device(direct *me)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        drop_event(me->ready[i]);
    drop_event(me->before);
    drop_event(me->after);
    drop_event(me->done);
    cpli_cuda_close(&me->cuda);
    cpli_free(me->bases);
    cpli_free(me);
}

static void join_member(cpli_member *member, direct *me,
                        const cpli_device_ops *ops)
{
    me->host_ops = member->comm.ops;
    me->ops = *member->comm.ops;
    me->ops.name = cpli_cuda_name;
    me->ops.alloc = cpli_cuda_alloc;
    me->ops.free = cpli_cuda_free;
    me->ops.device = ops;
    me->ops.reserve = cpli_table_of_transfer;
    me->ops.release = release;
    me->ops.make_graph = cpli_graph_make;
    me->ops.drop_graph = cpli_graph_drop;
    me->ops.capture = &capture_ops;
    member->mover = &mover;
    member->comm.device = me;
    member->comm.ops = &me->ops;
}

cpl_status cpli_direct_join(cpl_comm *host, const cpli_device_ops *ops,
                            cpl_comm **out)
{
    direct *me = NULL;
    cpl_status status = CPL_ALLOC(1, &me);
    if (status == CPL_OK)
        status = open_device(me, host);
    status = cpl_comm_agree(host, status);
    if (status != CPL_OK) {
        if (me != NULL)
            close_device(me);
        return status;
    }
    join_member((cpli_member *)host, me, ops);
    *out = host;
    /* Nobody meets one that has not come. */
    return cpl_comm_barrier(host);
}

/* Nobody begins to read my rows any more. What others have enqueued comes
 * before all that my stream still does, and so before the rows are freed. */
void cpli_direct_leave(cpl_comm *comm)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank)
            follow(comm->device, rank_of(comm, rank)->done);
}

void cpli_direct_part(cpl_comm *comm)
{
    direct *me = comm->device;
    comm->ops = me->host_ops;
    comm->device = NULL;
    ((cpli_member *)comm)->mover = NULL;
    close_device(me);
}

bool cpli_is_direct(const cpl_comm *comm)
{
    return comm->ops->start == cpli_local_ops.start;
}
