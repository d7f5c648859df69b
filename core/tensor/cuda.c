/*
 * cuda.c: what tensors and exchanges ask of a CUDA device, and the door of the
 * plug-in. Everything goes into the rank's stream; only uploads and downloads
 * wait for it.
 */
#include "comm/cuda_rank.h"
#include "comm/devices.h"
#include "comm/world.h"

#include <stdio.h>

static int number(const cpl_comm *comm)
{
    return cpli_cuda_of(comm)->number;
}

static cpl_status copy_any(cpl_comm *comm, void *to, const void *from,
                           size_t bytes, enum cudaMemcpyKind kind,
                           const char *doing)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } words = {to, from, bytes};
    if (bytes == 0 || CPLI_CUDA_NOTES(device, doing, words))
        return CPL_OK;
    return cpli_cuda_check(
        device, cudaMemcpyAsync(to, from, bytes, kind, device->stream), doing);
}

static cpl_status download(cpl_comm *comm, void *to, const void *from,
                           size_t bytes)
{
    if (bytes == 0)
        return CPL_OK;
    CPL_TRY(
        copy_any(comm, to, from, bytes, cudaMemcpyDeviceToHost, "a download"));
    return cpli_cuda_wait(cpli_cuda_of(comm), "a download");
}

static cpl_status copy(cpl_comm *comm, void *to, const void *from, size_t bytes)
{
    return copy_any(comm, to, from, bytes, cudaMemcpyDeviceToDevice, "a copy");
}

/* Whether all bytes of an element are one byte. */
static bool is_byte(const unsigned char *element, size_t bytes)
{
    for (size_t i = 1; i < bytes; i++)
        if (element[i] != element[0])
            return false;
    return true;
}

/* Other elements come from the host, which is no part of a step. */
static cpl_status upload_elements(cpl_comm *comm, void *to, const void *element,
                                  size_t bytes, int64_t n)
{
    char *all;
    CPL_TRY(cpli_alloc((size_t)n, bytes, (void **)&all));
    for (int64_t i = 0; i < n; i++)
        memcpy(all + (size_t)i * bytes, element, bytes);
    cpl_status status = cpli_cuda_upload(comm, to, all, (size_t)n * bytes);
    cpli_free(all);
    return status;
}

static cpl_status fill(cpl_comm *comm, void *to, const void *element,
                       size_t element_bytes, int64_t n)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    const unsigned char *bytes = element;
    if (n == 0)
        return CPL_OK;
    if (!is_byte(bytes, element_bytes))
        return upload_elements(comm, to, element, element_bytes, n);
    struct {
        void *to;
        int64_t bytes;
        int64_t byte;
    } words = {to, n * (int64_t)element_bytes, bytes[0]};
    if (CPLI_CUDA_NOTES(device, "a fill", words))
        return CPL_OK;
    return cpli_cuda_check(device,
                           cudaMemsetAsync(to, bytes[0],
                                           (size_t)n * element_bytes,
                                           device->stream),
                           "a fill");
}

static cpl_status divide(cpl_comm *comm, int64_t *t, int64_t n, int64_t by)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    struct {
        int64_t *t;
        int64_t n, by;
    } words = {t, n, by};
    if (n == 0 || CPLI_CUDA_NOTES(device, "divide", words))
        return CPL_OK;
    return cpli_cuda_launched(device,
                              cpl_cuda_trace_divide(t, n, by, device->stream),
                              "cpl_cuda_trace_divide");
}

static cpl_status wait_for_all(cpl_comm *comm)
{
    return cpli_cuda_wait(cpli_cuda_of(comm), "a wait");
}

/* ---- lists of local moves ---- */

static cpl_status reserve(cpl_comm *comm, cpli_carries *list)
{
    cpli_end *ends;
    cpli_table *table;
    CPL_TRY(CPL_ALLOC(list->n, &ends));
    for (int64_t i = 0; i < list->n; i++)
        ends[i] = (cpli_end){.from = list->items[i].from_offset,
                             .to = list->items[i].to_offset,
                             .bytes = list->items[i].bytes,
                             .place = list->items[i].from};
    cpl_status status = cpli_table_create(
        comm, ends, list->n, CPLI_CARRY_PLACES, list, false, &table);
    cpli_free(ends);
    if (status == CPL_OK)
        list->tables = table;
    return status;
}

