/*
 * tensor.c: rows of numbers. A tensor owns its memory (from the heap, or from
 * the transport of its comm) or wraps somebody else's; as an activation it
 * also knows whose rows it holds.
 */
#include <stdio.h>

#include "base.h"
#include "comm/comm.h"
#include "tensor.h"
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

cpl_status cpli_tensor_over(void *data, cpl_dtype dtype, int n_dims,
                            const int64_t *shape, cpl_comm *comm,
                            cpl_tensor **out)
{
    CPL_TRY(cpl_tensor_wrap(data, dtype, n_dims, shape, out));
    (*out)->comm = comm;
    return CPL_OK;
}

cpl_status cpl_tensor_view(const cpl_tensor *of, int64_t first, int n_dims,
                           const int64_t *shape, cpl_tensor **out)
{
    cpl_tensor *view;
    int64_t room = cpl_tensor_n_elements(of) - first;
    size_t skipped = (size_t)first * cpl_dtype_bytes(of->dtype);
    CPL_TRY(cpli_tensor_over((char *)of->data + skipped, of->dtype, n_dims,
                             shape, of->comm, &view));
    if (first < 0 || cpl_tensor_n_elements(view) > room) {
        int64_t n = cpl_tensor_n_elements(view);
        cpl_tensor_destroy(view);
        return cpli_fail(CPL_INVALID,
                         "tensor: a view of %lld elements from %lld on, of a "
                         "tensor of %lld",
                         (long long)n, (long long)first,
                         (long long)cpl_tensor_n_elements(of));
    }
    *out = view;
    return CPL_OK;
}

void cpl_tensor_destroy(cpl_tensor *tensor)
{
    if (tensor == NULL)
        return;
    cpli_drop_trace(tensor);
    if (tensor->spare != NULL)
        cpli_comm_free(tensor->comm, tensor->spare);
    if (tensor->comm != NULL && tensor->block != NULL)
        cpli_comm_free(tensor->comm, tensor->block);
    else
        cpli_free(tensor->block);
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

const char *cpl_tensor_device(const cpl_tensor *tensor)
{
    static _Thread_local char text[64];
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    if (device == NULL)
        return "cpu";
    snprintf(text, sizeof text, "%s %d", device->name,
             device->number(tensor->comm));
    return text;
}

/* ---- traces ---- */

cpl_status cpli_need_trace(cpl_tensor *tensor)
{
    int64_t n = cpl_tensor_n_rows(tensor);
    if (tensor->trace != NULL)
        return CPL_OK;
    if (cpli_device_of(tensor->comm) == NULL)
        return CPL_ALLOC(n, &tensor->trace);
    if (tensor->spare == NULL)
        CPL_TRY(cpli_comm_alloc(tensor->comm, (size_t)n * sizeof(int64_t),
                                (void **)&tensor->spare));
    tensor->trace = tensor->spare;
    tensor->spare = NULL;
    return CPL_OK;
}

void cpli_drop_trace(cpl_tensor *tensor)
{
    if (cpli_device_of(tensor->comm) == NULL)
        cpli_free(tensor->trace);
    else if (tensor->trace != NULL)
        tensor->spare = tensor->trace;
    tensor->trace = NULL;
}

cpl_status cpli_clear_trace(cpl_tensor *tensor)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    const int64_t none = -1;
    int64_t n = cpl_tensor_n_rows(tensor);
    CPL_TRY(cpli_need_trace(tensor));
    if (device != NULL)
        return device->fill(tensor->comm, tensor->trace, &none, sizeof none, n);
    for (int64_t i = 0; i < n; i++)
        tensor->trace[i] = none;
    return CPL_OK;
}

cpl_status cpl_tensor_get_trace(const cpl_tensor *tensor, int64_t *out)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    size_t bytes = (size_t)cpl_tensor_n_rows(tensor) * sizeof *out;
    if (tensor->trace == NULL)
        return cpli_fail(CPL_INVALID, "tensor: its rows are not traced");
    if (device != NULL)
        return device->download(tensor->comm, out, tensor->trace, bytes);
    memcpy(out, tensor->trace, bytes);
    return CPL_OK;
}

cpl_status cpl_tensor_set_trace(cpl_tensor *tensor, const int64_t *positions)
{
    size_t bytes = (size_t)cpl_tensor_n_rows(tensor) * sizeof *positions;
    CPL_TRY(cpli_need_trace(tensor));
    if (cpli_device_of(tensor->comm) != NULL)
        return cpli_device_of(tensor->comm)
            ->upload(tensor->comm, tensor->trace, positions, bytes);
    memcpy(tensor->trace, positions, bytes);
    return CPL_OK;
}

static cpl_status trace_layout(cpl_tensor *tensor, const cpl_layout *layout,
                               int rank)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    int64_t n_runs;
    cpl_run *runs;
    CPL_TRY(cpli_need_trace(tensor));
    if (device == NULL)
        return cpl_layout_positions(layout, rank, tensor->trace);
    CPL_TRY(cpl_layout_n_runs(layout, rank, &n_runs));
    CPL_TRY(CPL_ALLOC(n_runs, &runs));
    cpl_status status = cpl_layout_runs(layout, rank, runs);
    if (status == CPL_OK)
        status = device->write_runs(tensor->comm, tensor->trace,
                                    cpl_tensor_n_rows(tensor), runs, n_runs);
    cpli_free(runs);
    return status;
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
    if (traced)
        CPL_TRY(trace_layout(tensor, layout, rank));
    else
        cpli_drop_trace(tensor);
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

