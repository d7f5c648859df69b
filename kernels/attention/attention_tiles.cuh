/*
 * attention_tiles.cuh: what the kernels on tensor cores share. A block of
 * threads has a tile of rows (queries; for dk and dv keys) and meets strips of
 * the other side, which come through two buffers of shared memory, one ahead.
 * Each warp has 16 or 32 of the rows. Products are of bf16, sums in f32.
 *
 * Of a product of 16 rows and 8 columns a thread has four sums, two neighbours
 * in each of two rows (ptx.cuh, C): row_of_sum and column_of_sum say which.
 */
#ifndef CPLI_ATTENTION_TILES_CUH
#define CPLI_ATTENTION_TILES_CUH

#include <type_traits>

#include "attention.cuh"
#include "ptx.cuh"

namespace cpli
{

constexpr int WARPS = 4;
constexpr int TILE_THREADS = 32 * WARPS;
constexpr int MOST_WIDTH = 256; /* of a head */
/* Rows that blocks have on the average: with fewer, tiles are nearly empty, and
 * a walk over all blocks of a tile costs more than its products. */
constexpr int SHORTEST = 4;
constexpr float LOG2_E = 1.4426950408889634f;

using bf16 = __nv_bfloat16;

/* Forward and backward on tensor cores, of bf16; groups as attention_groups
 * left them. What they do not take, the naive kernels do. */
bool has_tiles(const cpl_attention &p);
int attention_tiles(const cpl_attention &p, const reach *groups,
                    cpl_cuda_stream stream);
bool has_tiles_backward(const cpl_attention_backward &b);
int attention_tiles_backward(const cpl_attention_backward &b,
                             const reach *groups, const float *delta,
                             cpl_cuda_stream stream);

/* Rows that can be copied by 16 bytes. */
inline bool is_wide(const void *rows, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && stride % 8 == 0;
}

/* Lets a kernel have more shared memory than it has unasked. */
template <class KERNEL> int allow_shared(KERNEL *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(bytes));
}

/* f(the width that a head is padded to, as a constant). */
template <class F> int by_width(const cpl_attention &p, F f)
{
    const int64_t width = p.key_dim > p.value_dim ? p.key_dim : p.value_dim;
    return width <= 64    ? f(std::integral_constant<int, 64>())
           : width <= 128 ? f(std::integral_constant<int, 128>())
                          : f(std::integral_constant<int, MOST_WIDTH>());
}

/* ---- which strips a tile meets ---- */

/* The blocks that name a tile's slots, in the order of the list. A warp looks
 * at 32 groups, then at 32 blocks, at once; its lanes stay together. */
template <bool BY_KEY> struct block_walk {
    range here;
    int64_t first_group, first_block; /* of the lanes' last look */
    uint32_t groups_left, blocks_left;

    __device__ void begin(range slots)
    {
        *this = {};
        here = slots;
        first_group = -32;
    }

    __device__ static range side(const reach &of)
    {
        return BY_KEY ? of.keys : of.queries;
    }

    /* The next block, or -1. */
    __device__ int64_t next(const cpl_attention &p, const reach *groups)
    {
        const int64_t lane = threadIdx.x % 32;
        while (blocks_left == 0) {
            while (groups_left == 0) {
                first_group += 32;
                if (first_group >= n_groups(p))
                    return -1;
                const int64_t g = first_group + lane;
                groups_left = __ballot_sync(0xffffffffu,
                                            g < n_groups(p) &&
                                                meets(side(groups[g]), here));
            }
            const int64_t g = first_group + __ffs(groups_left) - 1;
            groups_left &= groups_left - 1;
            first_block = g * GROUP;
            const int64_t b = first_block + lane;
            blocks_left = __ballot_sync(
                0xffffffffu,
                b < p.n_blocks && meets(side(reach_of(p.blocks[b])), here));
        }
        const int64_t b = first_block + __ffs(blocks_left) - 1;
        blocks_left &= blocks_left - 1;
        return b;
    }
};

