/*
 * emulator.h: what the files of the emulator know of each other. Kernels see
 * cuda_on_host.h only, hosts see NVIDIA's headers only.
 *
 *   settings.cpp   the environment, and cpl_emulation_set
 *   errors.cpp     errors of a thread, faults of a device, counts
 *   fiber.cpp      stacks and the switch between them; illegal accesses
 *   scheduler.cpp  the threads of a block: orders, barriers, warp operations
 *   shared.cpp     shared memory and cp.async
 *   launch.cpp     the blocks of a launch
 *   device.cpp     devices and their properties
 *   memory.cpp     device and host memory
 *   copy.cpp       copies and memsets
 *   stream.cpp     streams: worker threads
 *   event.cpp      events
 *   graph.cpp      capture and replay
 *   clique.cpp     what ranks of NCCL exchange
 *   nccl.cpp       NCCL for ranks that are threads
 *   cublas.cpp     matrix products of cuBLAS
 */
#ifndef CPLI_EMULATION_EMULATOR_H
#define CPLI_EMULATION_EMULATOR_H

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

/* CUDA's functions are visible where the emulator is linked into. */
#pragma GCC visibility push(default)
#include <cuda_runtime_api.h>
#pragma GCC visibility pop

#include "checker.h"

namespace emulation
{

/* ---- settings ---- */

enum class order_kind { forward, reverse, random };

struct settings {
    int devices = 8;
    int driver = CUDART_VERSION;     /* 0: there is no driver */
    bool peers = true;               /* devices may reach each other's memory */
    size_t memory = size_t{8} << 30; /* bytes of a device */
    order_kind order = order_kind::forward;
    uint64_t order_seed = 1;
    unsigned delay_us = 0; /* at most, before each operation of a stream */
    uint64_t delay_seed = 1;
    bool cublas = false;    /* there is cuBLAS */
    bool quiet = false;     /* faults are not printed */
    int nccl = 0;           /* the version that NCCL says; 0: its header's */
    double patience_s = 20; /* how long a rank of NCCL waits for a peer */
    bool network = true;    /* NCCL's: else nothing comes, and NCCL knows */
};

settings current_settings();

/* ---- errors ---- */

#define CPLI_SENTENCE(text, first) __attribute__((format(printf, text, first)))

std::string sentence_of(const char *format, va_list arguments);

/* This thread's last error, and why; returns `error`. */
cudaError_t fail(cudaError_t error, const char *format, ...)
    CPLI_SENTENCE(2, 3);

/* The device answers nothing but `error` from now on. The first fault of a
 * device is printed and kept, the others are its consequences. */
void fault(int device, cudaError_t error, const char *format, ...)
    CPLI_SENTENCE(3, 4);
cudaError_t fault_of(int device);
void forgive(int device);

/* What every cuda* function asks first: is there a driver, are there devices,
 * may this thread call CUDA at all, is its device without a fault? */
cudaError_t enter();

/* True in a function that a stream calls (cudaLaunchHostFunc). */
extern thread_local bool in_host_function;

enum class counter {
    launches,
    host_syncs,
    allocations,
    copies,
    graph_launches,
    n
};
void count(counter);

/* ---- devices ---- */

int current_device();
bool may_reach(int from_device, int to_device);
void forget_peers(int device);

/* ---- memory ---- */

enum class memory_kind { device, pinned, unknown };

struct memory_place {
    memory_kind kind = memory_kind::unknown;
    int device = -1;
    char *base = nullptr;
    size_t bytes = 0; /* of the whole allocation */
    size_t left = 0;  /* from the address that was asked for to its end */
};

memory_place find_memory(const void *at);
void free_memory_of(int device);

/* ---- streams ---- */

struct operation {
    std::string what;
    std::function<void(cpli_check_op)> run;
    bool always = false; /* events complete on a device with a fault too */
};

struct stream;
using stream_pointer = std::shared_ptr<stream>;

/* NULL: not a stream. The handle 0 is the current device's default one. */
stream_pointer find_stream(cudaStream_t handle);
int device_of(const stream_pointer &);
/* To its end, or into the graph that it captures. */
cudaError_t enqueue(const stream_pointer &, operation,
                    cpli_check_op *id = nullptr);
/* To its end, captured or not. */
cpli_check_op push(const stream_pointer &, operation);
void wait_for_device(int device);
/* Sleeps for a random part of the delay that is set. */
void dawdle(uint64_t salt);

/* ---- graphs ---- */

struct node {
    operation what;
    std::vector<size_t> after;
};

struct capture;
using capture_pointer = std::shared_ptr<capture>;

/* What a stream or an event knows of a capture: the nodes that it waits for. */
struct capture_place {
    capture_pointer in;
    std::vector<size_t> after;
};

std::mutex &capture_lock(); /* held around what follows */
bool is_active(const capture_place &);
void add_node(capture_place &, operation);
/* Joins `from`'s nodes to what `to` waits for; `to` enters the capture. */
cudaError_t join(capture_place &to, const capture_place &from);
void invalidate(const capture_place &);

/* For calls that a capture of this thread, or a global one, forbids. */
cudaError_t forbid_capture(const char *function);
/* The streams that a capture took in are free again when it has ended. */
void release_streams(const capture_pointer &);

/* ---- launches ---- */

struct kernel_shape {
    dim3 grid, block;
    size_t shared_bytes;
};

/* Runs the blocks of a kernel on this thread. What ended it early, if
 * anything did, with a sentence. */
cudaError_t run_kernel(const char *name, const kernel_shape &,
                       void (*run)(void *), const void *arguments,
                       size_t arguments_bytes, std::string *sentence);

/* A random number from a counter: the same in every run with one seed. */
inline uint64_t scramble(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Numbers below n, one after another. */
struct dice {
    uint64_t state;

    size_t below(size_t n)
    {
        state = scramble(state);
        return static_cast<size_t>(state % n);
    }
};

} // namespace emulation

#endif
