/*
 * planted.cu: bugs that the checker must name, each beside its correct twin,
 * and correct kernels that it must not complain of. For the emulator only.
 *
 *     planted ORDER      order: forward, reverse, random:SEED
 *
 * Prints a line for each report: CASE, a tab, "wrong" or "right", a tab, the
 * sentence; and a line without a sentence where there was none. A line of a
 * kernel that a report must name ends in a comment, bug: CASE.
 */
#include "emulation/checker.h"
#include "emulation/cuda_on_host.h"
#include "emulation/emulation.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace
{

enum { N = 256 }; /* integers in each buffer */

struct bench { /* what a case works on */
    cudaStream_t stream, other;
    cudaEvent_t event;
    int *in, *out; /* device memory; `in` holds 0, 1, 2, ... */
    int *host;     /* pinned */
};

/* ---- bounds ---- */

__global__ void copy_row(int *to, const int *from, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = from[i]; /* bug: past_the_end */
}

void past_the_end(const bench &b, bool right)
{
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, right ? N : N + 1);
}

__global__ void shift(int *to, bool right)
{
    CPLI_SHARED(int, tile, [64]);
    CPLI_SHARED(int, beside, [64]);
    int i = threadIdx.x;
    beside[i] = 0;
    tile[right ? (i + 1) % 64 : i + 1] = i; /* bug: past_the_tile */
    if (!right && i == 0)
        tile[0] = 0;
    __syncthreads();
    to[i] = tile[i] + beside[i];
}

void past_the_tile(const bench &b, bool right)
{
    CPLI_LAUNCH(shift, 1, 64, 0, b.stream, b.out, right);
}

__global__ void read_far(int *to, const int *from)
{
    to[threadIdx.x] = from[threadIdx.x]; /* bug: after_free */
}

void after_free(const bench &b, bool right)
{
    int *gone;
    cudaMalloc(reinterpret_cast<void **>(&gone), 128);
    cudaMemsetAsync(gone, 0, 128, b.stream);
    cudaStreamSynchronize(b.stream);
    if (!right)
        cudaFree(gone);
    CPLI_LAUNCH(read_far, 1, 32, 0, b.stream, b.out, gone);
    cudaStreamSynchronize(b.stream);
    if (right)
        cudaFree(gone);
}

/* ---- barriers ---- */

__global__ void reverse_in_block(int *to, const int *from, bool right)
{
    CPLI_SHARED(int, tile, [N]);
    int i = threadIdx.x;
    tile[i] = from[i]; /* bug: no_block_barrier */
    if (right)
        __syncthreads();
    to[i] = tile[N - 1 - i]; /* bug: no_block_barrier */
}

void no_block_barrier(const bench &b, bool right)
{
    CPLI_LAUNCH(reverse_in_block, 1, N, 0, b.stream, b.out, b.in, right);
}

/* The barrier that is missing is the one before the tile is used again. */
__global__ void reverse_twice(int *to, const int *from, bool right)
{
    CPLI_SHARED(int, tile, [N / 2]);
    int i = threadIdx.x;
    for (int part = 0; part < 2; part++) {
        tile[i] = from[part * N / 2 + i]; /* bug: no_second_barrier */
        __syncthreads();
        to[part * N / 2 + i] = tile[N / 2 - 1 - i]; /* bug: no_second_barrier */
        if (right)
            __syncthreads();
    }
}

void no_second_barrier(const bench &b, bool right)
{
    CPLI_LAUNCH(reverse_twice, 1, N / 2, 0, b.stream, b.out, b.in, right);
}

__global__ void swap_neighbours(int *to, const int *from, bool right)
{
    CPLI_SHARED(int, tile, [32]);
    int i = threadIdx.x;
    tile[i] = from[i]; /* bug: no_warp_barrier */
    if (right)
        __syncwarp();
    to[i] = tile[i ^ 1]; /* bug: no_warp_barrier */
}

void no_warp_barrier(const bench &b, bool right)
{
    CPLI_LAUNCH(swap_neighbours, 1, 32, 0, b.stream, b.out, b.in, right);
}

