/*
 * tile.cuh: products of matrices by one block of 256 threads, for the kernels
 * of a chunk. A tile of the result lies in registers, `gdn_tile`; its operands
 * come through shared memory, a slice of the sum at a time.
 *
 * Of f64 and f32, products are sums of fused multiply-adds. Of bf16 they are
 * tensor cores', and what is wider than bf16 is cut into two of those, high and
 * low: a product of such numbers is high high + high low + low high and errs by
 * about 2^-16, which is what keeps the chain of states to single precision's
 * side of bf16. A high part that is not finite has no low part.
 */
#ifndef CPLI_GDN_TILE_CUH
#define CPLI_GDN_TILE_CUH

#include <cstring>

#include "compute.cuh"
#include "ptx.cuh"

namespace cpli
{

constexpr int TILE_THREADS = 256;

/* Rows in memory, which may be shared memory; what is read beyond them is 0.
 * With `factors` each row is multiplied by its own. */
template <class E, bool SCALED = false> struct gdn_matrix {
    const E *at;
    int64_t stride;
    int rows, columns;
    const sum_t<E> *factors;
};

template <class E>
__device__ __forceinline__ gdn_matrix<E> gdn_plain(const E *at, int64_t stride,
                                                   int rows, int columns)
{
    return {at, stride, at == nullptr ? 0 : rows, columns, nullptr};
}

template <class E>
__device__ __forceinline__ gdn_matrix<E, true>
gdn_scaled(const E *at, int64_t stride, int rows, int columns,
           const sum_t<E> *factors)
{
    return {at, stride, rows, columns, factors};
}

/* ---- pieces of operands ---- */

/* So many numbers of a type are 16 bytes. */
template <class E> constexpr int gdn_lot = 16 / static_cast<int>(sizeof(E));

template <class E> __device__ __forceinline__ bool gdn_is_aligned(const E *at)
{
    return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

__device__ __forceinline__ float gdn_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 16 bytes from an address that is a multiple of them. */
__device__ __forceinline__ void gdn_read_lot(const float *from, float (&to)[4])
{
    const float4 lot = *reinterpret_cast<const float4 *>(from);
    to[0] = lot.x;
    to[1] = lot.y;
    to[2] = lot.z;
    to[3] = lot.w;
}
__device__ __forceinline__ void gdn_read_lot(const double *from,
                                             double (&to)[2])
{
    const double2 lot = *reinterpret_cast<const double2 *>(from);
    to[0] = lot.x;
    to[1] = lot.y;
}
/* A bf16 is the upper half of an f32. */
__device__ __forceinline__ void gdn_read_lot(const __nv_bfloat16 *from,
                                             float (&to)[8])
{
    const uint4 lot = *reinterpret_cast<const uint4 *>(from);
    const uint32_t words[4] = {lot.x, lot.y, lot.z, lot.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = gdn_from_bits(words[i] << 16);
        to[2 * i + 1] = gdn_from_bits(words[i] & 0xffff0000u);
    }
}

/* Numbers column .. column + 15 bytes' worth of a row. */
template <class E, bool SCALED>
__device__ __forceinline__ void gdn_read(const gdn_matrix<E, SCALED> &m,
                                         int row, int column,
                                         sum_t<E> (&to)[gdn_lot<E>])
{
    constexpr int LOT = gdn_lot<E>;
    const E *from = m.at + row * m.stride + column;
    const bool is_inside = row < m.rows && column < m.columns;
    if (is_inside && column + LOT <= m.columns && gdn_is_aligned(from)) {
        gdn_read_lot(from, to);
    } else {
#pragma unroll
        for (int i = 0; i < LOT; i++)
            to[i] = is_inside && column + i < m.columns ? get(from[i]) : 0;
    }
    if (SCALED && is_inside) {
        const sum_t<E> factor = m.factors[row];
#pragma unroll
        for (int i = 0; i < LOT; i++)
            to[i] *= factor;
    }
}

/* ---- arithmetic by dtype ---- */

/* Staged operands of f64 and f32: rows as in memory. */
template <class T> struct gdn_staging {
    static constexpr int DEPTH = sizeof(T) == 8 ? 8 : 16;
    static constexpr int SLOTS = 16; /* threads that share a row of a tile */

    __host__ __device__ static constexpr int pitch(int columns)
    {
        return columns + 1;
    }
    __host__ __device__ static constexpr int bytes(int rows, int columns)
    {
        return (rows * pitch(columns) * static_cast<int>(sizeof(T)) + 15) / 16 *
               16;
    }

    template <int ROWS, int COLUMNS>
    __device__ static void store(void *stage, int row, int column,
                                 const T (&x)[gdn_lot<T>])
    {
        T *to = static_cast<T *>(stage) + row * pitch(COLUMNS) + column;
#pragma unroll
        for (int i = 0; i < gdn_lot<T>; i++)
            to[i] = x[i];
    }
};

__device__ __forceinline__ uint32_t gdn_pair(__nv_bfloat16 low,
                                             __nv_bfloat16 high)
{
    return __bfloat16_as_ushort(low) |
           static_cast<uint32_t>(__bfloat16_as_ushort(high)) << 16;
}

/* What is left of x behind its high part. */
__device__ __forceinline__ float gdn_rest(float x, __nv_bfloat16 high)
{
    const float h = __bfloat162float(high);
    return h - h == 0 ? x - h : 0; /* Inf - Inf is NaN */
}

/* Staged operands of bf16: the high parts, then the low parts. Rows are shifted
 * by 16 bytes against each other, for ldmatrix. */
template <> struct gdn_staging<__nv_bfloat16> {
    static constexpr int DEPTH = 32;
    static constexpr int SLOTS = 8;

    __host__ __device__ static constexpr int pitch(int columns)
    {
        return columns + 8;
    }
    __host__ __device__ static constexpr int bytes(int rows, int columns)
    {
        return rows * pitch(columns) * 4;
    }

    template <int ROWS, int COLUMNS, int LOT>
    __device__ static void store(void *stage, int row, int column,
                                 const float (&x)[LOT])
    {
        constexpr int LOW = ROWS * pitch(COLUMNS);
        __nv_bfloat16 *to =
            static_cast<__nv_bfloat16 *>(stage) + row * pitch(COLUMNS) + column;
#pragma unroll
        for (int i = 0; i < LOT; i += 2) {
            const __nv_bfloat16 a = __float2bfloat16_rn(x[i]);
            const __nv_bfloat16 b = __float2bfloat16_rn(x[i + 1]);
            *reinterpret_cast<uint32_t *>(to + i) = gdn_pair(a, b);
            *reinterpret_cast<uint32_t *>(to + LOW + i) =
                gdn_pair(__float2bfloat16_rn(gdn_rest(x[i], a)),
                         __float2bfloat16_rn(gdn_rest(x[i + 1], b)));
        }
    }
};

/* ROWS x COLUMNS of an operand on their way from memory to a stage: a thread's
 * share is in registers, so that a load may be under way during a product. */
template <class T, int ROWS, int COLUMNS, class E> struct gdn_piece {
    static constexpr int LOT = gdn_lot<E>;
    static constexpr int LOTS = COLUMNS / LOT; /* of a row */
    static constexpr int SHARE =
        (ROWS * LOTS + TILE_THREADS - 1) / TILE_THREADS;
    sum_t<E> x[SHARE][LOT] = {};

    /* From row, column of a matrix on. */
    template <bool SCALED>
    __device__ __forceinline__ void load(const gdn_matrix<E, SCALED> &m,
                                         int row, int column)
    {
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            const int i = threadIdx.x + s * TILE_THREADS;
            if (ROWS * LOTS % TILE_THREADS == 0 || i < ROWS * LOTS)
                gdn_read(m, row + i / LOTS, column + i % LOTS * LOT, x[s]);
        }
    }

    __device__ __forceinline__ void store(void *stage) const
    {
#pragma unroll
        for (int s = 0; s < SHARE; s++) {
            const int i = threadIdx.x + s * TILE_THREADS;
            if (ROWS * LOTS % TILE_THREADS == 0 || i < ROWS * LOTS)
                gdn_staging<T>::template store<ROWS, COLUMNS>(
                    stage, i / LOTS, i % LOTS * LOT, x[s]);
        }
    }
};

/* ---- tiles ---- */

/* ROWS x COLUMNS of a result over the threads of a block: element e of a thread
 * is at (row(e), column(e)), and of its LINES rows that is number line(e). */
template <class T, int ROWS, int COLUMNS> struct gdn_tile {
    using R = sum_t<T>;
    static constexpr int SIZE = ROWS * COLUMNS / TILE_THREADS;
    static constexpr int ACROSS = COLUMNS / 16;
    static constexpr int LINES = ROWS / 16;
    R at[SIZE];

    __device__ static int row(int e)
    {
        return threadIdx.x / 16 + 16 * (e / ACROSS);
    }
    __device__ static int column(int e)
    {
        return threadIdx.x % 16 + 16 * (e % ACROSS);
    }
    __device__ static constexpr int line(int e)
    {
        return e / ACROSS;
    }
    __device__ static int slot(void)
    {
        return threadIdx.x % 16;
    }

    /* += a b for one stage; TA, TB: what lies there is transposed. */
    template <bool TA, bool TB, bool, bool>
    __device__ __forceinline__ void add(const void *stage_a,
                                        const void *stage_b)
    {
        using stage = gdn_staging<T>;
        constexpr int DEPTH = stage::DEPTH;
        constexpr int PITCH_A = stage::pitch(TA ? ROWS : DEPTH);
        constexpr int PITCH_B = stage::pitch(TB ? DEPTH : COLUMNS);
        const R *a = static_cast<const R *>(stage_a);
        const R *b = static_cast<const R *>(stage_b);
        const int i = threadIdx.x / 16, j = threadIdx.x % 16;
#pragma unroll 2
        for (int k = 0; k < DEPTH; k++) {
            R x[LINES], y[ACROSS];
#pragma unroll
            for (int l = 0; l < LINES; l++)
                x[l] = TA ? a[k * PITCH_A + i + 16 * l]
                          : a[(i + 16 * l) * PITCH_A + k];
#pragma unroll
            for (int l = 0; l < ACROSS; l++)
                y[l] = TB ? b[(j + 16 * l) * PITCH_B + k]
                          : b[k * PITCH_B + j + 16 * l];
#pragma unroll
            for (int e = 0; e < SIZE; e++)
                at[e] += x[e / ACROSS] * y[e % ACROSS];
        }
    }
};

/* A warp has 16 rows, in fragments of 16 x 8; see ptx.cuh. */
template <int ROWS, int COLUMNS> struct gdn_tile<__nv_bfloat16, ROWS, COLUMNS> {
    using R = float;
    static constexpr int SIZE = ROWS * COLUMNS / TILE_THREADS;
    static constexpr int LINES = 2;
    static constexpr int SIDE = TILE_THREADS / 32 * 16 / ROWS; /* by side */
    static constexpr int WIDTH = COLUMNS / SIDE; /* columns of a warp */
    static_assert(SIZE == WIDTH / 2 && WIDTH % 16 == 0, "16 columns at a time");
    float at[SIZE];

    __device__ static int warp_row(void)
    {
        return threadIdx.x / 32 / SIDE * 16;
    }
    __device__ static int warp_column(void)
    {
        return threadIdx.x / 32 % SIDE * WIDTH;
    }
    __device__ static int row(int e)
    {
        return warp_row() + threadIdx.x % 32 / 4 + e / 2 % 2 * 8;
    }
    __device__ static int column(int e)
    {
        return warp_column() + e / 4 * 8 + threadIdx.x % 4 * 2 + e % 2;
    }
    __device__ static constexpr int line(int e)
    {
        return e / 2 % 2;
    }
    __device__ static int slot(void)
    {
        return threadIdx.x / 32 % SIDE * 4 + threadIdx.x % 4;
    }

    /* 16 x 16 of A from depth k on, or of B^T: two fragments of 8 columns. */
    template <bool TRANSPOSED>
    __device__ static void fragment_a(uint32_t (&to)[4], const __nv_bfloat16 *a,
                                      int pitch, int k)
    {
        const int lane = threadIdx.x % 32;
        if (TRANSPOSED)
            cpli_ldmatrix_trans(to, a + (k + lane % 8 + lane / 16 * 8) * pitch +
                                        warp_row() + lane / 8 % 2 * 8);
        else
            cpli_ldmatrix(to, a + (warp_row() + lane % 16) * pitch + k +
                                  lane / 16 * 8);
    }
    template <bool TRANSPOSED>
    __device__ static void fragment_b(uint32_t (&to)[4], const __nv_bfloat16 *b,
                                      int pitch, int k, int column)
    {
        const int lane = threadIdx.x % 32;
        if (TRANSPOSED)
            cpli_ldmatrix(to, b + (column + lane % 8 + lane / 16 * 8) * pitch +
                                  k + lane / 8 % 2 * 8);
        else
            cpli_ldmatrix_trans(to,
                                b + (k + lane % 8 + lane / 8 % 2 * 8) * pitch +
                                    column + lane / 16 * 8);
    }

    __device__ __forceinline__ void add_fragments(int e, const uint32_t (&a)[4],
                                                  const uint32_t (&b)[4])
    {
        float(&left)[4] = *reinterpret_cast<float(*)[4]>(at + e);
        float(&right)[4] = *reinterpret_cast<float(*)[4]>(at + e + 4);
        cpli_mma_bf16(left, a, b[0], b[1]);
        cpli_mma_bf16(right, a, b[2], b[3]);
    }

    /* += a b for one stage; EXACT_: bf16 as they are, without low parts. */
    template <bool TA, bool TB, bool EXACT_A, bool EXACT_B>
    __device__ __forceinline__ void add(const void *stage_a,
                                        const void *stage_b)
    {
        using stage = gdn_staging<__nv_bfloat16>;
        constexpr int DEPTH = stage::DEPTH;
        constexpr int PITCH_A = stage::pitch(TA ? ROWS : DEPTH);
        constexpr int PITCH_B = stage::pitch(TB ? DEPTH : COLUMNS);
        constexpr int LOW_A = (TA ? DEPTH : ROWS) * PITCH_A;
        constexpr int LOW_B = (TB ? COLUMNS : DEPTH) * PITCH_B;
        const __nv_bfloat16 *a = static_cast<const __nv_bfloat16 *>(stage_a);
        const __nv_bfloat16 *b = static_cast<const __nv_bfloat16 *>(stage_b);
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t a_high[4], a_low[4];
            fragment_a<TA>(a_high, a, PITCH_A, k);
            if (!EXACT_A)
                fragment_a<TA>(a_low, a + LOW_A, PITCH_A, k);
#pragma unroll
            for (int n = 0; n < WIDTH; n += 16) {
                uint32_t b_high[4], b_low[4];
                fragment_b<TB>(b_high, b, PITCH_B, k, warp_column() + n);
                if (!EXACT_B) {
                    fragment_b<TB>(b_low, b + LOW_B, PITCH_B, k,
                                   warp_column() + n);
                    add_fragments(n / 2, a_high, b_low);
                }
                if (!EXACT_A)
                    add_fragments(n / 2, a_low, b_high);
                add_fragments(n / 2, a_high, b_high);
            }
        }
    }
};

