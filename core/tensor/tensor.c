/*
 * tensor.c: rows of numbers. A tensor owns its memory (from the heap, or from
 * the transport of its comm) or wraps somebody else's; as an activation it
 * also knows whose rows it holds.
 */
#include "base.h"
#include "comm/comm.h"
#include "trace/trace.h"

static cpl_status check_shape(cpl_dtype dtype, int n_dims, const int64_t *shape)
{
    if ((unsigned)dtype >= CPL_N_DTYPES)
        return cpli_fail(CPL_INVALID, "tensor: unknown dtype %d", (int)dtype);
    if (n_dims < 1 || n_dims > CPL_MAX_DIMS)
        return cpli_fail(CPL_INVALID, "tensor: %d dimensions, not 1 to %d",
                         n_dims, CPL_MAX_DIMS);
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0)
            return cpli_fail(CPL_INVALID, "tensor: dimension %d is %lld", i,
                             (long long)shape[i]);
        if (__builtin_mul_overflow(n, cpli_max(shape[i], 1), &n))
            return cpli_fail(CPL_INVALID, "tensor: more than 2^63 elements");
    }
    return CPL_OK;
}

static cpl_status make(cpl_dtype dtype, int n_dims, const int64_t *shape,
                       cpl_tensor **out)
{
    CPL_TRY(check_shape(dtype, n_dims, shape));
    cpl_tensor *tensor;
    CPL_TRY(CPL_ALLOC(1, &tensor));
    tensor->dtype = dtype;
    tensor->n_dims = n_dims;
    memcpy(tensor->shape, shape, (size_t)n_dims * sizeof *shape);
    *out = tensor;
    return CPL_OK;
}

cpl_status cpl_tensor_create(cpl_dtype dtype, int n_dims, const int64_t *shape,
                             cpl_comm *comm, cpl_tensor **out)
{
    cpl_tensor *tensor;
    CPL_TRY(make(dtype, n_dims, shape, &tensor));
    size_t bytes = cpl_tensor_bytes(tensor);
    cpl_status status = comm != NULL
                            ? cpli_comm_alloc(comm, bytes, &tensor->block)
                            : cpli_alloc(bytes, 1, &tensor->block);
    if (status != CPL_OK) {
        cpli_free(tensor);
        return status;
    }
    tensor->comm = comm != NULL ? cpli_comm_whole(comm) : NULL;
    tensor->data = tensor->block;
    *out = tensor;
    return CPL_OK;
}

cpl_status cpl_tensor_wrap(void *data, cpl_dtype dtype, int n_dims,
                           const int64_t *shape, cpl_tensor **out)
{
    cpl_tensor *tensor;
    CPL_TRY(make(dtype, n_dims, shape, &tensor));
    tensor->data = data;
    *out = tensor;
    return CPL_OK;
}

void cpl_tensor_destroy(cpl_tensor *tensor)
{
    if (tensor == NULL)
        return;
    if (tensor->comm != NULL)
        cpli_comm_free(tensor->comm, tensor->block);
    else
        cpli_free(tensor->block);
    cpli_free(tensor->trace);
    cpli_free(tensor);
}

int64_t cpl_tensor_n_rows(const cpl_tensor *tensor)
{
    return tensor->shape[0];
}

int64_t cpl_tensor_width(const cpl_tensor *tensor)
{
    int64_t width = 1;
    for (int i = 1; i < tensor->n_dims; i++)
        width *= tensor->shape[i];
    return width;
}

int64_t cpl_tensor_n_elements(const cpl_tensor *tensor)
{
    return cpl_tensor_n_rows(tensor) * cpl_tensor_width(tensor);
}

size_t cpl_tensor_bytes(const cpl_tensor *tensor)
{
    return (size_t)cpl_tensor_n_elements(tensor) *
           cpl_dtype_bytes(tensor->dtype);
}

static cpl_status need_trace(cpl_tensor *tensor)
{
    if (tensor->trace != NULL)
        return CPL_OK;
    return CPL_ALLOC(cpl_tensor_n_rows(tensor), &tensor->trace);
}

cpl_status cpl_tensor_mark(cpl_tensor *tensor, const cpl_layout *layout,
                           int rank, bool traced)
{
    int64_t n_local;
    CPL_TRY(cpl_layout_n_local(layout, rank, &n_local));
    if (n_local != cpl_tensor_n_rows(tensor))
        return cpli_fail(CPL_MISMATCH,
                         "tensor: %lld rows, but rank %d has %lld in %s",
                         (long long)cpl_tensor_n_rows(tensor), rank,
                         (long long)n_local, cpl_layout_describe(layout));
    if (traced) {
        CPL_TRY(need_trace(tensor));
        CPL_TRY(cpl_layout_positions(layout, rank, tensor->trace));
    } else {
        cpli_free(tensor->trace);
        tensor->trace = NULL;
    }
    cpl_tensor_remark(tensor, layout);
    return CPL_OK;
}

void cpl_tensor_unmark(cpl_tensor *tensor)
{
    tensor->layout = 0;
    tensor->layout_kind = NULL;
}

void cpl_tensor_remark(cpl_tensor *tensor, const cpl_layout *layout)
{
    tensor->layout = cpl_layout_digest(layout);
    tensor->layout_kind = cpl_layout_kind(layout);
}

cpl_status cpl_tensor_mark_like(cpl_tensor *tensor, const cpl_tensor *other)
{
    int64_t n_rows = cpl_tensor_n_rows(tensor);
    if (n_rows != cpl_tensor_n_rows(other))
        return cpli_fail(CPL_MISMATCH, "tensor: %lld rows, not %lld",
                         (long long)n_rows,
                         (long long)cpl_tensor_n_rows(other));
    if (other->trace != NULL) {
        CPL_TRY(need_trace(tensor));
        memcpy(tensor->trace, other->trace, (size_t)n_rows * sizeof(int64_t));
    } else {
        cpli_free(tensor->trace);
        tensor->trace = NULL;
    }
    tensor->layout = other->layout;
    tensor->layout_kind = other->layout_kind;
    return CPL_OK;
}

cpl_status cpl_tensor_copy(cpl_tensor *dst, const cpl_tensor *src)
{
    if (dst->dtype != src->dtype || dst->n_dims != src->n_dims ||
        memcmp(dst->shape, src->shape,
               (size_t)src->n_dims * sizeof *src->shape) != 0)
        return cpli_fail(CPL_MISMATCH, "tensor: copy between two shapes");
    memcpy(dst->data, src->data, cpl_tensor_bytes(src));
    return CPL_OK;
}

void cpl_tensor_fill(cpl_tensor *tensor, double value)
{
    if (value == 0) { /* all bits 0 in every dtype; the common case */
        memset(tensor->data, 0, cpl_tensor_bytes(tensor));
        return;
    }
    int64_t n = cpl_tensor_n_elements(tensor);
    for (int64_t i = 0; i < n; i++)
        cpl_dtype_store(tensor->dtype, tensor->data, i, value);
}
