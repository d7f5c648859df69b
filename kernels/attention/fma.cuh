/*
 * fma.cuh: tiles on plain arithmetic: for f64 and f32, and for heads of bf16
 * that are too wide for the kernels on tensor cores. Both operands of a product
 * pass through shared memory in parts, so that heads may have any width; only
 * what is summed over all strips, rows of W numbers, stays in registers.
 *
 * A block has 16 x 8 threads. Thread (y, x) has rows y + 16 i of the tile and
 * columns x + 8 j of a strip; of the sums columns V (x + 8 j) and V - 1 more,
 * which are 16 bytes. So the x of a row are neighbours in a warp, and a UNIT of
 * rows has the same i.
 */
#ifndef CPLI_ATTENTION_FMA_CUH
#define CPLI_ATTENTION_FMA_CUH

#include <type_traits>

#include "strips.cuh"

namespace cpli
{

constexpr int FMA_Y = UNIT, FMA_X = 8;
static_assert(FMA_X * FMA_Y == TILE_THREADS, "a thread for each (y, x)");
constexpr int WIDEST = 576; /* latent attention: 512 and 64 that are turned */

/* By what is summed and its width: as many rows as registers allow. */
template <class S, int W> struct fma_size {
    static constexpr bool IS_DOUBLE = sizeof(S) == sizeof(double);
    static constexpr int V = 16 / sizeof(S);
    static constexpr int SUMS = IS_DOUBLE ? 256 : 512; /* of a thread's row */
    static constexpr int R = W == 64 ? 4 : W < SUMS ? SUMS / W : 1;
    static constexpr int ROWS = FMA_Y * R;
    static constexpr int N = IS_DOUBLE ? 32 : 64; /* columns of a strip */
    static constexpr int C = N / FMA_X;
    static constexpr int INNER = FMA_X * V; /* of a product, at a time */
    static constexpr int PARTS = W / INNER; /* of a row of sums */
    /* Rows of what weights are multiplied with, at a time. */
    static constexpr int FEW_ROWS = W < 256 ? 2048 / W : 8;
};

template <class S> struct alignas(16) pack {
    S x[16 / sizeof(S)];
};

/* Rows lie apart by 16 bytes more than they have, and by 8 numbers more: so
 * that those which are read at once lie in different banks. */
template <class S, int W> struct fma_memory {
    using size = fma_size<S, W>;
    struct operands {
        pack<S> left[size::ROWS][FMA_X + 1], right[size::N][FMA_X + 1];
    };
    union {
        operands two;
        pack<S> third[size::FEW_ROWS][W / size::V];
    };
    S weights[size::ROWS][size::N + 8];
    bool is_finite[size::R][WARPS];
};

/* Sums of a thread, and its part of a product of two. */
template <class S, int W>
using fma_sums = pack<S>[fma_size<S, W>::R][fma_size<S, W>::PARTS];
template <class S, int W>
using fma_product = S[fma_size<S, W>::R][fma_size<S, W>::C];

__device__ __forceinline__ int fma_y()
{
    return static_cast<int>(threadIdx.x) / FMA_X;
}
__device__ __forceinline__ int fma_x()
{
    return static_cast<int>(threadIdx.x) % FMA_X;
}

/* n rows of some width. */
template <class T> struct fma_rows {
    const T *at;
    int64_t stride;
    int n, width;
    bool is_wide; /* can be read by 16 bytes */
};

template <class T>
__device__ __forceinline__ fma_rows<T>
fma_rows_of(const void *array, int64_t slot, int64_t stride, int64_t head,
            int64_t width, int64_t n)
{
    const T *at = row_of<T>(array, slot, stride, head, width);
    return {at, stride, near(n), static_cast<int>(width),
            reinterpret_cast<uintptr_t>(at) % 16 == 0 &&
                stride * static_cast<int64_t>(sizeof(T)) % 16 == 0};
}

/* 16 bytes of sums from column c of row r on; zeros where there is nothing. */
template <class T>
__device__ __forceinline__ pack<sum_t<T>> read_pack(const fma_rows<T> &from,
                                                    int r, int c)
{
    constexpr int V = 16 / sizeof(sum_t<T>);
    pack<sum_t<T>> out = {};
    if (r >= from.n)
        return out;
    const T *at = from.at + r * from.stride + c;
    if constexpr (std::is_same<T, sum_t<T>>::value)
        if (from.is_wide && c + V <= from.width)
            return *reinterpret_cast<const pack<T> *>(at);
#pragma unroll
    for (int v = 0; v < V; v++)
        if (c + v < from.width)
            out.x[v] = get(at[v]);
    return out;
}

/* Rows first_row .. and columns first .. into shared memory. */
template <int ROWS, int PACKS, int PITCH, class T>
__device__ __forceinline__ void load_packs(pack<sum_t<T>> (&to)[ROWS][PITCH],
                                           const fma_rows<T> &from,
                                           int first_row, int first)
{
    constexpr int V = 16 / sizeof(sum_t<T>);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * PACKS;
         i += TILE_THREADS) {
        const int row = i / PACKS, at = i % PACKS;
        to[row][at] = read_pack(from, first_row + row, first + at * V);
    }
}

/* product += the rows of a times the rows of b. By all threads; memory is free
 * before and after. */
