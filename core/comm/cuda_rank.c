/*
 * cuda_rank.c: a rank's device: its stream, its memory, and what went wrong on
 * it. CUDA tells of errors inside kernels late and for ever: all calls after
 * one fail, so the first sentence must say all that is known.
 */
#include "cuda_rank.h"

#include <stdio.h>

#ifdef CPLAB_CUDA_EMULATED
#include "emulation/emulation.h"
const char cpli_cuda_name[] = "cuda-emulated";
#else
const char cpli_cuda_name[] = "cuda";
#endif

enum { TEXT_BYTES = 512 };

/* ---- errors ---- */

/* The emulator knows more than CUDA can tell. */
static const char *details(void)
{
#ifdef CPLAB_CUDA_EMULATED
    return cpl_emulation_why();
#else
    return "";
#endif
}

/* Whether the error is of a kernel, and may be told by any later call. */
static bool is_of_kernel(cudaError_t error)
{
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
        return true;
    default:
        return false;
    }
}

static void append(char *text, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, TEXT_BYTES - used, "%s", more);
}

/* "kernel a", or "one of the kernels a, b". */
static void name_kernels(const cpli_cuda *device, char *text)
{
    int n = device->n_kernels;
    append(text, n == 1 ? "kernel " : "one of the kernels ");
    for (int i = 0; i < n; i++) {
        append(text, i > 0 ? ", " : "");
        append(text, device->kernels[i]);
    }
}

static cpl_status fail_in_kernel(const cpli_cuda *device, cudaError_t error)
{
    char text[TEXT_BYTES] = "";
    if (device->n_kernels > 0)
        name_kernels(device, text);
    else
        append(text, "a kernel of another rank");
    const char *more = details();
    return cpli_fail(CPL_SYSTEM, "%s %d: %s: %s%s%s", cpli_cuda_name,
                     device->number, text, cudaGetErrorString(error),
                     more[0] != '\0' ? ": " : "", more);
}

static cpl_status fail_memory(const cpli_cuda *device, const char *doing)
{
    size_t left = 0;
    size_t all = 0;
    cudaMemGetInfo(&left, &all);
    return cpli_fail(CPL_MEMORY,
                     "%s %d: out of memory in %s: %zu of %zu bytes are left",
                     cpli_cuda_name, device->number, doing, left, all);
}

/* What a table's kernel left to be said. */
static cpl_status say(cpli_cuda *device)
{
    cpl_status status = device->unsaid;
    device->unsaid = CPL_OK;
    return cpli_fail(status, "%s", device->why);
}

cpl_status cpli_cuda_check(cpli_cuda *device, cudaError_t error,
                           const char *doing)
{
    if (device->unsaid != CPL_OK)
        return say(device);
    if (error == cudaSuccess)
        return CPL_OK;
    if (is_of_kernel(error))
        return fail_in_kernel(device, error);
    cudaGetLastError(); /* is told now, and not again */
    if (error == cudaErrorMemoryAllocation)
        return fail_memory(device, doing);
    return cpli_fail(CPL_SYSTEM, "%s %d: %s in %s", cpli_cuda_name,
                     device->number, cudaGetErrorString(error), doing);
}

static void remember(cpli_cuda *device, const char *name)
{
    for (int i = 0; i < device->n_kernels; i++)
        if (device->kernels[i] == name)
            return;
    if (device->n_kernels < CPLI_CUDA_NAMES)
        device->kernels[device->n_kernels++] = name;
}

cpl_status cpli_cuda_launched(cpli_cuda *device, int error, const char *name)
{
    remember(device, name);
    return cpli_cuda_check(device, (cudaError_t)error, name);
}

/* One thread is one rank's. */
static _Thread_local cpli_cuda *here;

cpli_cuda *cpli_cuda_here(void)
{
    return here;
}

cpl_cuda_stream cpli_cuda_stream_here(void)
{
    return here->stream;
}

