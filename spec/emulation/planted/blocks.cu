/*
 * blocks.cu: bugs within a launch.
 */
#include "planted.h"
#include <cstdlib>

namespace
{

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

/* The word is read by all before its last reader overwrites it. */
__global__ void read_and_overwrite(int *to, bool right)
{
    CPLI_SHARED(int, word, [1]);
    if (threadIdx.x == 0)
        word[0] = 5;
    __syncthreads();
    int got = word[0]; /* bug: overwritten_early */
    if (right)
        __syncthreads();
    if (threadIdx.x == 63)
        word[0] = 6; /* bug: overwritten_early */
    to[threadIdx.x] = got;
}

void overwritten_early(const bench &b, bool right)
{
    CPLI_LAUNCH(read_and_overwrite, 1, 64, 0, b.stream, b.out, right);
}

/* A warp has waited for itself, and the other one is still reading. */
__global__ void warp_for_block(int *to, bool right)
{
    CPLI_SHARED(int, word, [1]);
    if (threadIdx.x == 0)
        word[0] = 5;
    __syncthreads();
    to[threadIdx.x] = word[0]; /* bug: only_the_warp */
    if (right)
        __syncthreads();
    else
        __syncwarp();
    if (threadIdx.x == 0)
        word[0] = 6; /* bug: only_the_warp */
}

void only_the_warp(const bench &b, bool right)
{
    CPLI_LAUNCH(warp_for_block, 1, 64, 0, b.stream, b.out, right);
}

/* All lanes have read; the writer has waited for half of them. */
__global__ void half_of_readers(int *to, bool right)
{
    CPLI_SHARED(int, word, [1]);
    if (threadIdx.x == 0)
        word[0] = 5;
    __syncwarp();
    to[threadIdx.x] = word[0]; /* bug: half_waited_for */
    if (right)
        __syncwarp();
    else
        __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
    if (threadIdx.x == 0)
        word[0] = 6; /* bug: half_waited_for */
}

void half_waited_for(const bench &b, bool right)
{
    CPLI_LAUNCH(half_of_readers, 1, 32, 0, b.stream, b.out, right);
}

/* The first barrier is there, the second is not. */
__global__ void swap_twice(int *to, const int *from, bool right)
{
    CPLI_SHARED(int, tile, [32]);
    int i = threadIdx.x;
    tile[i] = from[i];
    __syncwarp();
    int got = tile[i ^ 1]; /* bug: no_second_warp_barrier */
    if (right)
        __syncwarp();
    tile[i] = got + 1; /* bug: no_second_warp_barrier */
    to[i] = tile[i];
}

void no_second_warp_barrier(const bench &b, bool right)
{
    CPLI_LAUNCH(swap_twice, 1, 32, 0, b.stream, b.out, b.in, right);
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

/* Two blocks share 16 bytes, half each; one byte is read across. */
__global__ void write_halves(uint2 *to, char *out, bool right)
{
    to[blockIdx.x] = make_uint2(1, 2); /* bug: one_byte_across */
    unsigned at = right ? 8 * blockIdx.x : 8;
    if (blockIdx.x == 0)
        *out =
            reinterpret_cast<const char *>(to)[at]; /* bug: one_byte_across */
}

void one_byte_across(const bench &b, bool right)
{
    CPLI_LAUNCH(write_halves, 2, 1, 0, b.stream,
                reinterpret_cast<uint2 *>(b.in),
                reinterpret_cast<char *>(b.out), right);
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

} // namespace

const planted_case bugs_of_blocks[] = {
    {"past_the_end", past_the_end, true},
    {"past_the_tile", past_the_tile, true},
    {"after_free", after_free, true},
    {"no_block_barrier", no_block_barrier, true},
    {"no_second_barrier", no_second_barrier, true},
    {"no_warp_barrier", no_warp_barrier, true},
    {"overwritten_early", overwritten_early, true},
    {"no_second_warp_barrier", no_second_warp_barrier, true},
    {"one_byte_across", one_byte_across, true},
    {"only_the_warp", only_the_warp, true},
    {"half_waited_for", half_waited_for, true},
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
    {"host_pointer", host_pointer, true},
    {"device_pointer", device_pointer, true},
    {nullptr, nullptr, false},
};
