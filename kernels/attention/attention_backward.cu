/*
 * attention_backward.cu: the naive backward for every size and dtype. dq is
 * summed by query, dk and dv by key, each over the blocks in their order: no
 * atomics, so the same numbers give the same bits. With weight = e^(score -
 * lse) and d_score = weight (do.v - do.o),
 *   dq += scale d_score k,  dk += scale d_score q,  dv += weight do.
 */
#include <type_traits>

#include "attention.cuh"

namespace cpli
{

/* do.o of every row, once for all keys: a warp a row. */
template <class T>
__global__ void __launch_bounds__(THREADS, 1)
    attention_delta(const T *o, const T *d_o, int64_t n_rows, int64_t width,
                    wide_t<T> *delta)
{
    const int64_t lane = threadIdx.x % 32;
    for (int64_t row = first_index() / 32; row < n_rows;
         row += index_step() / 32) {
        sum_t<T> sum = 0;
        for (int64_t a = lane; a < width; a += 32)
            sum += get(o[row * width + a]) * get(d_o[row * width + a]);
        for (int flips = 16; flips > 0; flips /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, flips);
        if (lane == 0)
            delta[row] = sum;
    }
}

template <class T> struct pair_weights {
    sum_t<T> weight, d_score;
};

template <class T>
__device__ __forceinline__ pair_weights<T>
weigh(const cpl_attention_backward &b, const wide_t<T> *delta, int64_t slot,
      int64_t head, int64_t key)
{
    const cpl_attention &p = b.forward;
    const int64_t row = slot * p.heads + head;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    const sum_t<T> lse = static_cast<const wide_t<T> *>(p.lse)[row];
    const sum_t<T> weight = std::exp(score_of<T>(p, slot, head, key) - lse);
    const sum_t<T> along = product(
        static_cast<const T *>(b.d_o) + row * p.value_dim,
        row_of<T>(p.v, key, p.v_stride, kv_head, p.value_dim), p.value_dim);
    return {weight, weight * (along - delta[row])};
}

template <class T> struct slice_sum {
    sum_t<T> all[SLICE];

    __device__ void add(sum_t<T> weight, const T *row, int64_t n)
    {
#pragma unroll
        for (int a = 0; a < SLICE; a++)
            if (a < n)
                all[a] += weight * get(row[a]);
    }

    /* Adds to what is there in the first `kept` elements. */
    __device__ void store(T *row, int64_t n, int64_t kept) const
    {
#pragma unroll
        for (int a = 0; a < SLICE; a++)
            if (a < n)
                row[a] = put<T>(a < kept ? get(row[a]) + all[a] : all[a]);
    }
};

/* One slice of a row of dq, which adds to what is there in the first `kept`
 * elements of all heads' rows. */
template <class T>
__device__ void sum_dq(const cpl_attention_backward &b, const reach *groups,
                       const wide_t<T> *delta, int64_t kept, int64_t slot,
                       int64_t head, int64_t from)
{
    const cpl_attention &p = b.forward;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    slice_sum<T> sum = {};
    each_block<false>(p, groups, slot, [&](const auto &block) {
        const int64_t query = slot - block.q_slot;
        const range keys = keys_of(p, block, query, query);
        for (int64_t j = keys.begin; j < keys.end; j++) {
            const int64_t key = block.kv_slot + j;
            sum.add(static_cast<sum_t<T>>(p.scale) *
                        weigh<T>(b, delta, slot, head, key).d_score,
                    row_of<T>(p.k, key, p.k_stride, kv_head, p.key_dim) + from,
                    p.key_dim - from);
        }
    });
    sum.store(row_of<T>(b.dq, slot, b.dq_stride, head, p.key_dim) + from,
              p.key_dim - from, kept - head * p.key_dim - from);
}

/* The same of dv with OF_VALUES, else of dk. */
template <class T, bool OF_VALUES>
__device__ void sum_dkv(const cpl_attention_backward &b, const reach *groups,
                        const wide_t<T> *delta, int64_t kept, int64_t key,
                        int64_t kv_head, int64_t from)
{
    const cpl_attention &p = b.forward;
    const int64_t width = OF_VALUES ? p.value_dim : p.key_dim;
    const int64_t group = p.heads / p.kv_heads;
    slice_sum<T> sum = {};
    each_block<true>(p, groups, key, [&](const auto &block) {
        const int64_t j = key - block.kv_slot;
        const range queries = queries_of(p, block, j, j);
        for (int64_t each = queries.begin; each < queries.end; each++)
            for (int64_t g = 0; g < group; g++) {
                const int64_t slot = block.q_slot + each;
                const int64_t head = kv_head * group + g;
                const pair_weights<T> pair =
                    weigh<T>(b, delta, slot, head, key);
                const sum_t<T> weight =
                    OF_VALUES ? pair.weight
                              : static_cast<sum_t<T>>(p.scale) * pair.d_score;
                const T *row =
                    OF_VALUES
                        ? row_of<T>(b.d_o, slot, p.heads * width, head, width)
                        : row_of<T>(p.q, slot, p.q_stride, head, width);
                sum.add(weight, row + from, width - from);
            }
    });
    const int64_t at = kv_head * width + from;
    T *to = OF_VALUES ? row_of<T>(b.dv, key, b.dv_stride, 0, width)
                      : row_of<T>(b.dk, key, b.dk_stride, 0, width);
    sum.store(to + at, width - from, kept - at);
}

template <class T, gradient_of WHICH>
__device__ void sum_slice(const cpl_attention_backward &b, const reach *groups,
                          const wide_t<T> *delta, int64_t kept, int64_t slot,
                          int64_t head, int64_t from)
{
    if (WHICH == OF_Q)
        sum_dq<T>(b, groups, delta, kept, slot, head, from);
    else
        sum_dkv<T, WHICH == OF_V>(b, groups, delta, kept, slot, head, from);
}

template <class T, gradient_of WHICH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_naive_back(const __grid_constant__ cpl_attention_backward b,
                         const reach *groups, const wide_t<T> *delta,
                         int64_t kept)
{
    const gradient_shape shape = shape_of(b.forward, WHICH);
    const int64_t slices = slices_of(shape.width);
    const int64_t n = shape.n_rows * shape.heads * slices;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t row = i / slices;
        sum_slice<T, WHICH>(b, groups, delta, kept, row / shape.heads,
                            row % shape.heads, i % slices * SLICE);
    }
}

