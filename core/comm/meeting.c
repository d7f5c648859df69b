/*
 * meeting.c: the collectives of ranks that are processes. Each begins with a
 * call: every rank tells every other in which collective it is, so that
 * different ones are told from each other before any data move; data of a few
 * hundred bytes travel with it.
 */
#include "group.h"

/* What a rank adds up at a time, over all its peers. */
enum { SUM_BYTES = 1 << 20 };

typedef enum collective { BARRIER, GATHER, SUM } collective;

static const char *const names[] = {"barrier", "gather", "sum"};

/* ---- calls ---- */

static cpl_status compare_calls(cpli_group *me)
{
    const cpli_call *a = &me->calls[0];
    for (int rank = 1; rank < me->comm.size; rank++) {
        const cpli_call *b = &me->calls[rank];
        if (a->what != b->what || a->n != b->n || a->dtype != b->dtype)
            return cpli_group_fail(
                me, CPL_MISMATCH,
                "mpi: rank 0 is in a %s of %lld %s, rank %d in a %s of %lld "
                "%s: the ranks made different collective calls",
                names[a->what], (long long)a->n,
                cpl_dtype_name((cpl_dtype)a->dtype), rank, names[b->what],
                (long long)b->n, cpl_dtype_name((cpl_dtype)b->dtype));
    }
    return CPL_OK;
}

static void begin(cpli_group *me, collective what)
{
    me->meeting.n = me->meeting.n_done = 0;
    me->meeting.what = names[what];
    me->meeting.number = me->n_met;
}

static bool is_small(size_t bytes)
{
    return bytes <= sizeof((cpli_call *)NULL)->data;
}

/* Returns when all have come with the same call; `bytes` bytes of data, if
 * they are few enough, are then in all calls. */
static cpl_status meet(cpli_group *me, collective what, int64_t n,
                       cpl_dtype dtype, const void *data, size_t bytes)
{
    cpli_group_listen(me);
    CPL_TRY(cpli_group_alive(me));
    cpli_call *mine = &me->calls[me->comm.rank];
    *mine = (cpli_call){
        .number = ++me->n_met, .n = n, .what = what, .dtype = (int32_t)dtype};
    size_t with = is_small(bytes) ? bytes : 0;
    if (with > 0)
        memcpy(mine->data, data, with);
    begin(me, what);
    for (int rank = 0; rank < me->comm.size; rank++) {
        if (rank == me->comm.rank)
            continue;
        CPL_TRY(cpli_group_receive(me, &me->meeting, rank, CPLI_TAG_CALL,
                                   &me->calls[rank], sizeof *mine));
        me->meeting.tickets[me->meeting.n - 1].bytes = -1;
        CPL_TRY(cpli_group_send(me, &me->meeting, rank, CPLI_TAG_CALL, mine,
                                offsetof(cpli_call, data) + with));
    }
    CPL_TRY(cpli_group_wait(me, &me->meeting));
    return compare_calls(me);
}

cpl_status cpli_group_barrier(cpl_comm *comm)
{
    return meet((cpli_group *)comm, BARRIER, 0, CPL_F64, NULL, 0);
}

/* ---- gather ---- */

/* One part of every rank's data, which are too many to travel with a call. */
static cpl_status gather_part(cpli_group *me, const char *data, size_t bytes,
                              size_t stride, char *out)
{
    begin(me, GATHER);
    for (int rank = 0; rank < me->comm.size; rank++) {
        if (rank == me->comm.rank)
            continue;
        CPL_TRY(cpli_group_receive(me, &me->meeting, rank, CPLI_TAG_DATA,
                                   out + (size_t)rank * stride, bytes));
        CPL_TRY(cpli_group_send(me, &me->meeting, rank, CPLI_TAG_DATA, data,
                                bytes));
    }
    return cpli_group_wait(me, &me->meeting);
}

cpl_status cpli_group_gather(cpl_comm *comm, const void *data, size_t bytes,
                             void *out)
{
    cpli_group *me = (cpli_group *)comm;
    char *to = out;
    CPL_TRY(meet(me, GATHER, (int64_t)bytes, CPL_F64, data, bytes));
    if (bytes > 0)
        memmove(to + (size_t)comm->rank * bytes, data, bytes);
    if (is_small(bytes)) {
        for (int rank = 0; rank < comm->size; rank++)
            if (rank != comm->rank && bytes > 0)
                memcpy(to + (size_t)rank * bytes, me->calls[rank].data, bytes);
        return CPL_OK;
    }
    data = to + (size_t)comm->rank * bytes;
    for (size_t i = 0; i < bytes; i += CPLI_PART_BYTES) {
        size_t left = bytes - i;
        size_t part = left < CPLI_PART_BYTES ? left : CPLI_PART_BYTES;
        CPL_TRY(gather_part(me, (const char *)data + i, part, bytes, to + i));
    }
    return CPL_OK;
}