/* Lanes meet in a shuffle, but it orders no memory. */
__global__ void shuffle_for_barrier(int *to, const int *from, bool right)
{
    CPLI_SHARED(int, tile, [32]);
    int i = threadIdx.x;
    tile[i] = from[i]; /* bug: shuffle_is_no_barrier */
    int sum = __shfl_xor_sync(0xffffffffu, i, 1);
    if (right)
        __syncwarp();
    to[i] = tile[i ^ 1] + sum; /* bug: shuffle_is_no_barrier */
}

void shuffle_is_no_barrier(const bench &b, bool right)
{
    CPLI_LAUNCH(shuffle_for_barrier, 1, 32, 0, b.stream, b.out, b.in, right);
}

/* The mask leaves out the lanes whose words are read. */
__global__ void half_a_warp(int *to, const int *from, bool right)
{
    CPLI_SHARED(int, tile, [32]);
    int i = threadIdx.x;
    tile[i] = from[i]; /* bug: wrong_mask */
    if (right)
        __syncwarp();
    else
        __syncwarp(i < 16 ? 0x0000ffffu : 0xffff0000u);
    to[i] = tile[i ^ 16]; /* bug: wrong_mask */
}

void wrong_mask(const bench &b, bool right)
{
    CPLI_LAUNCH(half_a_warp, 1, 32, 0, b.stream, b.out, b.in, right);
}

__global__ void barrier_in_branch(int *to, bool right)
{
    CPLI_SHARED(int, first, [1]);
    if (threadIdx.x == 0)
        first[0] = 7;
    if (right || threadIdx.x < 32)
        __syncthreads(); /* bug: divergent_barrier */
    if (right || threadIdx.x == 0)
        to[threadIdx.x] = first[0];
}

void divergent_barrier(const bench &b, bool right)
{
    CPLI_LAUNCH(barrier_in_branch, 1, 64, 0, b.stream, b.out, right);
}

/* ---- blocks ---- */

__global__ void write_rows(int *to, const int *from, bool right)
{
    unsigned row = right ? blockIdx.x : blockIdx.x / 2;
    to[row * 32 + threadIdx.x] = from[threadIdx.x]; /* bug: one_row_twice */
}

void one_row_twice(const bench &b, bool right)
{
    CPLI_LAUNCH(write_rows, 4, 32, 0, b.stream, b.out, b.in, right);
}

/* ---- initialisation ---- */

void never_written(const bench &b, bool right)
{
    int *fresh;
    cudaMalloc(reinterpret_cast<void **>(&fresh), 4 * N);
    if (right)
        cudaMemsetAsync(fresh, 0, 4 * N, b.stream);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, fresh, N);
    cudaStreamSynchronize(b.stream);
    cudaFree(fresh);
}

__global__ void half_a_tile(int *to, bool right)
{
    CPLI_SHARED(int, tile, [64]);
    if (right || threadIdx.x < 32)
        tile[threadIdx.x] = 1;
    __syncthreads();
    to[threadIdx.x] = tile[threadIdx.x]; /* bug: tile_not_written */
}

/* Two blocks: the second must not live on what the first one left. */
void tile_not_written(const bench &b, bool right)
{
    CPLI_LAUNCH(half_a_tile, 1, 64, 0, b.stream, b.out, true);
    CPLI_LAUNCH(half_a_tile, 1, 64, 0, b.stream, b.out, right);
}

void copied_unwritten(const bench &b, bool right)
{
    int *fresh;
    cudaMalloc(reinterpret_cast<void **>(&fresh), 4 * N);
    if (right)
        cudaMemsetAsync(fresh, 0, 4 * N, b.stream);
    cudaMemcpyAsync(b.host, fresh, 4 * N, cudaMemcpyDeviceToHost, b.stream);
    cudaStreamSynchronize(b.stream);
    cudaFree(fresh);
}

/* ---- alignment ---- */

__global__ void copy_vectors(uint4 *to, const char *from, int offset)
{
    const char *at = from + offset + 16 * threadIdx.x;
    to[threadIdx.x] = *(const uint4 *)at; /* bug: misaligned */
}

void misaligned(const bench &b, bool right)
{
    CPLI_LAUNCH(copy_vectors, 1, 32, 0, b.stream,
                reinterpret_cast<uint4 *>(b.out),
                reinterpret_cast<const char *>(b.in), right ? 16 : 8);
}

/* ---- waits ---- */

