/*
 * cuda_on_host.h: lets a plain C++17 compiler read a .cu file, so that its
 * kernels run on the CPU. Types, enumerators and the conversions of bf16 are
 * NVIDIA's own, from headers that a host compiler can read; this file adds only
 * what those headers hide from it: the place of a thread in its grid, barriers,
 * warp operations, atomics, and the launch.
 *
 * A CUDA thread is a turn on a fiber (scheduler.cpp). Its place is reached by
 * `emulation::here`, which is NULL outside kernels. Blocks of a launch run one
 * after another: a kernel that waits for another block never ends.
 */
#ifndef CPLI_EMULATION_CUDA_ON_HOST_H
#define CPLI_EMULATION_CUDA_ON_HOST_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

/* First of all: these headers use names that are macros below. */
#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#undef __restrict__
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
/* Shared memory that is not declared by CPLI_SHARED would be one for all. */
#define __shared__ use_CPLI_SHARED_or_CPLI_DYNAMIC_SHARED

/* The emulator's own steps are no accesses of a kernel. */
#define CPLI_UNSEEN __attribute__((no_sanitize("thread")))
/* Last parameters of a function that wants to know its caller's line. */
#define CPLI_SITE \
    const char *site_file = __builtin_FILE(), int site_line = __builtin_LINE()

namespace emulation
{

/* The place of the running CUDA thread; the first four as CUDA defines them. */
struct thread_state {
    uint3 thread, block;
    dim3 block_size, grid_size;
    int index;            /* of the thread in its block, x fastest */
    int lane, warp;       /* index modulo and by 32 */
    uint64_t block_index; /* of the block in its grid, x fastest */
    int stage;            /* the scheduler's */
    struct fiber *fiber;  /* the scheduler's; NULL: not begun */
};

extern __thread thread_state *here __attribute__((visibility("hidden")));

/* Ends the launch of the running kernel with a sentence; its device answers
 * `error` from then on, as after an error that CUDA calls sticky. */
[[noreturn]] void kernel_fault(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void block_barrier(const char *file, int line);

/* __syncwarp: as warp_exchange, but it also orders memory. */
void warp_barrier(uint32_t mask, const char *file, int line);

/*
 * What every lane of `mask` gives (at most 64 bytes each, all the same number),
 * one after another in 32 places of that size. The lanes wait for each other.
 * Valid until this lane's next warp operation.
 */
const void *warp_exchange(uint32_t mask, const void *mine, size_t bytes,
                          const char *file, int line);

/* The block's variable of that key, made by the first thread that asks. */
void *shared_variable(const char *name, const void *key, size_t bytes);
void *dynamic_shared(void);

/* cp.async: bytes land as late as a wait allows; garbage lies there before. */
void copy_async(void *shared, const void *global, size_t bytes);
void copy_async_commit(void);
void copy_async_wait(int groups_left);

/* ---- launch ---- */

struct kernel_call {
    const char *name;
    const void *function;         /* what cudaFuncSetAttribute knows it by */
    void (*run)(void *arguments); /* once for every thread of the grid */
    std::shared_ptr<const void> arguments;
    size_t arguments_bytes; /* to copy where the checker does not look */
};

cudaError_t launch_call(const kernel_call &call, dim3 grid, dim3 block,
                        size_t shared_bytes, cudaStream_t stream);

/* Arguments as parameters: converted and copied when the launch is made. */
template <class... P> struct packed_call {
    void (*kernel)(P...);
    std::tuple<std::decay_t<P>...> arguments;

    template <size_t... I> CPLI_UNSEEN void go(std::index_sequence<I...>)
    {
        kernel(std::get<I>(arguments)...);
    }

    CPLI_UNSEEN static void run(void *self)
    {
        static_cast<packed_call *>(self)->go(std::index_sequence_for<P...>());
    }
};

template <class... P, class... A>
cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid,
                   dim3 block, size_t shared_bytes, cudaStream_t stream,
                   A &&...arguments)
{
    static_assert(sizeof...(P) == sizeof...(A), "as many as the kernel has");
    static_assert((std::is_trivially_copyable<std::decay_t<P>>::value && ...),
                  "parameters of a kernel are copied byte by byte");
    using packed = packed_call<P...>;
    auto made = std::make_shared<packed>(
        packed{kernel, std::tuple<std::decay_t<P>...>(
                           static_cast<P>(std::forward<A>(arguments))...)});
    return launch_call({name, reinterpret_cast<const void *>(kernel),
                        packed::run, made, sizeof(packed)},
                       grid, block, shared_bytes, stream);
}

/* ---- warp operations ---- */

/* The value of lane `source`, or one's own where `inside` says that the source
 * is out of the lane's segment. */
template <class T>
CPLI_UNSEEN T shuffle(uint32_t mask, T value, int source, bool inside,
                      const char *file, int line)
{
    static_assert(sizeof(T) <= 16, "a shuffle carries at most 16 bytes");
    const char *all = static_cast<const char *>(
        warp_exchange(mask, &value, sizeof value, file, line));
    if (!inside)
        return value;
    if ((mask >> source & 1) == 0)
        kernel_fault(cudaErrorLaunchFailure,
                     "%s:%d: a shuffle reads lane %d, which is not in its "
                     "mask 0x%08x",
                     file, line, source, mask);
    T result;
    std::memcpy(&result, all + static_cast<size_t>(source) * sizeof value,
                sizeof result);
    return result;
}

} // namespace emulation

