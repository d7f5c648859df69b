/*
 * attention_tiles.cu: the forward of bf16 on tensor cores, a tile of queries of
 * one head in a block of threads (Dao, arXiv 2307.08691): scores stay in
 * registers, and so does the result, which shrinks when a row's maximum grows.
 * What (o, lse) held before is joined in at the end.
 * The sum of a row is kept in four parts, by lane, until the end. Scores that
 * are masked become weights of 0 afterwards: a row that has seen no key yet has
 * no maximum to be held against.
 */
#include "attention_tiles.cuh"
#include "join.cuh"

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

/* Scores of one row (sums 2 half and 2 half + 1) become weights. Returns by how
 * much earlier sums shrink. */
template <int N>
__device__ __forceinline__ float soften(float (&s)[N / 8][4], int half,
                                        float &max)
{
    float most = -INFINITY;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    most = fmaxf(max, most_of_four_lanes(most));
    const float shrink = max == most ? 1 : cpli_exp2((max - most) * LOG2_E);
    const float less = -most * LOG2_E;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
            s[n][i] = cpli_exp2(fmaf(s[n][i], LOG2_E, less));
    max = most;
    return shrink;
}

/* Earlier sums of one row shrink, and its weights are counted. */
template <int D, int M, int N>
__device__ __forceinline__ void count(part_result<D, M> &result, int m,
                                      int half, float shrink,
                                      const float (&s)[N / 8][4])
{
    float sum = result.sum[m][half] * shrink;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        sum += s[n][2 * half] + s[n][2 * half + 1];
    result.sum[m][half] = sum;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
            result.o[m][d][i] *= shrink;
}

/* The warp's rows from `row` on meet one strip. */
template <int D, int M, int N>
__device__ __forceinline__ void
attend(part_result<D, M> &result, const uint4 *q, int row, const uint4 *k,
       const uint4 *v, const strip &keys, float scale)
{
    float s[M][N / 8][4] = {}, shrink[M][2];
    times_rows<D, M, N>(s, q, row, k);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][n][i] *= scale;
    const bool all = keys.all(row, 16 * M, N);
    if (!all)
        mask<M, N>(s, row, keys, -INFINITY);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            shrink[m][half] = soften<N>(s[m], half, result.max[m][half]);
    if (!all)
        mask<M, N>(s, row, keys, 0);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            count<D, M, N>(result, m, half, shrink[m][half], s[m]);
    times_columns<D, M, N>(result.o, s, v);
}

/* Writes o and lse of the warp's rows, or marks them. */
template <int D, int M>
__device__ __forceinline__ void
end_result(const cpl_attention &p, const parts<float> &workspace,
           part_result<D, M> &result, uint4 *tile, int row, int64_t slot,
           int64_t head)
{
    float kept[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const joined<float> both = join<bf16>(
                p, workspace.rows, slot + 16 * m + row_of_sum(2 * half), head,
                result.max[m][half], sum_of_four_lanes(result.sum[m][half]),
                column_of_sum(0) == 0);
            kept[m][half] = both.kept;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++)
                    result.o[m][d][i] =
                        both.mine == 0 ? 0 : result.o[m][d][i] * both.mine;
        }
    const int64_t n = p.n_queries - slot;
    const int64_t stride = p.heads * p.value_dim;
    if (is_left<D, M>(result.o, kept, workspace.marks, slot, p.n_queries, head,
                      p.heads))
        return;
    store_rows<D, M>(
        result.o, kept, tile, row,
        static_cast<bf16 *>(p.o) + slot * stride + head * p.value_dim, stride,
        static_cast<int>(min(n, FAR)), static_cast<int>(p.value_dim));
}

/* Later queries see more keys where masks are causal: their tiles go first. */
template <int D>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    attention_forward(const __grid_constant__ cpl_attention p,
                      const __grid_constant__ parts<float> workspace,
                      int64_t n_tiles)
{
    using size = forward_size<D>;
    using feed_type = strip_feed<false, size::ROWS, size::KEYS>;
    constexpr int M = size::M, N = size::KEYS, TILE = N * D / 8;
    CPLI_DYNAMIC_SHARED(uint4, q);
    CPLI_SHARED(feed_type, all, [1]);
    feed_type &feed = all[0];
    uint4 *keys = q + size::ROWS * D / 8; /* k, v, and again */
    const reach *groups = workspace.groups;
    const int64_t head = blockIdx.x % p.heads;
    const int64_t slot = (n_tiles - 1 - blockIdx.x / p.heads) * size::ROWS;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 * M;

    load_rows<D>(q, row_of<bf16>(p.q, slot, p.q_stride, head, p.key_dim),
                 p.q_stride, static_cast<int>(min(p.n_queries - slot, FAR)),
                 static_cast<int>(p.key_dim), size::ROWS);
    feed.begin(p, groups, slot, p.n_queries, 1);
    load_keys<D, N>(p, feed.ring[0], kv_head, keys);
    part_result<D, M> result = {};
#pragma unroll
    for (int m = 0; m < M; m++)
        result.max[m][0] = result.max[m][1] = -INFINITY;
    for (int i = 0; feed.ring[i % 4].n > 0; i++) {
        load_keys<D, N>(p, feed.ring[(i + 1) % 4], kv_head,
                        keys + (i + 1) % 2 * 2 * TILE);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const uint4 *k = keys + i % 2 * 2 * TILE;
        const strip &now = feed.ring[i % 4];
        const float scale = static_cast<float>(p.scale);
        if (now.any(row, 16 * M) && now.n <= FEW)
            attend<D, M, FEW>(result, q, row, k, k + TILE, now, scale);
        else if (now.any(row, 16 * M))
            attend<D, M, N>(result, q, row, k, k + TILE, now, scale);
        feed.end(p, groups, i);
    }
    cpli_copy_async_wait<0>();
    __syncthreads();
    end_result<D, M>(p, workspace, result, q, row, slot + row, head);
}

template <int D>
static int launch(const cpl_attention &p, const parts<float> &workspace,
                  cpl_cuda_stream stream)
{
    using size = forward_size<D>;
    const int64_t n_tiles = (p.n_queries + size::ROWS - 1) / size::ROWS;
    const int failed = allow_shared(attention_forward<D>, size::BYTES);
    if (failed != cudaSuccess)
        return failed;
    return CPLI_LAUNCH(attention_forward<D>,
                       static_cast<unsigned>(n_tiles * p.heads), TILE_THREADS,
                       size::BYTES, stream, p, workspace, n_tiles);
}

bool has_tiles(const cpl_attention &p)
{
    return p.key_dim % 8 == 0 && p.value_dim % 8 == 0 &&
           p.key_dim <= MOST_WIDTH && p.value_dim <= MOST_WIDTH &&
           is_wide(p.q, p.q_stride) && is_wide(p.k, p.k_stride) &&
           is_wide(p.v, p.v_stride) && is_wide(p.o, 0) &&
           p.n_queries / 64 + 1 <= INT32_MAX / p.heads &&
           p.n_blocks <= p.n_queries / SHORTEST;
}

int attention_tiles(const cpl_attention &p, const parts<float> &workspace,
                    cpl_cuda_stream stream)
{
    return by_width(p, [&](auto width) {
        return launch<decltype(width)::value>(p, workspace, stream);
    });
}

} // namespace cpli