template <class T, int ROWS, int COLUMNS>
__device__ __forceinline__ void gdn_clear(gdn_tile<T, ROWS, COLUMNS> &tile)
{
#pragma unroll
    for (int e = 0; e < tile.SIZE; e++)
        tile.at[e] = 0;
}

/* f(value, row, column) for every element that lies within. */
template <class T, int ROWS, int COLUMNS, class F>
__device__ __forceinline__ void gdn_each(gdn_tile<T, ROWS, COLUMNS> &tile,
                                         int rows, int columns, F f)
{
#pragma unroll
    for (int e = 0; e < tile.SIZE; e++)
        if (tile.row(e) < rows && tile.column(e) < columns)
            f(tile.at[e], tile.row(e), tile.column(e));
}

/* Bytes of the shared memory of a product. */
template <class T, int ROWS, int COLUMNS, bool TA, bool TB>
constexpr int gdn_stage_bytes =
    gdn_staging<T>::bytes(TA ? gdn_staging<T>::DEPTH : ROWS,
                          TA ? ROWS : gdn_staging<T>::DEPTH) +
    gdn_staging<T>::bytes(TB ? COLUMNS : gdn_staging<T>::DEPTH,
                          TB ? gdn_staging<T>::DEPTH : COLUMNS);

/*
 * tile += op(a) op(b), where the tile begins at row i of op(a) and column j of
 * op(b) and the sum has `depth` terms. All threads of the block call it; what
 * they wrote before may be read, and the stage is free when it returns.
 */