/* Behind the fast kernels. */
template <class T, gradient_of WHICH>
__global__ void __launch_bounds__(THREADS, 1)
    attention_again_back(const __grid_constant__ cpl_attention_backward b,
                         const reach *groups, const wide_t<T> *delta,
                         int64_t kept, const uint32_t *marks)
{
    const gradient_shape shape = shape_of(b.forward, WHICH);
    each_marked(marks, shape.n_rows, shape.heads, shape.width,
                [&](int64_t slot, int64_t head, int64_t from) {
                    sum_slice<T, WHICH>(b, groups, delta, kept, slot, head,
                                        from);
                });
}

/* Where dv lies in the rows of dk: of how many elements at the begin of its
 * rows dk has a share. They hold the sum of both, and dv comes second. */
static int64_t shared_with_dk(const cpl_attention_backward &b, size_t size)
{
    const int64_t shift =
        (reinterpret_cast<intptr_t>(b.dv) - reinterpret_cast<intptr_t>(b.dk)) /
        static_cast<intptr_t>(size);
    const int64_t width = b.forward.kv_heads * b.forward.key_dim;
    const bool in_rows =
        b.dv_stride == b.dk_stride && shift >= 0 && shift < width;
    return in_rows ? width - shift : 0;
}

/* To how many elements of all heads' rows a gradient is added. */
static int64_t kept_of(const cpl_attention_backward &b, gradient_of which,
                       size_t size)
{
    const gradient_shape shape = shape_of(b.forward, which);
    if (b.forward.accumulate)
        return shape.heads * shape.width;
    return which == OF_V ? shared_with_dk(b, size) : 0;
}