/* Two groups in flight; the wrong one leaves both of them open. */
__global__ void copy_behind(int *to, const int *from, bool right)
{
    CPLI_SHARED(int4, tile, [2][32]);
    int i = threadIdx.x;
    for (int part = 0; part < 2; part++) {
        emulation::copy_async(&tile[part][i], from + 4 * (32 * part + i), 16);
        emulation::copy_async_commit();
    }
    for (int part = 0; part < 2; part++) {
        emulation::copy_async_wait((right ? 1 : 2) - part);
        int4 got = tile[part][i]; /* bug: wrong_group */
        reinterpret_cast<int4 *>(to)[32 * part + i] = got;
    }
}

void wrong_group(const bench &b, bool right)
{
    CPLI_LAUNCH(copy_behind, 1, 32, 0, b.stream, b.out, b.in, right);
}

/* Each thread waits for its own copies; for another's it needs a barrier. */
__global__ void copy_for_others(int *to, const int *from, bool right)
{
    CPLI_SHARED(int4, tile, [64]);
    int i = threadIdx.x;
    emulation::copy_async(&tile[i], from + 4 * i, 16); /* bug: others_copy */
    emulation::copy_async_commit();
    emulation::copy_async_wait(0);
    if (right)
        __syncthreads();
    reinterpret_cast<int4 *>(to)[i] = tile[63 - i]; /* bug: others_copy */
}

void others_copy(const bench &b, bool right)
{
    CPLI_LAUNCH(copy_for_others, 1, 64, 0, b.stream, b.out, b.in, right);
}

void read_before_sync(const bench &b, bool right)
{
    cudaMemcpyAsync(b.host, b.in, 4 * N, cudaMemcpyDeviceToHost, b.stream);
    if (right)
        cudaStreamSynchronize(b.stream);
    volatile int seen = b.host[3]; /* bug: read_before_sync */
    (void)seen;
    cudaStreamSynchronize(b.stream);
}

void write_before_sync(const bench &b, bool right)
{
    cudaMemcpyAsync(b.in, b.host, 4 * N, cudaMemcpyHostToDevice, b.stream);
    if (right)
        cudaStreamSynchronize(b.stream);
    b.host[5] = 5; /* bug: write_before_sync */
    cudaStreamSynchronize(b.stream);
}

/* ---- streams ---- */

void forgotten_event(const bench &b, bool right)
{
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    if (right) {
        cudaEventRecord(b.event, b.stream);
        cudaStreamWaitEvent(b.other, b.event, 0);
    }
    cudaMemsetAsync(b.out, 0, 4 * N, b.other);
    cudaStreamSynchronize(b.other);
    cudaStreamSynchronize(b.stream);
}

/* The wait binds to the record before it: a later one does not count. */
void event_too_late(const bench &b, bool right)
{
    cudaEventRecord(b.event, b.stream);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    if (right)
        cudaEventRecord(b.event, b.stream);
    cudaStreamWaitEvent(b.other, b.event, 0);
    if (!right)
        cudaEventRecord(b.event, b.stream);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.other, b.out, b.in, N);
    cudaStreamSynchronize(b.other);
    cudaStreamSynchronize(b.stream);
}

/* Two branches of a graph that nothing orders. */
void forgotten_join(const bench &b, bool right)
{
    cudaGraph_t made;
    cudaGraphExec_t ready;
    cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(b.event, b.stream);
    cudaStreamWaitEvent(b.other, b.event, 0);
    cudaMemsetAsync(b.out, 0, 4 * N, b.other);
    cudaEventRecord(b.event, b.other);
    if (right)
        cudaStreamWaitEvent(b.stream, b.event, 0);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    if (!right)
        cudaStreamWaitEvent(b.stream, b.event, 0);
    cudaStreamEndCapture(b.stream, &made);
    cudaGraphInstantiate(&ready, made, 0);
    cudaGraphLaunch(ready, b.stream);
    cudaStreamSynchronize(b.stream);
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(made);
}

/* ---- pointers ---- */

void host_pointer(const bench &b, bool right)
{
    static int *const pageable = static_cast<int *>(std::calloc(N, 4));
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, right ? b.host : pageable,
                N); /* pinned memory is mapped */
}