void cpli_cuda_keep(cpli_cuda *device, cpl_status status)
{
    if (device->unsaid != CPL_OK || status == CPL_OK)
        return;
    device->unsaid = status;
    snprintf(device->why, sizeof device->why, "%s", cpl_last_error());
}

void cpli_cuda_ran(int error, const char *name)
{
    cpl_status before = here->unsaid;
    here->unsaid = CPL_OK; /* is not said here */
    cpl_status status = cpli_cuda_launched(here, error, name);
    here->unsaid = before;
    cpli_cuda_keep(here, status);
}

/* Looks at the stream, and after the others where it may wait for them. The
 * stream is done in any case: it may write to memory of the caller. */
static cpl_status await_stream(cpli_cuda *device, const char *doing,
                               cudaError_t *error)
{
    cpl_status status = CPL_OK;
    double since = cpl_clock();
    while (device->watch != NULL && status == CPL_OK &&
           cudaStreamQuery(device->stream) == cudaErrorNotReady) {
        double waited = cpl_clock() - since;
        status = device->watch(device->comm, waited, doing);
        cpli_pause(waited);
    }
    *error = cudaStreamSynchronize(device->stream);
    return status;
}

cpl_status cpli_cuda_await(cpli_cuda *device, const char *doing)
{
    cudaError_t error;
    CPL_TRY(await_stream(device, doing, &error));
    CPL_TRY(cpli_cuda_check(device, error, doing));
    device->n_kernels = 0;
    return CPL_OK;
}

cpl_status cpli_cuda_wait(cpli_cuda *device, const char *doing)
{
    CPL_TRY(cpli_cuda_refuse_capture(device, doing));
    cpl_counters_here()->host_syncs++;
    return cpli_cuda_await(device, doing);
}

void cpli_cuda_settle(cpli_cuda *device)
{
    cudaError_t error;
    if (device->is_capturing)
        return; /* waiting would end the capture */
    await_stream(device, "giving up memory", &error);
}

/* ---- opening ---- */

static cpl_status fail_none(cudaError_t error)
{
    int driver = 0;
    cudaDriverGetVersion(&driver);
    cudaGetLastError();
    if (driver == 0)
        return cpli_fail(CPL_UNSUPPORTED,
                         "device %s: there is no NVIDIA driver here",
                         cpli_cuda_name);
    if (error == cudaErrorInsufficientDriver)
        return cpli_fail(CPL_UNSUPPORTED,
                         "device %s: the driver serves CUDA %d.%d, this build "
                         "wants %d.%d or later",
                         cpli_cuda_name, driver / 1000, driver % 1000 / 10,
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return cpli_fail(CPL_UNSUPPORTED, "device %s: there is no GPU here (%s)",
                     cpli_cuda_name,
                     error == cudaSuccess ? "the driver names none"
                                          : cudaGetErrorString(error));
}

cpl_status cpli_cuda_count(int *out)
{
    int n = 0; /* not written where there is no driver */
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || n <= 0)
        return fail_none(error);
    *out = n;
    return CPL_OK;
}

cpl_status cpli_cuda_open(cpli_cuda *device, int number)
{
    device->number = number;
    here = device;
    CPL_TRY(cpli_cuda_check(device, cudaSetDevice(number), "choosing it"));
    CPL_TRY(cpli_cuda_check(
        device,
        cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking),
        "making a stream"));
    return cpli_cublas_open(device);
}

void cpli_cuda_close(cpli_cuda *device)
{
    cpli_cublas_close(device);
    cpli_cuda_drop_traces(device);
    cpli_cuda_drop_pinned(device);
    cpli_free(device->blocks);
    if (device->stream != NULL)
        cudaStreamDestroy(device->stream);
    if (here == device)
        here = NULL;
    *device = (cpli_cuda){0};
}

/* ---- memory ---- */

static cpl_status make_room(cpli_cuda *device)
{
    void *blocks = device->blocks;
    int64_t room = cpli_max(2 * device->room, 64);
    if (device->n_blocks < device->room)
        return CPL_OK;
    CPL_TRY(cpli_realloc(&blocks, (size_t)room, sizeof *device->blocks));
    device->blocks = blocks;
    device->room = room;
    return CPL_OK;
}

