/*
 * rows.cuh: for kernels that sum along rows or along columns, always in one
 * order.
 *
 * Along a row: a group of threads, a warp or a block, works on a row; each
 * member adds what it meets, then the members' sums are added.
 *
 * Along columns (gradients of weights): the rows are cut into chunks, whose
 * sums are added in the order of the chunks. Between the two launches that
 * takes, they lie where the gradient of the activations will be written by a
 * third: all of its rows are free until then, if it is no input.
 *
 * To one number: each block leaves a part, and one block adds the parts.
 */
#ifndef CPLI_ROWS_CUH
#define CPLI_ROWS_CUH

#include <cstring>
#include <type_traits>

#include "elements.cuh"

namespace cpli
{

constexpr int LANES = 32;
/* A warp reads so many packs of a row in a lane; more make a block's row. */
constexpr int64_t PACKS_OF_LANE = 4;

/* ---- along a row ---- */

template <class S> __device__ __forceinline__ S warp_sum(S x)
{
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2)
        x += __shfl_xor_sync(~0u, x, by);
    return x;
}

/* The sum of all threads of a block of N, to all of them. */
template <int N, class S> __device__ __forceinline__ S block_sum(S x)
{
    CPLI_SHARED(S, parts, [N / LANES]);
    x = warp_sum(x);
    __syncthreads(); /* what was here before has been read */
    if (threadIdx.x % LANES == 0)
        parts[threadIdx.x / LANES] = x;
    __syncthreads();
    S sum = 0;
#pragma unroll
    for (int i = 0; i < N / LANES; i++)
        sum += parts[i];
    return sum;
}

template <int G, class S> __device__ __forceinline__ S group_sum(S x)
{
    static_assert(G == LANES || G == THREADS, "a warp or a block");
    if constexpr (G == LANES)
        return warp_sum(x);
    else
        return block_sum<G>(x);
}

/* visit(row, member) for the rows of a grid's groups. */
template <int G, class F>
__device__ __forceinline__ void each_row(int64_t n_rows, F visit)
{
    const int64_t groups = static_cast<int64_t>(gridDim.x) * (THREADS / G);
    const int member = static_cast<int>(threadIdx.x) % G;
    int64_t row = first_index() / G;
#pragma unroll 1
    for (; row < n_rows; row += groups)
        visit(row, member);
}

/* f(the size of packs, the size of groups, blocks for n_rows). */
template <class T, class F>
int by_row(bool widest, int64_t n_rows, int64_t width, F f)
{
    return by_pack<T>(widest, [&](auto v) {
        const int64_t packs = width / decltype(v)::value;
        if (packs <= PACKS_OF_LANE * LANES)
            return f(v, std::integral_constant<int, LANES>(),
                     blocks_for(n_rows, THREADS / LANES));
        return f(v, std::integral_constant<int, THREADS>(),
                 blocks_for(n_rows, 1));
    });
}

/* ---- along columns ---- */

/* Shorter chunks are not worth a block; more chunks than this are not needed to
 * keep a device busy. A chunk also has room for the sums that it leaves. */
constexpr int64_t CHUNK_ROWS = 32;
constexpr int64_t MAX_CHUNKS = 512;

/* The bits of a T. */
template <class T>
using word_t =
    std::conditional_t<sizeof(T) == 2, uint16_t,
                       std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

/* The sums of chunks: `kinds` for each column, in the rows of a [n_rows, ...]
 * array of T. With one chunk there are none: it adds to the gradient itself. */
template <class T> struct chunk_sums {
    word_t<T> *rows;
    int64_t stride, n_rows;
    int64_t n_chunks, rows_each;
    int kinds;
};

template <class T> constexpr int PIECES = sizeof(wide_t<T>) / sizeof(T);

/* `is_input`: the rows are read by what makes the sums. */
template <class T>
chunk_sums<T> chunks_in(void *rows, int64_t stride, int64_t n_rows, int kinds,
                        bool is_input)
{
    const bool is_one = is_input || kinds * PIECES<T> > CHUNK_ROWS;
    int64_t each = is_one ? n_rows : (n_rows + MAX_CHUNKS - 1) / MAX_CHUNKS;
    each = each > CHUNK_ROWS ? each : CHUNK_ROWS;
    int64_t n = n_rows / each; /* the last one is longer */
    n = n > 1 ? n : 1;
    return {static_cast<word_t<T> *>(rows), stride, n_rows, n, each, kinds};
}

/* Bytes that sums in rows of `width` take. */
template <class T> size_t chunk_bytes(const chunk_sums<T> &c, int64_t width)
{
    return c.n_chunks == 1 ? 0
                           : static_cast<size_t>(c.n_chunks * c.kinds * width) *
                                 sizeof(wide_t<T>);
}