template <class T>
static int launch_delta(const cpl_attention_backward &b,
                        const parts<wide_t<T>> &workspace,
                        cpl_cuda_stream stream)
{
    const cpl_attention &p = b.forward;
    const int64_t rows = p.n_queries * p.heads;
    if (rows == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(attention_delta<T>, blocks_for(rows, THREADS / 32),
                       THREADS, 0, stream, static_cast<const T *>(p.o),
                       static_cast<const T *>(b.d_o), rows, p.value_dim,
                       workspace.rows);
}

enum way { NAIVE, TILES, LATENT, FMA };

template <class T>
static way way_of(const cpl_attention_backward &b, bool is_naive)
{
    constexpr bool IS_BF16 = std::is_same<T, __nv_bfloat16>::value;
    if (is_naive)
        return NAIVE;
    if (IS_BF16 && has_tiles_backward(b) && shared_with_dk(b, sizeof(T)) == 0)
        return TILES;
    if (IS_BF16 && has_latent_backward(b))
        return LATENT;
    return has_fma_backward(b, IS_BF16) ? FMA : NAIVE;
}

/* One gradient, all of it or what is left of it. */
template <class T, gradient_of WHICH>
static int launch_one(const cpl_attention_backward &b,
                      const parts<wide_t<T>> &workspace, way how,
                      cpl_cuda_stream stream)
{
    const gradient_shape shape = shape_of(b.forward, WHICH);
    const int64_t rows = shape.n_rows * shape.heads;
    const int64_t kept = kept_of(b, WHICH, sizeof(T));
    if (rows == 0)
        return cudaSuccess;
    if (how == NAIVE)
        return CPLI_LAUNCH((attention_naive_back<T, WHICH>),
                           blocks_for(rows * slices_of(shape.width)), THREADS,
                           0, stream, b, workspace.groups, workspace.rows,
                           kept);
    if (how == FMA) {
        const int failed =
            attention_fma_gradient<T>(b, workspace, WHICH, kept, stream);
        if (failed != cudaSuccess)
            return failed;
    }
    return CPLI_LAUNCH((attention_again_back<T, WHICH>),
                       blocks_for(n_units(shape.n_rows, shape.heads), 1),
                       THREADS, 0, stream, b, workspace.groups, workspace.rows,
                       kept, marks_of(b, workspace.marks, WHICH));
}

template <class T>
static int launch(const cpl_attention_backward &b, bool is_naive,
                  cpl_cuda_stream stream)
{
    const auto workspace = backward_parts<wide_t<T>>(b, b.workspace);
    const way how = way_of<T>(b, is_naive);
    int failed = attention_groups(b.forward, workspace.groups, stream);
    if (failed == cudaSuccess)
        failed = launch_delta<T>(b, workspace, stream);
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        if (failed == cudaSuccess)
            failed = how == TILES
                         ? attention_tiles_backward(b, workspace, stream)
                     : how == LATENT
                         ? attention_latent_backward(b, workspace, stream)
                         : cudaSuccess;
    if (failed == cudaSuccess)
        failed = launch_one<T, OF_Q>(b, workspace, how, stream);
    if (failed == cudaSuccess)
        failed = launch_one<T, OF_K>(b, workspace, how, stream);
    if (failed == cudaSuccess)
        failed = launch_one<T, OF_V>(b, workspace, how, stream);
    return failed;
}

} // namespace cpli

size_t cpl_cuda_attention_backward_workspace(const cpl_attention_backward *b,
                                             int32_t dtype)
{
    return dtype == CPL_F64 ? cpli::backward_parts<double>(*b, nullptr).bytes
                            : cpli::backward_parts<float>(*b, nullptr).bytes;
}

int cpl_cuda_attention_backward(const cpl_attention_backward *b, int32_t dtype,
                                int32_t way, cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch<decltype(type)>(*b, way == CPL_CUDA_NAIVE, stream);
    });
}
