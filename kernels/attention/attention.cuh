/*
 * attention.cuh: what all attention kernels share: who sees whom, how a query
 * or a key finds its blocks, what the fast kernels leave to the naive ones, and
 * a workspace in parts. Blocks lie on the device in any order, so a first
 * kernel notes, for every GROUP of them, which slots they reach; what is out of
 * a group's reach is passed by with one look.
 *
 * The ways, each where those before it do not take a call:
 *   attention_tiles   tensor cores; bf16 of up to 256 numbers a head
 *   attention_latent  tensor cores; wider, with values in the keys' rows
 *   attention_fma     f64, f32, and bf16 of 257 to 576 numbers a head
 *   attention         naive: all else, very short sequences, and the others'
 *                     rows that are not finite
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

__host__ __device__ inline int64_t slices_of(int64_t width)
{
    return (width + SLICE - 1) / SLICE;
}

/* ---- what the fast kernels leave to the naive ones ---- */

/*
 * 0 times a NaN or an Inf is NaN: in a product of tiles one of them reaches
 * rows that do not see it. Their sums are then not finite. So the fast kernels
 * mark what comes out not finite, UNIT rows of a head at once, leave it as it
 * was, and a kernel behind them makes these rows anew in the naive way, which
 * meets no pair that does not see each other. Where all is finite it costs a
 * look at the marks.
 */
constexpr int UNIT = 16;

__host__ __device__ __forceinline__ int64_t n_units(int64_t n_rows,
                                                    int64_t heads)
{
    return (n_rows + UNIT - 1) / UNIT * heads;
}

/* By a lane: the mark of a unit, from its first slot, if there is one. */
__device__ __forceinline__ void mark_unit(uint32_t *marks, int64_t slot,
                                          int64_t n_rows, int64_t head,
                                          int64_t heads, bool is_finite)
{
    if (slot < n_rows)
        marks[slot / UNIT * heads + head] = is_finite ? 0 : 1;
}

/* f(slot, head, the first of a slice) for all slices of `width` numbers of the
 * rows that are marked; a block of threads a unit. */
template <class F>
__device__ void each_marked(const uint32_t *marks, int64_t n_rows,
                            int64_t heads, int64_t width, F f)
{
    const int64_t slices = slices_of(width);
    for (int64_t u = blockIdx.x; u < n_units(n_rows, heads); u += gridDim.x) {
        if (marks[u] == 0)
            continue;
        const int64_t first = u / heads * UNIT;
        const int64_t n =
            min(static_cast<int64_t>(UNIT), n_rows - first) * slices;
        for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
            f(first + i / slices, u % heads, i % slices * SLICE);
    }
}

/* A workspace in parts, from sizes alone or where it lies. */
template <class WIDE> struct parts {
    reach *groups;
    WIDE *rows;      /* backward: do.o; with `accumulate`: lse as it was */
    uint32_t *marks; /* queries'; backward: dk's and dv's, too: marks_of */
    size_t bytes;

    parts(const cpl_attention &p, void *workspace, int64_t n_rows,
          int64_t n_marks)
    {
        const uintptr_t at = reinterpret_cast<uintptr_t>(workspace);
        const auto take = [&](int64_t n, size_t size) {
            const uintptr_t part = at + bytes;
            bytes += (static_cast<size_t>(n) * size + 63) / 64 * 64;
            return reinterpret_cast<void *>(part);
        };
        bytes = 0;
        groups = static_cast<reach *>(take(n_groups(p), sizeof(reach)));
        rows = static_cast<WIDE *>(take(n_rows, sizeof(WIDE)));
        marks = static_cast<uint32_t *>(take(n_marks, sizeof(uint32_t)));
    }
};

template <class WIDE>
parts<WIDE> forward_parts(const cpl_attention &p, void *workspace)
{
    return parts<WIDE>(p, workspace, p.accumulate ? p.n_queries * p.heads : 0,
                       n_units(p.n_queries, p.heads));
}

template <class WIDE>
parts<WIDE> backward_parts(const cpl_attention_backward &b, void *workspace)
{
    const cpl_attention &p = b.forward;
    return parts<WIDE>(p, workspace, p.n_queries * p.heads,
                       n_units(p.n_queries, p.heads) +
                           2 * n_units(p.n_keys, p.kv_heads));
}

/* The gradients of q, k and v, whose kernels follow each other so: dv may lie
 * in the rows of dk. */
enum gradient_of { OF_Q, OF_K, OF_V };

/* Of whose rows and heads a gradient is, and how wide it is. */
struct gradient_shape {
    int64_t n_rows, heads, width;
};

__host__ __device__ __forceinline__ gradient_shape
shape_of(const cpl_attention &p, gradient_of which)
{
    return {which == OF_Q ? p.n_queries : p.n_keys,
            which == OF_Q ? p.heads : p.kv_heads,
            which == OF_V ? p.value_dim : p.key_dim};
}

__host__ __device__ __forceinline__ uint32_t *
marks_of(const cpl_attention_backward &b, uint32_t *marks, gradient_of which)
{
    const cpl_attention &p = b.forward;
    return marks + (which == OF_Q ? 0 : n_units(p.n_queries, p.heads)) +
           (which == OF_V ? n_units(p.n_keys, p.kv_heads) : 0);
}

/* ---- the fast ways, each with whether it takes a call ---- */

/* Rows that blocks have on the average: with fewer, tiles are nearly empty, and
 * a walk over all blocks of a tile costs more than its products. */
constexpr int SHORTEST = 4;

/* Enqueues the kernel that writes the groups. */
int attention_groups(const cpl_attention &p, reach *groups,
                     cpl_cuda_stream stream);

/* On tensor cores, of bf16; backward all three gradients, but none that shares
 * rows with another. */
bool has_tiles(const cpl_attention &p);
int attention_tiles(const cpl_attention &p, const parts<float> &workspace,
                    cpl_cuda_stream stream);
bool has_tiles_backward(const cpl_attention_backward &b);
int attention_tiles_backward(const cpl_attention_backward &b,
                             const parts<float> &workspace,
                             cpl_cuda_stream stream);

/* The same of wide heads whose values are the first numbers of their keys;
 * backward dk and dv into the same rows. */
bool has_latent(const cpl_attention &p);
int attention_latent_forward(const cpl_attention &p,
                             const parts<float> &workspace,
                             cpl_cuda_stream stream);
bool has_latent_backward(const cpl_attention_backward &b);
int attention_latent_backward(const cpl_attention_backward &b,
                              const parts<float> &workspace,
                              cpl_cuda_stream stream);

/* On plain arithmetic; one gradient, which adds to the first `kept` numbers of
 * a row of all heads. */
bool has_fma(const cpl_attention &p, bool is_bf16);
template <class T>
int attention_fma_forward(const cpl_attention &p,
                          const parts<wide_t<T>> &workspace,
                          cpl_cuda_stream stream);
bool has_fma_backward(const cpl_attention_backward &b, bool is_bf16);
template <class T>
int attention_fma_gradient(const cpl_attention_backward &b,
                           const parts<wide_t<T>> &workspace, gradient_of which,
                           int64_t kept, cpl_cuda_stream stream);

} // namespace cpli

#endif
