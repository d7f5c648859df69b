/*
 * comm.c: the public face of every transport, and the collectives that are
 * the same for all of them because they rest on gather.
 */
#include "comm.h"

#include <math.h>
#include <stdio.h>

/* What max and agree gather at a time, over all ranks; it stands on the
 * stack, so that neither can run out of memory on one rank alone. */
enum { GATHER_BYTES = 32768 };

/* How many ranks one step of a broadcast serves. */
enum { BROADCAST_RANKS = 64 };

int cpl_comm_rank(const cpl_comm *comm)
{
    return comm->rank;
}

int cpl_comm_size(const cpl_comm *comm)
{
    return comm->size;
}

const char *cpl_comm_transport(const cpl_comm *comm)
{
    return comm->ops->name;
}

cpl_status cpli_comm_alloc(cpl_comm *comm, size_t bytes, void **out)
{
    if (comm->ops->alloc == NULL)
        return cpli_alloc(bytes, 1, out);
    return comm->ops->alloc(comm, bytes, out);
}

void cpli_comm_free(cpl_comm *comm, void *memory)
{
    if (comm->ops->free == NULL)
        cpli_free(memory);
    else
        comm->ops->free(comm, memory);
}

bool cpli_comm_offers(const cpl_comm *comm, cpli_way way)
{
    return comm->ops->offers == NULL || comm->ops->offers(comm, way);
}

cpl_status cpli_transfer_reserve(cpl_comm *comm, cpli_transfer *transfer)
{
    if (comm->ops->reserve == NULL)
        return CPL_OK;
    return comm->ops->reserve(comm, transfer);
}

void cpli_transfer_release(cpl_comm *comm, cpli_transfer *transfer)
{
    if (comm->ops->release != NULL)
        comm->ops->release(comm, transfer);
}

cpl_status cpli_transfer_start(cpl_comm *comm, const cpli_transfer *transfer)
{
    return comm->ops->start(comm, transfer);
}

cpl_status cpli_transfer_finish(cpl_comm *comm, const cpli_transfer *transfer)
{
    return comm->ops->finish(comm, transfer);
}

/* Adds the time since `since` to what the rank spent in communication. */
static cpl_status counted(double since, cpl_status status)
{
    cpl_counters_here()->comm_seconds += cpl_clock() - since;
    return status;
}

cpl_status cpl_comm_barrier(cpl_comm *comm)
{
    double since = cpl_clock();
    return counted(since, comm->ops->barrier(comm));
}

cpl_status cpl_comm_sum(cpl_comm *comm, void *data, int64_t n, cpl_dtype dtype)
{
    if ((unsigned)dtype >= CPL_N_DTYPES)
        return cpli_fail(CPL_UNSUPPORTED, "comm: no sum of %s",
                         cpl_dtype_name(dtype));
    if (n < 0)
        return cpli_fail(CPL_INVALID, "comm: a sum of %lld elements",
                         (long long)n);
    double since = cpl_clock();
    return counted(since, comm->ops->sum(comm, data, n, dtype));
}

cpl_status cpl_comm_gather(cpl_comm *comm, const void *data, size_t bytes,
                           void *out)
{
    double since = cpl_clock();
    return counted(since, comm->ops->gather(comm, data, bytes, out));
}

/* Serves ranks first .. end - 1; so few that their pieces fit on the stack. */
static cpl_status broadcast_some(cpl_comm *comm, void *data, size_t bytes,
                                 int root, int first, int end)
{
    cpli_piece pieces[BROADCAST_RANKS];
    cpli_transfer transfer = {
        .src = data, .dst = data, .sends = pieces, .receives = pieces};
    bool is_root = comm->rank == root;
    for (int rank = first; rank < end; rank++)
        if (is_root && rank != root)
            pieces[transfer.n_sends++] = (cpli_piece){
                .peer = cpli_peer(comm, rank), .bytes = (int64_t)bytes};
    if (!is_root && comm->rank >= first && comm->rank < end)
        pieces[transfer.n_receives++] = (cpli_piece){
            .peer = cpli_peer(comm, root), .bytes = (int64_t)bytes};
    transfer.way = CPLI_MESSAGES;
    transfer.is_host = true;
    CPL_TRY(cpli_transfer_reserve(comm, &transfer));
    CPL_TRY(cpli_transfer_start(comm, &transfer));
    return cpli_transfer_finish(comm, &transfer);
}

static cpl_status broadcast(cpl_comm *comm, void *data, size_t bytes, int root)
{
    for (int first = 0; bytes > 0 && first < comm->size;
         first += BROADCAST_RANKS)
        CPL_TRY(
            broadcast_some(comm, data, bytes, root, first,
                           (int)cpli_min(comm->size, first + BROADCAST_RANKS)));
    return CPL_OK;
}

