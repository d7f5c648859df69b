/*
 * tile.cuh: a block's tile of a matrix product, by way of shared memory; for
 * any size, transposed or not, of any dtype. A block has THREADS threads and
 * makes TILE x TILE elements, each thread those of 4 neighbouring rows in 4
 * columns that lie TILE / 4 apart. The sum over the inner index is made in its
 * order: the same numbers, the same bits.
 */
#ifndef CPLI_MATMUL_TILE_CUH
#define CPLI_MATMUL_TILE_CUH

#include "compute.cuh"

namespace cpli
{

constexpr int TILE = 64, TILE_INNER = 16;
constexpr int TILE_EACH = 4, TILE_APART = TILE / TILE_EACH;
static_assert(TILE_APART * TILE_APART == THREADS, "a thread has 4 x 4");

/* Element (i, l) of a matrix that lies by rows, or transposed by columns. */
template <class T> struct matrix {
    const T *at;
    int64_t stride;
    bool transposed;

    __device__ __forceinline__ const T *element(int64_t i, int64_t l) const
    {
        return transposed ? at + l * stride + i : at + i * stride + l;
    }
};

template <class T> __host__ __device__ matrix<T> turned(matrix<T> m)
{
    m.transposed = !m.transposed;
    return m;
}

/* What an operand lies in while it is multiplied: [inner][row]. The columns
 * more keep the banks of a written column apart. Those of floats also keep four
 * neighbours readable at once; for doubles that would take too many registers.
 */
template <class S>
using tile_side = S[TILE_INNER][TILE + (sizeof(S) == sizeof(float) ? 4 : 1)];

template <class T> struct alignas(16) tile_memory {
    tile_side<sum_t<T>> left, right;
};

/* Rows first .. first + TILE - 1 of m, its columns from `inner` on; beyond its
 * n_rows x n_inner elements there are zeros. Neighbours among the threads read
 * neighbours in memory. */
template <class T>
__device__ __forceinline__ void
load_tile(tile_side<sum_t<T>> &to, const matrix<T> &m, int64_t first,
          int64_t n_rows, int64_t inner, int64_t n_inner)
{
    for (int i = threadIdx.x; i < TILE * TILE_INNER; i += THREADS) {
        int row = m.transposed ? i % TILE : i / TILE_INNER;
        int column = m.transposed ? i / TILE : i % TILE_INNER;
        bool is_inside = first + row < n_rows && inner + column < n_inner;
        to[column][row] =
            is_inside ? get(*m.element(first + row, inner + column)) : 0;
    }
}

/* sum[a][b] = row a of left times row b of right, which is the transpose of the
 * right operand. All threads of the block are here. */
template <class T>
__device__ __forceinline__ void
multiply_tile(tile_memory<T> &memory, const matrix<T> &left, int64_t row,
              int64_t n_rows, const matrix<T> &right, int64_t column,
              int64_t n_columns, int64_t n_inner,
              sum_t<T> (&sum)[TILE_EACH][TILE_EACH])
{
    int y = threadIdx.x / TILE_APART, x = threadIdx.x % TILE_APART;
    for (int64_t inner = 0; inner < n_inner; inner += TILE_INNER) {
        load_tile(memory.left, left, row, n_rows, inner, n_inner);
        load_tile(memory.right, right, column, n_columns, inner, n_inner);
        __syncthreads();
#pragma unroll 4
        for (int l = 0; l < TILE_INNER; l++) {
            sum_t<T> a[TILE_EACH], b[TILE_EACH];
#pragma unroll
            for (int i = 0; i < TILE_EACH; i++) {
                a[i] = memory.left[l][y * TILE_EACH + i];
                b[i] = memory.right[l][x + i * TILE_APART];
            }
#pragma unroll
            for (int i = 0; i < TILE_EACH; i++)
#pragma unroll
                for (int j = 0; j < TILE_EACH; j++)
                    sum[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
}

/* store(row, column, sum) for the elements of the tile that are inside. */
template <class S, class F>
__device__ __forceinline__ void
store_tile(const S (&sum)[TILE_EACH][TILE_EACH], int64_t row, int64_t n_rows,
           int64_t column, int64_t n_columns, F store)
{
    int y = threadIdx.x / TILE_APART, x = threadIdx.x % TILE_APART;
#pragma unroll
    for (int i = 0; i < TILE_EACH; i++)
#pragma unroll
        for (int j = 0; j < TILE_EACH; j++) {
            int64_t r = row + y * TILE_EACH + i;
            int64_t c = column + x + j * TILE_APART;
            if (r < n_rows && c < n_columns)
                store(r, c, sum[i][j]);
        }
}

/* The naive way: row i of left times row j of right, as above. */
template <class T>
__device__ __forceinline__ sum_t<T>
multiply_rows(const matrix<T> &left, int64_t i, const matrix<T> &right,
              int64_t j, int64_t n_inner)
{
    sum_t<T> sum = 0;
    for (int64_t l = 0; l < n_inner; l++)
        sum += get(*left.element(i, l)) * get(*right.element(j, l));
    return sum;
}

} // namespace cpli

#endif