void device_pointer(const bench &b, bool right)
{
    const int *from = right ? b.host : b.in;
    volatile int seen = from[3]; /* bug: device_pointer */
    (void)seen;
}

/* ---- correct kernels: nothing may be said of them ---- */

__global__ void reduce(int *to, const int *from)
{
    CPLI_SHARED(int, sums, [8]);
    int sum = from[threadIdx.x];
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 8) {
        sum = sums[threadIdx.x];
        for (int step = 4; step > 0; step /= 2)
            sum += __shfl_down_sync(0xffu, sum, step, 8);
        if (threadIdx.x == 0)
            to[blockIdx.x] = sum;
    }
}

/* A tree in shared memory: block barriers first, then one warp by itself. */
__global__ void reduce_in_tree(int *to, const int *from)
{
    CPLI_DYNAMIC_SHARED(int, sums);
    int i = threadIdx.x;
    sums[i] = from[i];
    __syncthreads();
    for (int step = N / 2; step >= 32; step /= 2) {
        if (i < step)
            sums[i] += sums[i + step];
        __syncthreads();
    }
    if (i < 32)
        for (int step = 16; step > 0; step /= 2) {
            int other = i < step ? sums[i + step] : 0;
            __syncwarp();
            sums[i] += other;
            __syncwarp();
        }
    __syncthreads();
    to[i] = sums[0];
}

void reductions(const bench &b, bool)
{
    CPLI_LAUNCH(reduce, 4, N, 0, b.stream, b.out, b.in);
    CPLI_LAUNCH(reduce_in_tree, 1, N, 4 * N, b.stream, b.out, b.in);
}

__global__ void count(int *counts, float *sum, const int *from)
{
    int i = threadIdx.x;
    atomicAdd(&counts[from[i] % 8], 1);
    atomicMax(&counts[8], from[i]);
    atomicAdd(sum, 0.5f);
    int old = counts[9], assumed; /* a plain read before the loop is none */
    do {
        assumed = old;
        old = atomicCAS(&counts[10], assumed, assumed + 1);
    } while (old != assumed);
}

void atomics(const bench &b, bool)
{
    cudaMemsetAsync(b.out, 0, 4 * N, b.stream);
    CPLI_LAUNCH(count, 4, N, 0, b.stream, b.out,
                reinterpret_cast<float *>(b.out + 16), b.in);
}

/* A block loads the next tile while it works on this one. */
__global__ void double_buffer(int *to, const int *from)
{
    CPLI_SHARED(int, tile, [2][32]);
    int i = threadIdx.x, sum = 0;
    emulation::copy_async(&tile[0][i], from + i, 4);
    emulation::copy_async_commit();
    for (int part = 0; part < N / 32; part++) {
        if (part + 1 < N / 32)
            emulation::copy_async(&tile[(part + 1) % 2][i],
                                  from + 32 * (part + 1) + i, 4);
        emulation::copy_async_commit();
        emulation::copy_async_wait(1);
        __syncthreads();
        sum += tile[part % 2][31 - i];
        __syncthreads();
    }
    to[blockIdx.x * 32 + i] = sum;
}

void pipeline(const bench &b, bool)
{
    CPLI_LAUNCH(double_buffer, 3, 32, 0, b.stream, b.out, b.in);
}

/* Bytes of one 16-byte word belong to sixteen threads of two blocks. */
__global__ void by_bytes(char *to, const char *from)
{
    unsigned i = blockIdx.x * 8 + threadIdx.x;
    to[i] = from[i];
}

void tails(const bench &b, bool)
{
    CPLI_LAUNCH(by_bytes, 5, 8, 0, b.stream,
                reinterpret_cast<char *>(b.out) + 3,
                reinterpret_cast<const char *>(b.in) + 5);
    CPLI_LAUNCH(by_bytes, 5, 8, 0, b.stream,
                reinterpret_cast<char *>(b.out) + 1,
                reinterpret_cast<const char *>(b.in));
}

__global__ void leave_early(int *to)
{
    CPLI_SHARED(int, first, [1]);
    if (threadIdx.x == 0)
        first[0] = 1;
    __syncthreads();
    if (threadIdx.x >= 40)
        return;
    to[blockIdx.x * 64 + threadIdx.x] = first[0];
}

