/*
 * sum.c: the sum of a tensor over a group, where it lies. In the host's memory
 * that is the comm's own. On devices it is the adjoint of a view in which every
 * rank sees all slices: each rank adds up its slice of what all have, in rank
 * order, and then all see the slices again. Nothing waits for a device.
 */
#include "base.h"
#include "comm/comm.h"
#include "exchange.h"
#include "tensor/tensor.h"

struct cpl_sum {
    cpl_comm *comm;
    cpl_dtype dtype;
    int64_t n;
    cpl_plan *plan;    /* NULL: the comm's own sum, or nothing to add */
    cpl_tensor *slice; /* mine, of the sum */
};

/* Where the slice of a rank begins. */
static int64_t begin_of(const cpl_sum *sum, int rank)
{
    int64_t size = cpl_comm_size(sum->comm);
    return sum->n / size * rank + cpli_min(rank, sum->n % size);
}

static int64_t length_of(const cpl_sum *sum, int rank)
{
    return begin_of(sum, rank + 1) - begin_of(sum, rank);
}

/* All ranks take mine, and I take theirs. */
static void list(const cpl_sum *sum, cpl_segment *sends, cpl_segment *receives,
                 cpl_route_part *part)
{
    int mine = cpl_comm_rank(sum->comm);
    *part = (cpl_route_part){.sends = sends,
                             .receives = receives,
                             .n_source_rows = length_of(sum, mine),
                             .n_target_rows = sum->n};
    for (int rank = 0; rank < cpl_comm_size(sum->comm); rank++) {
        if (part->n_source_rows > 0)
            sends[part->n_sends++] =
                (cpl_segment){.peer = rank,
                              .peer_slot = begin_of(sum, mine),
                              .length = part->n_source_rows};
        if (length_of(sum, rank) > 0)
            receives[part->n_receives++] =
                (cpl_segment){.peer = rank,
                              .slot = begin_of(sum, rank),
                              .length = length_of(sum, rank)};
    }
}

static cpl_status make_plan(cpl_sum *sum)
{
    int size = cpl_comm_size(sum->comm);
    cpl_segment *segments;
    cpl_route_part part;
    CPL_TRY(CPL_ALLOC(2 * (int64_t)size, &segments));
    list(sum, segments, segments + size, &part);
    cpl_status status =
        cpli_plan_from_parts(&part, sum->comm, sum->dtype, 1, &sum->plan);
    cpli_free(segments);
    CPL_TRY(status);
    return cpl_tensor_create(sum->dtype, 1, &part.n_source_rows, sum->comm,
                             &sum->slice);
}

static cpl_status check(cpl_dtype dtype, int64_t n)
{
    if ((unsigned)dtype >= CPL_N_DTYPES)
        return cpli_fail(CPL_UNSUPPORTED, "sum: no sum of %s",
                         cpl_dtype_name(dtype));
    if (n < 0)
        return cpli_fail(CPL_INVALID, "sum: %lld elements", (long long)n);
    return CPL_OK;
}

cpl_status cpl_sum_create(cpl_comm *comm, cpl_dtype dtype, int64_t n,
                          cpl_sum **out)
{
    cpl_sum *sum;
    CPL_TRY(check(dtype, n));
    cpl_status status = CPL_ALLOC(1, &sum);
    if (status == CPL_OK) {
        *sum = (cpl_sum){.comm = comm, .dtype = dtype, .n = n};
        if (cpli_device_of(comm) != NULL && cpl_comm_size(comm) > 1 && n > 0)
            status = make_plan(sum);
    } else {
        sum = NULL;
    }
    status = cpl_comm_agree(comm, status);
    if (status != CPL_OK) {
        cpl_sum_destroy(sum);
        return status;
    }
    *out = sum;
    return CPL_OK;
}

void cpl_sum_destroy(cpl_sum *sum)
{
    if (sum == NULL)
        return;
    cpl_plan_destroy(sum->plan);
    cpl_tensor_destroy(sum->slice);
    cpli_free(sum);
}

static cpl_status execute(const cpl_sum *sum, cpl_tensor *all)
{
    CPL_TRY(cpl_plan_start_adjoint(sum->plan, all, sum->slice, false));
    CPL_TRY(cpl_plan_finish(sum->plan));
    CPL_TRY(cpl_plan_start(sum->plan, sum->slice, all));
    return cpl_plan_finish(sum->plan);
}

cpl_status cpl_sum_execute(cpl_sum *sum, cpl_tensor *tensor)
{
    if (tensor->dtype != sum->dtype || cpl_tensor_n_elements(tensor) != sum->n)
        return cpli_fail(CPL_MISMATCH,
                         "sum: %lld elements of %s, made for %lld of %s",
                         (long long)cpl_tensor_n_elements(tensor),
                         cpl_dtype_name(tensor->dtype), (long long)sum->n,
                         cpl_dtype_name(sum->dtype));
    if (cpli_device_of(sum->comm) == NULL)
        return cpl_comm_sum(sum->comm, tensor->data, sum->n, sum->dtype);
    if (sum->plan == NULL)
        return CPL_OK;
    cpl_tensor flat = {.data = tensor->data,
                       .shape = {sum->n},
                       .n_dims = 1,
                       .dtype = sum->dtype,
                       .comm = tensor->comm};
    return execute(sum, &flat);
}
