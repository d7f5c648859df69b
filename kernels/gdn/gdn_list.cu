/*
 * gdn_list.cu: what every pass of the delta rule begins and ends with: the list
 * of chunks, zeros outside of the spans, and the sums over value heads.
 */
#include "gdn/gdn.cuh"

namespace cpli
{

constexpr int LIST_THREADS = 512;

/* What spans hold, from left to right. */
struct gdn_counts {
    int64_t chunks, kept, done;
};

__device__ __forceinline__ void gdn_add(const gdn_list &list, int64_t span,
                                        gdn_counts *sum)
{
    const cpl_span s = list.spans[span];
    if (s.length == 0)
        return;
    const int64_t chunks = (s.length + list.chunk - 1) / list.chunk;
    sum->chunks += chunks;
    sum->kept += chunks - 1;
    sum->done = s.slot + s.length;
}

/* Blocks but the first, which counts. */
__device__ __forceinline__ void gdn_clear_marks(const gdn_list &list)
{
    const int64_t step = (gridDim.x - 1) * LIST_THREADS;
    int64_t i = (blockIdx.x - 1) * LIST_THREADS + threadIdx.x;
    for (; i < list.n_spans * list.heads; i += step)
        list.wild[i] = 0;
}

/* One block: every thread counts a piece of the spans, goes on from what lies
 * before it, and counts again. */
__global__ void __launch_bounds__(LIST_THREADS)
    gdn_count_chunks(const __grid_constant__ gdn_list list)
{
    CPLI_SHARED(gdn_counts, counts, [LIST_THREADS]);
    if (blockIdx.x > 0) {
        gdn_clear_marks(list);
        return;
    }
    const int64_t each = (list.n_spans + LIST_THREADS - 1) / LIST_THREADS;
    const int64_t from = threadIdx.x * each;
    const int64_t to = from + each < list.n_spans ? from + each : list.n_spans;
    gdn_counts sum = {0, 0, 0};
    for (int64_t i = from; i < to; i++)
        gdn_add(list, i, &sum);
    counts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        gdn_counts before = {0, 0, 0};
        for (int i = 0; i < LIST_THREADS; i++) {
            const gdn_counts now = counts[i];
            counts[i] = before;
            before.chunks += now.chunks;
            before.kept += now.kept;
            before.done = now.chunks > 0 ? now.done : before.done;
        }
    }
    __syncthreads();
    sum = counts[threadIdx.x];
    for (int64_t i = from; i < to; i++) {
        gdn_add(list, i, &sum);
        list.chunks[i] = sum.chunks;
        list.kept[i] = sum.kept;
        list.done[i] = sum.done;
    }
}

