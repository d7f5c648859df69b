/*
 * attention_backward_tiles.cu: the backward of bf16 on tensor cores. Weights
 * are made again from lse. One kernel has tiles of queries and sums dq, another
 * has tiles of keys and sums dk and dv over the queries of all heads that share
 * them: more products than one kernel with atomics needs, but the same numbers
 * give the same bits.
 */
#include "attention_tiles.cuh"

namespace cpli
{

/* Scores become weights; `lse` of each sum. */
template <int N, class LSE>
__device__ __forceinline__ void weigh(float (&s)[1][N / 8][4], float scale,
                                      LSE lse)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] = cpli_exp2(
                fmaf(s[0][n][i], scale * LOG2_E, -lse(n, i) * LOG2_E));
}

/* Weights become gradients of scores, from those of weights and do.o. */
template <int N, class DELTA>
__device__ __forceinline__ void differentiate(float (&w)[1][N / 8][4],
                                              const float (&along)[1][N / 8][4],
                                              DELTA delta)
{
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[0][n][i] *= along[0][n][i] - delta(n, i);
}

template <int D>
__device__ __forceinline__ void scale_by(float (&c)[1][D / 8][4], float scale)
{
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[0][d][i] *= scale;
}

/* ---- dq ---- */

template <int D> struct dq_size {
    static constexpr int ROWS = 16 * WARPS; /* queries */
    static constexpr int KEYS = D < 256 ? 64 : 16;
    static constexpr size_t BYTES = (2 * ROWS + 4 * KEYS) * D * sizeof(bf16);
};

/* What stands for a query in all strips. */
struct query_sums {
    float lse[2], delta[2];
};

__device__ __forceinline__ query_sums sums_of(const cpl_attention &p,
                                              const float *delta, int64_t slot,
                                              int64_t head)
{
    query_sums sums = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t at = slot + row_of_sum(2 * half);
        if (at >= p.n_queries)
            continue;
        sums.lse[half] = static_cast<const float *>(p.lse)[at * p.heads + head];
        sums.delta[half] = delta[at * p.heads + head];
    }
    return sums;
}

/* The warp's rows from `row` on meet one strip. */
template <int D, int N>
__device__ __forceinline__ void
attend_back(float (&dq)[1][D / 8][4], const uint4 *q, const uint4 *d_o, int row,
            const uint4 *k, const uint4 *v, const strip &keys,
            const query_sums &sums, float scale)
{
    float s[1][N / 8][4] = {}, along[1][N / 8][4] = {};
    times_rows<D, 1, N>(s, q, row, k);
    times_rows<D, 1, N>(along, d_o, row, v);
    weigh<N>(s, scale, [&](int, int i) { return sums.lse[i / 2]; });
    differentiate<N>(s, along, [&](int, int i) { return sums.delta[i / 2]; });
    if (!keys.all(row, 16, N))
        mask<1, N>(s, row, keys, 0);
    times_columns<D, 1, N>(dq, s, k);
}

