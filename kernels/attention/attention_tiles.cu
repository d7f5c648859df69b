/*
 * attention_tiles.cu: the forward of bf16 on tensor cores, a tile of queries of
 * one head in a block of threads (Dao, arXiv 2307.08691): scores stay in
 * registers, and so does the result, which shrinks when a row's maximum grows.
 * The sum of a row is kept in four parts, by lane, until the end. Scores that
 * are masked become weights of 0 afterwards, so that NaN and Inf go the way
 * that they go in the reference.
 */
#include "attention_tiles.cuh"

namespace cpli
{

/* Sizes by width of a head: rows of queries per warp in sixteens, keys of a
 * strip. As many as registers allow. */
template <int D> struct forward_size {
    static constexpr int M = D < 256 ? 2 : 1;
    static constexpr int ROWS = 16 * M * WARPS;
    static constexpr int KEYS = D == 64 ? 64 : 32;
    static constexpr size_t BYTES = (ROWS + 4 * KEYS) * D * sizeof(bf16);
};

/* What a warp has of the results of its rows. */
template <int D, int M> struct part_result {
    float o[M][D / 8][4];
    float max[M][2], sum[M][2];
};

/* What (o, lse) hold counts as one key, or nothing where lse is -inf. */
template <int D, int M>
__device__ __forceinline__ void begin_result(const cpl_attention &p,
                                             int64_t slot, int64_t head,
                                             part_result<D, M> &result)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = slot + 16 * m + row_of_sum(2 * half);
            const int64_t row = at * p.heads + head;
            float lse = -INFINITY;
            if (p.accumulate && at < p.n_queries)
                lse = static_cast<const float *>(p.lse)[row];
            const bool has = lse != -INFINITY;
            const bf16 *o = static_cast<const bf16 *>(p.o) + row * p.value_dim;
            result.max[m][half] = lse;
            result.sum[m][half] = has && column_of_sum(0) == 0 ? 1 : 0;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    result.o[m][d][2 * half + i] =
                        has && 8 * d < p.value_dim
                            ? get(o[8 * d + column_of_sum(i)])
                            : 0;
        }
}

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

/* Scores of one row (sums 2 half and 2 half + 1) become weights. Returns by how
 * much earlier sums shrink. */
template <int N, class SEES>
__device__ __forceinline__ float soften(float (&s)[N / 8][4], int half,
                                        float &max, float &sum, SEES sees)
{
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
            if (sees(8 * n + column_of_sum(i)))
                most = fmaxf(most, s[n][i]);
    most = fmaxf(max, most_of_four_lanes(most));
    const float shrink = max == most ? 1 : cpli_exp2((max - most) * LOG2_E);
    float total = sum * shrink;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            const float w = cpli_exp2((s[n][i] - most) * LOG2_E);
            s[n][i] = sees(8 * n + column_of_sum(i)) ? w : 0;
            total += s[n][i];
        }
    max = most;
    sum = total;
    return shrink;
}

/* The warp's rows from `row` on meet one strip. */
template <int D, int M, int N>
__device__ __forceinline__ void
attend(part_result<D, M> &result, const uint4 *q, int row, const uint4 *k,
       const uint4 *v, const strip &keys, float scale)
{
    if (!keys.any(row, 16 * M))
        return;
    float s[M][N / 8][4] = {};
    times_rows<D, M, N>(s, q, row, k);
    const bool all = keys.all(row, 16 * M, N);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row + 16 * m + row_of_sum(2 * half);
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    s[m][n][i] *= scale;
            float &max = result.max[m][half], &sum = result.sum[m][half];
            const float shrink =
                all ? soften<N>(s[m], half, max, sum, [](int) { return true; })
                    : soften<N>(s[m], half, max, sum,
                                [&](int c) { return keys.sees(r, c); });
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    result.o[m][d][i] *= shrink;
        }
    times_columns<D, M, N>(result.o, s, v);
}

/* Writes o and lse of the warp's rows, the first n of which exist. */
template <int D, int M>
__device__ __forceinline__ void
end_result(const cpl_attention &p, part_result<D, M> &result, uint4 *tile,
           int row, int64_t slot, int64_t head)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = sum_of_four_lanes(result.sum[m][half]);
            const float part = sum == 0 ? 0 : 1 / sum;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    result.o[m][d][i] *= part;
            const int64_t at = slot + 16 * m + row_of_sum(2 * half);
            if (column_of_sum(0) == 0 && at < p.n_queries)
                static_cast<float *>(p.lse)[at * p.heads + head] =
                    sum == 0 ? result.max[m][half]
                             : result.max[m][half] + logf(sum);
        }
    const int64_t n = p.n_queries - slot;
    const int64_t stride = p.heads * p.value_dim;
    store_rows<D, M>(
        result.o, tile, row,
        static_cast<bf16 *>(p.o) + slot * stride + head * p.value_dim, stride,
        static_cast<int>(min(n, FAR)), static_cast<int>(p.value_dim), false);
}

