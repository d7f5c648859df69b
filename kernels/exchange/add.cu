/*
 * add.cu: sums of elements that peers hold, in the order of the list of
 * sources: each element of the target is read once, meets its sources one after
 * the other in a register, and is written once. So the bits are those of a CPU
 * that adds piece by piece, whatever the order of warps and blocks.
 */
#include "tiles.cuh"

#include <cstring>

enum { DEPTH = 4 }; /* units of each source in flight, and as many sums */

template <class Element>
static __device__ __forceinline__ Element sum_of(Element a, Element b)
{
    return a + b;
}
static __device__ __forceinline__ __nv_bfloat16 sum_of(__nv_bfloat16 a,
                                                       __nv_bfloat16 b)
{
    return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

/* Adds the elements of b to those of a; integers are unsigned, so they wrap
 * around. */
template <class T, class Element>
static __device__ __forceinline__ T plus(T a, T b)
{
    const int n = (int)(sizeof(T) / sizeof(Element));
    Element x[n];
    Element y[n];
    memcpy((void *)x, &a, sizeof a);
    memcpy((void *)y, &b, sizeof b);
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = sum_of(x[i], y[i]);
    memcpy(&a, x, sizeof a);
    return a;
}

template <class T>
static __device__ __forceinline__ void load_batch(T *v, const char *from,
                                                  int left)
{
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (i * CPLI_LANES < left)
            v[i] = cpli_load((const T *)from + i * CPLI_LANES);
}

/* Up to DEPTH units of this lane: `at` is where its first one lies in the
 * target, and `behind` how far it lies behind the sum's first byte. */
template <class T, class Element>
static __device__ __forceinline__ void
add_batch(const cpl_cuda_add &add, const cpl_cuda_sum &sum, char *at,
          int64_t behind, int left)
{
    T x[DEPTH] = {};
    load_batch(x, at, left);
#pragma unroll 1
    for (int64_t s = sum.first; s < sum.first + sum.n; s++) {
        const cpl_cuda_source *source = &add.sources[s];
        T y[DEPTH] = {};
        load_batch(y,
                   cpli_base(add.theirs, source->peer) + source->from + behind,
                   left);
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            x[i] = plus<T, Element>(x[i], y[i]);
    }
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (i * CPLI_LANES < left)
            cpli_store((T *)at + i * CPLI_LANES, x[i]);
}

template <class T, class Element>
static __device__ __forceinline__ void add_tiles(const cpl_cuda_add &add)
{
    const int unit = (int)sizeof(T);
    const int lane = cpli_lane();
    const int64_t *ends = add.tile_ends;
    cpli_walk walk = cpli_begin(ends, *add.n_sums);
    for (; walk.tile < walk.end; cpli_next(&walk, ends)) {
        const cpl_cuda_sum sum = add.sums[walk.piece];
        const int n = cpli_tile_bytes(&walk, sum.bytes) / unit;
#pragma unroll 1
        for (int i = 0; i < n; i += DEPTH * CPLI_LANES) {
            int64_t behind = walk.offset + (int64_t)(i + lane) * unit;
            add_batch<T, Element>(add, sum, (char *)add.mine + sum.to + behind,
                                  behind, n - i - lane);
        }
    }
}

/* One kernel for whole units of 16 bytes, one for elements. */
#define CPLI_ADD_KERNELS(name, Element, Unit)                    \
    extern "C" __global__ void __launch_bounds__(CPLI_THREADS)   \
        name##_aligned(const __grid_constant__ cpl_cuda_add add) \
    {                                                            \
        add_tiles<uint4, Element>(add);                          \
    }                                                            \
    extern "C" __global__ void __launch_bounds__(CPLI_THREADS)   \
        name##_any(const __grid_constant__ cpl_cuda_add add)     \
    {                                                            \
        add_tiles<Unit, Element>(add);                           \
    }
CPLI_ADD_KERNELS(cpli_add_f64, double, uint2)
CPLI_ADD_KERNELS(cpli_add_f32, float, uint32_t)
CPLI_ADD_KERNELS(cpli_add_bf16, __nv_bfloat16, uint16_t)
CPLI_ADD_KERNELS(cpli_add_i64, uint64_t, uint2)
CPLI_ADD_KERNELS(cpli_add_i32, uint32_t, uint32_t)

#define CPLI_ADD_LAUNCH(name)                                               \
    (is_aligned                                                             \
         ? CPLI_LAUNCH(name##_aligned, grid, CPLI_THREADS, 0, stream, *add) \
         : CPLI_LAUNCH(name##_any, grid, CPLI_THREADS, 0, stream, *add))

static int element_bytes(int32_t dtype)
{
    switch (dtype) {
    case CPL_F64:
    case CPL_I64:
        return 8;
    case CPL_BF16:
        return 2;
    default:
        return 4;
    }
}

extern "C" int cpl_cuda_add_up(const cpl_cuda_add *add, cpl_cuda_stream stream)
{
    const dim3 grid = cpli_grid(add->max_tiles);
    const int element = element_bytes(add->dtype);
    const bool is_aligned = cpli_is_aligned(&add->theirs, add->mine, add->unit);
    if (!cpli_is_unit(add->unit) || add->unit < element)
        return cudaErrorInvalidValue;
    switch (add->dtype) {
    case CPL_F64:
        return CPLI_ADD_LAUNCH(cpli_add_f64);
    case CPL_F32:
        return CPLI_ADD_LAUNCH(cpli_add_f32);
    case CPL_BF16:
        return CPLI_ADD_LAUNCH(cpli_add_bf16);
    case CPL_I64:
        return CPLI_ADD_LAUNCH(cpli_add_i64);
    case CPL_I32:
        return CPLI_ADD_LAUNCH(cpli_add_i32);
    default:
        return cudaErrorInvalidValue;
    }
}