/* The gap before span i, or behind the last one; gaps by blocks in x, rows of a
 * long gap by blocks in y. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_zero_rows(const __grid_constant__ gdn_list list, T *rows, int64_t width,
                  int64_t stride)
{
    for (int64_t i = blockIdx.x; i <= list.n_spans; i += gridDim.x) {
        const int64_t from = gdn_before(list.done, i);
        int64_t to = list.n_rows;
        if (i < list.n_spans)
            to = list.spans[i].length == 0 ? from : list.spans[i].slot;
        for (int64_t row = from + blockIdx.y; row < to; row += gridDim.y)
            for (int64_t j = threadIdx.x; j < width; j += THREADS)
                rows[row * stride + j] = put<T>(0);
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    gdn_sum_value_heads(const __grid_constant__ gdn_list list,
                        const __grid_constant__ cpl_gdn p,
                        const sum_t<T> *by_value_head, T *rows, int64_t stride)
{
    const unsigned key_dim = static_cast<unsigned>(p.key_dim);
    const unsigned width = static_cast<unsigned>(p.key_heads) * key_dim;
    const unsigned group = static_cast<unsigned>(p.value_heads / p.key_heads);
    const int64_t n_chunks = gdn_n_chunks(list);
    for (int64_t c = blockIdx.x; c < n_chunks; c += gridDim.x) {
        const gdn_place place = gdn_find(list, c);
        for (unsigned e = threadIdx.x; e < place.n * width; e += THREADS) {
            const int64_t row = place.slot + e / width;
            const unsigned column = e % width;
            const unsigned head = column / key_dim * group;
            const sum_t<T> *from = by_value_head +
                                   (row * p.value_heads + head) * key_dim +
                                   column % key_dim;
            sum_t<T> sum = 0;
            for (unsigned h = 0; h < group; h++)
                sum += from[h * key_dim];
            rows[row * stride + column] = put<T>(sum);
        }
    }
}

gdn_list gdn_take_list(const cpl_gdn *p, gdn_arena *arena, bool with_marks)
{
    gdn_list list;
    list.spans = p->spans;
    list.n_spans = p->n_spans;
    list.n_rows = p->n_rows;
    list.chunk = p->chunk;
    list.chunks = arena->take<int64_t>(p->n_spans);
    list.kept = arena->take<int64_t>(p->n_spans);
    list.done = arena->take<int64_t>(p->n_spans);
    list.heads = p->value_heads;
    list.wild = with_marks ? arena->take<int32_t>(p->n_spans * p->value_heads)
                           : nullptr;
    return list;
}

int gdn_count(const gdn_list &list, cpl_cuda_stream stream)
{
    const int64_t marks = list.wild == nullptr ? 0 : list.n_spans * list.heads;
    const unsigned more = gdn_blocks((marks + LIST_THREADS - 1) / LIST_THREADS);
    return CPLI_LAUNCH(gdn_count_chunks, 1 + more, LIST_THREADS, 0, stream,
                       list);
}

int gdn_zero_gaps(const gdn_list &list, int32_t dtype, void *rows,
                  int64_t width, int64_t stride, cpl_cuda_stream stream)
{
    if (rows == nullptr || list.n_rows == 0)
        return cudaSuccess;
    const unsigned gaps = gdn_blocks(list.n_spans + 1);
    const dim3 grid(gaps,
                    (GDN_BLOCKS + gaps - 1) / gaps); /* few: each by many */
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(gdn_zero_rows<T>, grid, THREADS, 0, stream, list,
                           static_cast<T *>(rows), width, stride);
    });
}

int gdn_begin_backward(const cpl_gdn_backward *b, const gdn_list &list,
                       int32_t dtype, cpl_cuda_stream stream)
{
    const cpl_gdn *p = &b->forward;
    const int32_t wide = dtype == CPL_BF16 ? CPL_F32 : dtype;
    const int64_t keys = p->key_heads * p->key_dim;
    const int64_t values = p->value_heads * p->value_dim;
    const struct {
        void *rows;
        int64_t width, stride;
        int32_t dtype;
    } all[] = {{b->dq, keys, b->dq_stride, dtype},
               {b->dk, keys, b->dk_stride, dtype},
               {b->dv, values, b->dv_stride, dtype},
               {b->dg, p->value_heads, p->value_heads, wide},
               {b->dbeta, p->value_heads, p->value_heads, wide}};
    int error = gdn_count(list, stream);
    for (const auto &gradient : all)
        if (error == cudaSuccess)
            error = gdn_zero_gaps(list, gradient.dtype, gradient.rows,
                                  gradient.width, gradient.stride, stream);
    return error;
}

int gdn_sum_heads(const gdn_list &list, const cpl_gdn *p, int32_t dtype,
                  const void *by_value_head, void *rows, int64_t stride,
                  cpl_cuda_stream stream)
{
    if (p->n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(
            gdn_sum_value_heads<T>, gdn_blocks(gdn_most_chunks(p)), THREADS, 0,
            stream, list, *p, static_cast<const sum_t<T> *>(by_value_head),
            static_cast<T *>(rows), stride);
    });
}

} // namespace cpli