/* n columns of the other side, from a slot on; n = 0: there are no more. Row r
 * of the tile and column c see each other iff r is in the rows, and low + r < c
 * <= high + r, c < n. */
struct strip {
    int64_t slot;
    int n, low, high, row_begin, row_end;
    int turn; /* of the tile's turns through all its strips */

    __device__ bool sees(int r, int c) const
    {
        return low + r < c && c <= high + r && c < n && r >= row_begin &&
               r < row_end;
    }
    /* Whether some of the rows r .. r + rows - 1 may see a column. */
    __device__ bool any(int r, int rows) const
    {
        return r < row_end && r + rows > row_begin && low + r < n - 1 &&
               high + r + rows - 1 >= 0;
    }
    /* Whether all of them see all of as many columns. */
    __device__ bool all(int r, int rows, int columns) const
    {
        return n == columns && r >= row_begin && r + rows <= row_end &&
               low + r + rows - 1 < 0 && high + r >= columns - 1;
    }
};

constexpr int64_t FAR = 1 << 29;

__device__ __forceinline__ int near(int64_t x)
{
    return static_cast<int>(x < -FAR ? -FAR : x > FAR ? FAR : x);
}

/* The strips of N columns that a tile of ROWS slots meets, in order, in as many
 * turns. */
template <bool BY_KEY, int ROWS, int N> struct strips {
    block_walk<BY_KEY> walk;
    range left;       /* of the block, counted on the other side */
    int64_t other;    /* the other side's first slot */
    int64_t diagonal; /* queries: the last key that row 0 sees; keys: the first
                         query that sees row 0 */
    int row_begin, row_end, turn, n_turns;

    __device__ void begin(int64_t slot, int64_t n_slots, int turns)
    {
        *this = {};
        walk.begin({slot, min(slot + ROWS, n_slots)});
        n_turns = turns;
    }

    __device__ void enter(const cpl_attention &p,
                          const cpl_attention_block &block)
    {
        const int64_t mine = BY_KEY ? block.kv_slot : block.q_slot;
        const int64_t n = BY_KEY ? block.n_keys : block.n_queries;
        const int64_t row_0 = walk.here.begin - mine; /* in the block */
        const int64_t first = row_0 > 0 ? row_0 : 0;
        const int64_t last = min(walk.here.end - mine, n) - 1;
        left = BY_KEY ? queries_of(p, block, first, last)
                      : keys_of(p, block, first, last);
        other = BY_KEY ? block.q_slot : block.kv_slot;
        diagonal = BY_KEY ? row_0 - block.n_before : row_0 + block.n_before;
        row_begin = static_cast<int>(first - row_0);
        row_end = static_cast<int>(last + 1 - row_0);
    }

    /* Whether there is something left, after a step to the next block if it
     * must be. */
    __device__ bool reach_some(const cpl_attention &p, const reach *groups)
    {
        while (left.begin >= left.end) {
            const int64_t b = walk.next(p, groups);
            if (b >= 0)
                enter(p, p.blocks[b]);
            else if (turn + 1 == n_turns)
                return false;
            else {
                turn++;
                walk.begin(walk.here);
            }
        }
        return true;
    }

    __device__ strip next(const cpl_attention &p, const reach *groups)
    {
        strip out = {};
        if (!reach_some(p, groups))
            return out;
        const int64_t at = diagonal - left.begin, n = left.end - left.begin;
        out.slot = other + left.begin;
        out.n = n < N ? static_cast<int>(n) : N;
        out.row_begin = row_begin;
        out.row_end = row_end;
        out.turn = turn;
        if (BY_KEY) {
            out.low = near(at - 1);
            out.high = near(p.window > 0 ? at - 1 + p.window : FAR);
        } else {
            out.low = near(p.window > 0 ? at - p.window : -FAR);
            out.high = near(at);
        }
        left.begin += N;
        return out;
    }
};

/* The strips in shared memory: the first warp finds them two ahead, all read
 * them behind a barrier. So they take no registers while products are made. */
