/*
 * nccl.c: the transport of ranks that have a device each, threads or processes:
 * rows cross by grouped sends and receives of NCCL, whose counts the plan knows
 * beforehand; all else (barriers, sums and gathers of host memory, letters)
 * goes through the group of the host. The only file that knows NCCL, which is
 * opened when it is asked for: who has one device needs none.
 *
 * NCCL matches what two ranks say to each other in the order in which both say
 * it, as transfers do. A rank that fails leaves others waiting on their
 * devices, where nobody tells them: each looks after the group while it waits
 * for its device, and aborts its own side of NCCL where the others do not come.
 */
#define _DEFAULT_SOURCE /* gethostname */
#include "cuda_rank.h"

#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <unistd.h>

/* ---- the library ---- */

#define NCCL_FUNCTIONS(X) \
    X(GetVersion)         \
    X(GetUniqueId)        \
    X(CommInitRank)       \
    X(CommDestroy)        \
    X(CommAbort)          \
    X(CommGetAsyncError)  \
    X(GroupStart)         \
    X(GroupEnd)           \
    X(Send)               \
    X(Recv)               \
    X(GetErrorString)     \
    X(GetLastError)

typedef struct library {
#define X(name) __typeof__(nccl##name) *name;
    NCCL_FUNCTIONS(X)
#undef X
} library;

#ifdef CPLAB_CUDA_EMULATED

/* The double is part of the emulator. */
static cpl_status load(library *out)
{
#define X(name) out->name = nccl##name;
    NCCL_FUNCTIONS(X)
#undef X
    return CPL_OK;
}

#else

static cpl_status load(library *out)
{
    static const char *const names[] = {
#define X(name) "nccl" #name,
        NCCL_FUNCTIONS(X)
#undef X
    };
    void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return cpli_fail(CPL_UNSUPPORTED, "nccl: cannot open NCCL: %s",
                         dlerror());
    void **entry = (void **)out;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        entry[i] = dlsym(handle, names[i]);
        if (entry[i] == NULL)
            return cpli_fail(CPL_MISMATCH, "nccl: libnccl.so.2 has no %s",
                             names[i]);
    }
    return CPL_OK;
}

#endif

/* A later library serves what was built for an earlier one, not the other way.
 */
static cpl_status check_version(const library *nccl)
{
    int version = 0;
    int wanted = NCCL_VERSION_CODE;
    if (nccl->GetVersion(&version) != ncclSuccess)
        return cpli_fail(CPL_SYSTEM, "nccl: the library tells no version");
    if (version >= wanted && version / 10000 == wanted / 10000)
        return CPL_OK;
    return cpli_fail(CPL_MISMATCH,
                     "nccl: the library is %d.%d.%d, but this build was made "
                     "with the header of %d.%d.%d: it wants that one, or a "
                     "later %d",
                     version / 10000, version % 10000 / 100, version % 100,
                     NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, NCCL_MAJOR);
}

int cpli_nccl_version(char *why, size_t room)
{
    library nccl;
    int version = 0;
    cpl_status status = load(&nccl);
    if (status == CPL_OK)
        status = check_version(&nccl);
    if (status != CPL_OK) {
        snprintf(why, room, "%s", cpl_last_error());
        return 0;
    }
    nccl.GetVersion(&version);
    return version;
}

/* ---- the group ---- */

/* A transfer that was started. */
typedef struct flight {
    const cpli_transfer *transfer; /* NULL: a free place */
} flight;

typedef struct group {
    cpl_comm comm; /* first: a comm of this transport is its group */
    cpli_cuda cuda;
    cpli_comm_ops ops;
    cpl_comm *host;
    library nccl;
    ncclComm_t handle;
    flight flights[CPLI_IN_FLIGHT];
} group;