template <int D>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    attention_dq(const __grid_constant__ cpl_attention_backward b,
                 const __grid_constant__ parts<float> workspace,
                 int64_t n_tiles)
{
    using size = dq_size<D>;
    using feed_type = strip_feed<false, size::ROWS, size::KEYS>;
    constexpr int N = size::KEYS, TILE = N * D / 8;
    CPLI_DYNAMIC_SHARED(uint4, q);
    CPLI_SHARED(feed_type, all, [1]);
    feed_type &feed = all[0];
    uint4 *d_o = q + size::ROWS * D / 8;
    uint4 *keys = d_o + size::ROWS * D / 8; /* k, v, and again */
    const reach *groups = workspace.groups;
    const cpl_attention &p = b.forward;
    const int64_t head = blockIdx.x % p.heads;
    const int64_t slot = (n_tiles - 1 - blockIdx.x / p.heads) * size::ROWS;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const int row = static_cast<int>(threadIdx.x) / 32 * 16;
    const int n = static_cast<int>(min(p.n_queries - slot, FAR));
    const int64_t o_stride = p.heads * p.value_dim;

    load_rows<D>(q, row_of<bf16>(p.q, slot, p.q_stride, head, p.key_dim),
                 p.q_stride, n, static_cast<int>(p.key_dim), size::ROWS);
    load_rows<D>(d_o, row_of<bf16>(b.d_o, slot, o_stride, head, p.value_dim),
                 o_stride, n, static_cast<int>(p.value_dim), size::ROWS);
    feed.begin(p, groups, slot, p.n_queries, 1);
    load_keys<D, N>(p, feed.ring[0], kv_head, keys);
    const query_sums sums = sums_of(p, workspace.rows, slot + row, head);
    float dq[1][D / 8][4] = {};
    for (int i = 0; feed.ring[i % 4].n > 0; i++) {
        load_keys<D, N>(p, feed.ring[(i + 1) % 4], kv_head,
                        keys + (i + 1) % 2 * 2 * TILE);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const uint4 *k = keys + i % 2 * 2 * TILE;
        const strip &now = feed.ring[i % 4];
        const float scale = static_cast<float>(p.scale);
        if (now.any(row, 16) && now.n <= FEW)
            attend_back<D, FEW>(dq, q, d_o, row, k, k + TILE, now, sums, scale);
        else if (now.any(row, 16))
            attend_back<D, N>(dq, q, d_o, row, k, k + TILE, now, sums, scale);
        feed.end(p, groups, i);
    }
    cpli_copy_async_wait<0>();
    __syncthreads();
    const float add = p.accumulate ? 1 : 0, kept[1][2] = {{add, add}};
    scale_by<D>(dq, static_cast<float>(p.scale));
    if (is_left<D, 1>(dq, kept, marks_of(b, workspace.marks, OF_Q), slot + row,
                      p.n_queries, head, p.heads))
        return;
    store_rows<D, 1>(
        dq, kept, q, row,
        row_of<bf16>(b.dq, slot + row, b.dq_stride, head, p.key_dim),
        b.dq_stride, n - row, static_cast<int>(p.key_dim));
}

/* ---- dk and dv ---- */

template <int D> struct dkv_size {
    static constexpr int ROWS = 16 * WARPS; /* keys */
    static constexpr int QUERIES = D == 64 ? 64 : D == 128 ? 32 : 16;
    static constexpr size_t BYTES =
        (2 * ROWS + 4 * QUERIES) * D * sizeof(bf16) +
        4 * QUERIES * sizeof(float);
};

/* Begins to copy a strip of queries: q, do, and lse and delta of each. */
template <int D, int N>
__device__ __forceinline__ void
load_queries(const cpl_attention_backward &b, const float *delta,
             const strip &queries, int64_t kv_head, uint4 *to, float *sums)
{
    const cpl_attention &p = b.forward;
    if (queries.n > 0) {
        const int64_t o_stride = p.heads * p.value_dim;
        const int64_t head = kv_head * (p.heads / p.kv_heads) + queries.turn;
        load_strip<D, N>(
            to, row_of<bf16>(p.q, queries.slot, p.q_stride, head, p.key_dim),
            p.q_stride, queries.n, static_cast<int>(p.key_dim));
        load_strip<D, N>(
            to + N * D / 8,
            row_of<bf16>(b.d_o, queries.slot, o_stride, head, p.value_dim),
            o_stride, queries.n, static_cast<int>(p.value_dim));
        const int c = static_cast<int>(threadIdx.x) % N;
        const float *from =
            threadIdx.x < N ? static_cast<const float *>(p.lse) : delta;
        float *sum = sums + threadIdx.x;
        if (threadIdx.x < 2 * N && c < queries.n)
            cpli_copy_async_word(sum,
                                 from + (queries.slot + c) * p.heads + head);
        else if (threadIdx.x < 2 * N)
            *sum = 0;
    }
    cpli_copy_async_commit();
}

/* A tile of keys of a warp and what it sums. */
template <int D> struct key_sums {
    float dk[1][D / 8][4], dv[1][D / 8][4];
};