static void release(cpl_comm *comm, cpli_carries *list)
{
    cpli_table_destroy(comm, list->tables);
    list->tables = NULL;
}

static cpl_status carry(cpl_comm *comm, const cpli_carries *list,
                        char *const *at, void *to)
{
    return cpli_table_launch(comm, list->tables, (void *const *)at, to);
}

static const cpli_device_ops device_ops = {
    .name = cpli_cuda_name,
    .number = number,
    .kernels = cpli_cuda_kernels,
    .upload = cpli_cuda_upload,
    .send = cpli_cuda_send,
    .download = download,
    .copy = copy,
    .fill = fill,
    .write_runs = cpli_cuda_write_runs,
    .compare = cpli_cuda_compare,
    .found = cpli_cuda_found,
    .divide = divide,
    .reserve = reserve,
    .release = release,
    .carry = carry,
    .make_marks = cpli_cuda_make_marks,
    .drop_marks = cpli_cuda_drop_marks,
    .mark = cpli_cuda_mark,
    .seconds = cpli_cuda_seconds,
    .wait = wait_for_all,
    .begin_capture = cpli_cuda_begin_capture,
    .end_capture = cpli_cuda_end_capture,
    .launch = cpli_cuda_launch,
    .drop = cpli_cuda_drop,
    .moulds = &cpli_cuda_moulds,
};

/* ---- the door ---- */

static void look(cpl_devices_found *out)
{
    *out = (cpl_devices_found){.runtime = CUDART_VERSION};
    cudaDriverGetVersion(&out->driver);
    if (cpli_cuda_count(&out->n_devices) != CPL_OK)
        snprintf(out->problem, sizeof out->problem, "%s", cpl_last_error());
    out->n_devices = (int)cpli_min(out->n_devices, CPL_MAX_DEVICES);
    for (int i = 0; i < out->n_devices; i++) {
        struct cudaDeviceProp properties;
        if (cudaGetDeviceProperties(&properties, i) == cudaSuccess)
            snprintf(out->names[i], sizeof out->names[i], "%.63s",
                     properties.name);
    }
    out->nccl = cpli_nccl_version(out->nccl_problem, sizeof out->nccl_problem);
    out->cublas =
        cpli_cublas_version(out->cublas_problem, sizeof out->cublas_problem);
}

static bool is_of_threads(const cpl_comm *host)
{
    return host->ops == &cpli_local_ops;
}

static cpl_status join(cpl_comm *host, const char *transport, cpl_comm **out)
{
    bool direct = transport == NULL ? is_of_threads(host)
                                    : strcmp(transport, "direct") == 0;
    if (!direct && transport != NULL && strcmp(transport, "nccl") != 0)
        return cpli_fail(CPL_INVALID,
                         "device %s: no transport \"%s\"; there are: direct "
                         "nccl",
                         cpli_cuda_name, transport);
    if (direct && !is_of_threads(host))
        return cpli_fail(CPL_UNSUPPORTED,
                         "device %s: the transport direct is for ranks that "
                         "are threads; processes use nccl",
                         cpli_cuda_name);
    bool is_emulated = strcmp(cpli_cuda_name, "cuda-emulated") == 0;
    if (is_emulated && !is_of_threads(host) && cpl_comm_size(host) > 1)
        return cpli_fail(CPL_UNSUPPORTED,
                         "device %s: it is for ranks that are threads, not for "
                         "%d processes",
                         cpli_cuda_name, cpl_comm_size(host));
    return direct ? cpli_direct_join(host, &device_ops, out)
                  : cpli_nccl_join(host, &device_ops, out);
}

static void leave(cpl_comm *comm, bool failed)
{
    if (cpli_is_direct(comm))
        cpli_direct_leave(comm);
    else
        cpli_nccl_leave(comm, failed);
}

static void part(cpl_comm *comm)
{
    if (cpli_is_direct(comm))
        cpli_direct_part(comm);
    else
        cpli_nccl_part(comm);
}

cpl_status cpl_cuda_open(const cpli_devices_ops **out)
{
    static const cpli_devices_ops ops = {.version = CPLI_DEVICES_VERSION,
                                         .name = cpli_cuda_name,
                                         .look = look,
                                         .join = join,
                                         .leave = leave,
                                         .part = part};
    *out = &ops;
    return CPL_OK;
}