void early_exit(const bench &b, bool)
{
    CPLI_LAUNCH(leave_early, 2, 64, 0, b.stream, b.out);
}

/* The same graph twice; fork and join inside it; routes change between. */
void graph(const bench &b, bool)
{
    cudaGraph_t made;
    cudaGraphExec_t ready;
    cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    cudaEventRecord(b.event, b.stream);
    cudaStreamWaitEvent(b.other, b.event, 0);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.other, b.out, b.in, N / 2);
    cudaEventRecord(b.event, b.other);
    cudaStreamWaitEvent(b.stream, b.event, 0);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    cudaStreamEndCapture(b.stream, &made);
    cudaGraphInstantiate(&ready, made, 0);
    for (int again = 0; again < 3; again++) {
        for (int i = 0; i < N; i++)
            b.host[i] = i + again;
        cudaMemcpyAsync(b.in, b.host, 4 * N, cudaMemcpyHostToDevice, b.stream);
        cudaGraphLaunch(ready, b.stream);
        cudaStreamSynchronize(b.stream);
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(made);
}

/* ---- the program ---- */

struct planted_case {
    const char *name;
    void (*run)(const bench &b, bool right);
    bool has_bug;
} const cases[] = {
    {"past_the_end", past_the_end, true},
    {"past_the_tile", past_the_tile, true},
    {"after_free", after_free, true},
    {"no_block_barrier", no_block_barrier, true},
    {"no_second_barrier", no_second_barrier, true},
    {"no_warp_barrier", no_warp_barrier, true},
    {"shuffle_is_no_barrier", shuffle_is_no_barrier, true},
    {"wrong_mask", wrong_mask, true},
    {"divergent_barrier", divergent_barrier, true},
    {"one_row_twice", one_row_twice, true},
    {"never_written", never_written, true},
    {"tile_not_written", tile_not_written, true},
    {"copied_unwritten", copied_unwritten, true},
    {"misaligned", misaligned, true},
    {"wrong_group", wrong_group, true},
    {"others_copy", others_copy, true},
    {"read_before_sync", read_before_sync, true},
    {"write_before_sync", write_before_sync, true},
    {"forgotten_event", forgotten_event, true},
    {"event_too_late", event_too_late, true},
    {"forgotten_join", forgotten_join, true},
    {"host_pointer", host_pointer, true},
    {"device_pointer", device_pointer, true},
    {"reductions", reductions, false},
    {"atomics", atomics, false},
    {"pipeline", pipeline, false},
    {"tails", tails, false},
    {"early_exit", early_exit, false},
    {"graph", graph, false},
};

void run(const planted_case &c, bool right)
{
    bench b;
    cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b.other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&b.event, cudaEventDisableTiming);
    cudaMalloc(reinterpret_cast<void **>(&b.in), 4 * N);
    cudaMalloc(reinterpret_cast<void **>(&b.out), 4 * N);
    cudaMallocHost(reinterpret_cast<void **>(&b.host), 4 * N);
    for (int i = 0; i < N; i++)
        b.host[i] = i;
    cudaMemcpyAsync(b.in, b.host, 4 * N, cudaMemcpyHostToDevice, b.stream);
    cudaStreamSynchronize(b.stream);
    c.run(b, right);
    cudaDeviceSynchronize();
    const char *side = right ? "right" : "wrong";
    for (int i = 0; i < cpli_check_n_reports(); i++)
        std::printf("%s\t%s\t%s\n", c.name, side, cpli_check_sentence(i));
    if (cpli_check_n_reports() == 0)
        std::printf("%s\t%s\t\n", c.name, side);
    cpli_check_reset();
    cpl_emulation_forgive();
    cudaFree(b.in);
    cudaFree(b.out);
    cudaFreeHost(b.host);
    cudaEventDestroy(b.event);
    cudaStreamDestroy(b.stream);
    cudaStreamDestroy(b.other);
}

} // namespace

int main(int n_words, char **words)
{
    if (n_words < 2 || cpl_emulation_set("order", words[1]) != 0) {
        std::fprintf(stderr, "usage: planted forward|reverse|random:SEED\n");
        return 2;
    }
    for (const planted_case &c : cases)
        for (bool right : {false, true})
            if (right || c.has_bug)
                run(c, right);
    return 0;
}
