/*
 * moe_group.cu: sorts the choices by expert, then by row: a counting sort whose
 * places are the CPU's. The choices are cut into chunks; a warp counts those of
 * each expert in its chunk, the counts of a chunk become what stands before it,
 * and then the warp gives its choices their places, in their order.
 *
 * A chunk has as many choices as there are experts or more, so that its counts
 * fit where its places will be: no workspace is needed. Only the first chunk
 * may have fewer, and nothing stands before it: its counts go to the offsets.
 */
#include "moe/team.cuh"

namespace cpli
{

constexpr int64_t CHUNK = 1024; /* at least */
/* What shared memory holds without being asked for more: an int64 an expert. */
constexpr int64_t MOST_EXPERTS = 6144;

/* cpl_moe_group, cut. */
struct sorting {
    cpl_moe_group p;
    int64_t n, chunk, first; /* choices: of all, of a chunk, of the first one */
    int64_t n_chunks;
};

static sorting sorting_of(const cpl_moe_group *p)
{
    int64_t n = p->n_rows * p->top_k;
    int64_t chunk = p->experts > CHUNK ? p->experts : CHUNK;
    int64_t n_chunks = (n + chunk - 1) / chunk;
    return {*p, n, chunk, n - (n_chunks - 1) * chunk, n_chunks};
}

__device__ __forceinline__ int64_t chunk_begin(const sorting &s, int64_t chunk)
{
    return chunk == 0 ? 0 : s.first + (chunk - 1) * s.chunk;
}

/* The counts of a chunk, [experts]. */
__device__ __forceinline__ int64_t *counts_of(const sorting &s, int64_t chunk)
{
    return chunk == 0 ? s.p.offsets + 1 : s.p.places + chunk_begin(s, chunk);
}

/* Gives the choices of a chunk numbers: next[e], then the ones after it, and
 * leaves there what comes next. Lanes that chose the same expert count
 * themselves by their mask. visit(index, number), -1 of no expert. */
template <class F>
__device__ __forceinline__ void number_chunk(const sorting &s, int64_t chunk,
                                             int64_t *next, F visit)
{
    int lane = static_cast<int>(threadIdx.x);
    int64_t end = s.first + chunk * s.chunk;
    for (int64_t begin = chunk_begin(s, chunk); begin < end; begin += WARP) {
        int64_t i = begin + lane;
        int32_t expert = i < end ? s.p.chosen[i] : -1;
        unsigned alike = __match_any_sync(0xffffffffu, expert);
        int before = __popc(alike & ((1u << lane) - 1));
        int64_t number = expert < 0 ? -1 : next[expert] + before;
        __syncwarp();
        if (expert >= 0 && before == 0)
            next[expert] += __popc(alike);
        __syncwarp();
        if (i < end)
            visit(i, number);
    }
}

__global__ void __launch_bounds__(WARP)
    moe_group_count(const __grid_constant__ sorting s)
{
    CPLI_DYNAMIC_SHARED(int64_t, next);
    for (int64_t chunk = blockIdx.x; chunk < s.n_chunks; chunk += gridDim.x) {
        int64_t *counts = counts_of(s, chunk);
        for (int64_t e = threadIdx.x; e < s.p.experts; e += WARP)
            next[e] = 0;
        __syncwarp();
        number_chunk(s, chunk, next, [](int64_t, int64_t) {});
        for (int64_t e = threadIdx.x; e < s.p.experts; e += WARP)
            counts[e] = next[e];
        __syncwarp();
    }
}

/* The sum of this lane's and those of the lanes before it. */
__device__ __forceinline__ int64_t sum_before(int64_t x)
{
    int lane = static_cast<int>(threadIdx.x) % WARP;
#pragma unroll
    for (int by = 1; by < WARP; by *= 2) {
        int64_t other = __shfl_up_sync(0xffffffffu, x, by);
        x += lane >= by ? other : 0;
    }
    return x;
}

/* Counts of an expert, a warp each, become the sums of those before; the first
 * chunk's becomes the sum of all. */
__global__ void __launch_bounds__(THREADS)
    moe_group_chunks(const __grid_constant__ sorting s)
{
    int lane = static_cast<int>(threadIdx.x) % WARP;
    for (int64_t e = first_index() / WARP; e < s.p.experts;
         e += index_step() / WARP) {
        int64_t sum = s.p.offsets[e + 1];
        for (int64_t begin = 1; begin < s.n_chunks; begin += WARP) {
            int64_t chunk = begin + lane;
            bool is_there = chunk < s.n_chunks;
            int64_t mine = is_there ? counts_of(s, chunk)[e] : 0;
            int64_t through = sum_before(mine);
            if (is_there)
                counts_of(s, chunk)[e] = sum + through - mine;
            sum += __shfl_sync(0xffffffffu, through, WARP - 1);
        }
        __syncwarp(); /* all have read it */
        if (lane == 0)
            s.p.offsets[e + 1] = sum;
    }
}

/* Counts of all experts become offsets; one warp. */
__global__ void __launch_bounds__(WARP)
    moe_group_offsets(int64_t *offsets, int64_t experts)
{
    int lane = static_cast<int>(threadIdx.x);
    int64_t sum = 0;
    if (lane == 0)
        offsets[0] = 0;
    for (int64_t begin = 0; begin < experts; begin += WARP) {
        int64_t e = begin + lane;
        int64_t through = sum_before(e < experts ? offsets[e + 1] : 0);
        if (e < experts)
            offsets[e + 1] = sum + through;
        sum += __shfl_sync(0xffffffffu, through, WARP - 1);
    }
}

__global__ void __launch_bounds__(WARP)
    moe_group_place(const __grid_constant__ sorting s)
{
    CPLI_DYNAMIC_SHARED(int64_t, next);
    for (int64_t chunk = blockIdx.x; chunk < s.n_chunks; chunk += gridDim.x) {
        const int64_t *before = counts_of(s, chunk);
        for (int64_t e = threadIdx.x; e < s.p.experts; e += WARP)
            next[e] = s.p.offsets[e] + (chunk > 0 ? before[e] : 0);
        __syncwarp(); /* the counts are read: places may stand there */
        number_chunk(s, chunk, next, [&](int64_t i, int64_t number) {
            s.p.places[i] = number;
        });
        __syncwarp();
    }
}

/* The naive way: a thread an expert (one more for the last offset) counts the
 * choices of those below, and then goes through its own. */
__global__ void __launch_bounds__(THREADS)
    moe_group_naive(const __grid_constant__ sorting s)
{
    for (int64_t e = first_index(); e <= s.p.experts; e += index_step()) {
        int64_t next = 0;
        for (int64_t i = 0; i < s.n; i++)
            next += s.p.chosen[i] >= 0 && s.p.chosen[i] < e;
        s.p.offsets[e] = next;
        for (int64_t i = 0; i < s.n; i++) {
            int32_t chosen = s.p.chosen[i];
            if (chosen == e)
                s.p.places[i] = next++;
            else if (chosen < 0 && e == s.p.experts)
                s.p.places[i] = -1;
        }
    }
}

static int launch_group(const sorting &s, cpl_cuda_stream stream)
{
    size_t shared = static_cast<size_t>(s.p.experts) * sizeof(int64_t);
    int error = CPLI_LAUNCH(moe_group_count, blocks_for(s.n_chunks, 1), WARP,
                            shared, stream, s);
    if (error == cudaSuccess)
        error = CPLI_LAUNCH(moe_group_chunks,
                            blocks_for(s.p.experts, THREADS / WARP), THREADS, 0,
                            stream, s);
    if (error == cudaSuccess)
        error = CPLI_LAUNCH(moe_group_offsets, 1, WARP, 0, stream, s.p.offsets,
                            s.p.experts);
    if (error == cudaSuccess)
        error = CPLI_LAUNCH(moe_group_place, blocks_for(s.n_chunks, 1), WARP,
                            shared, stream, s);
    return error;
}

} // namespace cpli

int cpl_cuda_moe_group(const cpl_moe_group *p, int32_t, int32_t way,
                       cpl_cuda_stream stream)
{
    cpli::sorting s = cpli::sorting_of(p);
    bool fits = s.n > 0 && p->experts <= cpli::MOST_EXPERTS;
    return way == CPL_CUDA_BEST && fits
               ? cpli::launch_group(s, stream)
               : CPLI_LAUNCH(cpli::moe_group_naive,
                             cpli::blocks_for(p->experts + 1), cpli::THREADS, 0,
                             stream, s);
}