template <bool TA, bool TB, class T, int ROWS, int COLUMNS, class A, bool SA,
          class B, bool SB>
__device__ __forceinline__ void gdn_multiply(gdn_tile<T, ROWS, COLUMNS> &tile,
                                             const gdn_matrix<A, SA> &a, int i,
                                             const gdn_matrix<B, SB> &b, int j,
                                             int depth, unsigned char *stage)
{
    constexpr int DEPTH = gdn_staging<T>::DEPTH;
    constexpr bool IS_EXACT_A = sizeof(A) == 2 && !SA;
    constexpr bool IS_EXACT_B = sizeof(B) == 2 && !SB;
    unsigned char *stage_b =
        stage + gdn_staging<T>::bytes(TA ? DEPTH : ROWS, TA ? ROWS : DEPTH);
    gdn_piece<T, TA ? DEPTH : ROWS, TA ? ROWS : DEPTH, A> piece_a;
    gdn_piece<T, TB ? COLUMNS : DEPTH, TB ? DEPTH : COLUMNS, B> piece_b;
    __syncthreads();
    piece_a.load(a, TA ? 0 : i, TA ? i : 0);
    piece_b.load(b, TB ? j : 0, TB ? 0 : j);
#pragma unroll 1
    for (int k = 0; k < depth; k += DEPTH) {
        const int next = k + DEPTH;
        piece_a.store(stage);
        piece_b.store(stage_b);
        __syncthreads();
        if (next < depth) {
            piece_a.load(a, TA ? next : i, TA ? i : next);
            piece_b.load(b, TB ? j : next, TB ? next : j);
        }
        tile.template add<TA, TB, IS_EXACT_A, IS_EXACT_B>(stage, stage_b);
        __syncthreads();
    }
}