#define threadIdx (emulation::here->thread)
#define blockIdx (emulation::here->block)
#define blockDim (emulation::here->block_size)
#define gridDim (emulation::here->grid_size)
#define warpSize 32

inline void __syncthreads(CPLI_SITE)
{
    emulation::block_barrier(site_file, site_line);
}

CPLI_UNSEEN inline void __syncwarp(unsigned mask = 0xffffffffu, CPLI_SITE)
{
    emulation::warp_barrier(mask, site_file, site_line);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CPLI_SITE)
{
    int first = emulation::here->lane / width * width;
    return emulation::shuffle(mask, value, first + (source & (width - 1)), true,
                              site_file, site_line);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flips, int width = 32, CPLI_SITE)
{
    int source = emulation::here->lane ^ flips;
    bool inside =
        source < 32 && source / width <= emulation::here->lane / width;
    return emulation::shuffle(mask, value, source & 31, inside, site_file,
                              site_line);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CPLI_SITE)
{
    int lane = emulation::here->lane, source = lane - static_cast<int>(by);
    return emulation::shuffle(mask, value, source & 31,
                              source >= lane / width * width, site_file,
                              site_line);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   CPLI_SITE)
{
    int lane = emulation::here->lane, source = lane + static_cast<int>(by);
    return emulation::shuffle(mask, value, source & 31,
                              source < (lane / width + 1) * width, site_file,
                              site_line);
}

CPLI_UNSEEN inline unsigned __ballot_sync(unsigned mask, int predicate,
                                          CPLI_SITE)
{
    char mine = predicate != 0;
    const char *all = static_cast<const char *>(
        emulation::warp_exchange(mask, &mine, 1, site_file, site_line));
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) != 0 && all[lane] != 0)
            votes |= 1u << lane;
    return votes;
}

inline int __any_sync(unsigned mask, int predicate, CPLI_SITE)
{
    return __ballot_sync(mask, predicate, site_file, site_line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, CPLI_SITE)
{
    return __ballot_sync(mask, predicate, site_file, site_line) == mask;
}

template <class T>
CPLI_UNSEEN T __reduce_add_sync(unsigned mask, T value, CPLI_SITE)
{
    static_assert(std::is_integral<T>::value && sizeof(T) == 4, "32-bit only");
    T all[32], sum = 0;
    std::memcpy(all,
                emulation::warp_exchange(mask, &value, sizeof value, site_file,
                                         site_line),
                sizeof all);
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) != 0)
            sum += all[lane];
    return sum;
}

