/*
 * attention_tiles.cuh: what the kernels on tensor cores share. Strips come
 * through two buffers of shared memory, one ahead. Each warp has 16 or 32 of
 * the tile's rows. Products are of bf16, sums in f32.
 *
 * Of a product of 16 rows and 8 columns a thread has four sums, two neighbours
 * in each of two rows (ptx.cuh, C): row_of_sum and column_of_sum say which.
 */
#ifndef CPLI_ATTENTION_TILES_CUH
#define CPLI_ATTENTION_TILES_CUH

#include <type_traits>

#include "ptx.cuh"
#include "strips.cuh"

namespace cpli
{

static_assert(UNIT == 16, "rows of a product");
constexpr int MOST_WIDTH = 256; /* of a head */
constexpr float LOG2_E = 1.4426950408889634f;

using bf16 = __nv_bfloat16;

/* Rows that can be copied by 16 bytes. */
inline bool is_wide(const void *rows, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % 8 == 0;
}

/* Lets a kernel have more shared memory than it has unasked. */
template <class KERNEL> int allow_shared(KERNEL *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
}

/* The same as a question: a device may have less. */
template <class KERNEL> bool has_shared(KERNEL *kernel, size_t bytes)
{
    if (allow_shared(kernel, bytes) == cudaSuccess)
        return true;
    cudaGetLastError();
    return false;
}

/* f(the width that a head is padded to, as a constant). */
template <class F> int by_width(const cpl_attention &p, F f)
{
    const int64_t width = p.key_dim > p.value_dim ? p.key_dim : p.value_dim;
    return width <= 64    ? f(std::integral_constant<int, 64>())
           : width <= 128 ? f(std::integral_constant<int, 128>())
                          : f(std::integral_constant<int, MOST_WIDTH>());
}

/* ---- tiles in shared memory ---- */

/* Where 8 numbers of a row lie in a tile of rows of D bf16: turned by the row,
 * so that the same 8 of 8 rows lie in different banks. */
template <int D>
__device__ __forceinline__ uint4 *chunk_of(uint4 *tile, int row, int chunk)
{
    return tile + row * (D / 8) + (chunk ^ (row & 7));
}

/* Begins to copy n rows of `width` numbers; what is left of rows x D is zeros.
 * Not unrolled: addresses would take the registers that products need. */
template <int D>
__device__ __forceinline__ void load_rows(uint4 *tile, const bf16 *from,
                                          int64_t stride, int n, int width,
                                          int rows)
{
    constexpr int CHUNKS = D / 8, STEP = TILE_THREADS / CHUNKS;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int first = static_cast<int>(threadIdx.x) / CHUNKS;
    from += first * stride + chunk * 8;
    if (chunk * 8 >= width)
        n = 0;
#pragma unroll 1
    for (int row = first; row < rows; row += STEP, from += STEP * stride) {
        uint4 *to = chunk_of<D>(tile, row, chunk);
        if (row < n)
            cpli_copy_async(to, from);
        else
            *to = uint4{0, 0, 0, 0};
    }
}

/* A strip of no more columns than FEW is met as one of FEW: packed sequences
 * may be short. */
constexpr int FEW = 16;

template <int D, int N>
__device__ __forceinline__ void load_strip(uint4 *tile, const bf16 *from,
                                           int64_t stride, int n, int width)
{
    load_rows<D>(tile, from, stride, n, width, n <= FEW ? FEW : N);
}

/* Begins to copy the keys and the values of a strip, one behind the other; also
 * none, so that each strip is one group of copies. */
template <int D, int N>
__device__ __forceinline__ void
load_keys(const cpl_attention &p, const strip &keys, int64_t kv_head, uint4 *to)
{
    if (keys.n > 0) {
        load_strip<D, N>(
            to, row_of<bf16>(p.k, keys.slot, p.k_stride, kv_head, p.key_dim),
            p.k_stride, keys.n, static_cast<int>(p.key_dim));
        load_strip<D, N>(
            to + N * D / 8,
            row_of<bf16>(p.v, keys.slot, p.v_stride, kv_head, p.value_dim),
            p.v_stride, keys.n, static_cast<int>(p.value_dim));
    }
    cpli_copy_async_commit();
}

/* ---- products of a warp ---- */

__device__ __forceinline__ int lane_here()
{
    return static_cast<int>(threadIdx.x) % 32;
}

__device__ __forceinline__ uint32_t two_bf16(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &both, sizeof word);
    return word;
}

/* Bytes from a tile's begin to 8 numbers of a row, chunk 0 or 1 of it. Chunk
 * 2 k more is where the bits of 32 k are turned, in this number alone. */
template <int D> __device__ __forceinline__ unsigned corner(int row, int chunk)
{
    return static_cast<unsigned>(row * D * 2 + (chunk ^ (row & 7)) * 16);
}

__device__ __forceinline__ const void *bytes_on(const uint4 *tile,
                                                unsigned bytes)
{
    return reinterpret_cast<const char *>(tile) + bytes;
}

/* c += the warp's rows of `a`, from `row` on, times the rows of `b`; of their D
 * numbers the first so many. */
