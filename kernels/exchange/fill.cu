/*
 * fill.cu: pieces that are filled with a pattern of 8 bytes. As in move.cu, but
 * that nothing is read.
 */
#include "tiles.cuh"

/* The pattern as it goes on after `bytes` bytes. */
static __device__ __forceinline__ uint64_t turned(uint64_t pattern, int bytes)
{
    const int bits = bytes % 8 * 8;
    return bits == 0 ? pattern : pattern >> bits | pattern << (64 - bits);
}

static __device__ __forceinline__ void fill_bytes(char *to, int n,
                                                  uint64_t pattern)
{
    const int lane = cpli_lane();
    if (lane < n)
        cpli_store((uint8_t *)to + lane, (uint8_t)turned(pattern, lane));
}

static __device__ __forceinline__ void fill_units(char *to, int n,
                                                  uint64_t pattern)
{
    const uint32_t low = (uint32_t)pattern;
    const uint32_t high = (uint32_t)(pattern >> 32);
#pragma unroll 4
    for (int i = cpli_lane(); i < n; i += CPLI_LANES)
        cpli_store((uint4 *)to + i, make_uint4(low, high, low, high));
}

/* The tile's first byte is one where the pattern begins. */
static __device__ __forceinline__ void fill_tile(char *to, int bytes,
                                                 uint64_t pattern)
{
    const int unit = (int)sizeof(uint4);
    int head = (int)(-(uintptr_t)to % sizeof(uint4));
    head = head < bytes ? head : bytes;
    const int n = (bytes - head) / unit;
    const int done = head + n * unit;
    fill_bytes(to, head, pattern);
    fill_units(to + head, n, turned(pattern, head));
    fill_bytes(to + done, bytes - done, turned(pattern, done));
}

extern "C" __global__ void __launch_bounds__(CPLI_THREADS)
    cpli_fill(const __grid_constant__ cpl_cuda_move move, uint64_t pattern)
{
    const int64_t *ends = move.tile_ends;
    cpli_walk walk = cpli_begin(ends, *move.n_pieces);
    for (; walk.tile < walk.end; cpli_next(&walk, ends)) {
        const cpl_cuda_piece *piece = &move.pieces[walk.piece];
        char *base = move.way == CPL_CUDA_PUT
                         ? cpli_base(move.theirs, piece->peer)
                         : (char *)move.mine;
        fill_tile(base + piece->to + walk.offset,
                  cpli_tile_bytes(&walk, piece->bytes), pattern);
    }
}

extern "C" int cpl_cuda_fill(const cpl_cuda_move *move, uint64_t pattern,
                             cpl_cuda_stream stream)
{
    if (!cpli_is_move(move))
        return cudaErrorInvalidValue;
    return CPLI_LAUNCH(cpli_fill, cpli_grid(move->max_tiles), CPLI_THREADS, 0,
                       stream, *move, pattern);
}
