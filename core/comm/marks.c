/*
 * marks.c: marks in the ranks' orders of work on devices, and the time between
 * them by the devices' own clocks. What two ranks on one device did together
 * lies between marks of both.
 */
#include "comm.h"

/* What a rank tells the others. */
typedef struct face {
    const void *marks; /* the device's own */
    int device;
} face;

struct cpl_marks {
    cpl_comm *comm; /* that carries */
    int64_t n;
    void *own;
    face *faces; /* by rank */
};

static cpl_status check(const cpl_comm *comm, int64_t n)
{
    if (cpli_device_of(comm) == NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "marks: rows on the cpu have no clock of their own");
    if (n < 1)
        return cpli_fail(CPL_INVALID, "marks: %lld of them, not >= 1",
                         (long long)n);
    return CPL_OK;
}

static cpl_status make(cpl_comm *comm, int64_t n, cpl_marks **out)
{
    CPL_TRY(check(comm, n));
    CPL_TRY(CPL_ALLOC(1, out));
    (*out)->comm = comm;
    (*out)->n = n;
    CPL_TRY(CPL_ALLOC(comm->size, &(*out)->faces));
    return cpli_device_of(comm)->make_marks(comm, n, &(*out)->own);
}

cpl_status cpl_marks_create(cpl_comm *comm, int64_t n, cpl_marks **out)
{
    cpl_comm *group = cpli_comm_whole(comm);
    cpl_marks *marks = NULL;
    face mine;
    cpl_status status = cpl_comm_agree(group, make(group, n, &marks));
    if (status == CPL_OK) {
        mine = (face){marks->own, cpli_device_of(group)->number(group)};
        status = cpl_comm_gather(group, &mine, sizeof mine, marks->faces);
    }
    if (status != CPL_OK) {
        cpl_marks_destroy(marks);
        return status;
    }
    *out = marks;
    return CPL_OK;
}

void cpl_marks_destroy(cpl_marks *marks)
{
    if (marks == NULL)
        return;
    if (marks->own != NULL)
        cpli_device_of(marks->comm)->drop_marks(marks->comm, marks->own);
    cpli_free(marks->faces);
    cpli_free(marks);
}

static bool shares(const cpl_marks *marks, int rank)
{
    int me = marks->comm->rank;
    return rank == me || (marks->comm->ops->is_one_process &&
                          marks->faces[rank].device == marks->faces[me].device);
}

int cpl_marks_first(const cpl_marks *marks)
{
    int rank = 0;
    while (!shares(marks, rank))
        rank++;
    return rank;
}

static cpl_status check_number(const cpl_marks *marks, int64_t i)
{
    if (i >= 0 && i < marks->n)
        return CPL_OK;
    return cpli_fail(CPL_INVALID, "marks: there are 0 to %lld, not %lld",
                     (long long)marks->n - 1, (long long)i);
}

cpl_status cpl_marks_set(cpl_marks *marks, int64_t i)
{
    CPL_TRY(check_number(marks, i));
    return cpli_device_of(marks->comm)->mark(marks->comm, marks->own, i);
}

cpl_status cpl_marks_wait(cpl_marks *marks)
{
    return cpli_device_of(marks->comm)->wait(marks->comm);
}

cpl_status cpl_marks_seconds(const cpl_marks *marks, int rank, int64_t from,
                             int64_t to, double *out)
{
    CPL_TRY(check_number(marks, from));
    CPL_TRY(check_number(marks, to));
    if (rank < 0 || rank >= marks->comm->size || !shares(marks, rank))
        return cpli_fail(CPL_INVALID,
                         "marks: rank %d does not share the device of rank %d",
                         rank, marks->comm->rank);
    return cpli_device_of(marks->comm)
        ->seconds(marks->comm, marks->faces[rank].marks, from, marks->own, to,
                  out);
}
