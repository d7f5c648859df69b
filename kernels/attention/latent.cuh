/*
 * latent.cuh: latent attention in bf16 on tensor cores: one head of keys for
 * all queries, and values in the keys' rows (DeepSeek-V2, arXiv 2405.04434: 512
 * of 576 numbers), which so are in shared memory once and are both.
 *
 * A row of what is summed does not fit a warp's registers, so eight warps
 * divide their work twice. Of a product of rows each has 16 x 16; what becomes
 * of it, weights, passes through shared memory. Then each has some columns of
 * the sums, of all rows: 16 from 16 (warp + 8 d) on, of every d.
 */
#ifndef CPLI_ATTENTION_LATENT_CUH
#define CPLI_ATTENTION_LATENT_CUH

#include "attention_tiles.cuh"

namespace cpli
{

constexpr int LATENT_WARPS = 8, LATENT_THREADS = 32 * LATENT_WARPS;
constexpr int LATENT_WIDTH = 576, LATENT_CHUNKS = LATENT_WIDTH / 8;
constexpr int LATENT_VALUES = 512;

/* A warp's sums of 16 M rows, of D times 16 columns. */
template <int M, int D> using latent_sums = float[M][2 * D][4];

/* Rows of weights of N columns lie apart by a chunk more: other banks. */
template <int N> constexpr int WEIGHT_CHUNKS = N / 8 + 1;

__device__ __forceinline__ int warp_here()
{
    return static_cast<int>(threadIdx.x) / 32;
}

/* Begins to copy n rows of `width` numbers; the rest of the tile is zeros. */
__device__ __forceinline__ void load_latent(uint4 *tile, const bf16 *from,
                                            int64_t stride, int64_t n,
                                            int64_t width, int rows)
{
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * LATENT_CHUNKS;
         i += LATENT_THREADS) {
        const int row = i / LATENT_CHUNKS, chunk = i % LATENT_CHUNKS;
        uint4 *to = chunk_of<LATENT_WIDTH>(tile, row, chunk);
        if (row < n && chunk * 8 < width)
            cpli_copy_async(to, from + row * stride + chunk * 8);
        else
            *to = uint4{0, 0, 0, 0};
    }
}

/* c = the first WIDTH numbers of 16 rows of a times those of 16 rows of b. */
template <int WIDTH>
__device__ __forceinline__ void multiply_latent(float (&c)[1][2][4],
                                                const uint4 *a, int row,
                                                const uint4 *b, int column)
{
    b += column * LATENT_CHUNKS;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[0][n][i] = 0;
#pragma unroll
    for (int d = 0; d < WIDTH / 64; d++)
        times_rows<LATENT_WIDTH, 1, 16, 64>(c, a + 8 * d, row, b + 8 * d);
}

/* Weights of 16 rows and 16 columns, from (row, column) on, into shared memory,
 * rounded. */
template <int N>
__device__ __forceinline__ void
keep_weights(const float (&c)[1][2][4], uint4 *weights, int row, int column)
{
    uint32_t *words = reinterpret_cast<uint32_t *>(weights);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const int r = row + row_of_sum(i);
            const int at = column + 8 * n + column_of_sum(0);
            words[r * WEIGHT_CHUNKS<N> * 4 + at / 2] =
                two_bf16(c[0][n][i], c[0][n][i + 1]);
        }
}

/* sums += the weights of N columns times N rows of b, their first `width`
 * numbers. */
template <int M, int D, int N>
__device__ __forceinline__ void sum_latent(latent_sums<M, D> &sums,
                                           const uint4 *weights, const uint4 *b,
                                           int64_t width)
{
    const int lane = lane_here(), warp = warp_here();
    const int row = lane % 16, chunk = 2 * warp + lane / 16;
    b += row * LATENT_CHUNKS + (chunk ^ (row & 7));
    weights += row * WEIGHT_CHUNKS<N> + lane / 16;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            cpli_ldmatrix(x[m], weights + 16 * m * WEIGHT_CHUNKS<N> + 2 * n);
#pragma unroll
        for (int d = 0; d < D; d++) {
            if (16 * (warp + LATENT_WARPS * d) >= width)
                continue;
            uint32_t y[4];
            cpli_ldmatrix_trans(y, b + 16 * n * LATENT_CHUNKS +
                                       2 * LATENT_WARPS * d);
#pragma unroll
            for (int m = 0; m < M; m++) {
                cpli_mma_bf16(sums[m][2 * d], x[m], y[0], y[1]);
                cpli_mma_bf16(sums[m][2 * d + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* Where a tile's rows go, and where they are marked, twice where two gradients
 * share them. */
struct latent_target {
    bf16 *to;
    int64_t stride, n, width;
    uint32_t *marks, *more_marks;
    int64_t slot, n_rows, head, heads;
};

/* One row of the warp's columns, plus `kept` times what is there. */
template <int D>
__device__ __forceinline__ void store_latent(const float (&sums)[2 * D][4],
                                             int half, float kept, bf16 *row,
                                             int64_t width)
{
#pragma unroll
    for (int d = 0; d < 2 * D; d++) {
        const int64_t c = 16 * (warp_here() + LATENT_WARPS * (d / 2)) +
                          d % 2 * 8 + column_of_sum(0);
        if (c >= width)
            continue;
        float x = sums[d][2 * half], y = sums[d][2 * half + 1];
        if (kept != 0) {
            x += kept * get(row[c]);
            y += kept * get(row[c + 1]);
        }
        *reinterpret_cast<uint32_t *>(row + c) = two_bf16(x, y);
    }
}

/* Stores a tile, or marks its rows. By all threads, with a barrier; `votes` are
 * one of each warp. */
template <int M, int D>
__device__ __forceinline__ void
end_latent(const latent_sums<M, D> &sums, const float (&kept)[M][2],
           bool *votes, const latent_target &out)
{
    const bool mine = is_finite<16 * D, M>(sums, kept);
    if (lane_here() == 0)
        votes[warp_here()] = mine;
    __syncthreads();
    bool all = true;
#pragma unroll
    for (int w = 0; w < LATENT_WARPS; w++)
        all = all && votes[w];
    const int unit = static_cast<int>(threadIdx.x);
    if (unit < M)
        mark_unit(out.marks, out.slot + UNIT * unit, out.n_rows, out.head,
                  out.heads, all);
    if (unit < M && out.more_marks)
        mark_unit(out.more_marks, out.slot + UNIT * unit, out.n_rows, out.head,
                  out.heads, all);
    if (!all)
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = 16 * m + row_of_sum(2 * half);
            if (r < out.n)
                store_latent<D>(sums[m], half, kept[m][half],
                                out.to + r * out.stride, out.width);
        }
}

} // namespace cpli

#endif