/* Between a device and the host, or two devices, only uploads and downloads go.
 */
static cpl_status check_same_device(const cpl_tensor *dst,
                                    const cpl_tensor *src)
{
    char place[64];
    if (cpli_device_of(dst->comm) == cpli_device_of(src->comm) &&
        (cpli_device_of(dst->comm) == NULL || dst->comm == src->comm))
        return CPL_OK;
    snprintf(place, sizeof place, "%s", cpl_tensor_device(src));
    return cpli_fail(CPL_MISMATCH, "tensor: a copy from %s to %s", place,
                     cpl_tensor_device(dst));
}

static cpl_status copy_bytes(const cpl_tensor *dst, void *to, const void *from,
                             size_t bytes)
{
    const cpli_device_ops *device = cpli_device_of(dst->comm);
    if (device != NULL)
        return device->copy(dst->comm, to, from, bytes);
    memcpy(to, from, bytes);
    return CPL_OK;
}

cpl_status cpl_tensor_mark_like(cpl_tensor *tensor, const cpl_tensor *other)
{
    int64_t n_rows = cpl_tensor_n_rows(tensor);
    if (n_rows != cpl_tensor_n_rows(other))
        return cpli_fail(CPL_MISMATCH, "tensor: %lld rows, not %lld",
                         (long long)n_rows,
                         (long long)cpl_tensor_n_rows(other));
    CPL_TRY(check_same_device(tensor, other));
    if (other->trace != NULL) {
        CPL_TRY(cpli_need_trace(tensor));
        CPL_TRY(copy_bytes(tensor, tensor->trace, other->trace,
                           (size_t)n_rows * sizeof(int64_t)));
    } else {
        cpli_drop_trace(tensor);
    }
    tensor->layout = other->layout;
    tensor->layout_kind = other->layout_kind;
    return CPL_OK;
}

cpl_status cpli_repeat_trace(cpl_tensor *tensor, const cpl_tensor *other)
{
    int64_t n = cpl_tensor_n_rows(other);
    if (other->trace == NULL) {
        cpli_drop_trace(tensor);
        return CPL_OK;
    }
    CPL_TRY(check_same_device(tensor, other));
    CPL_TRY(cpli_need_trace(tensor));
    for (int64_t i = 0; n > 0 && i < cpl_tensor_n_rows(tensor); i += n)
        CPL_TRY(copy_bytes(tensor, tensor->trace + i, other->trace,
                           (size_t)n * sizeof *other->trace));
    return CPL_OK;
}

cpl_status cpl_tensor_copy(cpl_tensor *dst, const cpl_tensor *src)
{
    if (dst->dtype != src->dtype || dst->n_dims != src->n_dims ||
        memcmp(dst->shape, src->shape,
               (size_t)src->n_dims * sizeof *src->shape) != 0)
        return cpli_fail(CPL_MISMATCH, "tensor: copy between two shapes");
    CPL_TRY(check_same_device(dst, src));
    return copy_bytes(dst, dst->data, src->data, cpl_tensor_bytes(src));
}

cpl_status cpl_tensor_fill(cpl_tensor *tensor, double value)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    int64_t n = cpl_tensor_n_elements(tensor);
    if (device != NULL) {
        uint64_t element = 0;
        cpl_dtype_store(tensor->dtype, &element, 0, value);
        return device->fill(tensor->comm, tensor->data, &element,
                            cpl_dtype_bytes(tensor->dtype), n);
    }
    if (value == 0) { /* all bits 0 in every dtype; the common case */
        memset(tensor->data, 0, cpl_tensor_bytes(tensor));
        return CPL_OK;
    }
    for (int64_t i = 0; i < n; i++)
        cpl_dtype_store(tensor->dtype, tensor->data, i, value);
    return CPL_OK;
}

cpl_status cpl_tensor_upload(cpl_tensor *tensor, const void *data)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    size_t bytes = cpl_tensor_bytes(tensor);
    if (device != NULL)
        return device->upload(tensor->comm, tensor->data, data, bytes);
    memcpy(tensor->data, data, bytes);
    return CPL_OK;
}

cpl_status cpl_tensor_send(cpl_tensor *tensor, const void *data)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    size_t bytes = cpl_tensor_bytes(tensor);
    if (device != NULL)
        return device->send(tensor->comm, tensor->data, data, bytes);
    memcpy(tensor->data, data, bytes);
    return CPL_OK;
}

cpl_status cpl_tensor_download(const cpl_tensor *tensor, void *out)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    size_t bytes = cpl_tensor_bytes(tensor);
    if (device != NULL)
        return device->download(tensor->comm, out, tensor->data, bytes);
    memcpy(out, tensor->data, bytes);
    return CPL_OK;
}
