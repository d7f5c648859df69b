/*
 * attention.cu: the groups of blocks, and the naive forward for every size and
 * dtype: a thread a slice of one query's result, that meets the keys one after
 * another, block by block, and keeps the maximum m and the sum l of
 * e^(score - m). What (o, lse) held before counts as one key of score lse and
 * value o.
 */
#include <cstdio>

#include "attention_tiles.cuh"

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

int attention_groups(const cpl_attention *p, void *workspace,
                     cpl_cuda_stream stream)
{
    const int64_t n = n_groups(*p);
    if (n == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(attention_reach, blocks_for(n), THREADS, 0, stream,
                       p->blocks, p->n_blocks, n,
                       static_cast<reach *>(workspace));
}

/* A slice of a row of the result, on its way. */
template <class T> struct softened {
    sum_t<T> max, sum, o[SLICE];

    __device__ void add(sum_t<T> score, const T *v, int64_t n)
    {
        const sum_t<T> most = score > max ? score : max;
        const sum_t<T> shrink = std::exp(max - most);
        const sum_t<T> weight = std::exp(score - most);
        max = most;
        sum = sum * shrink + weight;
#pragma unroll
        for (int a = 0; a < SLICE; a++)
            if (a < n)
                o[a] = o[a] * shrink + weight * get(v[a]);
    }
};

/* `before`: lse as it was, or NULL. Slices of a row must not read what the
 * first of them writes. */
template <class T>
__global__ void __launch_bounds__(THREADS, 1)
    attention_naive(const __grid_constant__ cpl_attention p,
                    const reach *groups, const wide_t<T> *before,
                    int64_t slices)
{
    const int64_t n = p.n_queries * p.heads * slices;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t row = i / slices, from = i % slices * SLICE;
        const int64_t slot = row / p.heads, head = row % p.heads;
        const int64_t kv_head = head / (p.heads / p.kv_heads);
        const int64_t width = p.value_dim - from;
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
                result.add(
                    score_of<T>(p, slot, head, key),
                    row_of<T>(p.v, key, p.v_stride, kv_head, p.value_dim) +
                        from,
                    width);
            }
        });
        const sum_t<T> part = result.sum == 0 ? 0 : 1 / result.sum;
#pragma unroll
        for (int a = 0; a < SLICE; a++)
            if (a < width)
                o[a] = put<T>(result.o[a] * part);
        if (from == 0)
            static_cast<wide_t<T> *>(p.lse)[row] =
                result.sum == 0 ? result.max
                                : result.max + std::log(result.sum);
    }
}

template <class T>
static int launch_naive(const cpl_attention *p, cpl_cuda_stream stream)
{
    char *workspace = static_cast<char *>(p->workspace);
    wide_t<T> *before = nullptr;
    if (p->accumulate) {
        before = reinterpret_cast<wide_t<T> *>(workspace + groups_bytes(*p));
        const size_t bytes =
            static_cast<size_t>(p->n_queries * p->heads) * sizeof *before;
        const int failed = cudaMemcpyAsync(before, p->lse, bytes,
                                           cudaMemcpyDeviceToDevice, stream);
        if (failed != cudaSuccess)
            return failed;
    }
    const int64_t slices = slices_of(p->value_dim);
    return CPLI_LAUNCH(attention_naive<T>,
                       blocks_for(p->n_queries * p->heads * slices), THREADS, 0,
                       stream, *p, reinterpret_cast<const reach *>(workspace),
                       before, slices);
}

} // namespace cpli

size_t cpl_cuda_attention_workspace(const cpl_attention *p, int32_t dtype)
{
    const size_t wide = dtype == CPL_F64 ? sizeof(double) : sizeof(float);
    return cpli::groups_bytes(*p) +
           (p->accumulate ? static_cast<size_t>(p->n_queries * p->heads) * wide
                          : 0);
}

int cpl_cuda_attention(const cpl_attention *p, int32_t dtype, int32_t way,
                       cpl_cuda_stream stream)
{
    if (p->n_queries == 0)
        return cudaSuccess;
    const int failed = cpli::attention_groups(p, p->workspace, stream);
    if (failed != cudaSuccess)
        return failed;
    if (way == CPL_CUDA_BEST && dtype == CPL_BF16 && cpli::has_tiles(*p))
        return cpli::attention_tiles(
            *p, static_cast<const cpli::reach *>(p->workspace), stream);
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch_naive<decltype(type)>(p, stream);
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