template <class T, int W, class S = sum_t<T>>
__device__ __forceinline__ void
fma_multiply(fma_product<S, W> &product, fma_memory<S, W> &memory,
             const fma_rows<T> &a, const fma_rows<T> &b)
{
    using size = fma_size<S, W>;
    constexpr int R = size::R, C = size::C, V = size::V;
    const int y = fma_y(), x = fma_x();
#pragma unroll 1
    for (int first = 0; first < a.width; first += size::INNER) {
        load_packs<size::ROWS, FMA_X>(memory.two.left, a, 0, first);
        load_packs<size::N, FMA_X>(memory.two.right, b, 0, first);
        __syncthreads();
        const int n = min((a.width - first + V - 1) / V, FMA_X);
#pragma unroll 1
        for (int l = 0; l < n; l++) {
            pack<S> left[R], right[C];
#pragma unroll
            for (int i = 0; i < R; i++)
                left[i] = memory.two.left[y + FMA_Y * i][l];
#pragma unroll
            for (int j = 0; j < C; j++)
                right[j] = memory.two.right[x + FMA_X * j][l];
#pragma unroll
            for (int v = 0; v < V; v++)
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int j = 0; j < C; j++)
                        product[i][j] += left[i].x[v] * right[j].x[v];
        }
        __syncthreads();
    }
}

/* sums += the weights in memory times the rows of b. By all threads; memory is
 * free afterwards, the weights need no barrier before. */
template <class T, int W, class S = sum_t<T>>
__device__ __forceinline__ void fma_accumulate(fma_sums<S, W> &sums,
                                               fma_memory<S, W> &memory,
                                               const fma_rows<T> &b)
{
    using size = fma_size<S, W>;
    constexpr int R = size::R;
    const int y = fma_y(), x = fma_x();
#pragma unroll 1
    for (int first = 0; first < b.n; first += size::FEW_ROWS) {
        load_packs<size::FEW_ROWS, W / size::V>(memory.third, b, first, 0);
        __syncthreads();
        const int n = min(b.n - first, size::FEW_ROWS);
#pragma unroll(R == 1 ? 1 : 2)
        for (int l = 0; l < n; l++) {
            S weight[R];
#pragma unroll
            for (int i = 0; i < R; i++)
                weight[i] = memory.weights[y + FMA_Y * i][first + l];
#pragma unroll
            for (int j = 0; j < size::PARTS; j++) {
                const pack<S> row = memory.third[l][x + FMA_X * j];
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int v = 0; v < size::V; v++)
                        sums[i][j].x[v] += weight[i] * row.x[v];
            }
        }
        __syncthreads();
    }
}

template <class S, int W>
__device__ __forceinline__ void
fma_scale(pack<S> (&sums)[fma_size<S, W>::PARTS], S factor)
{
#pragma unroll
    for (int j = 0; j < fma_size<S, W>::PARTS; j++)
#pragma unroll
        for (int v = 0; v < fma_size<S, W>::V; v++)
            sums[j].x[v] *= factor;
}

/* ---- the end of a tile ---- */

/* Where a tile's rows go: n of them, and of each the first n_kept numbers are
 * added to, by a factor of the row. */
template <class T> struct fma_target {
    T *at;
    int64_t stride;
    int n, width, n_kept;
    uint32_t *marks;
    int64_t slot, n_rows, head, heads;
};

/* x - x is 0, or NaN where x is not finite. */
template <class S, int W>
__device__ __forceinline__ bool
fma_is_finite(const pack<S> (&sums)[fma_size<S, W>::PARTS], S kept)
{
    S all = kept - kept;
#pragma unroll
    for (int j = 0; j < fma_size<S, W>::PARTS; j++)
#pragma unroll
        for (int v = 0; v < fma_size<S, W>::V; v++)
            all += sums[j].x[v] - sums[j].x[v];
    return all == 0;
}

template <class T, int W, class S = sum_t<T>>
__device__ __forceinline__ void
fma_store(const pack<S> (&sums)[fma_size<S, W>::PARTS], S kept,
          const fma_target<T> &to, int r)
{
    constexpr int V = fma_size<S, W>::V;
    T *row = to.at + r * to.stride;
#pragma unroll
    for (int j = 0; j < fma_size<S, W>::PARTS; j++)
#pragma unroll
        for (int v = 0; v < V; v++) {
            const int c = V * (fma_x() + FMA_X * j) + v;
            if (r >= to.n || c >= to.width)
                continue;
            const bool adds = kept != 0 && c < to.n_kept;
            row[c] =
                put<T>(adds ? sums[j].x[v] + kept * get(row[c]) : sums[j].x[v]);
        }
}

/* Stores or marks the units of a tile. By all threads. */
template <class T, int W, class S = sum_t<T>>
__device__ __forceinline__ void
fma_end(const fma_sums<S, W> &sums, const S (&kept)[fma_size<S, W>::R],
        fma_memory<S, W> &memory, const fma_target<T> &to)
{
    constexpr int R = fma_size<S, W>::R;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const bool mine = fma_is_finite<S, W>(sums[i], kept[i]);
        const bool all = __all_sync(0xffffffffu, mine);
        if (threadIdx.x % 32 == 0)
            memory.is_finite[i][threadIdx.x / 32] = all;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R; i++) {
        bool all = true;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            all = all && memory.is_finite[i][w];
        if (threadIdx.x == 0)
            mark_unit(to.marks, to.slot + UNIT * i, to.n_rows, to.head,
                      to.heads, all);
        if (all)
            fma_store<T, W>(sums[i], kept[i], to, fma_y() + FMA_Y * i);
    }
}

/* f(the width that rows of sums are padded to, as a constant). Of bf16 only the
 * widest is here. */
template <class T, class F> int by_fma_width(int64_t width, F f)
{
    if constexpr (!std::is_same<T, __nv_bfloat16>::value) {
        if (width <= 64)
            return f(std::integral_constant<int, 64>());
        if (width <= 128)
            return f(std::integral_constant<int, 128>());
        if (width <= 256)
            return f(std::integral_constant<int, 256>());
    }
    return f(std::integral_constant<int, WIDEST>());
}

} // namespace cpli

#endif
