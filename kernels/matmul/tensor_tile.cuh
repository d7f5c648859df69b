/*
 * tensor_tile.cuh: a block's tile of a product of matrices of bf16 by tensor
 * cores, with sums in f32. A block has THREADS threads and makes BROAD x BROAD
 * elements, a warp 64 x 32 of them; what is multiplied comes by cp.async, a
 * strip of DEEP along the inner index while the one before is
 * multiplied. The strips are added in their order: the same numbers, the same
 * bits.
 *
 * Which lane holds what: PTX ISA, mma.m16n8k16 and ldmatrix.
 */
#ifndef CPLI_MATMUL_TENSOR_TILE_CUH
#define CPLI_MATMUL_TENSOR_TILE_CUH

#include "matmul/tile.cuh"
#include "ptx.cuh"

namespace cpli
{

using bf16 = __nv_bfloat16;

constexpr int BROAD = 128, DEEP = 32;
constexpr int WARP_ROWS = 64, WARP_COLUMNS = 32; /* of the tile, a warp's */
constexpr int CHUNK = 8;                         /* numbers of an access */

/* A strip of an operand in shared memory: by rows, or, of a transposed
 * one, by columns, as it lies in device memory. Eight more numbers a line keep
 * the banks of eight lines apart. */
template <bool TRANSPOSED> struct strip_shape {
    static constexpr int LINES = TRANSPOSED ? DEEP : BROAD;
    static constexpr int LENGTH = TRANSPOSED ? BROAD : DEEP;
    static constexpr int STEP = LENGTH + CHUNK;
};
struct operand_strip {
    alignas(16) bf16 at[BROAD * (DEEP + CHUNK)];
};
static_assert(BROAD * (DEEP + CHUNK) >= DEEP * (BROAD + CHUNK), "either fits");

struct tensor_memory {
    operand_strip left[2], right[2];
};

/* Whether a matrix can be read 128 bits at a time. */
inline bool fits_chunks(const void *at, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride % CHUNK == 0;
}

/* Eight numbers of a line from number `first` on, those beyond `length` 0. */
__device__ __forceinline__ void load_chunk(bf16 *to, const bf16 *line,
                                           int64_t first, int64_t length)
{
    if (first + CHUNK <= length) {
        cpli_copy_async(to, line + first);
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        to[i] = first + i < length ? line[first + i] : put<bf16>(0);
}

/* Begins to copy the strip of m from row `first` and number `inner` on.
 */
template <bool TRANSPOSED>
__device__ __forceinline__ void
load_strip(operand_strip &to, const matrix<bf16> &m, int64_t first,
           int64_t n_rows, int64_t inner, int64_t n_inner)
{
    using shape = strip_shape<TRANSPOSED>;
    constexpr int ACROSS = shape::LENGTH / CHUNK;
    const int64_t line = TRANSPOSED ? inner : first;
    const int64_t begin = TRANSPOSED ? first : inner;
    const int64_t n_lines = TRANSPOSED ? n_inner : n_rows;
    const int64_t length = TRANSPOSED ? n_rows : n_inner;
#pragma unroll
    for (int i = 0; i < shape::LINES * ACROSS / THREADS; i++) {
        const int number = i * THREADS + static_cast<int>(threadIdx.x);
        const int y = number / ACROSS, x = number % ACROSS * CHUNK;
        const bool is_inside = line + y < n_lines;
        load_chunk(to.at + y * shape::STEP + x,
                   is_inside ? m.at + (line + y) * m.stride : m.at, begin + x,
                   is_inside ? length : 0);
    }
}

/* 16 rows from `row` on and 16 numbers from `inner` on, as mma takes them: of
 * the left operand rows go before numbers, of the right one behind. */
template <bool TRANSPOSED, bool LEFT>
__device__ __forceinline__ void
load_fragment(uint32_t (&to)[4], const operand_strip &from, int row, int inner)
{
    using shape = strip_shape<TRANSPOSED>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int part = lane / 8, line = lane % 8;
    const int rows = (LEFT ? part % 2 : part / 2) * 8;
    const int numbers = (LEFT ? part / 2 : part % 2) * 8;
    if (TRANSPOSED)
        cpli_ldmatrix_trans(
            to, from.at + (inner + numbers + line) * shape::STEP + row + rows);
    else
        cpli_ldmatrix(to, from.at + (row + rows + line) * shape::STEP + inner +
                              numbers);
}

/* A warp's part of the tile: 4 x 4 products of 16 x 8. */
struct warp_sums {
    float at[4][4][4];
};

__device__ __forceinline__ int warp_row()
{
    return static_cast<int>(threadIdx.x) / 128 * WARP_ROWS;
}
__device__ __forceinline__ int warp_column()
{
    return static_cast<int>(threadIdx.x) / 32 % 4 * WARP_COLUMNS;
}

template <bool TURNS_LEFT, bool TURNS_RIGHT>
__device__ __forceinline__ void multiply_strip(warp_sums &sums,
                                               const operand_strip &left,
                                               const operand_strip &right)
{
#pragma unroll
    for (int inner = 0; inner < DEEP; inner += 16) {
        uint32_t b[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_fragment<TURNS_RIGHT, false>(b[j], right,
                                              warp_column() + 16 * j, inner);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a[4];
            load_fragment<TURNS_LEFT, true>(a, left, warp_row() + 16 * i,
                                            inner);
#pragma unroll
            for (int j = 0; j < 4; j++)
                cpli_mma_bf16(sums.at[i][j], a, b[j / 2][j % 2 * 2],
                              b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

/* As multiply_tile. */
template <bool TURNS_LEFT, bool TURNS_RIGHT>
__device__ __forceinline__ void
multiply_tensor_tile(tensor_memory &memory, const matrix<bf16> &left,
                     int64_t row, int64_t n_rows, const matrix<bf16> &right,
                     int64_t column, int64_t n_columns, int64_t n_inner,
                     warp_sums &sums)
{
    const bool has_work =
        row + warp_row() < n_rows && column + warp_column() < n_columns;
    auto load = [&](int64_t inner) {
        const int i = static_cast<int>(inner / DEEP % 2);
        if (inner < n_inner) {
            load_strip<TURNS_LEFT>(memory.left[i], left, row, n_rows, inner,
                                   n_inner);
            load_strip<TURNS_RIGHT>(memory.right[i], right, column, n_columns,
                                    inner, n_inner);
        }
        cpli_copy_async_commit(); /* also of none: one group a strip */
    };
    load(0);
    for (int64_t inner = 0; inner < n_inner; inner += DEEP) {
        const int i = static_cast<int>(inner / DEEP % 2);
        load(inner + DEEP);
        cpli_copy_async_wait<1>();
        __syncthreads();
        if (has_work)
            multiply_strip<TURNS_LEFT, TURNS_RIGHT>(sums, memory.left[i],
                                                    memory.right[i]);
        __syncthreads();
    }
}

/* As store_tile. */
template <class F>
__device__ __forceinline__ void
store_tensor_tile(const warp_sums &sums, int64_t row, int64_t n_rows,
                  int64_t column, int64_t n_columns, F store)
{
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row += warp_row() + lane / 4;
    column += warp_column() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int64_t r = row + 16 * i + e / 2 * 8;
                const int64_t c = column + 8 * j + e % 2;
                if (r < n_rows && c < n_columns)
                    store(r, c, sums.at[i][j][e]);
            }
}

} // namespace cpli

#endif
