/*
 * mpi.c: wire.h over MPI, and the only file that knows MPI. Errors of the
 * library become statuses; nothing is printed.
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>

#include "wire.h"

_Static_assert(sizeof(MPI_Request) == sizeof(cpli_request),
               "an array of our requests is one of MPI's");
_Static_assert(sizeof(MPI_Comm) <= sizeof(void *),
               "a communicator fits into our channel");

static MPI_Request request_of(const cpli_request *request)
{
    MPI_Request out;
    memcpy(&out, request, sizeof out);
    return out;
}

static void keep(cpli_request *request, MPI_Request value)
{
    memcpy(request, &value, sizeof value);
}

/* `what` says in a word or two what was tried. */
static cpl_status checked(int code, const char *what)
{
    if (code == MPI_SUCCESS)
        return CPL_OK;
    int class = MPI_ERR_OTHER;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &length);
    return cpli_fail(class == MPI_ERR_TRUNCATE ? CPL_MISMATCH : CPL_SYSTEM,
                     "mpi: %s: %s", what, text);
}

/* ---- channels ---- */

static MPI_Comm comm_of(const cpli_channel *channel)
{
    MPI_Comm out;
    memcpy(&out, &channel->handle, sizeof out);
    return out;
}

static void wrap(MPI_Comm comm, cpli_channel *out)
{
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &out->rank);
    MPI_Comm_size(comm, &out->size);
    memcpy(&out->handle, &comm, sizeof comm);
}

cpl_status cpli_wire_open(cpli_channel *out)
{
    int provided = MPI_THREAD_SINGLE;
    CPL_TRY(
        checked(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided),
                "start"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm comm;
    CPL_TRY(checked(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "first channel"));
    wrap(comm, out);
    return CPL_OK;
}

void cpli_wire_close(void)
{
    MPI_Finalize();
}

void cpli_wire_abort(int status)
{
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, status);
}

static cpl_status create_first(MPI_Comm comm, int n, MPI_Comm *out)
{
    MPI_Group all;
    MPI_Group some;
    int range[1][3] = {{0, n - 1, 1}};
    CPL_TRY(checked(MPI_Comm_group(comm, &all), "group"));
    int code = MPI_Group_range_incl(all, 1, range, &some);
    MPI_Group_free(&all);
    CPL_TRY(checked(code, "group"));
    code = MPI_Comm_create_group(comm, some, 0, out);
    MPI_Group_free(&some);
    return checked(code, "channel");
}

cpl_status cpli_wire_first(const cpli_channel *channel, int n,
                           cpli_channel *out)
{
    MPI_Comm comm;
    CPL_TRY(create_first(comm_of(channel), n, &comm));
    wrap(comm, out);
    return CPL_OK;
}

cpl_status cpli_wire_copy(const cpli_channel *channel, cpli_channel *out)
{
    MPI_Comm comm;
    CPL_TRY(checked(MPI_Comm_dup(comm_of(channel), &comm), "channel"));
    wrap(comm, out);
    return CPL_OK;
}

void cpli_wire_free(cpli_channel *channel)
{
    MPI_Comm comm = comm_of(channel);
    MPI_Comm_free(&comm);
    *channel = (cpli_channel){0};
}

cpl_status cpli_wire_gather(const cpli_channel *channel, const void *data,
                            int bytes, void *out)
{
    return checked(MPI_Allgather(data, bytes, MPI_BYTE, out, bytes, MPI_BYTE,
                                 comm_of(channel)),
                   "gather");
}

cpl_status cpli_wire_barrier(const cpli_channel *channel, cpli_request *out)
{
    MPI_Request request;
    CPL_TRY(checked(MPI_Ibarrier(comm_of(channel), &request), "barrier"));
    keep(out, request);
    return CPL_OK;
}

/* ---- messages ---- */

cpl_status cpli_wire_send(const cpli_channel *channel, int to, int tag,
                          const void *data, size_t bytes, cpli_request *out)
{
    MPI_Request request;
    CPL_ASSERT(bytes <= CPLI_PART_BYTES);
    CPL_TRY(checked(MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag,
                              comm_of(channel), &request),
                    "send"));
    keep(out, request);
    return CPL_OK;
}

cpl_status cpli_wire_receive(const cpli_channel *channel, int from, int tag,
                             void *data, size_t bytes, cpli_request *out)
{
    MPI_Request request;
    CPL_ASSERT(bytes <= CPLI_PART_BYTES);
    CPL_TRY(checked(MPI_Irecv(data, (int)bytes, MPI_BYTE,
                              from == CPLI_ANYBODY ? MPI_ANY_SOURCE : from, tag,
                              comm_of(channel), &request),
                    "receive"));
    keep(out, request);
    return CPL_OK;
}

cpl_status cpli_wire_test(cpli_request *request, bool *done,
                          cpli_arrival *arrival)
{
    MPI_Request mine = request_of(request);
    MPI_Status status;
    int flag = 0;
    int count = 0;
    cpl_status result = checked(MPI_Test(&mine, &flag, &status), "message");
    keep(request, mine);
    *done = flag || result != CPL_OK;
    if (*done && result == CPL_OK &&
        MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS)
        *arrival = (cpli_arrival){status.MPI_SOURCE, (size_t)count};
    return result;
}

