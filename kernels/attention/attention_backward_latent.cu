/*
 * attention_backward_latent.cu: the backward of latent attention (latent.cuh).
 * Of the 64 x 16 or 32 x 32 pairs of a tile and a strip four warps make the
 * products of q and k, and four those of do and v, which go over to the former.
 * One kernel has tiles of queries and sums dq; the other has tiles of keys and
 * sums what dk and dv give to their rows together.
 */
#include "latent.cuh"

namespace cpli
{

/* Both kernels have as many rows in shared memory: a tile of q and one of do,
 * or one of keys; and two buffers of a strip, of keys, or of q and do. */
template <bool BY_KEY> struct latent_size {
    static constexpr int ROWS = BY_KEY ? 64 : 32, M = ROWS / 16;
    static constexpr int N = BY_KEY ? 16 : 32; /* columns of a strip */
    static constexpr int PIECES = 4;
    static constexpr int D = (LATENT_WIDTH / 16 - 1) / LATENT_WARPS + 1;
    static constexpr int MINE = ROWS * LATENT_CHUNKS; /* chunks */
    static constexpr int OTHER = N * LATENT_CHUNKS;
    static constexpr int WEIGHTS = ROWS * WEIGHT_CHUNKS<N>;
    static constexpr size_t BYTES =
        sizeof(uint4) * (BY_KEY ? MINE + 4 * OTHER + 2 * WEIGHTS
                                : 2 * MINE + 2 * OTHER + WEIGHTS);
    static_assert(M * (N / 16) == PIECES,
                  "of 16 x 16, for a half of the warps");
};

template <bool BY_KEY> struct latent_back_memory {
    strip_feed<BY_KEY, latent_size<BY_KEY>::ROWS, latent_size<BY_KEY>::N> feed;
    float along[latent_size<BY_KEY>::PIECES][8][32]; /* by piece, sum, lane */
    bool votes[LATENT_WARPS];
};

/* Begins to copy queries: q, and a tile further do. */
__device__ __forceinline__ void
load_latent_queries(const cpl_attention_backward &b, int64_t slot, int64_t n,
                    int64_t head, uint4 *to, int rows)
{
    const cpl_attention &p = b.forward;
    const int64_t stride = p.heads * p.value_dim;
    load_latent(to, row_of<bf16>(p.q, slot, p.q_stride, head, p.key_dim),
                p.q_stride, n, p.key_dim, rows);
    load_latent(to + rows * LATENT_CHUNKS,
                row_of<bf16>(b.d_o, slot, stride, head, p.value_dim), stride, n,
                p.value_dim, rows);
}

__device__ __forceinline__ void load_latent_keys(const cpl_attention &p,
                                                 int64_t slot, int64_t n,
                                                 uint4 *to, int rows)
{
    load_latent(to, row_of<bf16>(p.k, slot, p.k_stride, 0, p.key_dim),
                p.k_stride, n, p.key_dim, rows);
}

template <bool BY_KEY>
__device__ __forceinline__ void
load_latent_strip(const cpl_attention_backward &b, const strip &other,
                  uint4 *to)
{
    constexpr int N = latent_size<BY_KEY>::N;
    if (other.n > 0 && BY_KEY)
        load_latent_queries(b, other.slot, other.n, other.turn, to, N);
    else if (other.n > 0)
        load_latent_keys(b.forward, other.slot, other.n, to, N);
    cpli_copy_async_commit();
}

/* What stands for the queries of a lane's sums of a piece: of rows, or with
 * BY_KEY of columns. */
template <bool BY_KEY> struct latent_queries {
    float lse[4], delta[4];

    /* From the first query on, of n. */
    __device__ void load(const cpl_attention &p, const float *all_delta,
                         int64_t first, int64_t n, int64_t head)
    {
#pragma unroll
        for (int i = 0; i < (BY_KEY ? 4 : 2); i++) {
            const int at =
                BY_KEY ? i / 2 * 8 + column_of_sum(i) : row_of_sum(2 * i);
            const int64_t row = (first + at) * p.heads + head;
            lse[i] = at < n ? static_cast<const float *>(p.lse)[row] : 0;
            delta[i] = at < n ? all_delta[row] : 0;
        }
    }

    __device__ static int of(int n, int i)
    {
        return BY_KEY ? 2 * n + i % 2 : i / 2;
    }
};

/* A piece of products of q and k becomes weights and gradients of scores. */
template <bool BY_KEY>
__device__ __forceinline__ void
weigh_latent(float (&w)[1][2][4], float (&d)[1][2][4],
             const float (&along)[8][32], const latent_queries<BY_KEY> &queries,
             float scale)
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = latent_queries<BY_KEY>::of(n, i);
            w[0][n][i] = cpli_exp2(
                fmaf(w[0][n][i], scale * LOG2_E, -queries.lse[at] * LOG2_E));
            d[0][n][i] = scale * w[0][n][i] *
                         (along[4 * n + i][lane_here()] - queries.delta[at]);
        }
}