/* sums[row] = the sum over a tile's row of f(value, row, column), for 64 rows;
 * 0 beyond `rows`. In a fixed order. `parts` has 64 x 17 numbers. */
template <class T, int COLUMNS, class F>
__device__ __forceinline__ void
gdn_row_sums(const gdn_tile<T, 64, COLUMNS> &tile, int rows, int columns,
             sum_t<T> *parts, sum_t<T> *sums, F f)
{
    using tile_t = gdn_tile<T, 64, COLUMNS>;
    constexpr int SLOTS = gdn_staging<T>::SLOTS;
    sum_t<T> mine[tile_t::LINES] = {};
#pragma unroll
    for (int e = 0; e < tile_t::SIZE; e++)
        if (tile.row(e) < rows && tile.column(e) < columns)
            mine[tile_t::line(e)] += f(tile.at[e], tile.row(e), tile.column(e));
    __syncthreads();
#pragma unroll
    for (int e = 0; e < tile_t::SIZE; e++)
        parts[tile.row(e) * 17 + tile.slot()] = mine[tile_t::line(e)];
    __syncthreads();
    if (threadIdx.x < 64) {
        sum_t<T> sum = 0;
        for (int i = 0; i < SLOTS; i++)
            sum += parts[threadIdx.x * 17 + i];
        sums[threadIdx.x] += sum;
    }
    __syncthreads();
}

} // namespace cpli

#endif