void cpli_wire_cancel(cpli_request *request)
{
    MPI_Request mine = request_of(request);
    if (mine != MPI_REQUEST_NULL)
        MPI_Cancel(&mine);
}

/* ---- all-to-all ---- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A divisor of `unit` that fits into an int, as large as can easily be found.
 */
static int64_t divisor_that_fits(int64_t unit)
{
    int64_t parts = cpli_ceil_div(unit, INT_MAX);
    while (unit % parts != 0 && parts < 1 << 16)
        parts++;
    return unit % parts == 0 ? unit / parts : 1;
}

/* The unit in which all numbers are counted: 1 where that is enough. */
static int64_t find_unit(const int64_t *const *lists, int n, int64_t *largest)
{
    int64_t unit = 0;
    *largest = 0;
    for (int list = 0; list < 4; list++)
        for (int i = 0; i < n; i++) {
            unit = common_divisor(unit, lists[list][i]);
            *largest = cpli_max(*largest, lists[list][i]);
        }
    return *largest < INT_MAX ? 1 : divisor_that_fits(unit);
}

/* Open MPI takes src == dst for MPI_IN_PLACE, where it means offsets from the
 * same address: then those of src count from one unit before. */
static const void *distinct(const cpli_blocks *blocks, int n, int64_t unit)
{
    if (blocks->src != blocks->dst)
        return blocks->src;
    for (int rank = 0; rank < n; rank++)
        blocks->ints[n + rank]++;
    return (const char *)blocks->src - unit;
}

static cpl_status start_all_to_all(const cpli_channel *channel,
                                   const cpli_blocks *blocks, const void *src,
                                   MPI_Datatype type, cpli_request *out)
{
    int n = channel->size;
    int *ints = blocks->ints;
    MPI_Request request;
    CPL_TRY(checked(MPI_Ialltoallv(src, ints, ints + n, type, blocks->dst,
                                   ints + 2 * n, ints + 3 * n, type,
                                   comm_of(channel), &request),
                    "all-to-all"));
    keep(out, request);
    return CPL_OK;
}

cpl_status cpli_wire_all_to_all(const cpli_channel *channel,
                                const cpli_blocks *blocks, cpli_request *out)
{
    int n = channel->size;
    const int64_t *const lists[] = {blocks->to, blocks->to_offsets,
                                    blocks->from, blocks->from_offsets};
    int64_t largest = 0;
    int64_t unit = find_unit(lists, n, &largest);
    if (largest / unit >= INT_MAX)
        return cpli_fail(CPL_UNSUPPORTED,
                         "mpi: an all-to-all up to byte %lld in units of %lld "
                         "bytes, too many for MPI",
                         (long long)largest, (long long)unit);
    for (int i = 0; i < 4 * n; i++)
        blocks->ints[i] = (int)(lists[i / n][i % n] / unit);
    const void *src = distinct(blocks, n, unit);
    if (unit == 1)
        return start_all_to_all(channel, blocks, src, MPI_BYTE, out);
    MPI_Datatype type;
    CPL_TRY(checked(MPI_Type_contiguous((int)unit, MPI_BYTE, &type), "type"));
    MPI_Type_commit(&type);
    cpl_status status = start_all_to_all(channel, blocks, src, type, out);
    MPI_Type_free(&type); /* lives on until the request is done */
    return status;
}

/* ---- the yardstick ---- */

static cpl_status check_counts(const cpli_channel *channel, const size_t *to,
                               const size_t *from)
{
    for (int peer = 0; peer < channel->size; peer++)
        if (to[peer] > INT_MAX || from[peer] > INT_MAX)
            return cpli_fail(CPL_UNSUPPORTED,
                             "mpi: a plain message of %zu bytes, 2^31 or more",
                             to[peer] > from[peer] ? to[peer] : from[peer]);
    return CPL_OK;
}

cpl_status cpli_wire_plain(const cpli_channel *channel, int tag,
                           const void *src, const size_t *to, void *dst,
                           const size_t *from, cpli_request *room)
{
    MPI_Request *mine = (MPI_Request *)room;
    const char *out = src;
    char *in = dst;
    int n = 0;
    int code = MPI_SUCCESS;
    CPL_TRY(check_counts(channel, to, from));
    for (int peer = 0; peer < channel->size; in += from[peer++])
        if (from[peer] > 0 && code == MPI_SUCCESS)
            code = MPI_Irecv(in, (int)from[peer], MPI_BYTE, peer, tag,
                             comm_of(channel), &mine[n++]);
    for (int peer = 0; peer < channel->size; out += to[peer++])
        if (to[peer] > 0 && code == MPI_SUCCESS)
            code = MPI_Isend(out, (int)to[peer], MPI_BYTE, peer, tag,
                             comm_of(channel), &mine[n++]);
    if (code == MPI_SUCCESS)
        code = MPI_Waitall(n, mine, MPI_STATUSES_IGNORE);
    return checked(code, "plain exchange");
}
