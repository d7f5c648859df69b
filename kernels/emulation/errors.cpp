/*
 * errors.cpp: errors as CUDA has them. An error of a call is the calling
 * thread's; a fault of a kernel is the device's and stays (CUDA: sticky).
 */
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>

#include "emulation.h"
#include "emulator.h"

namespace emulation
{

thread_local bool in_host_function = false;

namespace
{

struct device_fault {
    cudaError_t error;
    std::string why;
};

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

std::map<int, device_fault> &faults()
{
    static auto *map = new std::map<int, device_fault>;
    return *map;
}

thread_local cudaError_t last_error = cudaSuccess;

std::string &why()
{
    thread_local std::string text;
    return text;
}

std::atomic<uint64_t> counts[static_cast<size_t>(counter::n)];

} // namespace

std::string sentence_of(const char *format, va_list arguments)
{
    char text[1024];
    std::vsnprintf(text, sizeof text, format, arguments);
    return text;
}

cudaError_t fail(cudaError_t error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    why() = sentence_of(format, arguments);
    va_end(arguments);
    last_error = error;
    return error;
}

void fault(int device, cudaError_t error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::string text = sentence_of(format, arguments);
    va_end(arguments);
    bool quiet = current_settings().quiet;
    std::lock_guard<std::mutex> hold(lock());
    if (faults().emplace(device, device_fault{error, text}).second && !quiet)
        std::fprintf(stderr, "cuda emulation: %s\n", text.c_str());
}

cudaError_t fault_of(int device)
{
    std::lock_guard<std::mutex> hold(lock());
    auto found = faults().find(device);
    return found == faults().end() ? cudaSuccess : found->second.error;
}

void forgive(int device)
{
    std::lock_guard<std::mutex> hold(lock());
    faults().erase(device);
}

cudaError_t enter()
{
    settings now = current_settings();
    if (now.driver < CUDART_VERSION)
        return fail(cudaErrorInsufficientDriver,
                    "the driver is of version %d, the runtime of %d",
                    now.driver, CUDART_VERSION);
    if (now.devices == 0)
        return fail(cudaErrorNoDevice, "there is no device");
    if (in_host_function)
        return fail(cudaErrorNotPermitted,
                    "a host function of a stream calls CUDA");
    std::lock_guard<std::mutex> hold(lock());
    auto found = faults().find(current_device());
    if (found == faults().end())
        return cudaSuccess;
    why() = found->second.why;
    last_error = found->second.error;
    return last_error;
}

void count(counter what)
{
    counts[static_cast<size_t>(what)]++;
}

namespace
{

struct text_of {
    cudaError_t error;
    const char *name, *text;
};

/* Names are CUDA's; the texts are those of its manual in our words. */
#define ROW(name, text)   \
    {                     \
        name, #name, text \
    }
const text_of texts[] = {
    ROW(cudaSuccess, "no error"),
    ROW(cudaErrorInvalidValue, "invalid argument"),
    ROW(cudaErrorMemoryAllocation, "out of memory"),
    ROW(cudaErrorInitializationError, "initialization error"),
    ROW(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ROW(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ROW(cudaErrorInsufficientDriver,
        "CUDA driver version is insufficient for CUDA runtime version"),
    ROW(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ROW(cudaErrorInvalidDevice, "invalid device ordinal"),
    ROW(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ROW(cudaErrorIllegalState,
        "the operation cannot be performed in the present state"),
    ROW(cudaErrorNotReady, "device not ready"),
    ROW(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ROW(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ROW(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled"),
    ROW(cudaErrorPeerAccessUnsupported,
        "peer access is not supported between these two devices"),
    ROW(cudaErrorHostMemoryAlreadyRegistered,
        "part or all of the requested memory range is already mapped"),
    ROW(cudaErrorHostMemoryNotRegistered,
        "pointer does not correspond to a registered memory region"),
    ROW(cudaErrorMisalignedAddress, "misaligned address"),
    ROW(cudaErrorLaunchFailure, "unspecified launch failure"),
    ROW(cudaErrorNotPermitted, "operation not permitted"),
    ROW(cudaErrorNotSupported, "operation not supported"),
    ROW(cudaErrorStreamCaptureUnsupported,
        "operation not permitted when stream is capturing"),
    ROW(cudaErrorStreamCaptureInvalidated,
        "operation failed due to a previous error during capture"),
    ROW(cudaErrorStreamCaptureMerge,
        "operation would result in a merge of separate capture sequences"),
    ROW(cudaErrorStreamCaptureUnmatched,
        "capture was not initiated in this stream"),
    ROW(cudaErrorStreamCaptureUnjoined,
        "capture has unjoined work from another stream"),
    ROW(cudaErrorStreamCaptureIsolation,
        "dependency created on uncaptured work in another stream"),
    ROW(cudaErrorStreamCaptureImplicit,
        "operation would make the legacy stream depend on a capturing "
        "blocking stream"),
    ROW(cudaErrorCapturedEvent,
        "operation not permitted on an event last recorded in a capturing "
        "stream"),
    ROW(cudaErrorStreamCaptureWrongThread,
        "attempt to terminate a thread-local capture sequence from another "
        "thread"),
    ROW(cudaErrorUnknown, "unknown error"),
};
#undef ROW

const text_of *find_text(cudaError_t error)
{
    for (const text_of &each : texts)
        if (each.error == error)
            return &each;
    return nullptr;
}

} // namespace

} // namespace emulation

using namespace emulation;

extern "C" const char *cpl_emulation_why(void)
{
    std::lock_guard<std::mutex> hold(lock());
    auto found = faults().find(current_device());
    if (found != faults().end())
        why() = found->second.why;
    return why().c_str();
}

extern "C" uint64_t cpl_emulation_count(const char *what)
{
    static const char *const names[] = {"launches", "host_syncs", "allocations",
                                        "copies", "graph_launches"};
    for (size_t i = 0; i < static_cast<size_t>(counter::n); i++)
        if (std::strcmp(names[i], what) == 0)
            return counts[i];
    return UINT64_MAX;
}

extern "C" void cpl_emulation_forgive(void)
{
    std::lock_guard<std::mutex> hold(lock());
    faults().clear();
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    cudaError_t error = fault_of(current_device());
    return error != cudaSuccess ? error : last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    const text_of *found = find_text(error);
    return found ? found->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    const text_of *found = find_text(error);
    return found ? found->text : "unrecognized error code";
}
