/*
 * device.cpp: devices that look like small ones of sm_90. How many there are,
 * and how much memory they have, is set (settings.cpp).
 */
#include <cstdio>
#include <cstring>
#include <set>

#include "emulator.h"

namespace emulation
{

namespace
{

thread_local int device_of_thread = 0;

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

/* (from, to): kernels of device `from` may touch memory of `to`. */
std::set<std::pair<int, int>> &peers()
{
    static auto *set = new std::set<std::pair<int, int>>;
    return *set;
}

cudaError_t check_device(int device, const char *function)
{
    int n = current_settings().devices;
    if (device >= 0 && device < n)
        return cudaSuccess;
    return fail(cudaErrorInvalidDevice, "%s: device %d of %d", function, device,
                n);
}

cudaError_t check_pair(int from, int to, const char *function)
{
    if (cudaError_t error = check_device(to, function))
        return error;
    if (from == to)
        return fail(cudaErrorInvalidDevice, "%s: device %d and itself",
                    function, to);
    return cudaSuccess;
}

const struct attribute {
    cudaDeviceAttr what;
    int value;
} attributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 << 10},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1 << 10},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMultiProcessorCount, 4},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrAsyncEngineCount, 2},
    {cudaDevAttrL2CacheSize, 1 << 20},
    {cudaDevAttrClockRate, 1000000},
    {cudaDevAttrMemoryClockRate, 1000000},
    {cudaDevAttrGlobalMemoryBusWidth, 512},
    {cudaDevAttrMemoryPoolsSupported, 0},
    {cudaDevAttrManagedMemory, 0},
    {cudaDevAttrCooperativeLaunch, 0},
};

} // namespace

int current_device()
{
    return device_of_thread;
}

bool may_reach(int from, int to)
{
    std::lock_guard<std::mutex> hold(lock());
    return from == to || peers().count({from, to}) != 0;
}

void forget_peers(int device)
{
    std::lock_guard<std::mutex> hold(lock());
    for (auto each = peers().begin(); each != peers().end();)
        each = each->first == device ? peers().erase(each) : std::next(each);
}

} // namespace emulation

using namespace emulation;

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = current_settings().driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* *n is written only where there is a driver, as CUDA does. */
cudaError_t cudaGetDeviceCount(int *n)
{
    cudaError_t error = enter();
    if (error == cudaErrorInsufficientDriver)
        return error;
    *n = current_settings().devices;
    return error == cudaErrorNoDevice ? error : cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    settings now = current_settings();
    if (now.driver < CUDART_VERSION || now.devices == 0 || in_host_function)
        return enter();
    if (cudaError_t error = check_device(device, "cudaSetDevice"))
        return error;
    device_of_thread = device;
    return fault_of(device);
}

cudaError_t cudaGetDevice(int *device)
{
    if (cudaError_t error = enter())
        return error;
    *device = device_of_thread;
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    int device = current_device();
    wait_for_device(device);
    cpli_check_host_waited(nullptr, nullptr);
    free_memory_of(device);
    forget_peers(device);
    forgive(device);
    return enter();
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr what, int device)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = check_device(device, "cudaDeviceGetAttribute"))
        return error;
    for (const attribute &each : attributes)
        if (each.what == what) {
            *value = each.value;
            return cudaSuccess;
        }
    return fail(cudaErrorInvalidValue,
                "cudaDeviceGetAttribute: attribute %d is not emulated",
                static_cast<int>(what));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = check_device(device, "cudaGetDeviceProperties"))
        return error;
    *out = cudaDeviceProp();
    std::snprintf(out->name, sizeof out->name, "emulated device %d", device);
    out->uuid.bytes[15] = static_cast<char>(device);
    out->totalGlobalMem = current_settings().memory;
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = 227 << 10;
    out->sharedMemPerMultiprocessor = 228 << 10;
    out->regsPerBlock = 65536;
    out->warpSize = 32;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->major = 9;
    out->multiProcessorCount = 4;
    out->unifiedAddressing = 1;
    out->canMapHostMemory = 1;
    out->concurrentKernels = 1;
    out->asyncEngineCount = 2;
    out->l2CacheSize = 1 << 20;
    out->memoryBusWidth = 512;
    out->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = check_device(device, "cudaDeviceGetPCIBusId"))
        return error;
    std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0",
                  device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (cudaError_t error = enter())
        return error;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = check_device(device, "cudaDeviceCanAccessPeer"))
        return error;
    if (cudaError_t error = check_device(peer, "cudaDeviceCanAccessPeer"))
        return error;
    *can = device != peer && current_settings().peers;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    int device = current_device();
    if (cudaError_t error =
            check_pair(device, peer, "cudaDeviceEnablePeerAccess"))
        return error;
    if (flags != 0)
        return fail(cudaErrorInvalidValue,
                    "cudaDeviceEnablePeerAccess: flags %u", flags);
    if (!current_settings().peers)
        return fail(cudaErrorPeerAccessUnsupported,
                    "device %d cannot reach device %d", device, peer);
    std::lock_guard<std::mutex> hold(lock());
    if (!peers().insert({device, peer}).second)
        return fail(cudaErrorPeerAccessAlreadyEnabled,
                    "device %d reaches device %d already", device, peer);
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    if (cudaError_t error = enter())
        return error;
    int device = current_device();
    if (cudaError_t error =
            check_pair(device, peer, "cudaDeviceDisablePeerAccess"))
        return error;
    std::lock_guard<std::mutex> hold(lock());
    if (peers().erase({device, peer}) == 0)
        return fail(cudaErrorPeerAccessNotEnabled,
                    "device %d does not reach device %d", device, peer);
    return cudaSuccess;
}
