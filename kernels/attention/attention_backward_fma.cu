/*
 * attention_backward_fma.cu: the backward on plain arithmetic (fma.cuh). One
 * kernel sums one gradient: of tiles of queries dq, of tiles of keys dk or dv
 * over the queries of all heads that share them. Each makes its weights anew.
 */
#include "fma.cuh"

namespace cpli
{

/* Which gradient, and where it goes; it adds to the first `kept` numbers of a
 * row. */
template <class T> struct fma_gradient {
    T *to;
    int64_t stride, width, kept;
    uint32_t *marks;
};

/* The sides of a pair of a query and a key: q and do, k and v. */
template <class T> struct fma_side {
    fma_rows<T> by_key_dim, by_value_dim;
};

template <class T>
__device__ __forceinline__ fma_side<T>
fma_queries(const cpl_attention_backward &b, int64_t slot, int64_t head,
            int64_t n)
{
    const cpl_attention &p = b.forward;
    return {fma_rows_of<T>(p.q, slot, p.q_stride, head, p.key_dim, n),
            fma_rows_of<T>(b.d_o, slot, p.heads * p.value_dim, head,
                           p.value_dim, n)};
}

template <class T>
__device__ __forceinline__ fma_side<T> fma_keys(const cpl_attention_backward &b,
                                                int64_t slot, int64_t kv_head,
                                                int64_t n)
{
    const cpl_attention &p = b.forward;
    return {fma_rows_of<T>(p.k, slot, p.k_stride, kv_head, p.key_dim, n),
            fma_rows_of<T>(p.v, slot, p.v_stride, kv_head, p.value_dim, n)};
}

template <bool BY_VALUE_DIM, class T>
__device__ __forceinline__ const fma_rows<T> &pick(const fma_side<T> &side)
{
    if constexpr (BY_VALUE_DIM)
        return side.by_value_dim;
    else
        return side.by_key_dim;
}

/* Products of q and k, and of do and v, become what is summed, in memory: for
 * dv weights, else gradients of scores. lse and delta begin with those of the
 * query in row 0, or for dk and dv in column 0. */
template <gradient_of WHICH, class S, int R, int C, int PITCH>
__device__ __forceinline__ void
fma_weigh(const S (&s)[R][C], const S (&along)[R][C], S scale, const S *lse,
          const S *delta, int64_t heads, const strip &other,
          S (*weights)[PITCH])
{
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < C; j++) {
            const int r = fma_y() + FMA_Y * i, c = fma_x() + FMA_X * j;
            S weight = 0;
            if (other.sees(r, c)) {
                const int64_t at = (WHICH == OF_Q ? r : c) * heads;
                weight = std::exp(scale * s[i][j] - lse[at]);
                if (WHICH != OF_V)
                    weight *= along[i][j] - delta[at];
            }
            weights[r][c] = weight;
        }
}