static cpl_status check(const group *me, ncclResult_t result, const char *doing)
{
    if (result == ncclSuccess)
        return CPL_OK;
    const char *more = me->nccl.GetLastError(me->handle);
    return cpli_fail(CPL_SYSTEM, "nccl: rank %d: %s in %s%s%s", me->comm.rank,
                     me->nccl.GetErrorString(result), doing,
                     more != NULL && more[0] != '\0' ? ": " : "",
                     more != NULL ? more : "");
}

/* ---- others that do not come ---- */

static void abort_nccl(group *me)
{
    me->nccl.CommAbort(me->handle);
    me->handle = NULL;
}

/* What NCCL heard by itself, of a network that is gone say. */
static cpl_status listen(const group *me, const char *doing)
{
    ncclResult_t heard = ncclSuccess;
    CPL_TRY(check(me, me->nccl.CommGetAsyncError(me->handle, &heard), doing));
    return heard == ncclInProgress ? CPL_OK : check(me, heard, doing);
}

static cpl_status watch(cpl_comm *comm, double waited_s, const char *doing)
{
    group *me = (group *)comm;
    cpl_comm *host = me->host;
    if (me->handle == NULL) /* nothing waits for others any more */
        return CPL_OK;
    cpl_status status = host->ops->watch(host, waited_s, doing);
    if (status == CPL_OK)
        status = listen(me, doing);
    if (status != CPL_OK)
        abort_nccl(me);
    return status;
}

/* Before anything is put into the stream that others must come for. */
static cpl_status check_alive(const group *me)
{
    cpl_comm *host = me->host;
    CPL_TRY(host->ops->watch(host, 0, "a transfer"));
    if (me->handle != NULL)
        return CPL_OK;
    return cpli_fail(CPL_ABORTED,
                     "nccl: rank %d: a wait for others was given up before",
                     me->comm.rank);
}

/* ---- transfers ---- */

static bool offers(const cpl_comm *comm, cpli_way way)
{
    (void)comm;
    return way != CPLI_PULL;
}

static flight *place_of(group *me, const cpli_transfer *transfer)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        if (me->flights[i].transfer == transfer)
            return &me->flights[i];
    return NULL;
}

static cpl_status post(group *me, const cpli_transfer *transfer)
{
    const char *src = transfer->src;
    char *dst = transfer->dst;
    cudaStream_t stream = me->cuda.stream;
    for (int64_t i = 0; i < transfer->n_sends; i++) {
        const cpli_piece *piece = &transfer->sends[i];
        if (piece->peer != me->comm.rank)
            CPL_TRY(
                check(me,
                      me->nccl.Send(src + piece->offset, (size_t)piece->bytes,
                                    ncclUint8, piece->peer, me->handle, stream),
                      "a send"));
    }
    for (int64_t i = 0; i < transfer->n_receives; i++) {
        const cpli_piece *piece = &transfer->receives[i];
        if (piece->peer != me->comm.rank)
            CPL_TRY(
                check(me,
                      me->nccl.Recv(dst + piece->offset, (size_t)piece->bytes,
                                    ncclUint8, piece->peer, me->handle, stream),
                      "a receive"));
    }
    return CPL_OK;
}

static cpl_status start(cpl_comm *comm, const cpli_transfer *transfer)
{
    group *me = (group *)comm;
    if (transfer->is_host)
        return cpli_transfer_start(me->host, transfer);
    CPL_TRY(check_alive(me));
    flight *place = place_of(me, NULL);
    if (place == NULL)
        return cpli_fail(CPL_INVALID, "nccl: more than %d transfers in flight",
                         CPLI_IN_FLIGHT);
    CPL_ASSERT(transfer->combine == CPLI_COPY);
    CPL_TRY(check(me, me->nccl.GroupStart(), "a group"));
    cpl_status posted = post(me, transfer);
    CPL_TRY(check(me, me->nccl.GroupEnd(), "a group"));
    CPL_TRY(posted);
    place->transfer = transfer;
    return CPL_OK;
}