/* The products of a tile and a strip become weights in shared memory: gradients
 * of scores, and with BY_KEY behind them the weights themselves. By all
 * threads, with barriers. Rows of either side: by key_dim, by value_dim. */
template <bool BY_KEY>
__device__ __forceinline__ void
weigh_pairs(const cpl_attention_backward &b, const float *delta,
            latent_back_memory<BY_KEY> &memory, const uint4 *const (&mine)[2],
            const uint4 *const (&other)[2], uint4 *weights, const strip &now,
            int64_t slot, int64_t head)
{
    using size = latent_size<BY_KEY>;
    const cpl_attention &p = b.forward;
    const int piece = warp_here() % size::PIECES;
    const int row = piece / (size::N / 16) * 16;
    const int column = piece % (size::N / 16) * 16;
    float w[1][2][4], d[1][2][4];
    latent_queries<BY_KEY> queries;
    if (warp_here() < size::PIECES) {
        queries.load(p, delta, BY_KEY ? now.slot + column : slot + row,
                     BY_KEY ? now.n - column : p.n_queries - slot - row, head);
        multiply_latent<LATENT_WIDTH>(w, mine[0], row, other[0], column);
    } else {
        multiply_latent<LATENT_VALUES>(d, mine[1], row, other[1], column);
#pragma unroll
        for (int i = 0; i < 8; i++)
            memory.along[piece][i][lane_here()] = d[0][i / 4][i % 4];
    }
    __syncthreads();
    if (warp_here() < size::PIECES) {
        weigh_latent<BY_KEY>(w, d, memory.along[piece], queries,
                             static_cast<float>(p.scale));
        mask<1, 16>(d, row, now.from(column), 0);
        keep_weights<size::N>(d, weights, row, column);
        if (BY_KEY) {
            mask<1, 16>(w, row, now.from(column), 0);
            keep_weights<size::N>(w, weights + size::WEIGHTS, row, column);
        }
    }
    __syncthreads();
}

