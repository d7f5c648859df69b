/*
 * strips.cuh: which strips of the other side a tile meets. A block of threads
 * has a tile of rows (queries; for gradients by key: keys) and goes through the
 * blocks that name one of its slots, in the order of the list, and through the
 * other side of each in strips of some columns.
 */
#ifndef CPLI_STRIPS_CUH
#define CPLI_STRIPS_CUH

#include "attention.cuh"

namespace cpli
{

constexpr int WARPS = 4;
constexpr int TILE_THREADS = 32 * WARPS;

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
    /* The same columns, but the first c. */
    __device__ strip from(int c) const
    {
        strip rest = *this;
        rest.low -= c;
        rest.high -= c;
        rest.n -= c;
        return rest;
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

} // namespace cpli

#endif