/* What came is in the order of the stream; what stays is moved now. */
static cpl_status finish(cpl_comm *comm, const cpli_transfer *transfer)
{
    group *me = (group *)comm;
    if (transfer->is_host)
        return cpli_transfer_finish(me->host, transfer);
    flight *place = place_of(me, transfer);
    if (place == NULL)
        return cpli_fail(CPL_INVALID,
                         "nccl: finish of a transfer that was not started");
    place->transfer = NULL;
    void *own = (void *)transfer->src;
    if (transfer->tables == NULL)
        return CPL_OK;
    return cpli_table_launch(comm, transfer->tables, &own, transfer->dst);
}

/* A table of what the rank keeps. */
static cpl_status reserve(cpl_comm *comm, cpli_transfer *transfer)
{
    cpli_end *ends;
    int64_t n = 0;
    const cpli_carries like = {.combine = CPLI_COPY, .dtype = transfer->dtype};
    cpli_table *table;
    if (transfer->is_host)
        return cpli_transfer_reserve(((group *)comm)->host, transfer);
    CPL_TRY(CPL_ALLOC(transfer->n_receives, &ends));
    for (int64_t i = 0; i < transfer->n_receives; i++) {
        const cpli_piece *piece = &transfer->receives[i];
        if (piece->peer == comm->rank)
            ends[n++] = (cpli_end){.from = piece->peer_offset,
                                   .to = piece->offset,
                                   .bytes = piece->bytes};
    }
    cpl_status status =
        cpli_table_create(comm, ends, n, comm->size, &like, false, &table);
    cpli_free(ends);
    if (status == CPL_OK)
        transfer->tables = table;
    return status;
}

static void release(cpl_comm *comm, cpli_transfer *transfer)
{
    if (transfer->is_host)
        return;
    cpli_table_destroy(comm, transfer->tables);
    transfer->tables = NULL;
}

/* ---- collectives of host memory ---- */

static cpl_status barrier(cpl_comm *comm)
{
    return cpl_comm_barrier(((group *)comm)->host);
}

static cpl_status gather(cpl_comm *comm, const void *data, size_t bytes,
                         void *out)
{
    cpl_comm *host = ((group *)comm)->host;
    return host->ops->gather(host, data, bytes, out);
}

static cpl_status sum(cpl_comm *comm, void *data, int64_t n, cpl_dtype dtype)
{
    cpl_comm *host = ((group *)comm)->host;
    return host->ops->sum(host, data, n, dtype);
}

/* ---- joining ---- */

/* Where a rank is, for the others. */
typedef struct card {
    char machine[64];
    char device[32]; /* its place on the bus */
    int32_t number, n_devices;
} card;

static cpl_status write_card(group *me, int number, int n_devices, card *out)
{
    *out = (card){.number = number, .n_devices = n_devices};
    gethostname(out->machine, sizeof out->machine - 1);
    return cpli_cuda_check(
        &me->cuda,
        cudaDeviceGetPCIBusId(out->device, (int)sizeof out->device, number),
        "asking for its bus");
}

/* NCCL would refuse two ranks on a device with less to say. */
static cpl_status check_distinct(const card *cards, int n)
{
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++)
            if (strcmp(cards[a].machine, cards[b].machine) == 0 &&
                strcmp(cards[a].device, cards[b].device) == 0)
                return cpli_fail(
                    CPL_UNSUPPORTED,
                    "nccl: ranks %d and %d are both on device %d (%d device%s "
                    "for %d ranks), and NCCL takes one rank a device; ranks "
                    "that are threads can share one with the transport direct",
                    a, b, cards[a].number, cards[a].n_devices,
                    cards[a].n_devices == 1 ? "" : "s", n);
    return CPL_OK;
}

