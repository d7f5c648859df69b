/*
 * move.cu: pieces of bytes that are copied, or whose two ends change places.
 * One walk over the tiles serves both; what happens to a batch of units (of 1
 * to 16 bytes) is a struct of its own.
 */
#include "tiles.cuh"

/* ---- a batch: n units, of which at most 32 * depth are moved ---- */

/* All loads come before the first store. */
struct copying {
    enum { depth = 8 }; /* a whole tile of 16-byte units */
    template <class T, int depth>
    static __device__ __forceinline__ void batch(char *to, char *from, int n)
    {
        T v[depth] = {}; /* or what is not loaded would live for ever */
        const T *a = (const T *)from + cpli_lane();
        T *b = (T *)to + cpli_lane();
        const int left = n - cpli_lane();
#pragma unroll
        for (int i = 0; i < depth; i++)
            if (i * CPLI_LANES < left)
                v[i] = cpli_load(a + i * CPLI_LANES);
#pragma unroll
        for (int i = 0; i < depth; i++)
            if (i * CPLI_LANES < left)
                cpli_store(b + i * CPLI_LANES, v[i]);
    }
};

struct swapping {
    enum { depth = 4 };
    template <class T, int depth>
    static __device__ __forceinline__ void batch(char *to, char *from, int n)
    {
        T v[depth] = {}; /* or what is not loaded would live for ever */
        T w[depth] = {};
        T *a = (T *)from + cpli_lane();
        T *b = (T *)to + cpli_lane();
        const int left = n - cpli_lane();
#pragma unroll
        for (int i = 0; i < depth; i++)
            if (i * CPLI_LANES < left) {
                v[i] = cpli_load((const T *)a + i * CPLI_LANES);
                w[i] = cpli_load((const T *)b + i * CPLI_LANES);
            }
#pragma unroll
        for (int i = 0; i < depth; i++)
            if (i * CPLI_LANES < left) {
                cpli_store(b + i * CPLI_LANES, v[i]);
                cpli_store(a + i * CPLI_LANES, w[i]);
            }
    }
};

/* ---- a tile ---- */

template <class Op, class T>
static __device__ __forceinline__ void whole_units(char *to, char *from, int n)
{
#pragma unroll 1
    for (int i = 0; i < n; i += Op::depth * CPLI_LANES)
        Op::template batch<T, Op::depth>(to + i * (int)sizeof(T),
                                         from + i * (int)sizeof(T), n - i);
}

/* Fewer bytes than a warp has lanes. */
template <class Op>
static __device__ __forceinline__ void few_bytes(char *to, char *from, int n)
{
    Op::template batch<uint8_t, 1>(to, from, n);
}

/* The widest unit in which both ends can be addressed: they are equally far
 * from a multiple of it. */
static __device__ __forceinline__ int common_unit(const char *to,
                                                  const char *from)
{
    const int apart = (int)(((uintptr_t)to ^ (uintptr_t)from) % 16);
    return apart == 0 ? 16 : apart & -apart;
}

/* Bytes up to the first whole unit, whole units, and the bytes behind them. */
template <class Op, class T>
static __device__ __forceinline__ void bytes_by(char *to, char *from, int bytes)
{
    const int unit = (int)sizeof(T);
    int head = (int)(-(uintptr_t)to % sizeof(T));
    head = head < bytes ? head : bytes;
    few_bytes<Op>(to, from, head);
    const int n = (bytes - head) / unit;
    whole_units<Op, T>(to + head, from + head, n);
    const int done = head + n * unit;
    few_bytes<Op>(to + done, from + done, bytes - done);
}

template <class Op>
static __device__ __forceinline__ void any_bytes(char *to, char *from,
                                                 int bytes)
{
    const int unit = common_unit(to, from);
    if (unit == 16)
        bytes_by<Op, uint4>(to, from, bytes);
    else if (unit == 8)
        bytes_by<Op, uint2>(to, from, bytes);
    else if (unit == 4)
        bytes_by<Op, uint32_t>(to, from, bytes);
    else if (unit == 2)
        bytes_by<Op, uint16_t>(to, from, bytes);
    else
        whole_units<Op, uint8_t>(to, from, bytes);
}

