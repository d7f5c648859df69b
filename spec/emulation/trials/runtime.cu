/*
 * runtime.cu: devices, memory, copies, streams and events of the emulator.
 */
#include <atomic>
#include <chrono>
#include <thread>

#include "trial.h"

namespace
{

/* Host functions that wait for each other. */
std::atomic<int> flags[2];

void raise_and_wait(void *which)
{
    auto mine = static_cast<int>(reinterpret_cast<intptr_t>(which));
    flags[mine] = 1;
    for (int i = 0; i < 5000 && flags[1 - mine] == 0; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    flags[mine] = flags[1 - mine] == 1 ? 1 : 2;
}

void nap(void *)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

} // namespace

/* ---- devices ---- */

TRIAL(devices)
{
    int n = -7, driver = -7;
    tell("count", cudaGetDeviceCount(&n));
    MUST(cudaDriverGetVersion(&driver));
    std::printf("%d devices, driver %d\n", n, driver);
    tell("set", cudaSetDevice(n));
    void *at;
    tell("malloc", cudaMalloc(&at, 8));
    cudaStream_t stream;
    tell("stream", cudaStreamCreate(&stream));
}

TRIAL(peers)
{
    int can = -1;
    MUST(cudaDeviceCanAccessPeer(&can, 0, 1));
    std::printf("can: %d\n", can);
    tell("enable", cudaDeviceEnablePeerAccess(1, 0));
    tell("again", cudaDeviceEnablePeerAccess(1, 0));
    tell("itself", cudaDeviceEnablePeerAccess(0, 0));
    tell("none", cudaDeviceEnablePeerAccess(99, 0));
    tell("disable", cudaDeviceDisablePeerAccess(1));
    tell("again", cudaDeviceDisablePeerAccess(1));
}

/* ---- memory ---- */

TRIAL(out_of_memory)
{
    void *first, *second;
    size_t left, all;
    tell("first", cudaMalloc(&first, 600 << 10));
    tell("second", cudaMalloc(&second, 600 << 10));
    MUST(cudaMemGetInfo(&left, &all));
    std::printf("%zu of %zu left\n", left, all);
    tell("last", cudaGetLastError());
    MUST(cudaFree(first));
    tell("after free", cudaMalloc(&second, 600 << 10));
    MUST(cudaSetDevice(1));
    tell("device 1", cudaMalloc(&first, 600 << 10));
}

TRIAL(frees)
{
    char *at = on_device<char>(100);
    void *pinned;
    MUST(cudaMallocHost(&pinned, 100));
    tell("inside", cudaFree(at + 1));
    tell("pinned", cudaFree(pinned));
    tell("host of device", cudaFreeHost(at));
    tell("host", cudaFreeHost(pinned));
    tell("free", cudaFree(at));
    tell("again", cudaFree(at));
    tell("null", cudaFree(nullptr));
}

TRIAL(copy_kinds)
{
    char *device = on_device<char>(64), host[64] = "";
    const char *words[] = {"host to host", "host to device", "device to host",
                           "device to device"};
    for (int kind = 0; kind < 4; kind++)
        for (int pair = 0; pair < 4; pair++) {
            char *from = pair / 2 ? device : host,
                 *to = pair % 2 ? device : host;
            cudaError_t error =
                cudaMemcpy(to, from, 32, static_cast<cudaMemcpyKind>(kind));
            bool fits = (pair / 2 == kind / 2) && (pair % 2 == kind % 2);
            if (fits != (error == cudaSuccess))
                std::printf("%s, %d: %s\n", words[kind], pair,
                            cudaGetErrorName(error));
        }
    tell("wrong", cudaMemcpy(host, device, 32, cudaMemcpyHostToDevice));
    tell("default", cudaMemcpy(host, device, 32, cudaMemcpyDefault));
    tell("kind 7",
         cudaMemcpy(host, device, 32, static_cast<cudaMemcpyKind>(7)));
    tell("past the end", cudaMemcpy(host, device + 40, 32, cudaMemcpyDefault));
    tell("set past the end", cudaMemset(device + 40, 0, 32));
    tell("set host", cudaMemset(host, 0, 32));
}

TRIAL(copy_rows)
{
    char *device = on_device<char>(8 * 4);
    std::vector<char> host(3 * 4, 1);
    MUST(cudaMemset(device, 9, 8 * 4));
    MUST(cudaMemcpy2D(device + 2, 8, host.data(), 3, 3, 4,
                      cudaMemcpyHostToDevice));
    say("rows", on_host(device, 8 * 4));
    tell("past the end", cudaMemcpy2D(device + 6, 8, host.data(), 3, 3, 4,
                                      cudaMemcpyHostToDevice));
}

TRIAL(poison_of_memory)
{
    std::printf("%08x\n", on_host(on_device<unsigned>(5), 5)[4]);
}

TRIAL(pointers)
{
    cudaPointerAttributes of;
    int local = 0;
    void *pinned;
    MUST(cudaSetDevice(1));
    char *device = on_device<char>(8);
    MUST(cudaMallocHost(&pinned, 8));
    MUST(cudaPointerGetAttributes(&of, device + 7));
    std::printf("%d of device %d\n", of.type == cudaMemoryTypeDevice,
                of.device);
    MUST(cudaPointerGetAttributes(&of, device + 8));
    std::printf("%d\n", of.type == cudaMemoryTypeUnregistered);
    MUST(cudaPointerGetAttributes(&of, pinned));
    std::printf("%d\n", of.type == cudaMemoryTypeHost);
    MUST(cudaPointerGetAttributes(&of, &local));
    std::printf("%d\n", of.type == cudaMemoryTypeUnregistered);
}

/* ---- streams ---- */

TRIAL(streams_run_apart)
{
    cudaStream_t a = new_stream(), b = new_stream();
    MUST(cudaLaunchHostFunc(a, raise_and_wait, reinterpret_cast<void *>(0)));
    MUST(cudaLaunchHostFunc(b, raise_and_wait, reinterpret_cast<void *>(1)));
    MUST(cudaStreamSynchronize(a));
    MUST(cudaStreamSynchronize(b));
    std::printf("met: %d\n", flags[0] == 1 && flags[1] == 1);
    MUST(cudaStreamDestroy(a));
    MUST(cudaStreamDestroy(b));
}

/* Rounds in which b reads what a writes; with an event, or without. */
static void count_stale(bool with_event)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event = new_event();
    int *at = on_device<int>(1), *copy = on_device<int>(1), stale = 0;
    for (int round = 1; round <= 20; round++) {
        MUST(cudaMemsetAsync(at, round, sizeof *at, a));
        MUST(cudaEventRecord(event, a));
        if (with_event)
            MUST(cudaStreamWaitEvent(b, event, 0));
        MUST(
            cudaMemcpyAsync(copy, at, sizeof *at, cudaMemcpyDeviceToDevice, b));
        stale += on_host(copy, 1)[0] != round * 0x01010101;
    }
    std::printf("%s\n", stale == 0 ? "never stale" : "stale");
}