/* Begins to copy the keys and the values of a strip, one behind the other; also
 * none, so that each strip is one group of copies. */
template <int D, int N>
__device__ __forceinline__ void
load_keys(const cpl_attention &p, const strip &keys, int64_t kv_head, uint4 *to)
{
    if (keys.n > 0) {
        load_tile<N, D>(
            to, row_of<bf16>(p.k, keys.slot, p.k_stride, kv_head, p.key_dim),
            p.k_stride, keys.n, static_cast<int>(p.key_dim));
        load_tile<N, D>(
            to + N * D / 8,
            row_of<bf16>(p.v, keys.slot, p.v_stride, kv_head, p.value_dim),
            p.v_stride, keys.n, static_cast<int>(p.value_dim));
    }
    cpli_copy_async_commit();
}

/* Later queries see more keys where masks are causal: their tiles go first. */
template <int D>
__global__ void __launch_bounds__(TILE_THREADS)
    attention_forward(const __grid_constant__ cpl_attention p,
                      const reach *groups, int64_t n_tiles)
{
    using size = forward_size<D>;
    using feed_type = strip_feed<false, size::ROWS, size::KEYS>;
    constexpr int M = size::M, N = size::KEYS, TILE = N * D / 8;
    CPLI_DYNAMIC_SHARED(uint4, q);
    CPLI_SHARED(feed_type, all, [1]);
    feed_type &feed = all[0];
    uint4 *keys = q + size::ROWS * D / 8; /* k, v, and again */
    const int64_t head = blockIdx.x % p.heads;
    const int64_t slot = (n_tiles - 1 - blockIdx.x / p.heads) * size::ROWS;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 * M;

    load_tile<size::ROWS, D>(
        q, row_of<bf16>(p.q, slot, p.q_stride, head, p.key_dim), p.q_stride,
        static_cast<int>(min(p.n_queries - slot, FAR)),
        static_cast<int>(p.key_dim));
    feed.begin(p, groups, slot, p.n_queries, 1);
    load_keys<D, N>(p, feed.ring[0], kv_head, keys);
    part_result<D, M> result;
    begin_result<D, M>(p, slot + row, head, result);
    for (int i = 0; feed.ring[i % 4].n > 0; i++) {
        load_keys<D, N>(p, feed.ring[(i + 1) % 4], kv_head,
                        keys + (i + 1) % 2 * 2 * TILE);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const uint4 *k = keys + i % 2 * 2 * TILE;
        attend<D, M, N>(result, q, row, k, k + TILE, feed.ring[i % 4],
                        static_cast<float>(p.scale));
        feed.end(p, groups, i);
    }
    cpli_copy_async_wait<0>();
    __syncthreads();
    end_result<D, M>(p, result, q, row, slot + row, head);
}

template <int D>
static int launch(const cpl_attention &p, const reach *groups,
                  cpl_cuda_stream stream)
{
    using size = forward_size<D>;
    const int64_t n_tiles = (p.n_queries + size::ROWS - 1) / size::ROWS;
    const int failed = allow_shared(attention_forward<D>, size::BYTES);
    if (failed != cudaSuccess)
        return failed;
    return CPLI_LAUNCH(attention_forward<D>,
                       static_cast<unsigned>(n_tiles * p.heads), TILE_THREADS,
                       size::BYTES, stream, p, groups, n_tiles);
}

bool has_tiles(const cpl_attention &p)
{
    return p.key_dim % 8 == 0 && p.value_dim % 8 == 0 &&
           p.key_dim <= MOST_WIDTH && p.value_dim <= MOST_WIDTH &&
           is_wide(p.q, p.q_stride) && is_wide(p.k, p.k_stride) &&
           is_wide(p.v, p.v_stride) && is_wide(p.o, 0) &&
           p.n_queries / 64 + 1 <= INT32_MAX / p.heads;
}

int attention_tiles(const cpl_attention &p, const reach *groups,
                    cpl_cuda_stream stream)
{
    const int64_t width = p.key_dim > p.value_dim ? p.key_dim : p.value_dim;
    return width <= 64    ? launch<64>(p, groups, stream)
           : width <= 128 ? launch<128>(p, groups, stream)
                          : launch<256>(p, groups, stream);
}

} // namespace cpli
