/*
 * attention_backward.cu: the naive backward for every size and dtype. dq is
 * summed by query, dk and dv by key, each over the blocks in their order: no
 * atomics, so the same numbers give the same bits. With weight = e^(score -
 * lse) and d_score = weight (do.v - do.o),
 *   dq += scale d_score k,  dk += scale d_score q,  dv += weight do.
 */
#include "attention_tiles.cuh"

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

template <class T>
__global__ void __launch_bounds__(THREADS, 1)
    attention_naive_dq(const __grid_constant__ cpl_attention_backward b,
                       const reach *groups, const wide_t<T> *delta,
                       int64_t slices)
{
    const cpl_attention &p = b.forward;
    const int64_t n = p.n_queries * p.heads * slices;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t row = i / slices, from = i % slices * SLICE;
        const int64_t slot = row / p.heads, head = row % p.heads;
        const int64_t kv_head = head / (p.heads / p.kv_heads);
        slice_sum<T> sum = {};
        each_block<false>(p, groups, slot, [&](const auto &block) {
            const int64_t query = slot - block.q_slot;
            const range keys = keys_of(p, block, query, query);
            for (int64_t j = keys.begin; j < keys.end; j++) {
                const int64_t key = block.kv_slot + j;
                sum.add(static_cast<sum_t<T>>(p.scale) *
                            weigh<T>(b, delta, slot, head, key).d_score,
                        row_of<T>(p.k, key, p.k_stride, kv_head, p.key_dim) +
                            from,
                        p.key_dim - from);
            }
        });
        sum.store(row_of<T>(b.dq, slot, b.dq_stride, head, p.key_dim) + from,
                  p.key_dim - from, p.accumulate ? p.key_dim : 0);
    }
}

/* dv with OF_VALUES, else dk; adds to what is there in the first `kept`
 * elements of a row. */
template <class T, bool OF_VALUES>
__global__ void __launch_bounds__(THREADS, 1)
    attention_naive_dkv(const __grid_constant__ cpl_attention_backward b,
                        const reach *groups, const wide_t<T> *delta,
                        int64_t slices, int64_t kept)
{
    const cpl_attention &p = b.forward;
    const int64_t width = OF_VALUES ? p.value_dim : p.key_dim;
    const int64_t group = p.heads / p.kv_heads;
    const int64_t n = p.n_keys * p.kv_heads * slices;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t row = i / slices, from = i % slices * SLICE;
        const int64_t key = row / p.kv_heads, kv_head = row % p.kv_heads;
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
                    if (OF_VALUES)
                        sum.add(pair.weight,
                                row_of<T>(b.d_o, slot, p.heads * width, head,
                                          width) +
                                    from,
                                width - from);
                    else
                        sum.add(static_cast<sum_t<T>>(p.scale) * pair.d_score,
                                row_of<T>(p.q, slot, p.q_stride, head, width) +
                                    from,
                                width - from);
                }
        });
        const int64_t at = kv_head * width + from;
        T *to = OF_VALUES ? row_of<T>(b.dv, key, b.dv_stride, 0, width) + at
                          : row_of<T>(b.dk, key, b.dk_stride, 0, width) + at;
        sum.store(to, width - from, kept - at);
    }
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

template <class T>
static int launch_delta(const cpl_attention_backward *b, void *delta,
                        cpl_cuda_stream stream)
{
    const cpl_attention &p = b->forward;
    const int64_t rows = p.n_queries * p.heads;
    if (rows == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(attention_delta<T>, blocks_for(rows, THREADS / 32),
                       THREADS, 0, stream, static_cast<const T *>(p.o),
                       static_cast<const T *>(b->d_o), rows, p.value_dim,
                       static_cast<wide_t<T> *>(delta));
}

template <class T>
static int launch_naive(const cpl_attention_backward *b, const reach *groups,
                        const void *rows, cpl_cuda_stream stream)
{
    const cpl_attention &p = b->forward;
    const wide_t<T> *delta = static_cast<const wide_t<T> *>(rows);
    const int64_t k = slices_of(p.key_dim), v = slices_of(p.value_dim);
    int64_t kept = p.accumulate ? p.kv_heads * p.key_dim : 0;
    int failed = cudaSuccess;
    if (p.n_queries > 0)
        failed = CPLI_LAUNCH(attention_naive_dq<T>,
                             blocks_for(p.n_queries * p.heads * k), THREADS, 0,
                             stream, *b, groups, delta, k);
    if (failed == cudaSuccess && p.n_keys > 0)
        failed = CPLI_LAUNCH((attention_naive_dkv<T, false>),
                             blocks_for(p.n_keys * p.kv_heads * k), THREADS, 0,
                             stream, *b, groups, delta, k, kept);
    kept =
        p.accumulate ? p.kv_heads * p.value_dim : shared_with_dk(*b, sizeof(T));
    if (failed == cudaSuccess && p.n_keys > 0)
        failed = CPLI_LAUNCH((attention_naive_dkv<T, true>),
                             blocks_for(p.n_keys * p.kv_heads * v), THREADS, 0,
                             stream, *b, groups, delta, v, kept);
    return failed;
}

} // namespace cpli

size_t cpl_cuda_attention_backward_workspace(const cpl_attention_backward *b,
                                             int32_t dtype)
{
    const cpl_attention &p = b->forward;
    const size_t wide = dtype == CPL_F64 ? sizeof(double) : sizeof(float);
    return cpli::groups_bytes(p) +
           static_cast<size_t>(p.n_queries * p.heads) * wide;
}

int cpl_cuda_attention_backward(const cpl_attention_backward *b, int32_t dtype,
                                int32_t way, cpl_cuda_stream stream)
{
    const cpl_attention &p = b->forward;
    char *workspace = static_cast<char *>(b->workspace);
    void *delta = workspace + cpli::groups_bytes(p);
    const cpli::reach *groups =
        reinterpret_cast<const cpli::reach *>(workspace);
    const int failed = cpli::attention_groups(&p, workspace, stream);
    if (failed != cudaSuccess)
        return failed;
    return cpli::by_dtype(dtype, [&](auto type) -> int {
        using T = decltype(type);
        const int none = cpli::launch_delta<T>(b, delta, stream);
        if (none != cudaSuccess)
            return none;
        const bool is_naive = way != CPL_CUDA_BEST || dtype != CPL_BF16 ||
                              !cpli::has_tiles_backward(*b) ||
                              cpli::shared_with_dk(*b, sizeof(T)) > 0;
        if (is_naive)
            return cpli::launch_naive<T>(b, groups, delta, stream);
        return cpli::attention_tiles_backward(
            *b, groups, static_cast<const float *>(delta), stream);
    });
}
