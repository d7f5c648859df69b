/*
 * kernels.cu: what the emulator promises to kernels, and what it reports.
 */
#include "trial.h"

/* ---- orders ---- */

__global__ void note_turn(int *n, int *turns)
{
    turns[(*n)++] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

TRIAL(order)
{
    int *n = on_device<int>(1), *turns = on_device<int>(12);
    MUST(cudaMemset(n, 0, sizeof *n));
    MUST(CPLI_LAUNCH(note_turn, 3, 4, 0, nullptr, n, turns));
    say("turns", on_host(turns, 12));
}

/* After a barrier the threads go on in the same order of the kind. */
__global__ void note_turn_after(int *n, int *turns)
{
    __syncthreads();
    turns[(*n)++] = static_cast<int>(threadIdx.x);
}

TRIAL(order_after_a_barrier)
{
    int *n = on_device<int>(1), *turns = on_device<int>(8);
    MUST(cudaMemset(n, 0, sizeof *n));
    MUST(CPLI_LAUNCH(note_turn_after, 1, 8, 0, nullptr, n, turns));
    say("turns", on_host(turns, 8));
}

__global__ void place(int *out)
{
    unsigned block =
        blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread =
        threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}

TRIAL(three_dimensions)
{
    size_t n = 2 * 3 * 4 * 5 * 6 * 7;
    int *out = on_device<int>(n);
    MUST(cudaMemset(out, 0, n * sizeof *out));
    MUST(CPLI_LAUNCH(place, dim3(2, 3, 4), dim3(5, 6, 7), 0, nullptr, out));
    int wrong = 0;
    for (int each : on_host(out, n))
        wrong += each != 1;
    std::printf("%d of %zu wrong\n", wrong, n);
}

/* ---- barriers ---- */

template <bool WITH_BARRIER> __global__ void reverse(int *out)
{
    CPLI_SHARED(int, tile, [256]);
    unsigned i = threadIdx.x, last = blockDim.x - 1;
    for (int round = 0; round < 3; round++) {
        tile[i] = static_cast<int>(i) + round;
        if (WITH_BARRIER)
            __syncthreads();
        out[blockIdx.x * blockDim.x + i] = tile[last - i];
        if (WITH_BARRIER)
            __syncthreads();
    }
}

template <bool WITH_BARRIER> void run_reverse()
{
    int *out = on_device<int>(4 * 256);
    MUST(CPLI_LAUNCH(reverse<WITH_BARRIER>, 4, 256, 0, nullptr, out));
    std::vector<int> seen = on_host(out, 4 * 256);
    int wrong = 0;
    for (int i = 0; i < 4 * 256; i++)
        wrong += seen[static_cast<size_t>(i)] != 255 - i % 256 + 2;
    std::printf("%s\n", wrong == 0 ? "right" : "wrong");
}

TRIAL(barrier)
{
    run_reverse<true>();
}

TRIAL(barrier_forgotten)
{
    run_reverse<false>();
}

__global__ void through_dynamic_shared(int *out)
{
    CPLI_DYNAMIC_SHARED(int, tile);
    CPLI_SHARED(int, other, [64]);
    tile[threadIdx.x] = 1;
    other[threadIdx.x] = 2;
    __syncthreads();
    out[threadIdx.x] = 10 * tile[threadIdx.x ^ 1] + other[threadIdx.x ^ 1];
}

TRIAL(dynamic_shared)
{
    int *out = on_device<int>(64);
    MUST(CPLI_LAUNCH(through_dynamic_shared, 1, 64, 64 * sizeof(int), nullptr,
                     out));
    int wrong = 0;
    for (int each : on_host(out, 64))
        wrong += each != 12;
    std::printf("%d wrong\n", wrong);
}

TRIAL(dynamic_shared_not_given)
{
    MUST(CPLI_LAUNCH(through_dynamic_shared, 1, 64, 0, nullptr,
                     on_device<int>(64)));
    tell("sync", cudaDeviceSynchronize());
}

/* ---- warps ---- */

__global__ void warp_sums(int *out)
{
    int lane = static_cast<int>(threadIdx.x % 32);
    int i = static_cast<int>(threadIdx.x), x = i, y = 1, down = i;
    for (int flips = 16; flips > 0; flips /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, flips);
    for (unsigned by = 1; by < 32; by *= 2) {
        int below = __shfl_up_sync(0xffffffffu, y, by);
        y += lane >= static_cast<int>(by) ? below : 0;
    }
    down = __shfl_down_sync(0xffffffffu, down, 1, 8);
    int *mine = out + 8 * i;
    mine[0] = x;
    mine[1] = y;
    mine[2] = down;
    mine[3] = __shfl_sync(0xffffffffu, i, 5);
    mine[4] = __shfl_sync(0xffffffffu, i, 1, 4);
    mine[5] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
    mine[6] = 2 * __any_sync(0xffffffffu, lane == 31) +
              __all_sync(0xffffffffu, lane < 31);
    /* Half a warp at a time, each with its mask. */
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    mine[7] = __shfl_xor_sync(half, i, 15);
}

TRIAL(warp)
{
    const int n = 64;
    int *out = on_device<int>(8 * n), wrong[8] = {};
    MUST(CPLI_LAUNCH(warp_sums, 1, n, 0, nullptr, out));
    std::vector<int> seen = on_host(out, 8 * n);
    int votes = 0;
    for (int lane = 0; lane < 32; lane += 3)
        votes |= static_cast<int>(1u << lane);
    for (int i = 0; i < n; i++) {
        int lane = i % 32, first = i - lane;
        const int right[8] = {32 * first + 31 * 16,
                              lane + 1,
                              i % 8 == 7 ? i : i + 1,
                              first + 5,
                              i / 4 * 4 + 1,
                              votes,
                              2,
                              i ^ 15};
        for (int j = 0; j < 8; j++)
            wrong[j] += seen[static_cast<size_t>(8 * i + j)] != right[j];
    }
    say("wrong", std::vector<int>(wrong, wrong + 8));
}

/* A value crosses lanes through shared memory, ordered by __syncwarp only. */
template <bool WITH_BARRIER> __global__ void cross_lanes(int *out)
{
    CPLI_SHARED(int, tile, [64]);
    tile[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (WITH_BARRIER)
        __syncwarp();
    out[threadIdx.x] = tile[threadIdx.x ^ 31];
}

template <bool WITH_BARRIER> void run_cross_lanes()
{
    int *out = on_device<int>(64);
    MUST(CPLI_LAUNCH(cross_lanes<WITH_BARRIER>, 1, 64, 0, nullptr, out));
    std::vector<int> seen = on_host(out, 64);
    int wrong = 0;
    for (int i = 0; i < 64; i++)
        wrong += seen[static_cast<size_t>(i)] != (i ^ 31);
    std::printf("%s\n", wrong == 0 ? "right" : "wrong");
}

TRIAL(warp_barrier)
{
    run_cross_lanes<true>();
}

TRIAL(warp_barrier_forgotten)
{
    run_cross_lanes<false>();
}

/* ---- what is reported ---- */

enum mistake {
    NONE,
    ENDS_BEFORE,
    ENDS_AFTER,
    TWO_PLACES,
    ENDED_LANE,
    NOT_IN_MASK,
    FROM_OUTSIDE,
    TWO_MASKS,
    STRAY
};

__global__ void diverge(int which)
{
    unsigned i = threadIdx.x;
    if (which == ENDS_BEFORE && i == 0)
        return;
    if (which == TWO_PLACES && i == 3) {
        __syncthreads();
        return;
    }
    if (which != ENDS_AFTER || i < 63)
        __syncthreads();
    if (which == ENDED_LANE && i == 40)
        return;
    if (which == ENDED_LANE)
        __syncwarp();
    if (which == NOT_IN_MASK)
        __syncwarp(0xfffffffeu);
    if (which == FROM_OUTSIDE && i < 16)
        __shfl_sync(0xffffu, 1, 20);
    if (which == TWO_MASKS && i < 2)
        __syncwarp(i == 0 ? 3u : 7u);
    if (which == STRAY && i % 2 == 0)
        __syncwarp();
    else if (which == STRAY)
        __shfl_sync(0xffffffffu, 1, 0);
}

template <int WHICH> void run_diverge()
{
    MUST(CPLI_LAUNCH(diverge, 2, 64, 0, nullptr, WHICH));
    tell("sync", cudaDeviceSynchronize());
}

TRIAL(convergent)
{
    run_diverge<NONE>();
}

TRIAL(thread_ends_before_a_barrier)
{
    run_diverge<ENDS_BEFORE>();
}

TRIAL(thread_ends_beside_a_barrier)
{
    run_diverge<ENDS_AFTER>();
}

TRIAL(two_barriers)
{
    run_diverge<TWO_PLACES>();
}

TRIAL(mask_of_an_ended_lane)
{
    run_diverge<ENDED_LANE>();
}

TRIAL(lane_outside_its_mask)
{
    run_diverge<NOT_IN_MASK>();
}

TRIAL(shuffle_from_outside_the_mask)
{
    run_diverge<FROM_OUTSIDE>();
}

__global__ void wait_for_neighbour()
{
    unsigned lane = threadIdx.x;
    __syncwarp(1u << lane | 1u << (lane + 1) % 32);
}

TRIAL(deadlock)
{
    MUST(CPLI_LAUNCH(wait_for_neighbour, 1, 32, 0, nullptr));
    tell("sync", cudaDeviceSynchronize());
}

TRIAL(masks_that_do_not_meet)
{
    run_diverge<TWO_MASKS>();
}

TRIAL(two_warp_operations)
{
    run_diverge<STRAY>();
}

/* ---- memory ---- */

/* Sanitizers would be faster than the emulator. */
#define UNSANITIZED __attribute__((no_sanitize("address", "undefined")))

UNSANITIZED __global__ void touch(int *at, int64_t index)
{
    at[index] = 1;
}

UNSANITIZED __global__ void touch_wide(uint4 *at)
{
    *at = make_uint4(1, 2, 3, 4);
}

TRIAL(null_pointer)
{
    MUST(CPLI_LAUNCH(touch, 1, 1, 0, nullptr, static_cast<int *>(nullptr), 0));
    tell("sync", cudaDeviceSynchronize());
    void *at;
    tell("malloc", cudaMalloc(&at, 8));
    tell("last", cudaGetLastError());
    tell("last", cudaGetLastError());
    MUST(cudaSetDevice(1));
    tell("device 1", cudaMalloc(&at, 8));
    tell("device 0", cudaSetDevice(0));
    tell("reset", cudaDeviceReset());
    tell("malloc", cudaMalloc(&at, 8));
}

TRIAL(past_the_end)
{
    int *at = on_device<int>(64);
    MUST(CPLI_LAUNCH(touch, 1, 1, 0, nullptr, at, 63));
    tell("inside", cudaDeviceSynchronize());
    MUST(CPLI_LAUNCH(touch, 1, 1, 0, nullptr, at, 64));
    tell("outside", cudaDeviceSynchronize());
}

TRIAL(freed_memory)
{
    int *at = on_device<int>(64);
    MUST(cudaFree(at));
    MUST(CPLI_LAUNCH(touch, 1, 1, 0, nullptr, at, 0));
    tell("sync", cudaDeviceSynchronize());
}

TRIAL(misaligned)
{
    char *at = on_device<char>(64);
    MUST(CPLI_LAUNCH(touch_wide, 1, 1, 0, nullptr,
                     reinterpret_cast<uint4 *>(at + 4)));
    tell("sync", cudaDeviceSynchronize());
}

UNSANITIZED __global__ void use_stack(int *out, int n)
{
    volatile char large[100 << 10];
    for (int i = 0; i < n; i++)
        large[i] = static_cast<char>(i);
    *out = large[n - 1];
}

TRIAL(large_stack)
{
    int *out = on_device<int>(1);
    MUST(CPLI_LAUNCH(use_stack, 1, 1, 0, nullptr, out, 100 << 10));
    tell("sync", cudaDeviceSynchronize());
}

__global__ void read_fresh_shared(unsigned *out)
{
    CPLI_SHARED(unsigned, fresh, [4]);
    out[blockIdx.x] = fresh[blockIdx.x];
    fresh[blockIdx.x] = 7;
}

TRIAL(poison)
{
    unsigned *out = on_device<unsigned>(3);
    MUST(CPLI_LAUNCH(read_fresh_shared, 2, 1, 0, nullptr, out));
    for (unsigned each : on_host(out, 3))
        std::printf("%08x\n", each);
}

template <int LEFT>
__global__ void copy_without_waiting(const uint4 *in, uint4 *out)
{
    CPLI_SHARED(uint4, tile, [2]);
    emulation::copy_async(&tile[0], in, 16);
    emulation::copy_async_commit();
    emulation::copy_async(&tile[1], in + 1, 16);
    emulation::copy_async_commit();
    emulation::copy_async_wait(LEFT);
    out[0] = tile[0];
    out[1] = tile[1];
}

template <int LEFT> void run_async()
{
    uint4 *in = on_device<uint4>(2), *out = on_device<uint4>(2);
    MUST(cudaMemset(in, 0x11, 32));
    MUST(CPLI_LAUNCH(copy_without_waiting<LEFT>, 1, 1, 0, nullptr, in, out));
    for (const uint4 &each : on_host(out, 2))
        std::printf("%08x\n", each.w);
}

TRIAL(async_copy)
{
    run_async<0>();
}

TRIAL(async_copy_waited_for_too_few)
{
    run_async<1>();
}

/* ---- launches ---- */

__global__ void add_all(unsigned long long *sum, float *floats,
                        long long *least)
{
    atomicAdd(sum, 3ull);
    atomicAdd(floats, 0.5f);
    atomicMin(least, static_cast<long long>(threadIdx.x));
}

TRIAL(atomics)
{
    auto *sum = on_device<unsigned long long>(1);
    auto *floats = on_device<float>(1);
    auto *least = on_device<long long>(1);
    MUST(cudaMemset(sum, 0, 8));
    MUST(cudaMemset(floats, 0, 4));
    MUST(cudaMemset(least, 0x7f, 8));
    MUST(CPLI_LAUNCH(add_all, 10, 100, 0, nullptr, sum, floats, least));
    say("sum", on_host(sum, 1));
    say("floats", on_host(floats, 1));
    say("least", on_host(least, 1));
}

TRIAL(launches_refused)
{
    tell("threads", CPLI_LAUNCH(diverge, 1, 1025, 0, nullptr, 0));
    tell("no blocks", CPLI_LAUNCH(diverge, 0, 32, 0, nullptr, 0));
    tell("grid", CPLI_LAUNCH(diverge, dim3(1, 65536), 32, 0, nullptr, 0));
    tell("shared", CPLI_LAUNCH(diverge, 1, 32, 49153, nullptr, 0));
    tell("more than there is",
         cudaFuncSetAttribute(reinterpret_cast<const void *>(diverge),
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              228 << 10));
    MUST(cudaFuncSetAttribute(reinterpret_cast<const void *>(diverge),
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              64 << 10));
    tell("allowed", CPLI_LAUNCH(diverge, 1, 32, 49153, nullptr, 0));
    cudaStream_t stream = new_stream();
    MUST(cudaSetDevice(1));
    tell("other device", CPLI_LAUNCH(diverge, 1, 32, 0, stream, 0));
    tell("last", cudaGetLastError());
    tell("last", cudaGetLastError());
}