template <class T, int W, gradient_of WHICH>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    attention_fma_back(const __grid_constant__ cpl_attention_backward b,
                       const reach *groups, const wide_t<T> *delta,
                       const __grid_constant__ fma_gradient<T> gradient,
                       int64_t n_tiles)
{
    constexpr bool BY_KEY = WHICH != OF_Q;
    using S = sum_t<T>;
    using size = fma_size<S, W>;
    using shared_type = fma_memory<S, W>;
    using feed_type = strip_feed<BY_KEY, size::ROWS, size::N>;
    CPLI_SHARED(shared_type, memories, [1]);
    CPLI_SHARED(feed_type, feeds, [1]);
    shared_type &memory = memories[0];
    feed_type &feed = feeds[0];
    const cpl_attention &p = b.forward;
    const int64_t group = p.heads / p.kv_heads;
    const int64_t heads = BY_KEY ? p.kv_heads : p.heads;
    const int64_t n_rows = BY_KEY ? p.n_keys : p.n_queries;
    const int64_t head = blockIdx.x % heads, tile = blockIdx.x / heads;
    const int64_t slot = (BY_KEY ? tile : n_tiles - 1 - tile) * size::ROWS;
    const S scale = static_cast<S>(p.scale);
    const fma_side<T> mine = BY_KEY
                                 ? fma_keys<T>(b, slot, head, n_rows - slot)
                                 : fma_queries<T>(b, slot, head, n_rows - slot);
    feed.begin(p, groups, slot, n_rows, BY_KEY ? static_cast<int>(group) : 1);
    fma_sums<S, W> sums = {};
    for (int i = 0; feed.ring[i % 4].n > 0; i++) {
        const strip &now = feed.ring[i % 4];
        const int64_t q_head = BY_KEY ? head * group + now.turn : head;
        const fma_side<T> other =
            BY_KEY ? fma_queries<T>(b, now.slot, q_head, now.n)
                   : fma_keys<T>(b, now.slot, head / group, now.n);
        fma_product<S, W> s = {}, along = {};
        fma_multiply<T, W>(s, memory, mine.by_key_dim, other.by_key_dim);
        if (WHICH != OF_V)
            fma_multiply<T, W>(along, memory, mine.by_value_dim,
                               other.by_value_dim);
        const int64_t first = (BY_KEY ? now.slot : slot) * p.heads + q_head;
        fma_weigh<WHICH>(s, along, scale,
                         static_cast<const wide_t<T> *>(p.lse) + first,
                         delta + first, p.heads, now, memory.weights);
        fma_accumulate<T, W>(sums, memory, pick<WHICH == OF_V>(other));
        feed.end(p, groups, i);
    }
    S kept[size::R];
#pragma unroll
    for (int r = 0; r < size::R; r++) {
        kept[r] = 1;
        fma_scale<S, W>(sums[r], WHICH == OF_V ? 1 : scale);
    }
    fma_end<T, W>(sums, kept, memory,
                  {gradient.to + slot * gradient.stride + head * gradient.width,
                   gradient.stride, near(n_rows - slot),
                   static_cast<int>(gradient.width),
                   near(gradient.kept - head * gradient.width), gradient.marks,
                   slot, n_rows, head, heads});
}

template <class T, gradient_of WHICH>
static int launch(const cpl_attention_backward &b,
                  const parts<wide_t<T>> &workspace, void *to, int64_t stride,
                  int64_t kept, cpl_cuda_stream stream)
{
    const gradient_shape shape = shape_of(b.forward, WHICH);
    const fma_gradient<T> gradient = {static_cast<T *>(to), stride, shape.width,
                                      kept,
                                      marks_of(b, workspace.marks, WHICH)};
    return by_fma_width<T>(shape.width, [&](auto width) -> int {
        constexpr int W = decltype(width)::value;
        constexpr int ROWS = fma_size<sum_t<T>, W>::ROWS;
        const int64_t n_tiles = (shape.n_rows + ROWS - 1) / ROWS;
        if (n_tiles == 0)
            return cudaSuccess;
        return CPLI_LAUNCH((attention_fma_back<T, W, WHICH>),
                           static_cast<unsigned>(n_tiles * shape.heads),
                           TILE_THREADS, 0, stream, b, workspace.groups,
                           workspace.rows, gradient, n_tiles);
    });
}

bool has_fma_backward(const cpl_attention_backward &b, bool is_bf16)
{
    return has_fma(b.forward, is_bf16) &&
           b.forward.n_keys / UNIT + 1 <= INT32_MAX / b.forward.kv_heads;
}

template <class T>
int attention_fma_gradient(const cpl_attention_backward &b,
                           const parts<wide_t<T>> &workspace, gradient_of which,
                           int64_t kept, cpl_cuda_stream stream)
{
    if (which == OF_Q)
        return launch<T, OF_Q>(b, workspace, b.dq, b.dq_stride, kept, stream);
    if (which == OF_K)
        return launch<T, OF_K>(b, workspace, b.dk, b.dk_stride, kept, stream);
    return launch<T, OF_V>(b, workspace, b.dv, b.dv_stride, kept, stream);
}

template int attention_fma_gradient<double>(const cpl_attention_backward &,
                                            const parts<double> &, gradient_of,
                                            int64_t, cpl_cuda_stream);
template int attention_fma_gradient<float>(const cpl_attention_backward &,
                                           const parts<float> &, gradient_of,
                                           int64_t, cpl_cuda_stream);
template int
attention_fma_gradient<__nv_bfloat16>(const cpl_attention_backward &,
                                      const parts<float> &, gradient_of,
                                      int64_t, cpl_cuda_stream);

} // namespace cpli