TRIAL(event_waited_for)
{
    count_stale(true);
}

TRIAL(event_forgotten)
{
    count_stale(false);
}

/* The wait is for the record before it, not for the later one. */
TRIAL(wait_binds_to_the_record_before)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event = new_event();
    MUST(cudaStreamWaitEvent(b, event, 0)); /* never recorded: no wait */
    MUST(cudaStreamSynchronize(b));
    MUST(cudaEventRecord(event, a));
    MUST(cudaStreamWaitEvent(b, event, 0));
    MUST(cudaLaunchHostFunc(a, raise_and_wait, reinterpret_cast<void *>(0)));
    MUST(cudaEventRecord(event, a));
    MUST(cudaLaunchHostFunc(b, raise_and_wait, reinterpret_cast<void *>(1)));
    MUST(cudaDeviceSynchronize());
    std::printf("met: %d\n", flags[0] == 1 && flags[1] == 1);
}

/* The legacy default stream waits for blocking streams only. */
TRIAL(default_stream)
{
    cudaStream_t blocking, apart = new_stream();
    MUST(cudaStreamCreate(&blocking));
    int *at = on_device<int>(2), *copy = on_device<int>(2);
    MUST(cudaMemset(at, 0, 8));
    MUST(cudaStreamSynchronize(nullptr));
    MUST(cudaLaunchHostFunc(blocking, nap, nullptr));
    MUST(cudaMemsetAsync(at, 1, 4, blocking));
    for (int i = 0; i < 10; i++)
        MUST(cudaLaunchHostFunc(apart, nap, nullptr));
    MUST(cudaMemsetAsync(at + 1, 1, 4, apart));
    MUST(cudaMemcpyAsync(copy, at, 8, cudaMemcpyDeviceToDevice, nullptr));
    MUST(cudaMemsetAsync(at, 2, 4, blocking)); /* after the default stream's */
    say("seen", on_host(copy, 2));
}

