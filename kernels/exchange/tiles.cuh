/*
 * tiles.cuh: how the warps of a grid share pieces of any number and size. A
 * piece is cut into tiles of CPL_CUDA_TILE bytes; each warp takes a run of
 * consecutive tiles, so it searches for its first piece and then walks. All of
 * it is decided by what the lists hold when the kernel runs.
 */
#ifndef CPLI_TILES_CUH
#define CPLI_TILES_CUH

#include "cuda.h"
#include "device.cuh"
#include "ptx.cuh"

enum {
    CPLI_LANES = 32,
    CPLI_WARPS = 8, /* a block's */
    CPLI_THREADS = CPLI_WARPS * CPLI_LANES,
    /* A warp has this many tiles where there are enough: its search is then a
     * small part of its work, and blocks are still many and short. */
    CPLI_TILES_EACH = 4,
    CPLI_MAX_BLOCKS = 1 << 16,
    /* Of a multiprocessor: 64 registers a thread. Each warp has 4 KiB in
     * flight, so these have several times what its memory needs. */
    CPLI_BLOCKS_AT_ONCE = 4,
};

/* Where a warp is: at a tile of its run, and in which piece. */
struct cpli_walk {
    int64_t tile, end; /* this one, and the end of the run */
    int64_t piece;     /* of this tile */
    int64_t offset;    /* of this tile in the piece, bytes */
};

static __device__ __forceinline__ int cpli_lane()
{
    return (int)(threadIdx.x % CPLI_LANES);
}

/* The first entry that is greater than `tile`; there is one. */
static __device__ __forceinline__ int64_t cpli_search(const int64_t *ends,
                                                      int64_t n, int64_t tile)
{
    int64_t low = 0;
    int64_t high = n - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ends[middle] > tile)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Sets piece and offset for the tile; pieces behind it have been passed. */
static __device__ __forceinline__ void cpli_settle(cpli_walk *walk,
                                                   const int64_t *ends)
{
    while (ends[walk->piece] <= walk->tile)
        walk->piece++;
    int64_t begin = walk->piece > 0 ? ends[walk->piece - 1] : 0;
    walk->offset = (walk->tile - begin) * CPL_CUDA_TILE;
}

/* This warp's run of the tiles of n pieces. The walk lasts while tile < end. */
static __device__ __forceinline__ cpli_walk cpli_begin(const int64_t *ends,
                                                       int64_t n)
{
    /* 32 bits count the tiles of 16 TiB, and divide in a few instructions. */
    uint32_t n_tiles = n > 0 ? (uint32_t)ends[n - 1] : 0;
    uint32_t n_warps = gridDim.x * CPLI_WARPS;
    uint32_t warp = blockIdx.x * CPLI_WARPS + threadIdx.x / CPLI_LANES;
    uint32_t each = n_tiles / n_warps;
    uint32_t more = n_tiles % n_warps; /* warps that have one more */
    cpli_walk walk;
    walk.tile = (int64_t)warp * each + (warp < more ? warp : more);
    walk.end = walk.tile + each + (warp < more ? 1 : 0);
    walk.piece = 0;
    walk.offset = 0;
    if (walk.tile < walk.end) {
        walk.piece = cpli_search(ends, n, walk.tile);
        cpli_settle(&walk, ends);
    }
    return walk;
}

static __device__ __forceinline__ void cpli_next(cpli_walk *walk,
                                                 const int64_t *ends)
{
    if (++walk->tile < walk->end)
        cpli_settle(walk, ends);
}

/* The bytes of the walk's tile in a piece of `bytes` bytes. */
static __device__ __forceinline__ int cpli_tile_bytes(const cpli_walk *walk,
                                                      int64_t bytes)
{
    int64_t rest = bytes - walk->offset;
    if (rest > CPL_CUDA_TILE)
        return CPL_CUDA_TILE;
    return (int)rest;
}

/* By reference: a launch's arguments are never copied to where an index could
 * not reach them in registers. */
static __device__ __forceinline__ char *cpli_base(const cpl_cuda_bases &bases,
                                                  int32_t peer)
{
    return (char *)(bases.table != NULL ? bases.table[peer] : bases.few[peer]);
}

/* ---- on the host ---- */

static inline dim3 cpli_blocks(int64_t n)
{
    if (n > CPLI_MAX_BLOCKS)
        n = CPLI_MAX_BLOCKS;
    return dim3(n < 1 ? 1u : (unsigned)n);
}

static inline dim3 cpli_grid(int64_t max_tiles)
{
    const int64_t block = CPLI_WARPS * CPLI_TILES_EACH;
    return cpli_blocks((max_tiles + block - 1) / block);
}

static inline bool cpli_is_unit(int unit)
{
    return unit == 1 || unit == 2 || unit == 4 || unit == 8 || unit == 16;
}

static inline bool cpli_is_move(const cpl_cuda_move *move)
{
    return cpli_is_unit(move->unit) &&
           (move->way == CPL_CUDA_PULL || move->way == CPL_CUDA_PUT);
}

/* Whether all that is moved is whole units of 16 bytes. The caller promises it
 * of offsets and sizes, and of addresses that only the device can see. */
static inline bool cpli_is_aligned(const cpl_cuda_bases *theirs,
                                   const void *mine, int unit)
{
    uintptr_t all = (uintptr_t)mine;
    for (int i = 0; theirs->table == NULL && i < CPL_CUDA_BASES; i++)
        all |= (uintptr_t)theirs->few[i];
    return unit == 16 && all % 16 == 0;
}

#endif