template <class T>
__device__ __forceinline__ int64_t chunk_begin(const chunk_sums<T> &c,
                                               int64_t chunk)
{
    return chunk * c.rows_each;
}
template <class T>
__device__ __forceinline__ int64_t chunk_end(const chunk_sums<T> &c,
                                             int64_t chunk)
{
    return chunk + 1 < c.n_chunks ? (chunk + 1) * c.rows_each : c.n_rows;
}

/* A WIDE number is cut into pieces, a row each. */
template <class T>
__device__ __forceinline__ word_t<T> *
sum_place(const chunk_sums<T> &c, int64_t chunk, int kind, int64_t column)
{
    return c.rows + (chunk * c.kinds + kind) * PIECES<T> * c.stride + column;
}

/* What a chunk found of a column; `grad` is the element that it belongs to. */
template <class T>
__device__ __forceinline__ void leave_sum(const chunk_sums<T> &c, int64_t chunk,
                                          int kind, int64_t column,
                                          wide_t<T> sum, wide_t<T> *grad)
{
    if (c.n_chunks == 1) {
        *grad += sum;
        return;
    }
    word_t<T> pieces[PIECES<T>];
    memcpy(pieces, &sum, sizeof sum);
#pragma unroll
    for (int i = 0; i < PIECES<T>; i++)
        sum_place(c, chunk, kind, column)[i * c.stride] = pieces[i];
}

template <class T>
__device__ __forceinline__ wide_t<T>
sum_left(const chunk_sums<T> &c, int64_t chunk, int kind, int64_t column)
{
    wide_t<T> sum;
    word_t<T> pieces[PIECES<T>];
#pragma unroll
    for (int i = 0; i < PIECES<T>; i++)
        pieces[i] = sum_place(c, chunk, kind, column)[i * c.stride];
    memcpy(&sum, pieces, sizeof sum);
    return sum;
}

/* Adds the sums of all chunks: kinds first_kind .. first_kind + kinds - 1 of a
 * column to grad[column * kinds], and on (columns/add_chunks.cu). */
template <class T>
int launch_add_chunks(const chunk_sums<T> &c, int64_t width, int first_kind,
                      int kinds, void *grad, cpl_cuda_stream stream);

/* ---- columns of rows that are summed as well: a block a chunk ---- */

/* Columns of the widest row whose sums fit into a block's shared memory. */
constexpr int64_t SHARED_BYTES = 48 << 10;

template <class T> size_t column_bytes(int64_t width, int group)
{
    return static_cast<size_t>(THREADS / group) * static_cast<size_t>(width) *
           sizeof(wide_t<T>);
}

/* visit(row, member, sums): adds to the sums, of all columns, what the row has;
 * a member always has the same columns. */
template <class T, int V, int G, class F>
__device__ __forceinline__ void sum_columns(const chunk_sums<T> &c,
                                            int64_t width, void *grad, F visit)
{
    CPLI_DYNAMIC_SHARED(wide_t<T>, sums);
    const int64_t chunk = blockIdx.x;
    const int64_t end = chunk_end(c, chunk);
    const int group = static_cast<int>(threadIdx.x) / G;
    const int member = static_cast<int>(threadIdx.x) % G;
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < width * (THREADS / G); i += THREADS)
        sums[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int64_t row = chunk_begin(c, chunk) + group; row < end;
         row += THREADS / G)
        visit(row, member, sums + group * width);
    __syncthreads();
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        wide_t<T> sum = 0;
        for (int g = 0; g < THREADS / G; g++)
            sum += sums[g * width + i];
        leave_sum(c, chunk, 0, i, sum, static_cast<wide_t<T> *>(grad) + i);
    }
}

/* ---- to one number ---- */

/* More parts than this are not needed to keep a device busy. */
constexpr int64_t MAX_PARTS = 1024;

/* Parts of n things, each of so many at least: the same on every device. */
inline int64_t parts_for(int64_t n, int64_t least)
{
    const int64_t parts = (n + least - 1) / least;
    return parts < 1 ? 1 : parts < MAX_PARTS ? parts : MAX_PARTS;
}

/* One part is the sum itself and takes no workspace. */
inline size_t part_bytes(int64_t n_parts)
{
    return n_parts == 1 ? 0 : static_cast<size_t>(n_parts) * sizeof(double);
}

/* What a block found; every NaN is one for Lua. */
__device__ __forceinline__ void leave_part(double *parts, double sum)
{
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum == sum ? sum : static_cast<double>(NAN);
}

/* *sum = what the parts add up to (columns/add_parts.cu); one part lies there
 * already. */
int launch_add_parts(const double *parts, int64_t n_parts, double *sum,
                     cpl_cuda_stream stream);

} // namespace cpli

#endif