/* The lanes of the mask that have the same value. */
template <class T>
CPLI_UNSEEN unsigned __match_any_sync(unsigned mask, T value, CPLI_SITE)
{
    static_assert(std::is_integral<T>::value, "integers only");
    T all[32];
    unsigned alike = 0;
    std::memcpy(all,
                emulation::warp_exchange(mask, &value, sizeof value, site_file,
                                         site_line),
                sizeof all);
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) != 0 && all[lane] == value)
            alike |= 1u << lane;
    return alike;
}

/* ---- memory ---- */

/* Threads of a block take turns on one core: only other streams see a fence. */
inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void __threadfence_block(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Hints for caches: a load is a load, a store is a store. */
#define CPLI_LOAD(name)                      \
    template <class T> T name(const T *from) \
    {                                        \
        return *from;                        \
    }
CPLI_LOAD(__ldg)
CPLI_LOAD(__ldca)
CPLI_LOAD(__ldcg)
CPLI_LOAD(__ldcs)
CPLI_LOAD(__ldlu)
CPLI_LOAD(__ldcv)
#undef CPLI_LOAD
#define CPLI_STORE(name)                                  \
    template <class T, class V> void name(T *to, V value) \
    {                                                     \
        *to = static_cast<T>(value);                      \
    }
CPLI_STORE(__stwb)
CPLI_STORE(__stcg)
CPLI_STORE(__stcs)
CPLI_STORE(__stwt)
#undef CPLI_STORE

template <class T>
T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> value)
{
    __atomic_compare_exchange(at, &expected, &value, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
    return expected;
}

template <class T> T atomicExch(T *at, std::common_type_t<T> value)
{
    T old;
    __atomic_exchange(at, &value, &old, __ATOMIC_SEQ_CST);
    return old;
}

namespace emulation
{

/* Replaces *at by change(*at) in one step; returns what was there. */
template <class T, class F> T atomically(T *at, F change)
{
    T old, wanted;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do
        wanted = change(old);
    while (!__atomic_compare_exchange(at, &old, &wanted, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
    return old;
}

} // namespace emulation

#define CPLI_ATOMIC(name, result)                                        \
    template <class T> T name(T *at, std::common_type_t<T> value)        \
    {                                                                    \
        return emulation::atomically(                                    \
            at, [value](T old) -> T { return static_cast<T>(result); }); \
    }
CPLI_ATOMIC(atomicAdd, old + value)
CPLI_ATOMIC(atomicSub, old - value)
CPLI_ATOMIC(atomicMin, old < value ? old : value)
CPLI_ATOMIC(atomicMax, old > value ? old : value)
CPLI_ATOMIC(atomicAnd, old &value)
CPLI_ATOMIC(atomicOr, old | value)
CPLI_ATOMIC(atomicXor, old ^ value)
#undef CPLI_ATOMIC

/* ---- arithmetic ---- */

inline float rsqrtf(float x)
{
    return 1.0f / std::sqrt(x);
}

/* Exact where |x| is small: pi x is then rounded once. */
inline void sincospi(double x, double *sine, double *cosine)
{
    *sine = std::sin(M_PI * x);
    *cosine = std::cos(M_PI * x);
}

inline double rsqrt(double x)
{
    return 1.0 / std::sqrt(x);
}

inline float __expf(float x)
{
    return std::exp(x);
}

inline float __fdividef(float a, float b)
{
    return a / b;
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}

template <class T> constexpr T min(T a, T b)
{
    return b < a ? b : a;
}

template <class T> constexpr T max(T a, T b)
{
    return a < b ? b : a;
}

/* ---- what kernels/device.cuh promises ---- */

#define CPLI_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)     \
    emulation::launch(#kernel, kernel, (grid), (block), (shared_bytes), \
                      (stream), ##__VA_ARGS__)
#define CPLI_SHARED(T, name, dims)                   \
    typedef T name##_type dims;                      \
    static char name##_key;                          \
    name##_type &name = *static_cast<name##_type *>( \
        emulation::shared_variable(#name, &name##_key, sizeof(name##_type)))
#define CPLI_DYNAMIC_SHARED(T, name) \
    T *name = static_cast<T *>(emulation::dynamic_shared())

#endif
