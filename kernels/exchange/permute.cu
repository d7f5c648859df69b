/*
 * permute.cu: rows by lists of indices. Rows are cut into units of the widest
 * size that divides them; the units of all rows, one row after the other, are
 * dealt to the warps, so short rows share a warp and long ones are shared.
 */
#include "tiles.cuh"

enum {
    DEPTH = 4,                  /* units of a lane in flight */
    BATCH = DEPTH * CPLI_LANES, /* units of a warp */
};

static __device__ __forceinline__ int64_t row_of(const int64_t *list, int64_t i)
{
    return list != NULL ? list[i] : i;
}

/* A warp's place among the units of all rows. */
struct place {
    int64_t row;
    uint32_t unit; /* of that row */
};

static __device__ __forceinline__ place place_of(int64_t unit,
                                                 uint32_t units_each)
{
    place at;
    at.row = unit / units_each;
    at.unit = (uint32_t)(unit - at.row * units_each);
    return at;
}

/* From `at` on `left` units, up to a batch. The loads of indices are in flight
 * together, and then those of rows. */
template <class T>
static __device__ __forceinline__ void
permute_batch(const cpl_cuda_rows &rows, const place &at, int64_t left,
              uint32_t units_each)
{
    const T *from[DEPTH] = {};
    T *to[DEPTH] = {};
    T v[DEPTH] = {};
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        const uint32_t k = (uint32_t)(i * CPLI_LANES + cpli_lane());
        if (k < left) {
            const int64_t row = at.row + (at.unit + k) / units_each;
            const uint32_t unit = (at.unit + k) % units_each;
            from[i] = (const T *)rows.src +
                      row_of(rows.from, row) * units_each + unit;
            to[i] = (T *)rows.dst + row_of(rows.to, row) * units_each + unit;
        }
    }
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (to[i] != NULL)
            v[i] = cpli_load(from[i]);
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        if (to[i] != NULL)
            cpli_store(to[i], v[i]);
}

/* Divides twice, and then walks. */
template <class T>
static __device__ __forceinline__ void permute_rows(const cpl_cuda_rows &rows)
{
    const uint32_t units_each = (uint32_t)(rows.row_bytes / sizeof(T));
    const int64_t n = *rows.n * units_each;
    const int64_t warp =
        (int64_t)blockIdx.x * CPLI_WARPS + (int64_t)(threadIdx.x / CPLI_LANES);
    const int64_t stride = (int64_t)gridDim.x * CPLI_WARPS * BATCH;
    const place step = place_of(stride, units_each);
    place at = place_of(warp * BATCH, units_each);
#pragma unroll 1
    for (int64_t first = warp * BATCH; first < n; first += stride) {
        permute_batch<T>(rows, at, n - first, units_each);
        at.row += step.row;
        at.unit += step.unit;
        if (at.unit >= units_each) {
            at.unit -= units_each;
            at.row++;
        }
    }
}

#define CPLI_PERMUTE_KERNEL(name, T)                           \
    extern "C" __global__ void __launch_bounds__(CPLI_THREADS) \
        name(const __grid_constant__ cpl_cuda_rows rows)       \
    {                                                          \
        permute_rows<T>(rows);                                 \
    }
CPLI_PERMUTE_KERNEL(cpli_permute_16, uint4)
CPLI_PERMUTE_KERNEL(cpli_permute_8, uint2)
CPLI_PERMUTE_KERNEL(cpli_permute_4, uint32_t)
CPLI_PERMUTE_KERNEL(cpli_permute_2, uint16_t)
CPLI_PERMUTE_KERNEL(cpli_permute_1, uint8_t)

/* ---- launcher ---- */

/* The widest unit that divides the row and both addresses. */
static int common_unit(const cpl_cuda_rows *rows)
{
    const uint64_t all = (uint64_t)rows->row_bytes | (uint64_t)rows->src |
                         (uint64_t)rows->dst | 16;
    return (int)(all & -all);
}

static dim3 grid_of(const cpl_cuda_rows *rows, int unit)
{
    const int64_t warps =
        (rows->max_rows * (rows->row_bytes / unit) + BATCH - 1) / BATCH;
    return cpli_blocks((warps + CPLI_WARPS - 1) / CPLI_WARPS);
}

extern "C" int cpl_cuda_permute(const cpl_cuda_rows *rows,
                                cpl_cuda_stream stream)
{
    if (rows->row_bytes < 0 || rows->row_bytes > INT32_MAX)
        return cudaErrorInvalidValue;
    if (rows->row_bytes == 0)
        return cudaSuccess;
    const int unit = common_unit(rows);
    const dim3 grid = grid_of(rows, unit);
    switch (unit) {
    case 16:
        return CPLI_LAUNCH(cpli_permute_16, grid, CPLI_THREADS, 0, stream,
                           *rows);
    case 8:
        return CPLI_LAUNCH(cpli_permute_8, grid, CPLI_THREADS, 0, stream,
                           *rows);
    case 4:
        return CPLI_LAUNCH(cpli_permute_4, grid, CPLI_THREADS, 0, stream,
                           *rows);
    case 2:
        return CPLI_LAUNCH(cpli_permute_2, grid, CPLI_THREADS, 0, stream,
                           *rows);
    default:
        return CPLI_LAUNCH(cpli_permute_1, grid, CPLI_THREADS, 0, stream,
                           *rows);
    }
}