/* ---- sum ---- */

/* A block of a sum: element i of it is added up by the rank whose slice it is
 * in, out of the others' elements, which lie in the scratch by rank. */
typedef struct block {
    cpli_group *me;
    char *data;
    int64_t n;
    cpl_dtype dtype;
} block;

static int64_t slice_begin(const block *sum, int rank)
{
    int64_t size = sum->me->comm.size;
    return sum->n / size * rank + cpli_min(rank, sum->n % size);
}

static size_t slice_bytes(const block *sum, int rank)
{
    return (size_t)(slice_begin(sum, rank + 1) - slice_begin(sum, rank)) *
           cpl_dtype_bytes(sum->dtype);
}

static char *slice(const block *sum, int rank)
{
    return sum->data +
           slice_begin(sum, rank) * (int64_t)cpl_dtype_bytes(sum->dtype);
}

/* Where the elements of `rank` for my slice lie, or go. */
static char *addend(const block *sum, int rank)
{
    int mine = sum->me->comm.rank;
    if (rank == mine)
        return slice(sum, mine);
    return sum->me->sums + (size_t)rank * slice_bytes(sum, mine);
}

/* Every rank gets what the others have of its slice. */
static cpl_status bring(const block *sum)
{
    cpli_group *me = sum->me;
    int mine = me->comm.rank;
    begin(me, SUM);
    for (int rank = 0; rank < me->comm.size; rank++) {
        if (rank == mine)
            continue;
        CPL_TRY(cpli_group_receive(me, &me->meeting, rank, CPLI_TAG_DATA,
                                   addend(sum, rank), slice_bytes(sum, mine)));
        CPL_TRY(cpli_group_send(me, &me->meeting, rank, CPLI_TAG_DATA,
                                slice(sum, rank), slice_bytes(sum, rank)));
    }
    return cpli_group_wait(me, &me->meeting);
}

/* Every rank gets the others' slices, added up. */
static cpl_status spread(const block *sum)
{
    cpli_group *me = sum->me;
    int mine = me->comm.rank;
    begin(me, SUM);
    for (int rank = 0; rank < me->comm.size; rank++) {
        if (rank == mine)
            continue;
        CPL_TRY(cpli_group_receive(me, &me->meeting, rank, CPLI_TAG_DATA,
                                   slice(sum, rank), slice_bytes(sum, rank)));
        CPL_TRY(cpli_group_send(me, &me->meeting, rank, CPLI_TAG_DATA,
                                slice(sum, mine), slice_bytes(sum, mine)));
    }
    return cpli_group_wait(me, &me->meeting);
}

/* Adds in rank order: each element starts as that of rank 0. */
static void add_up(const block *sum)
{
    cpli_group *me = sum->me;
    size_t bytes = slice_bytes(sum, me->comm.rank);
    int64_t n = (int64_t)(bytes / cpl_dtype_bytes(sum->dtype));
    char *total = me->sums + (size_t)me->comm.size * bytes;
    memcpy(total, addend(sum, 0), bytes);
    for (int rank = 1; rank < me->comm.size; rank++)
        cpli_add_elements(sum->dtype, total, addend(sum, rank), n);
    memcpy(slice(sum, me->comm.rank), total, bytes);
}

static void add_calls(cpli_group *me, void *data, int64_t n, cpl_dtype dtype)
{
    if (n == 0)
        return;
    memcpy(data, me->calls[0].data, (size_t)n * cpl_dtype_bytes(dtype));
    for (int rank = 1; rank < me->comm.size; rank++)
        cpli_add_elements(dtype, data, me->calls[rank].data, n);
}

cpl_status cpli_group_sum(cpl_comm *comm, void *data, int64_t n,
                          cpl_dtype dtype)
{
    cpli_group *me = (cpli_group *)comm;
    size_t bytes = (size_t)n * cpl_dtype_bytes(dtype);
    CPL_TRY(meet(me, SUM, n, dtype, data, bytes));
    if (is_small(bytes)) {
        add_calls(me, data, n, dtype);
        return CPL_OK;
    }
    int64_t step = SUM_BYTES / (int64_t)cpl_dtype_bytes(dtype);
    for (int64_t i = 0; i < n && comm->size > 1; i += step) {
        block sum = {.me = me,
                     .data = (char *)data + i * (int64_t)cpl_dtype_bytes(dtype),
                     .n = cpli_min(step, n - i),
                     .dtype = dtype};
        CPL_TRY(bring(&sum));
        add_up(&sum);
        CPL_TRY(spread(&sum));
    }
    return CPL_OK;
}

size_t cpli_group_sums_bytes(int size)
{
    /* A slice of every rank and the total, each rounded up to an element. */
    return SUM_BYTES + SUM_BYTES / (size_t)size + 8 * ((size_t)size + 1);
}