/* The warp's keys from `row` on meet one strip of queries. */
template <int D, int N, bool DK, bool DV>
__device__ __forceinline__ void
attend_back(key_sums<D> &result, const uint4 *k, const uint4 *v, int row,
            const uint4 *q, const uint4 *d_o, const float *lse,
            const float *delta, const strip &queries, float scale)
{
    const bool all = queries.all(row, 16, N);
    lse += column_of_sum(0);
    delta += column_of_sum(0);
    float w[1][N / 8][4] = {};
    times_rows<D, 1, N>(w, k, row, q);
    weigh<N>(w, scale, [&](int n, int i) { return lse[8 * n + i % 2]; });
    if (!all)
        mask<1, N>(w, row, queries, 0);
    if (DV)
        times_columns<D, 1, N>(result.dv, w, d_o);
    if (!DK)
        return;
    float along[1][N / 8][4] = {};
    times_rows<D, 1, N>(along, v, row, d_o);
    differentiate<N>(w, along,
                     [&](int n, int i) { return delta[8 * n + i % 2]; });
    if (!all)
        mask<1, N>(w, row, queries, 0);
    times_columns<D, 1, N>(result.dk, w, q);
}

/* Writes dk or dv of the warp's rows, or marks them. */
template <int D>
__device__ __forceinline__ void
end_keys(const cpl_attention_backward &b, const float (&sums)[1][D / 8][4],
         uint4 *tile, int row, int64_t slot, int64_t kv_head, uint32_t *marks,
         bf16 *to, int64_t stride, int width)
{
    const cpl_attention &p = b.forward;
    const float add = p.accumulate ? 1 : 0, kept[1][2] = {{add, add}};
    if (is_left<D, 1>(sums, kept, marks, slot, p.n_keys, kv_head, p.kv_heads))
        return;
    store_rows<D, 1>(sums, kept, tile, row,
                     row_of<bf16>(to, slot, stride, kv_head, width), stride,
                     static_cast<int>(min(p.n_keys - slot, FAR)), width);
}

template <int D, bool DK, bool DV>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    attention_dkv(const __grid_constant__ cpl_attention_backward b,
                  const __grid_constant__ parts<float> workspace)
{
    using size = dkv_size<D>;
    using feed_type = strip_feed<true, size::ROWS, size::QUERIES>;
    constexpr int N = size::QUERIES, TILE = N * D / 8;
    CPLI_DYNAMIC_SHARED(uint4, k);
    CPLI_SHARED(feed_type, all, [1]);
    feed_type &feed = all[0];
    uint4 *v = k + size::ROWS * D / 8;
    uint4 *queries = v + size::ROWS * D / 8; /* q, do, and again */
    float *sums = reinterpret_cast<float *>(queries + 4 * TILE);
    const reach *groups = workspace.groups;
    const float *delta = workspace.rows;
    const cpl_attention &p = b.forward;
    const int64_t kv_head = blockIdx.x % p.kv_heads;
    const int64_t slot = blockIdx.x / p.kv_heads * size::ROWS;
    const int row = static_cast<int>(threadIdx.x) / 32 * 16;
    const int n = static_cast<int>(min(p.n_keys - slot, FAR));
    const int key_dim = static_cast<int>(p.key_dim);
    const int value_dim = static_cast<int>(p.value_dim);

    load_rows<D>(k, row_of<bf16>(p.k, slot, p.k_stride, kv_head, key_dim),
                 p.k_stride, n, key_dim, size::ROWS);
    if (DK)
        load_rows<D>(v, row_of<bf16>(p.v, slot, p.v_stride, kv_head, value_dim),
                     p.v_stride, n, value_dim, size::ROWS);
    feed.begin(p, groups, slot, p.n_keys,
               static_cast<int>(p.heads / p.kv_heads));
    load_queries<D, N>(b, delta, feed.ring[0], kv_head, queries, sums);
    key_sums<D> result = {};
    for (int i = 0; feed.ring[i % 4].n > 0; i++) {
        const int next = (i + 1) % 2;
        load_queries<D, N>(b, delta, feed.ring[(i + 1) % 4], kv_head,
                           queries + next * 2 * TILE, sums + next * 2 * N);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const uint4 *q = queries + i % 2 * 2 * TILE;
        const float *lse = sums + i % 2 * 2 * N;
        const strip &now = feed.ring[i % 4];
        const float scale = static_cast<float>(p.scale);
        if (now.any(row, 16) && now.n <= FEW)
            attend_back<D, FEW, DK, DV>(result, k, v, row, q, q + TILE, lse,
                                        lse + N, now, scale);
        else if (now.any(row, 16))
            attend_back<D, N, DK, DV>(result, k, v, row, q, q + TILE, lse,
                                      lse + N, now, scale);
        feed.end(p, groups, i);
    }
    cpli_copy_async_wait<0>();
    __syncthreads();
    if (DK) {
        scale_by<D>(result.dk, static_cast<float>(p.scale));
        end_keys<D>(b, result.dk, k, row, slot + row, kv_head,
                    marks_of(b, workspace.marks, OF_K),
                    static_cast<bf16 *>(b.dk), b.dk_stride, key_dim);
    }
    if (DV)
        end_keys<D>(b, result.dv, v, row, slot + row, kv_head,
                    marks_of(b, workspace.marks, OF_V),
                    static_cast<bf16 *>(b.dv), b.dv_stride, value_dim);
}

