/*
 * attention.cu: the groups of blocks, and the naive forward for every size and
 * dtype: a thread a slice of one query's result, that meets the keys one after
 * another, block by block, and keeps the maximum m and the sum l of
 * e^(score - m). What (o, lse) held before counts as one key of score lse and
 * value o. Scores of -Inf weigh nothing, but where a block brings a query no
 * other ones and nothing came before, its weights are 0 / 0.
 */
#include <cstdio>
#include <type_traits>

#include "attention.cuh"

namespace cpli
{

__global__ void __launch_bounds__(THREADS, 1)
    attention_reach(const cpl_attention_block *blocks, int64_t n_blocks,
                    int64_t n, reach *groups)
{
    for (int64_t g = first_index(); g < n; g += index_step()) {
        reach all = {{INT64_MAX, 0}, {INT64_MAX, 0}};
        const int64_t end = min((g + 1) * GROUP, n_blocks);
        for (int64_t b = g * GROUP; b < end; b++) {
            const reach one = reach_of(blocks[b]);
            if (one.keys.begin == one.keys.end)
                continue;
            all.queries.begin = min(all.queries.begin, one.queries.begin);
            all.queries.end = max(all.queries.end, one.queries.end);
            all.keys.begin = min(all.keys.begin, one.keys.begin);
            all.keys.end = max(all.keys.end, one.keys.end);
        }
        groups[g] = all;
    }
}

int attention_groups(const cpl_attention &p, reach *groups,
                     cpl_cuda_stream stream)
{
    const int64_t n = n_groups(p);
    if (n == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(attention_reach, blocks_for(n), THREADS, 0, stream,
                       p.blocks, p.n_blocks, n, groups);
}

/* A slice of a row of the result, on its way. */
template <class T> struct softened {
    sum_t<T> max, sum, o[SLICE];

    __device__ void add(sum_t<T> score, const T *v, int64_t n)
    {
        const sum_t<T> most = score > max ? score : max;
        const sum_t<T> base = most == -INFINITY ? 0 : most;
        const sum_t<T> shrink = std::exp(max - base);
        const sum_t<T> weight = std::exp(score - base);
        max = most;
        sum = sum * shrink + weight;
#pragma unroll
        for (int a = 0; a < SLICE; a++)
            if (a < n)
                o[a] = o[a] * shrink + weight * get(v[a]);
    }
};

/* One slice of a row. `before`: lse as it was, or NULL. Slices of a row must
 * not read what the first of them writes. */
template <class T>
__device__ void attend(const cpl_attention &p, const reach *groups,
                       const wide_t<T> *before, int64_t slot, int64_t head,
                       int64_t from)
{
    const int64_t row = slot * p.heads + head, width = p.value_dim - from;
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    T *o = static_cast<T *>(p.o) + row * p.value_dim + from;
    softened<T> result = {};
    result.max = before ? before[row] : -INFINITY;
    result.sum = result.max == -INFINITY ? 0 : 1;
#pragma unroll
    for (int a = 0; a < SLICE; a++)
        if (a < width && result.sum != 0)
            result.o[a] = get(o[a]);
    each_block<false>(p, groups, slot, [&](const auto &block) {
        const int64_t query = slot - block.q_slot;
        const range keys = keys_of(p, block, query, query);
        for (int64_t j = keys.begin; j < keys.end; j++) {
            const int64_t key = block.kv_slot + j;
            result.add(score_of<T>(p, slot, head, key),
                       row_of<T>(p.v, key, p.v_stride, kv_head, p.value_dim) +
                           from,
                       width);
        }
        /* NaN if it is not finite, but for the -Inf of no key at all. */
        if (keys.begin < keys.end || result.max != -INFINITY)
            result.sum += result.max - result.max;
    });
    const sum_t<T> part = result.sum == 0 ? 0 : 1 / result.sum;
#pragma unroll
    for (int a = 0; a < SLICE; a++)
        if (a < width)
            o[a] = put<T>(result.o[a] * part);
    if (from == 0)
        static_cast<wide_t<T> *>(p.lse)[row] =
            result.sum == 0 ? result.max : result.max + std::log(result.sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS, 1)
    attention_naive(const __grid_constant__ cpl_attention p,
                    const reach *groups, const wide_t<T> *before,
                    int64_t slices)
{
    const int64_t n = p.n_queries * p.heads * slices;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t row = i / slices;
        attend<T>(p, groups, before, row / p.heads, row % p.heads,
                  i % slices * SLICE);
    }
}

/* Behind the fast kernels. */
template <class T>
__global__ void __launch_bounds__(THREADS, 1)
    attention_again(const __grid_constant__ cpl_attention p,
                    const reach *groups, const wide_t<T> *before,
                    const uint32_t *marks)
{
    each_marked(marks, p.n_queries, p.heads, p.value_dim,
                [&](int64_t slot, int64_t head, int64_t from) {
                    attend<T>(p, groups, before, slot, head, from);
                });
}

template <class T>
static int launch_naive(const cpl_attention &p,
                        const parts<wide_t<T>> &workspace,
                        cpl_cuda_stream stream)
{
    const int64_t rows = p.n_queries * p.heads;
    const int64_t slices = slices_of(p.value_dim);
    if (p.accumulate) {
        const int failed =
            cudaMemcpyAsync(workspace.rows, p.lse,
                            static_cast<size_t>(rows) * sizeof *workspace.rows,
                            cudaMemcpyDeviceToDevice, stream);
        if (failed != cudaSuccess)
            return failed;
    }
    return CPLI_LAUNCH(attention_naive<T>, blocks_for(rows * slices), THREADS,
                       0, stream, p, workspace.groups,
                       p.accumulate ? workspace.rows : nullptr, slices);
}

template <class T>
static int launch_again(const cpl_attention &p,
                        const parts<wide_t<T>> &workspace,
                        cpl_cuda_stream stream)
{
    return CPLI_LAUNCH(
        attention_again<T>, blocks_for(n_units(p.n_queries, p.heads), 1),
        THREADS, 0, stream, p, workspace.groups,
        p.accumulate ? workspace.rows : nullptr, workspace.marks);
}

/* Whether a fast way took it; else nothing was done. */
template <class T>
static bool launch_fast(const cpl_attention &p,
                        const parts<wide_t<T>> &workspace,
                        cpl_cuda_stream stream, int *failed)
{
    constexpr bool IS_BF16 = std::is_same<T, __nv_bfloat16>::value;
    if constexpr (IS_BF16) {
        if (has_tiles(p)) {
            *failed = attention_tiles(p, workspace, stream);
            return true;
        }
        if (has_latent(p)) {
            *failed = attention_latent_forward(p, workspace, stream);
            return true;
        }
    }
    if (!has_fma(p, IS_BF16))
        return false;
    *failed = attention_fma_forward<T>(p, workspace, stream);
    return true;
}

template <class T>
static int launch(const cpl_attention &p, bool is_naive, cpl_cuda_stream stream)
{
    const auto workspace = forward_parts<wide_t<T>>(p, p.workspace);
    int failed = attention_groups(p, workspace.groups, stream);
    if (failed != cudaSuccess)
        return failed;
    if (is_naive || !launch_fast<T>(p, workspace, stream, &failed))
        return launch_naive<T>(p, workspace, stream);
    return failed != cudaSuccess ? failed
                                 : launch_again<T>(p, workspace, stream);
}

} // namespace cpli

size_t cpl_cuda_attention_workspace(const cpl_attention *p, int32_t dtype)
{
    return dtype == CPL_F64 ? cpli::forward_parts<double>(*p, nullptr).bytes
                            : cpli::forward_parts<float>(*p, nullptr).bytes;
}

int cpl_cuda_attention(const cpl_attention *p, int32_t dtype, int32_t way,
                       cpl_cuda_stream stream)
{
    if (p->n_queries == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch<decltype(type)>(*p, way == CPL_CUDA_NAIVE, stream);
    });
}

const char *cpl_cuda_attention_refusal(const cpl_attention *p, int32_t dtype)
{
    static thread_local char text[160];
    const bool divides = p->kv_heads > 0 && p->heads % p->kv_heads == 0;
    if (dtype != CPL_F64 && dtype != CPL_F32 && dtype != CPL_BF16)
        std::snprintf(text, sizeof text,
                      "attention on a device takes f64, f32 and bf16, not the "
                      "dtype of number %d",
                      static_cast<int>(dtype));
    else if (p->key_dim < 1 || p->value_dim < 1 || !divides)
        std::snprintf(text, sizeof text,
                      "attention on a device takes heads of any width from 1 "
                      "on, as many as a multiple of kv_heads; here are %lld "
                      "heads, %lld kv_heads, widths %lld and %lld",
                      static_cast<long long>(p->heads),
                      static_cast<long long>(p->kv_heads),
                      static_cast<long long>(p->key_dim),
                      static_cast<long long>(p->value_dim));
    else
        return nullptr;
    return text;
}