template <class Op>
static __device__ __forceinline__ void aligned_bytes(char *to, char *from,
                                                     int bytes)
{
    whole_units<Op, uint4>(to, from, bytes / (int)sizeof(uint4));
}

/* ---- all tiles ---- */

template <class Op, bool is_aligned>
static __device__ __forceinline__ void move_tiles(const cpl_cuda_move &move)
{
    const int64_t *ends = move.tile_ends;
    cpli_walk walk = cpli_begin(ends, *move.n_pieces);
    for (; walk.tile < walk.end; cpli_next(&walk, ends)) {
        const cpl_cuda_piece *piece = &move.pieces[walk.piece];
        char *theirs = cpli_base(move.theirs, piece->peer);
        char *mine = (char *)move.mine;
        const bool is_put = move.way == CPL_CUDA_PUT;
        char *to = (is_put ? theirs : mine) + piece->to + walk.offset;
        char *from = (is_put ? mine : theirs) + piece->from + walk.offset;
        const int bytes = cpli_tile_bytes(&walk, piece->bytes);
        if (is_aligned)
            aligned_bytes<Op>(to, from, bytes);
        else
            any_bytes<Op>(to, from, bytes);
    }
}

#define CPLI_MOVE_KERNEL(name, op, is_aligned, blocks)                 \
    extern "C" __global__ void __launch_bounds__(CPLI_THREADS, blocks) \
        name(const __grid_constant__ cpl_cuda_move move)               \
    {                                                                  \
        move_tiles<op, is_aligned>(move);                              \
    }
CPLI_MOVE_KERNEL(cpli_copy_aligned, copying, true, CPLI_BLOCKS_AT_ONCE)
CPLI_MOVE_KERNEL(cpli_copy_any, copying, false, CPLI_BLOCKS_AT_ONCE)
CPLI_MOVE_KERNEL(cpli_swap_aligned, swapping, true, CPLI_BLOCKS_AT_ONCE)
/* Two ends of five widths: with fewer registers it would spill. */
CPLI_MOVE_KERNEL(cpli_swap_any, swapping, false, CPLI_BLOCKS_AT_ONCE - 1)

/* ---- launchers ---- */

extern "C" int cpl_cuda_copy(const cpl_cuda_move *move, cpl_cuda_stream stream)
{
    if (!cpli_is_move(move))
        return cudaErrorInvalidValue;
    const dim3 grid = cpli_grid(move->max_tiles);
    if (cpli_is_aligned(&move->theirs, move->mine, move->unit))
        return CPLI_LAUNCH(cpli_copy_aligned, grid, CPLI_THREADS, 0, stream,
                           *move);
    return CPLI_LAUNCH(cpli_copy_any, grid, CPLI_THREADS, 0, stream, *move);
}

extern "C" int cpl_cuda_swap(const cpl_cuda_move *move, cpl_cuda_stream stream)
{
    if (!cpli_is_move(move))
        return cudaErrorInvalidValue;
    const dim3 grid = cpli_grid(move->max_tiles);
    if (cpli_is_aligned(&move->theirs, move->mine, move->unit))
        return CPLI_LAUNCH(cpli_swap_aligned, grid, CPLI_THREADS, 0, stream,
                           *move);
    return CPLI_LAUNCH(cpli_swap_any, grid, CPLI_THREADS, 0, stream, *move);
}

extern "C" int64_t cpl_cuda_tiles(const cpl_cuda_piece *pieces, int64_t n,
                                  int64_t *tile_ends)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (pieces[i].bytes + CPL_CUDA_TILE - 1) / CPL_CUDA_TILE;
        tile_ends[i] = sum;
    }
    return sum;
}