/* ---- launches ---- */

template <int D>
static int launch_dq(const cpl_attention_backward &b,
                     const parts<float> &workspace, cpl_cuda_stream stream)
{
    using size = dq_size<D>;
    const cpl_attention &p = b.forward;
    const int64_t n_tiles = (p.n_queries + size::ROWS - 1) / size::ROWS;
    if (n_tiles == 0)
        return cudaSuccess;
    const int failed = allow_shared(attention_dq<D>, size::BYTES);
    if (failed != cudaSuccess)
        return failed;
    return CPLI_LAUNCH(attention_dq<D>,
                       static_cast<unsigned>(n_tiles * p.heads), TILE_THREADS,
                       size::BYTES, stream, b, workspace, n_tiles);
}

template <int D, bool DK, bool DV>
static int launch_dkv(const cpl_attention_backward &b,
                      const parts<float> &workspace, cpl_cuda_stream stream)
{
    using size = dkv_size<D>;
    const cpl_attention &p = b.forward;
    const int64_t n_tiles = (p.n_keys + size::ROWS - 1) / size::ROWS;
    if (n_tiles == 0)
        return cudaSuccess;
    const int failed = allow_shared(attention_dkv<D, DK, DV>, size::BYTES);
    if (failed != cudaSuccess)
        return failed;
    return CPLI_LAUNCH((attention_dkv<D, DK, DV>),
                       static_cast<unsigned>(n_tiles * p.kv_heads),
                       TILE_THREADS, size::BYTES, stream, b, workspace);
}

/* The sums of dk and dv together have no room in the registers at 256. */
template <int D>
static int launch(const cpl_attention_backward &b,
                  const parts<float> &workspace, cpl_cuda_stream stream)
{
    int failed = launch_dq<D>(b, workspace, stream);
    if (failed == cudaSuccess)
        failed = launch_dkv<D, true, (D < 256)>(b, workspace, stream);
    if (D == 256 && failed == cudaSuccess)
        failed = launch_dkv<D, (D < 256), true>(b, workspace, stream);
    return failed;
}

bool has_tiles_backward(const cpl_attention_backward &b)
{
    return has_tiles(b.forward) && is_wide(b.d_o, 0) &&
           is_wide(b.dq, b.dq_stride) && is_wide(b.dk, b.dk_stride) &&
           is_wide(b.dv, b.dv_stride) &&
           b.forward.n_keys / 64 + 1 <= INT32_MAX / b.forward.kv_heads;
}

int attention_tiles_backward(const cpl_attention_backward &b,
                             const parts<float> &workspace,
                             cpl_cuda_stream stream)
{
    return by_width(b.forward, [&](auto width) {
        return launch<decltype(width)::value>(b, workspace, stream);
    });
}

} // namespace cpli