template <bool BY_KEY, int ROWS, int N> struct strip_feed {
    strips<BY_KEY, ROWS, N> source;
    strip ring[4];

    __device__ void find(const cpl_attention &p, const reach *groups, int i)
    {
        strips<BY_KEY, ROWS, N> mine = source;
        const strip found = mine.next(p, groups);
        __syncwarp();
        if (threadIdx.x == 0) {
            source = mine;
            ring[i % 4] = found;
        }
        __syncwarp();
    }

    /* By all threads, with a barrier. */
    __device__ void begin(const cpl_attention &p, const reach *groups,
                          int64_t slot, int64_t n_slots, int turns)
    {
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                source.begin(slot, n_slots, turns);
            __syncwarp();
            find(p, groups, 0);
            find(p, groups, 1);
        }
        __syncthreads();
    }

    /* By all threads, with a barrier: strip i is done with. */
    __device__ void end(const cpl_attention &p, const reach *groups, int i)
    {
        if (threadIdx.x < 32)
            find(p, groups, i + 2);
        __syncthreads();
    }
};

/* ---- tiles in shared memory ---- */

/* Where 8 numbers of a row lie in a tile of rows of D bf16: turned by the row,
 * so that the same 8 of 8 rows lie in different banks. */
template <int D>
__device__ __forceinline__ uint4 *chunk_of(uint4 *tile, int row, int chunk)
{
    return tile + row * (D / 8) + (chunk ^ (row & 7));
}

/* Begins to copy n rows of `width` numbers; what is left of rows x D is zeros.
 * Not unrolled: addresses would take the registers that products need. */
template <int D>
__device__ __forceinline__ void load_rows(uint4 *tile, const bf16 *from,
                                          int64_t stride, int n, int width,
                                          int rows)
{
    constexpr int CHUNKS = D / 8, STEP = TILE_THREADS / CHUNKS;
    const int chunk = static_cast<int>(threadIdx.x) % CHUNKS;
    const int first = static_cast<int>(threadIdx.x) / CHUNKS;
    from += first * stride + chunk * 8;
    if (chunk * 8 >= width)
        n = 0;
#pragma unroll 1
    for (int row = first; row < rows; row += STEP, from += STEP * stride) {
        uint4 *to = chunk_of<D>(tile, row, chunk);
        if (row < n)
            cpli_copy_async(to, from);
        else
            *to = uint4{0, 0, 0, 0};
    }
}

/* A strip of no more columns than FEW is met as one of FEW: packed sequences
 * may be short. */
constexpr int FEW = 16;

template <int D, int N>
__device__ __forceinline__ void load_strip(uint4 *tile, const bf16 *from,
                                           int64_t stride, int n, int width)
{
    load_rows<D>(tile, from, stride, n, width, n <= FEW ? FEW : N);
}

/* Begins to copy the keys and the values of a strip, one behind the other; also
 * none, so that each strip is one group of copies. */
template <int D, int N>
__device__ __forceinline__ void
load_keys(const cpl_attention &p, const strip &keys, int64_t kv_head, uint4 *to)
{
    if (keys.n > 0) {
        load_strip<D, N>(
            to, row_of<bf16>(p.k, keys.slot, p.k_stride, kv_head, p.key_dim),
            p.k_stride, keys.n, static_cast<int>(p.key_dim));
        load_strip<D, N>(
            to + N * D / 8,
            row_of<bf16>(p.v, keys.slot, p.v_stride, kv_head, p.value_dim),
            p.v_stride, keys.n, static_cast<int>(p.value_dim));
    }
    cpli_copy_async_commit();
}

/* ---- products of a warp ---- */

__device__ __forceinline__ int lane_here()
{
    return static_cast<int>(threadIdx.x) % 32;
}

__device__ __forceinline__ uint32_t two_bf16(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t word;
    memcpy(&word, &both, sizeof word);
    return word;
}

/* Bytes from a tile's begin to 8 numbers of a row, chunk 0 or 1 of it. Chunk
 * 2 k more is where the bits of 32 k are turned, in this number alone. */
template <int D> __device__ __forceinline__ unsigned corner(int row, int chunk)
{
    return static_cast<unsigned>(row * D * 2 + (chunk ^ (row & 7)) * 16);
}