template <int D, int M, int N, int FIRST = D>
__device__ __forceinline__ void
times_rows(float (&c)[M][N / 8][4], const uint4 *a, int row, const uint4 *b)
{
    const int lane = lane_here();
    const unsigned at_a = corner<D>(row + lane % 16, lane / 16);
    const unsigned at_b = corner<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < FIRST / 16; k++) {
        uint32_t x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            cpli_ldmatrix(x[m], bytes_on(a, (at_a ^ k * 32) + m * 32 * D));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t y[4];
            cpli_ldmatrix(y, bytes_on(b, (at_b ^ k * 32) + n * 32 * D));
#pragma unroll
            for (int m = 0; m < M; m++) {
                cpli_mma_bf16(c[m][2 * n], x[m], y[0], y[1]);
                cpli_mma_bf16(c[m][2 * n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* c += `a`, rounded to bf16, times the columns of `b`. */
template <int D, int M, int N>
__device__ __forceinline__ void times_columns(float (&c)[M][D / 8][4],
                                              const float (&a)[M][N / 8][4],
                                              const uint4 *b)
{
    const int lane = lane_here();
    const unsigned at_b = corner<D>(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[m][i] = two_bf16(a[m][2 * n + i / 2][i % 2 * 2],
                                   a[m][2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t y[4];
            cpli_ldmatrix_trans(y, bytes_on(b, (at_b ^ d * 32) + n * 32 * D));
#pragma unroll
            for (int m = 0; m < M; m++) {
                cpli_mma_bf16(c[m][2 * d], x[m], y[0], y[1]);
                cpli_mma_bf16(c[m][2 * d + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* The row and the column of sum i of every 8 columns. */
__device__ __forceinline__ int row_of_sum(int i)
{
    return lane_here() / 4 + i / 2 * 8;
}
__device__ __forceinline__ int column_of_sum(int i)
{
    return lane_here() % 4 * 2 + i % 2;
}

/* Of a row of sums, whose lanes are neighbours. */
__device__ __forceinline__ float most_of_four_lanes(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float sum_of_four_lanes(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Where a row does not see a column: x. */
template <int M, int N>
__device__ __forceinline__ void mask(float (&s)[M][N / 8][4], int row,
                                     const strip &keys, float x)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!keys.sees(row + 16 * m + row_of_sum(i),
                               8 * n + column_of_sum(i)))
                    s[m][n][i] = x;
}

/* Whether the warp's sums are finite, and what they are added to with. */
template <int D, int M>
__device__ __forceinline__ bool is_finite(const float (&c)[M][D / 8][4],
                                          const float (&kept)[M][2])
{
    float all = 0; /* x - x is 0, or NaN */
#pragma unroll
    for (int m = 0; m < M; m++) {
        all += (kept[m][0] - kept[m][0]) + (kept[m][1] - kept[m][1]);
#pragma unroll
        for (int d = 0; d < D / 8; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all += c[m][d][i] - c[m][d][i];
    }
    return __all_sync(0xffffffffu, all == 0);
}

/* Marks the units of the warp's rows, from `slot` on, as what they are: whether
 * they are left to the naive kernel. */
template <int D, int M>
__device__ __forceinline__ bool
is_left(const float (&c)[M][D / 8][4], const float (&kept)[M][2],
        uint32_t *marks, int64_t slot, int64_t n_rows, int64_t head,
        int64_t heads)
{
    const bool all = is_finite<D, M>(c, kept);
    for (int m = 0; m < M; m++)
        if (lane_here() == 0)
            mark_unit(marks, slot + 16 * m, n_rows, head, heads, all);
    return !all;
}

/* Writes the warp's rows, the first n of them and `width` columns, by way of
 * its part of a tile, plus `kept` of each row times what is there. */
template <int D, int M>
__device__ __forceinline__ void
store_rows(const float (&c)[M][D / 8][4], const float (&kept)[M][2],
           uint4 *tile, int row, bf16 *to, int64_t stride, int n, int width)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = 16 * m + row_of_sum(2 * half);
            const bool is_kept = kept[m][half] != 0 && r < n;
            const bf16 *old = to + r * stride + column_of_sum(0);
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                float x = c[m][d][2 * half], y = c[m][d][2 * half + 1];
                if (is_kept && 8 * d < width) {
                    x += kept[m][half] * get(old[8 * d]);
                    y += kept[m][half] * get(old[8 * d + 1]);
                }
                uint4 *chunk = chunk_of<D>(tile, row + r, d);
                reinterpret_cast<uint32_t *>(chunk)[column_of_sum(0) / 2] =
                    two_bf16(x, y);
            }
        }
    __syncwarp();
#pragma unroll 1
    for (int i = lane_here(); i < 16 * M * (D / 8); i += 32) {
        const int r = i / (D / 8), chunk = i % (D / 8);
        if (r < n && chunk * 8 < width)
            *reinterpret_cast<uint4 *>(to + r * stride + chunk * 8) =
                *chunk_of<D>(tile, row + r, chunk);
    }
}

} // namespace cpli

#endif
