/*
 * correct.cu: kernels that a checker might easily take for wrong ones.
 */
#include "planted.h"

namespace
{

__global__ void copy_row(int *to, const int *from, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = from[i];
}

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

/* Two streams without an event: the host waited between. */
void host_waits(const bench &b, bool)
{
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    cudaStreamSynchronize(b.stream);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.other, b.in, b.out, N);
    cudaEventRecord(b.event, b.other);
    cudaEventSynchronize(b.event);
    cudaMemsetAsync(b.out, 0, 4 * N, b.stream);
    cudaDeviceSynchronize();
    cudaMemcpy(b.host, b.out, 4 * N, cudaMemcpyDeviceToHost);
    b.host[0] = b.host[1];
}

/* Lanes that wait for each other in groups: each pair has its own mask. */
__global__ void in_groups(int *to)
{
    CPLI_SHARED(int, tile, [32]);
    int i = threadIdx.x;
    tile[i] = i;
    for (int width = 2; width <= 32; width *= 2) {
        unsigned group = (width == 32 ? ~0u : (1u << width) - 1)
                         << i / width * width;
        __syncwarp(group);
        int other = tile[i ^ (width / 2)];
        __syncwarp(group);
        tile[i] += other;
    }
    to[i] = tile[i];
}

void groups(const bench &b, bool)
{
    CPLI_LAUNCH(in_groups, 1, 32, 0, b.stream, b.out);
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

} // namespace

const planted_case correct_ones[] = {
    {"reductions", reductions, false}, {"atomics", atomics, false},
    {"pipeline", pipeline, false},     {"tails", tails, false},
    {"early_exit", early_exit, false}, {"graph", graph, false},
    {"host_waits", host_waits, false}, {"groups", groups, false},
    {nullptr, nullptr, false},
};
