/*
 * attention.cuh: what all attention kernels share: who sees whom, and how a
 * query or a key finds its blocks. Blocks lie on the device in any order, so a
 * first kernel notes, for every GROUP of them, which slots they reach; what is
 * out of a group's reach is passed by with one look.
 */
#ifndef CPLI_ATTENTION_CUH
#define CPLI_ATTENTION_CUH

#include "compute.cuh"

namespace cpli
{

constexpr int GROUP = 32;

/* begin .. end - 1, of slots or of indices into a block. */
struct range {
    int64_t begin, end;
};

__host__ __device__ __forceinline__ bool meets(range a, range b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* The slots of queries and of keys that a block, or a group of them, names. */
struct reach {
    range queries, keys;
};

__host__ __device__ __forceinline__ int64_t n_groups(const cpl_attention &p)
{
    return (p.n_blocks + GROUP - 1) / GROUP;
}

inline size_t groups_bytes(const cpl_attention &p)
{
    return (static_cast<size_t>(n_groups(p)) * sizeof(reach) + 63) / 64 * 64;
}

/* Enqueues the kernel that writes the groups to where the workspace begins. */
int attention_groups(const cpl_attention *p, void *workspace,
                     cpl_cuda_stream stream);

/* Of a block without queries or keys: nothing. */
__device__ __forceinline__ reach reach_of(const cpl_attention_block &block)
{
    if (block.n_queries <= 0 || block.n_keys <= 0)
        return {{0, 0}, {0, 0}};
    return {{block.q_slot, block.q_slot + block.n_queries},
            {block.kv_slot, block.kv_slot + block.n_keys}};
}

/* The keys of a block that its queries from `first` to `last` see, one or all
 * of them; none where begin >= end. */
__device__ __forceinline__ range keys_of(const cpl_attention &p,
                                         const cpl_attention_block &block,
                                         int64_t first, int64_t last)
{
    const int64_t begin =
        p.window > 0 ? block.n_before + first - p.window + 1 : 0;
    return {begin > 0 ? begin : 0,
            min(block.n_before + last + 1, block.n_keys)};
}

/* The queries of a block that see its keys from `first` to `last`. */
__device__ __forceinline__ range queries_of(const cpl_attention &p,
                                            const cpl_attention_block &block,
                                            int64_t first, int64_t last)
{
    const int64_t begin = first - block.n_before;
    const int64_t end = last - block.n_before + p.window;
    return {begin > 0 ? begin : 0,
            p.window > 0 ? min(end, block.n_queries) : block.n_queries};
}

/* f(block) for every block that names a query slot or a key slot, in the order
 * of the list. */
template <bool BY_KEY, class F>
__device__ void each_block(const cpl_attention &p, const reach *groups,
                           int64_t slot, F f)
{
    const range here = {slot, slot + 1};
    for (int64_t g = 0; g < n_groups(p); g++) {
        if (!meets(BY_KEY ? groups[g].keys : groups[g].queries, here))
            continue;
        const int64_t end = min((g + 1) * GROUP, p.n_blocks);
        for (int64_t b = g * GROUP; b < end; b++) {
            const cpl_attention_block block = p.blocks[b];
            const reach mine = reach_of(block);
            if (meets(BY_KEY ? mine.keys : mine.queries, here))
                f(block);
        }
    }
}

/* ---- rows ---- */

template <class T>
__device__ __forceinline__ const T *row_of(const void *array, int64_t slot,
                                           int64_t stride, int64_t head,
                                           int64_t width)
{
    return static_cast<const T *>(array) + slot * stride + head * width;
}

template <class T>
__device__ __forceinline__ T *row_of(void *array, int64_t slot, int64_t stride,
                                     int64_t head, int64_t width)
{
    return static_cast<T *>(array) + slot * stride + head * width;
}

template <class T>
__device__ __forceinline__ sum_t<T> product(const T *a, const T *b, int64_t n)
{
    sum_t<T> sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += get(a[i]) * get(b[i]);
    return sum;
}

template <class T>
__device__ __forceinline__ sum_t<T>
score_of(const cpl_attention &p, int64_t slot, int64_t head, int64_t key)
{
    const int64_t kv_head = head / (p.heads / p.kv_heads);
    return static_cast<sum_t<T>>(p.scale) *
           product(row_of<T>(p.q, slot, p.q_stride, head, p.key_dim),
                   row_of<T>(p.k, key, p.k_stride, kv_head, p.key_dim),
                   p.key_dim);
}

/* So many numbers of a row are one thread's in the naive kernels; each thread
 * makes the row's scores anew. */
constexpr int SLICE = 8;

inline int64_t slices_of(int64_t width)
{
    return (width + SLICE - 1) / SLICE;
}

} // namespace cpli

#endif