TRIAL(events)
{
    cudaStream_t s = new_stream();
    cudaEvent_t from, to, untimed = new_event(), fresh;
    float ms = -1;
    MUST(cudaEventCreate(&from));
    MUST(cudaEventCreate(&to));
    MUST(cudaEventCreate(&fresh));
    tell("never recorded", cudaEventQuery(fresh));
    MUST(cudaEventRecord(from, s));
    MUST(cudaLaunchHostFunc(s, nap, nullptr));
    MUST(cudaEventRecord(to, s));
    MUST(cudaEventRecord(untimed, s));
    tell("query", cudaEventQuery(to));
    tell("too early", cudaEventElapsedTime(&ms, from, to));
    MUST(cudaEventSynchronize(to));
    tell("query", cudaEventQuery(to));
    tell("elapsed", cudaEventElapsedTime(&ms, from, to));
    std::printf("long enough: %d\n", ms >= 19 && ms < 5000);
    tell("untimed", cudaEventElapsedTime(&ms, from, untimed));
    tell("fresh", cudaEventElapsedTime(&ms, from, fresh));
    MUST(cudaEventDestroy(to));
    tell("destroyed", cudaEventRecord(to, s));
    MUST(cudaSetDevice(1));
    tell("other device", cudaEventRecord(from, new_stream()));
    tell("wait of another device", cudaStreamWaitEvent(new_stream(), from, 0));
}

static void call_cuda(void *out)
{
    void *at;
    *static_cast<cudaError_t *>(out) = cudaMalloc(&at, 8);
}

TRIAL(handles)
{
    cudaStream_t s = new_stream();
    cudaError_t inside = cudaSuccess;
    MUST(cudaLaunchHostFunc(s, call_cuda, &inside));
    MUST(cudaStreamSynchronize(s));
    std::printf("in a host function: %s\n", cudaGetErrorName(inside));
    MUST(cudaStreamDestroy(s));
    tell("destroyed", cudaStreamSynchronize(s));
    tell("again", cudaStreamDestroy(s));
    tell("default", cudaStreamDestroy(nullptr));
    tell("copy", cudaMemsetAsync(on_device<char>(1), 0, 1, s));
}

/* How often the host waited, and what else is counted. */
TRIAL(counts)
{
    cudaStream_t s = new_stream();
    char *at = on_device<char>(8), host[8];
    uint64_t syncs = cpl_emulation_count("host_syncs");
    MUST(cudaMemsetAsync(at, 0, 8, s));
    MUST(cudaMemcpyAsync(host, at, 8, cudaMemcpyDeviceToHost, s));
    std::printf("%d\n",
                static_cast<int>(cpl_emulation_count("host_syncs") - syncs));
    MUST(cudaStreamSynchronize(s));
    std::printf("%d\n",
                static_cast<int>(cpl_emulation_count("host_syncs") - syncs));
    std::printf("%d %d\n", static_cast<int>(cpl_emulation_count("copies")),
                static_cast<int>(cpl_emulation_count("allocations")));
    std::printf("%d\n", cpl_emulation_count("miles") == UINT64_MAX);
    std::printf("%d %d %d\n", cpl_emulation_set("order", "random:3"),
                cpl_emulation_set("order", "sideways"),
                cpl_emulation_set("ordre", "forward"));
}
