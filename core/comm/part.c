/*
 * part.c: some ranks of a group as a group of their own. Its transfers are
 * those of the whole: who makes pieces names ranks of the whole (cpli_peer), so
 * that nothing is translated while bytes move. Its collectives are messages
 * among the members, since the whole's would wait for everybody.
 */
#include "comm.h"

/* What a sum adds up at a time, of each rank. */
enum { SUM_BYTES = 16384 };

typedef struct part {
    cpl_comm comm;     /* first: a comm of this kind is its part */
    cpli_comm_ops ops; /* the whole's name, and what is ours */
    int *ranks;        /* comm.ranks */
    cpli_piece *sends; /* of a gather; one a member */
    cpli_piece *receives;
    char *addends; /* SUM_BYTES a member */
} part;

static bool offers(const cpl_comm *comm, cpli_way way)
{
    return way != CPLI_ALLTOALL && cpli_comm_offers(comm->whole, way);
}

static cpl_status take_memory(cpl_comm *comm, size_t bytes, void **out)
{
    return cpli_comm_alloc(comm->whole, bytes, out);
}

static void give_memory(cpl_comm *comm, void *memory)
{
    cpli_comm_free(comm->whole, memory);
}

/* ---- transfers: see cpli_comm_whole ---- */

static cpl_status reserve(cpl_comm *comm, cpli_transfer *transfer)
{
    return cpli_transfer_reserve(comm->whole, transfer);
}

static void release(cpl_comm *comm, cpli_transfer *transfer)
{
    cpli_transfer_release(comm->whole, transfer);
}

static cpl_status start(cpl_comm *comm, const cpli_transfer *transfer)
{
    return cpli_transfer_start(comm->whole, transfer);
}

static cpl_status finish(cpl_comm *comm, const cpli_transfer *transfer)
{
    return cpli_transfer_finish(comm->whole, transfer);
}

/* ---- collectives ---- */

static cpl_status gather(cpl_comm *comm, const void *data, size_t bytes,
                         void *out)
{
    part *me = (part *)comm;
    cpli_transfer transfer = {.src = data,
                              .dst = out,
                              .sends = me->sends,
                              .receives = me->receives,
                              .way = CPLI_MESSAGES,
                              .is_host = true};
    if (bytes == 0)
        return CPL_OK;
    for (int rank = 0; rank < comm->size; rank++) {
        int64_t place = rank * (int64_t)bytes;
        cpli_piece piece = {.peer = comm->ranks[rank], .bytes = (int64_t)bytes};
        if (rank == comm->rank)
            continue;
        me->sends[transfer.n_sends++] = piece;
        piece.offset = place;
        me->receives[transfer.n_receives++] = piece;
    }
    memmove((char *)out + (size_t)comm->rank * bytes, data, bytes);
    CPL_TRY(cpli_transfer_start(comm->whole, &transfer));
    return cpli_transfer_finish(comm->whole, &transfer);
}

static cpl_status barrier(cpl_comm *comm)
{
    char here = 0;
    return gather(comm, &here, 1, ((part *)comm)->addends);
}

static cpl_status sum(cpl_comm *comm, void *data, int64_t n, cpl_dtype dtype)
{
    part *me = (part *)comm;
    int64_t size = (int64_t)cpl_dtype_bytes(dtype);
    int64_t step = SUM_BYTES / size;
    for (int64_t first = 0; first < n; first += step) {
        char *some = (char *)data + first * size;
        int64_t count = cpli_min(step, n - first);
        size_t bytes = (size_t)(count * size);
        CPL_TRY(gather(comm, some, bytes, me->addends));
        memcpy(some, me->addends, bytes);
        for (int rank = 1; rank < comm->size; rank++)
            cpli_add_elements(dtype, some, me->addends + (size_t)rank * bytes,
                              count);
    }
    return CPL_OK;
}

/* ---- making ---- */

static cpl_status check(const cpl_comm *of, const int *ranks, int n, int *mine)
{
    *mine = -1;
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= of->size ||
            (i > 0 && ranks[i] <= ranks[i - 1]))
            return cpli_fail(CPL_INVALID,
                             "comm: a part needs ranks of 0 .. %d in "
                             "increasing order (its number %d is %d)",
                             of->size - 1, i, ranks[i]);
        if (ranks[i] == of->rank)
            *mine = i;
    }
    if (*mine >= 0)
        return CPL_OK;
    return cpli_fail(CPL_INVALID,
                     "comm: rank %d makes a part of %d ranks without itself",
                     of->rank, n);
}

cpl_status cpl_comm_part(cpl_comm *of, const int *ranks, int n, cpl_comm **out)
{
    int mine;
    cpl_status status;
    part *me;
    CPL_TRY(check(of, ranks, n, &mine));
    CPL_TRY(CPL_ALLOC(1, &me));
    CPL_TRY_GO(CPL_ALLOC(n, &me->ranks), fail);
    CPL_TRY_GO(CPL_ALLOC(n, &me->sends), fail);
    CPL_TRY_GO(CPL_ALLOC(n, &me->receives), fail);
    CPL_TRY_GO(CPL_ALLOC((int64_t)n * SUM_BYTES, &me->addends), fail);
    for (int i = 0; i < n; i++)
        me->ranks[i] = cpli_peer(of, ranks[i]);
    me->ops = (cpli_comm_ops){.name = of->ops->name,
                              .is_one_process = of->ops->is_one_process,
                              .offers = offers,
                              .alloc = take_memory,
                              .free = give_memory,
                              .device = of->ops->device,
                              .reserve = reserve,
                              .release = release,
                              .start = start,
                              .finish = finish,
                              .barrier = barrier,
                              .gather = gather,
                              .sum = sum};
    me->comm = (cpl_comm){.ops = &me->ops,
                          .rank = mine,
                          .size = n,
                          .whole = cpli_comm_whole(of),
                          .ranks = me->ranks};
    *out = &me->comm;
    return CPL_OK;
fail:
    cpl_comm_part_destroy(&me->comm);
    return status;
}

void cpl_comm_part_destroy(cpl_comm *comm)
{
    part *me = (part *)comm;
    if (me == NULL)
        return;
    cpli_free(me->addends);
    cpli_free(me->receives);
    cpli_free(me->sends);
    cpli_free(me->ranks);
    cpli_free(me);
}