/* How many ranks below mine are on my machine. */
static cpl_status find_local(cpl_comm *host, int *out)
{
    typedef char name[64];
    name mine = "";
    name *all;
    gethostname(mine, sizeof mine - 1);
    CPL_TRY(CPL_ALLOC(host->size, &all));
    cpl_status status = cpl_comm_gather(host, mine, sizeof mine, all);
    *out = 0;
    for (int rank = 0; rank < host->rank; rank++)
        *out += strcmp(all[rank], mine) == 0;
    cpli_free(all);
    return status;
}

static cpl_status show_cards(group *me, const card *mine)
{
    card *cards;
    CPL_TRY(CPL_ALLOC(me->comm.size, &cards));
    cpl_status status = cpl_comm_gather(me->host, mine, sizeof *mine, cards);
    if (status == CPL_OK)
        status = check_distinct(cards, me->comm.size);
    cpli_free(cards);
    return status;
}

/* What each rank does alone. */
static cpl_status prepare(group *me, int local, card *out)
{
    int n_devices = 0;
    CPL_TRY(cpli_cuda_count(&n_devices));
    CPL_TRY(load(&me->nccl));
    CPL_TRY(check_version(&me->nccl));
    CPL_TRY(cpli_cuda_open(&me->cuda, local % n_devices));
    return write_card(me, local % n_devices, n_devices, out);
}

static cpl_status connect(group *me)
{
    ncclUniqueId id;
    cpl_status status = CPL_OK;
    memset(&id, 0, sizeof id);
    if (me->comm.rank == 0)
        status = check(me, me->nccl.GetUniqueId(&id), "making a group");
    CPL_TRY(cpl_comm_agree(me->host, status));
    CPL_TRY(cpl_comm_broadcast(me->host, &id, sizeof id, 0));
    status = check(
        me,
        me->nccl.CommInitRank(&me->handle, me->comm.size, id, me->comm.rank),
        "joining the group");
    return cpl_comm_agree(me->host, status);
}

static cpl_status join(group *me)
{
    card mine;
    int local = 0;
    CPL_TRY(find_local(me->host, &local));
    CPL_TRY(cpl_comm_agree(me->host, prepare(me, local, &mine)));
    CPL_TRY(show_cards(me, &mine));
    return connect(me);
}

cpl_status cpli_nccl_join(cpl_comm *host, const cpli_device_ops *device,
                          cpl_comm **out)
{
    group *me = NULL;
    cpl_status status = CPL_ALLOC(1, &me);
    CPL_TRY(cpl_comm_agree(host, status));
    me->host = host;
    me->cuda.watch = watch;
    me->cuda.comm = &me->comm;
    me->ops = (cpli_comm_ops){.name = "nccl",
                              .is_one_process = host->ops->is_one_process,
                              .offers = offers,
                              .alloc = cpli_cuda_alloc,
                              .free = cpli_cuda_free,
                              .device = device,
                              .reserve = reserve,
                              .release = release,
                              .start = start,
                              .finish = finish,
                              .barrier = barrier,
                              .gather = gather,
                              .sum = sum};
    me->comm = (cpl_comm){.ops = &me->ops,
                          .rank = host->rank,
                          .size = host->size,
                          .device = &me->cuda};
    status = join(me);
    if (status != CPL_OK) {
        cpli_nccl_leave(&me->comm, true);
        cpli_nccl_part(&me->comm);
        return status;
    }
    *out = &me->comm;
    return CPL_OK;
}

void cpli_nccl_leave(cpl_comm *comm, bool failed)
{
    group *me = (group *)comm;
    if (me->handle == NULL)
        return;
    if (failed)
        abort_nccl(me);
    else
        cpli_cuda_settle(&me->cuda); /* NCCL would wait for others for ever */
    if (me->handle == NULL)
        return;
    me->nccl.CommDestroy(me->handle);
    me->handle = NULL;
}

void cpli_nccl_part(cpl_comm *comm)
{
    group *me = (group *)comm;
    cpli_cuda_close(&me->cuda);
    cpli_free(me);
}