cpl_status cpl_comm_broadcast(cpl_comm *comm, void *data, size_t bytes,
                              int root)
{
    if (root < 0 || root >= comm->size)
        return cpli_fail(CPL_INVALID, "comm: a broadcast from rank %d of %d",
                         root, comm->size);
    double since = cpl_clock();
    return counted(since, broadcast(comm, data, bytes, root));
}

cpl_status cpl_comm_plain_exchange(cpl_comm *comm, const void *src,
                                   const size_t *to, void *dst,
                                   const size_t *from)
{
    if (comm->ops->plain_exchange == NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "comm: the %s transport has no plain messages",
                         comm->ops->name);
    return comm->ops->plain_exchange(comm, src, to, dst, from);
}

/* How many items of `size` bytes of every rank fit into GATHER_BYTES. */
static cpl_status items_at_once(const cpl_comm *comm, size_t size, int64_t *out)
{
    size_t n = GATHER_BYTES / size / (size_t)comm->size;
    if (n == 0)
        return cpli_fail(CPL_UNSUPPORTED, "comm: %d ranks, more than %zu",
                         comm->size, GATHER_BYTES / size);
    *out = (int64_t)n;
    return CPL_OK;
}

static double larger(double a, double b)
{
    if (isnan(a) || isnan(b))
        return NAN;
    return a > b ? a : b;
}

cpl_status cpl_comm_max(cpl_comm *comm, double *data, int64_t n)
{
    double all[GATHER_BYTES / sizeof(double)];
    int64_t step = 0;
    CPL_TRY(items_at_once(comm, sizeof *data, &step));
    for (int64_t first = 0; first < n; first += step) {
        int64_t count = cpli_min(step, n - first);
        CPL_TRY(cpl_comm_gather(comm, data + first,
                                (size_t)count * sizeof *data, all));
        for (int64_t i = 0; i < count; i++)
            for (int rank = 0; rank < comm->size; rank++)
                data[first + i] =
                    larger(data[first + i], all[rank * count + i]);
    }
    return CPL_OK;
}

/* The rank of the largest status; the lowest one of equals. */
static cpl_status find_worst(cpl_comm *comm, cpl_status mine, int *rank_out,
                             cpl_status *out)
{
    int32_t all[GATHER_BYTES / sizeof(int32_t)];
    int32_t code = (int32_t)mine;
    int64_t step = 0;
    CPL_TRY(items_at_once(comm, sizeof code, &step));
    CPL_TRY(cpl_comm_gather(comm, &code, sizeof code, all));
    int worst = 0;
    for (int rank = 1; rank < comm->size; rank++)
        if (all[rank] > all[worst])
            worst = rank;
    *rank_out = worst;
    *out = (cpl_status)all[worst];
    return CPL_OK;
}

/* Copies the sentence of `root` (cut to `bytes`) to every rank. */
static cpl_status share_sentence(cpl_comm *comm, int root, char *text,
                                 size_t bytes)
{
    char all[GATHER_BYTES];
    int64_t step = 0;
    CPL_TRY(items_at_once(comm, 1, &step));
    snprintf(text, bytes, "%s", cpl_last_error());
    for (size_t first = 0; first < bytes; first += (size_t)step) {
        size_t n = bytes - first < (size_t)step ? bytes - first : (size_t)step;
        CPL_TRY(cpl_comm_gather(comm, text + first, n, all));
        memcpy(text + first, all + (size_t)root * n, n);
    }
    return CPL_OK;
}

cpl_status cpl_comm_agree(cpl_comm *comm, cpl_status mine)
{
    int root;
    cpl_status worst;
    char text[512] = "";
    CPL_TRY(find_worst(comm, mine, &root, &worst));
    if (worst == CPL_OK)
        return CPL_OK;
    CPL_TRY(share_sentence(comm, root, text, sizeof text));
    if (comm->rank == root)
        return worst;
    return cpli_fail(worst, "rank %d failed: %s", root, text);
}

static const cpl_kernels *kernels_of(const cpl_comm *comm, cpl_dtype dtype,
                                     bool naive)
{
    const cpli_device_ops *device = cpli_device_of(comm);
    if (device == NULL)
        return cpl_kernels_for(naive ? "ref" : "cpu", dtype);
    const cpl_kernels *kernels = device->kernels(dtype, naive);
    if (kernels == NULL)
        cpli_fail(CPL_UNSUPPORTED, "device %s: no kernels for %s", device->name,
                  cpl_dtype_name(dtype));
    return kernels;
}

const cpl_kernels *cpl_comm_kernels(const cpl_comm *comm, cpl_dtype dtype)
{
    return kernels_of(comm, dtype, false);
}

const cpl_kernels *cpl_comm_naive_kernels(const cpl_comm *comm, cpl_dtype dtype)
{
    return kernels_of(comm, dtype, true);
}
