/*
 * attention_fma.cu: the forward on plain arithmetic (fma.cuh), a tile of
 * queries of one head in a block of threads: scores become weights by way of
 * the running maximum, as in attention_tiles.cu.
 */
#include "fma.cuh"
#include "join.cuh"

namespace cpli
{

/* What the x of a row have in common, by i; the sum of each x is its own. */
template <class S, int R> struct fma_softmax {
    S max[R], sum[R];
};

template <class S> __device__ __forceinline__ S most_of_row(S most)
{
#pragma unroll
    for (int flips = 1; flips < FMA_X; flips *= 2) {
        const S other = __shfl_xor_sync(0xffffffffu, most, flips);
        most = other > most ? other : most;
    }
    return most;
}

template <class S> __device__ __forceinline__ S sum_of_row(S sum)
{
#pragma unroll
    for (int flips = 1; flips < FMA_X; flips *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, flips);
    return sum;
}

/* Products of one row become weights, in memory. Returns by how much earlier
 * sums shrink. */
template <class S, int C>
__device__ __forceinline__ S fma_soften(S (&s)[C], S scale, S &max, S &sum,
                                        const strip &keys, int r, S *weights)
{
    const int x = fma_x();
    S most = max;
#pragma unroll
    for (int j = 0; j < C; j++) {
        s[j] *= scale;
        most = keys.sees(r, x + FMA_X * j) && s[j] > most ? s[j] : most;
    }
    most = most_of_row(most);
    const S shrink = max == most ? 1 : std::exp(max - most);
    sum *= shrink;
#pragma unroll
    for (int j = 0; j < C; j++) {
        const int c = x + FMA_X * j;
        const S weight = keys.sees(r, c) ? std::exp(s[j] - most) : 0;
        sum += weight;
        weights[c] = weight;
    }
    max = most;
    return shrink;
}

/* Later queries see more keys where masks are causal: their tiles go first. */
template <class T, int W>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    attention_fma(const __grid_constant__ cpl_attention p,
                  const __grid_constant__ parts<wide_t<T>> workspace,
                  int64_t n_tiles)
{
    using S = sum_t<T>;
    using size = fma_size<S, W>;
    using shared_type = fma_memory<S, W>;
    using feed_type = strip_feed<false, size::ROWS, size::N>;
    constexpr int R = size::R;
    CPLI_SHARED(shared_type, memories, [1]);
    CPLI_SHARED(feed_type, feeds, [1]);
    shared_type &memory = memories[0];
    feed_type &feed = feeds[0];
    const int64_t head = blockIdx.x % p.heads;
    const int64_t slot = (n_tiles - 1 - blockIdx.x / p.heads) * size::ROWS;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const fma_rows<T> q = fma_rows_of<T>(p.q, slot, p.q_stride, head, p.key_dim,
                                         p.n_queries - slot);
    feed.begin(p, workspace.groups, slot, p.n_queries, 1);
    fma_softmax<S, R> state = {};
    fma_sums<S, W> o = {};
#pragma unroll
    for (int i = 0; i < R; i++)
        state.max[i] = -INFINITY;
    for (int i = 0; feed.ring[i % 4].n > 0; i++) {
        const strip &now = feed.ring[i % 4];
        fma_product<S, W> s = {};
        fma_multiply<T, W>(s, memory, q,
                           fma_rows_of<T>(p.k, now.slot, p.k_stride, kv_head,
                                          p.key_dim, now.n));
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int row = fma_y() + FMA_Y * r;
            fma_scale<S, W>(o[r], fma_soften(s[r], static_cast<S>(p.scale),
                                             state.max[r], state.sum[r], now,
                                             row, memory.weights[row]));
        }
        fma_accumulate<T, W>(o, memory,
                             fma_rows_of<T>(p.v, now.slot, p.v_stride, kv_head,
                                            p.value_dim, now.n));
        feed.end(p, workspace.groups, i);
    }
    S kept[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const joined<S> both =
            join<T>(p, workspace.rows, slot + fma_y() + FMA_Y * r, head,
                    state.max[r], sum_of_row(state.sum[r]), fma_x() == 0);
        kept[r] = both.kept;
        fma_scale<S, W>(o[r], both.mine);
    }
    const int64_t stride = p.heads * p.value_dim;
    const int width = static_cast<int>(p.value_dim);
    fma_end<T, W>(o, kept, memory,
                  {row_of<T>(p.o, slot, stride, head, p.value_dim), stride,
                   near(p.n_queries - slot), width, width, workspace.marks,
                   slot, p.n_queries, head, p.heads});
}

bool has_fma(const cpl_attention &p, bool is_bf16)
{
    const int64_t width = p.key_dim > p.value_dim ? p.key_dim : p.value_dim;
    return width <= WIDEST && (!is_bf16 || width > 256) &&
           p.n_queries / UNIT + 1 <= INT32_MAX / p.heads &&
           p.n_blocks <= p.n_queries / SHORTEST;
}

template <class T>
int attention_fma_forward(const cpl_attention &p,
                          const parts<wide_t<T>> &workspace,
                          cpl_cuda_stream stream)
{
    return by_fma_width<T>(p.value_dim, [&](auto width) -> int {
        constexpr int W = decltype(width)::value;
        constexpr int ROWS = fma_size<sum_t<T>, W>::ROWS;
        const int64_t n_tiles = (p.n_queries + ROWS - 1) / ROWS;
        return CPLI_LAUNCH((attention_fma<T, W>),
                           static_cast<unsigned>(n_tiles * p.heads),
                           TILE_THREADS, 0, stream, p, workspace, n_tiles);
    });
}

template int attention_fma_forward<double>(const cpl_attention &,
                                           const parts<double> &,
                                           cpl_cuda_stream);
template int attention_fma_forward<float>(const cpl_attention &,
                                          const parts<float> &,
                                          cpl_cuda_stream);
template int attention_fma_forward<__nv_bfloat16>(const cpl_attention &,
                                                  const parts<float> &,
                                                  cpl_cuda_stream);

} // namespace cpli
