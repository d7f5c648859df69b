/*
 * launch.cpp: what a launch must fulfil, and the attributes of kernels.
 */
#include <algorithm>
#include <map>

#include "emulator.h"

#include "cuda_on_host.h"

namespace emulation
{

namespace
{

constexpr size_t shared_by_default = 48 << 10;
constexpr size_t shared_at_most = 227 << 10;

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

/* Dynamic shared memory that a kernel was allowed by cudaFuncSetAttribute. */
std::map<const void *, size_t> &allowances()
{
    static auto *map = new std::map<const void *, size_t>;
    return *map;
}

size_t allowance(const void *function)
{
    std::lock_guard<std::mutex> hold(lock());
    auto found = allowances().find(function);
    return found == allowances().end() ? shared_by_default : found->second;
}

cudaError_t check_shape(const kernel_call &call, const kernel_shape &shape)
{
    dim3 grid = shape.grid, block = shape.block;
    uint64_t n = uint64_t{block.x} * block.y * block.z;
    if (n == 0 || n > 1024 || block.z > 64)
        return fail(cudaErrorInvalidConfiguration,
                    "kernel %s: a block of %u x %u x %u threads", call.name,
                    block.x, block.y, block.z);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u ||
        grid.y > 65535 || grid.z > 65535)
        return fail(cudaErrorInvalidConfiguration,
                    "kernel %s: a grid of %u x %u x %u blocks", call.name,
                    grid.x, grid.y, grid.z);
    if (shape.shared_bytes > allowance(call.function))
        return fail(cudaErrorInvalidValue,
                    "kernel %s: %zu bytes of dynamic shared memory, %zu are "
                    "allowed",
                    call.name, shape.shared_bytes, allowance(call.function));
    return cudaSuccess;
}

void run_launch(const kernel_call &call, const kernel_shape &shape, int device,
                cpli_check_op op)
{
    const uint32_t grid[3] = {shape.grid.x, shape.grid.y, shape.grid.z};
    const uint32_t block[3] = {shape.block.x, shape.block.y, shape.block.z};
    cpli_check_kernel_begin(op, call.name, grid, block);
    int reports = cpli_check_n_reports();
    std::string why;
    cudaError_t error =
        run_kernel(call.name, shape, call.run, call.arguments.get(),
                   call.arguments_bytes, &why);
    cpli_check_kernel_end();
    if (error == cudaSuccess && cpli_check_n_reports() > reports) {
        error = cudaErrorIllegalAddress;
        why = cpli_check_sentence(reports);
    }
    if (error != cudaSuccess)
        fault(device, error, "%s", why.c_str());
}

} // namespace

cudaError_t launch_call(const kernel_call &call, dim3 grid, dim3 block,
                        size_t shared_bytes, cudaStream_t stream)
{
    if (cudaError_t error = enter())
        return error;
    kernel_shape shape = {grid, block, shared_bytes};
    if (cudaError_t error = check_shape(call, shape))
        return error;
    stream_pointer to = find_stream(stream);
    if (!to || device_of(to) != current_device())
        return fail(cudaErrorInvalidResourceHandle,
                    "kernel %s: %s of device %d", call.name,
                    to ? "the stream is not one" : "no such stream",
                    current_device());
    int device = device_of(to);
    count(counter::launches);
    return enqueue(
        to, {std::string("kernel ") + call.name,
             [=](cpli_check_op op) { run_launch(call, shape, device, op); }});
}

} // namespace emulation

using namespace emulation;

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute what,
                                 int value)
{
    if (cudaError_t error = enter())
        return error;
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess; /* carve-outs and the like: hints */
    if (value < 0 || static_cast<size_t>(value) > shared_at_most)
        return fail(cudaErrorInvalidValue,
                    "%d bytes of dynamic shared memory, at most %zu", value,
                    shared_at_most);
    std::lock_guard<std::mutex> hold(lock());
    allowances()[function] = static_cast<size_t>(value);
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *function)
{
    if (cudaError_t error = enter())
        return error;
    *out = cudaFuncAttributes();
    out->maxThreadsPerBlock = 1024;
    out->maxDynamicSharedSizeBytes = static_cast<int>(allowance(function));
    out->binaryVersion = out->ptxVersion = 90;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out,
                                                          const void *,
                                                          int threads,
                                                          size_t shared_bytes)
{
    if (cudaError_t error = enter())
        return error;
    if (threads <= 0 || threads > 1024)
        return fail(cudaErrorInvalidValue, "a block of %d threads", threads);
    /* By threads and shared memory of sm_90; registers are not known. */
    size_t by_threads = 2048 / ((static_cast<size_t>(threads) + 31) / 32 * 32);
    size_t by_shared = shared_at_most / (shared_bytes + 1024);
    *out = static_cast<int>(std::min({by_threads, by_shared, size_t{32}}));
    return cudaSuccess;
}