template <bool BY_KEY>
__global__ void __launch_bounds__(LATENT_THREADS, 1)
    attention_latent_back(const __grid_constant__ cpl_attention_backward b,
                          const __grid_constant__ parts<float> workspace,
                          int64_t n_tiles)
{
    using size = latent_size<BY_KEY>;
    using shared_type = latent_back_memory<BY_KEY>;
    constexpr int M = size::M, D = size::D, N = size::N;
    CPLI_DYNAMIC_SHARED(uint4, tile);
    CPLI_SHARED(shared_type, memories, [1]);
    shared_type &memory = memories[0];
    uint4 *strips = tile + (BY_KEY ? 1 : 2) * size::MINE;
    uint4 *weights = strips + (BY_KEY ? 4 : 2) * size::OTHER;
    const cpl_attention &p = b.forward;
    const int64_t heads = BY_KEY ? 1 : p.heads;
    const int64_t n_rows = BY_KEY ? p.n_keys : p.n_queries;
    const int64_t head = blockIdx.x % heads, at = blockIdx.x / heads;
    const int64_t slot = (BY_KEY ? at : n_tiles - 1 - at) * size::ROWS;

    if (BY_KEY)
        load_latent_keys(p, slot, n_rows - slot, tile, size::ROWS);
    else
        load_latent_queries(b, slot, n_rows - slot, head, tile, size::ROWS);
    memory.feed.begin(p, workspace.groups, slot, n_rows,
                      BY_KEY ? static_cast<int>(p.heads) : 1);
    load_latent_strip<BY_KEY>(b, memory.feed.ring[0], strips);
    latent_sums<M, D> sums = {};
    for (int i = 0; memory.feed.ring[i % 4].n > 0; i++) {
        constexpr int EACH = (BY_KEY ? 2 : 1) * size::OTHER;
        load_latent_strip<BY_KEY>(b, memory.feed.ring[(i + 1) % 4],
                                  strips + (i + 1) % 2 * EACH);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const strip &now = memory.feed.ring[i % 4];
        const uint4 *one = strips + i % 2 * EACH;
        const uint4 *const mine[2] = {tile, BY_KEY ? tile : tile + size::MINE};
        const uint4 *const other[2] = {one, BY_KEY ? one + size::OTHER : one};
        weigh_pairs<BY_KEY>(b, workspace.rows, memory, mine, other, weights,
                            now, slot, BY_KEY ? now.turn : head);
        sum_latent<M, D, N>(sums, weights, other[0], p.key_dim);
        if (BY_KEY)
            sum_latent<M, D, N>(sums, weights + size::WEIGHTS, other[1],
                                p.value_dim);
        memory.feed.end(p, workspace.groups, i);
    }
    cpli_copy_async_wait<0>();
    const float add = p.accumulate ? 1 : 0;
    float kept[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
        kept[m][0] = kept[m][1] = add;
    const int64_t stride = BY_KEY ? b.dk_stride : b.dq_stride;
    end_latent<M, D>(
        sums, kept, memory.votes,
        {row_of<bf16>(BY_KEY ? b.dk : b.dq, slot, stride, head, p.key_dim),
         stride, n_rows - slot, p.key_dim,
         marks_of(b, workspace.marks, BY_KEY ? OF_K : OF_Q),
         BY_KEY ? marks_of(b, workspace.marks, OF_V) : nullptr, slot, n_rows,
         head, heads});
}

template <bool BY_KEY>
static int launch(const cpl_attention_backward &b,
                  const parts<float> &workspace, cpl_cuda_stream stream)
{
    using size = latent_size<BY_KEY>;
    const cpl_attention &p = b.forward;
    const int64_t n_rows = BY_KEY ? p.n_keys : p.n_queries;
    const int64_t n_tiles = (n_rows + size::ROWS - 1) / size::ROWS;
    if (n_tiles == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(attention_latent_back<BY_KEY>,
                       static_cast<unsigned>(n_tiles * (BY_KEY ? 1 : p.heads)),
                       LATENT_THREADS, size::BYTES, stream, b, workspace,
                       n_tiles);
}

bool has_latent_backward(const cpl_attention_backward &b)
{
    const bool is_taken =
        has_latent(b.forward) && b.dk == b.dv && b.dk_stride == b.dv_stride &&
        is_wide(b.d_o, 0) && is_wide(b.dq, b.dq_stride) &&
        is_wide(b.dk, b.dk_stride) && b.forward.n_keys / UNIT < INT32_MAX;
    return is_taken &&
           has_shared(attention_latent_back<false>,
                      latent_size<false>::BYTES) &&
           has_shared(attention_latent_back<true>, latent_size<true>::BYTES);
}

int attention_latent_backward(const cpl_attention_backward &b,
                              const parts<float> &workspace,
                              cpl_cuda_stream stream)
{
    const int failed = launch<false>(b, workspace, stream);
    return failed != cudaSuccess ? failed : launch<true>(b, workspace, stream);
}

} // namespace cpli