__device__ __forceinline__ const void *bytes_on(const uint4 *tile,
                                                unsigned bytes)
{
    return reinterpret_cast<const char *>(tile) + bytes;
}

/* c += the warp's rows of `a`, from `row` on, times the rows of `b`. */
template <int D, int M, int N>
__device__ __forceinline__ void
times_rows(float (&c)[M][N / 8][4], const uint4 *a, int row, const uint4 *b)
{
    const int lane = lane_here();
    const unsigned at_a = corner<D>(row + lane % 16, lane / 16);
    const unsigned at_b = corner<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            cpli_ldmatrix(x[m], bytes_on(a, (at_a ^ k * 32) + m * 32 * D));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t y[4];
            cpli_ldmatrix(y, bytes_on(b, (at_b ^ k * 32) + n * 32 * D));
#pragma unroll
            for (int m = 0; m < M; m++) {
                cpli_mma_bf16(c[m][2 * n], x[m], y[0], y[1]);
                cpli_mma_bf16(c[m][2 * n + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* c += `a`, rounded to bf16, times the columns of `b`. */
template <int D, int M, int N>
__device__ __forceinline__ void times_columns(float (&c)[M][D / 8][4],
                                              const float (&a)[M][N / 8][4],
                                              const uint4 *b)
{
    const int lane = lane_here();
    const unsigned at_b = corner<D>(lane % 16, lane / 16);
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t x[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[m][i] = two_bf16(a[m][2 * n + i / 2][i % 2 * 2],
                                   a[m][2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t y[4];
            cpli_ldmatrix_trans(y, bytes_on(b, (at_b ^ d * 32) + n * 32 * D));
#pragma unroll
            for (int m = 0; m < M; m++) {
                cpli_mma_bf16(c[m][2 * d], x[m], y[0], y[1]);
                cpli_mma_bf16(c[m][2 * d + 1], x[m], y[2], y[3]);
            }
        }
    }
}

/* The row and the column of sum i of every 8 columns. */
__device__ __forceinline__ int row_of_sum(int i)
{
    return lane_here() / 4 + i / 2 * 8;
}
__device__ __forceinline__ int column_of_sum(int i)
{
    return lane_here() % 4 * 2 + i % 2;
}

/* Where a row does not see a column: x. */
template <int M, int N>
__device__ __forceinline__ void mask(float (&s)[M][N / 8][4], int row,
                                     const strip &keys, float x)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (!keys.sees(row + 16 * m + row_of_sum(i),
                               8 * n + column_of_sum(i)))
                    s[m][n][i] = x;
}

/* Writes the warp's rows, the first n of them and `width` columns, by way of
 * its part of a tile, plus `kept` of each row times what is there. */
template <int D, int M>
__device__ __forceinline__ void
store_rows(const float (&c)[M][D / 8][4], const float (&kept)[M][2],
           uint4 *tile, int row, bf16 *to, int64_t stride, int n, int width)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = 16 * m + row_of_sum(2 * half);
            const bool is_kept = kept[m][half] != 0 && r < n;
            const bf16 *old = to + r * stride + column_of_sum(0);
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                float x = c[m][d][2 * half], y = c[m][d][2 * half + 1];
                if (is_kept && 8 * d < width) {
                    x += kept[m][half] * get(old[8 * d]);
                    y += kept[m][half] * get(old[8 * d + 1]);
                }
                uint4 *chunk = chunk_of<D>(tile, row + r, d);
                reinterpret_cast<uint32_t *>(chunk)[column_of_sum(0) / 2] =
                    two_bf16(x, y);
            }
        }
    __syncwarp();
#pragma unroll 1
    for (int i = lane_here(); i < 16 * M * (D / 8); i += 32) {
        const int r = i / (D / 8), chunk = i % (D / 8);
        if (r < n && chunk * 8 < width)
            *reinterpret_cast<uint4 *>(to + r * stride + chunk * 8) =
                *chunk_of<D>(tile, row + r, chunk);
    }
}

} // namespace cpli

#endif