static cudaError_t zeroed(const cpli_cuda *device, size_t bytes, void **out)
{
    size_t some = bytes > 0 ? bytes : 1;
    cudaError_t error = cudaMalloc(out, some);
    return error != cudaSuccess
               ? error
               : cudaMemsetAsync(*out, 0, some, device->stream);
}

cpl_status cpli_cuda_zero(cpli_cuda *device, void *memory, size_t bytes)
{
    return cpli_cuda_check(device,
                           cudaMemsetAsync(memory, 0, bytes, device->stream),
                           "zeroing memory");
}

cpl_status cpli_cuda_take(cpli_cuda *device, size_t bytes, void **out)
{
    if (device->mould == NULL)
        return cpli_cuda_take_new(device, bytes, out);
    return cpli_mould_take(device->mould, bytes, out);
}

cpl_status cpli_cuda_take_new(cpli_cuda *device, size_t bytes, void **out)
{
    char doing[64];
    void *memory = NULL;
    if (device->is_capturing)
        return cpli_cuda_refuse_capture(device, "taking memory");
    CPL_TRY(make_room(device));
    CPL_TRY(cpli_count_block(bytes));
    cudaError_t error = zeroed(device, bytes, &memory);
    if (error != cudaSuccess) {
        cpli_uncount_blocks(1, (int64_t)bytes);
        snprintf(doing, sizeof doing, "taking %zu bytes", bytes);
        return cpli_cuda_check(device, error, doing);
    }
    device->blocks[device->n_blocks++] =
        (cpli_cuda_block){.memory = memory, .bytes = bytes};
    *out = memory;
    return CPL_OK;
}

static void give_block(cpli_cuda *device, int64_t i)
{
    void *memory = device->blocks[i].memory;
    cpli_uncount_blocks(1, (int64_t)device->blocks[i].bytes);
    device->blocks[i] = device->blocks[--device->n_blocks];
    /* Others that read it have told my stream when they end. */
    cpli_cuda_settle(device);
    cudaFree(memory);
}

static int64_t find_block(const cpli_cuda *device, const void *memory)
{
    int64_t i = device->n_blocks - 1;
    while (i >= 0 && device->blocks[i].memory != memory)
        i--;
    CPL_ASSERT(i >= 0);
    return i;
}

void cpli_cuda_own(cpli_cuda *device, const void *memory, cpli_mould *mould)
{
    device->blocks[find_block(device, memory)].mould = mould;
}

void cpli_cuda_give(cpli_cuda *device, void *memory)
{
    if (memory == NULL)
        return;
    int64_t i = find_block(device, memory);
    cpli_mould *mould = device->blocks[i].mould;
    if (mould != NULL && cpli_mould_give(mould, memory))
        return;
    if (device->is_capturing)
        device->blocks[i].is_given_up = true;
    else
        give_block(device, i);
}

void cpli_cuda_give_rest(cpli_cuda *device)
{
    for (int64_t i = device->n_blocks - 1; i >= 0; i--)
        if (device->blocks[i].is_given_up)
            give_block(device, i);
}

cpl_status cpli_cuda_alloc(cpl_comm *comm, size_t bytes, void **out)
{
    return cpli_cuda_take(cpli_cuda_of(comm), bytes, out);
}

void cpli_cuda_free(cpl_comm *comm, void *memory)
{
    cpli_cuda_give(cpli_cuda_of(comm), memory);
}

cpl_status cpli_cuda_upload(cpl_comm *comm, void *to, const void *from,
                            size_t bytes)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    if (bytes == 0)
        return CPL_OK;
    CPL_TRY(cpli_cuda_refuse_capture(device, "an upload"));
    CPL_TRY(
        cpli_cuda_check(device,
                        cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                                        device->stream),
                        "an upload"));
    return cpli_cuda_wait(device, "an upload");
}
