/*
 * trace.cu: the check that catches a permuted activation, for rows on a device:
 * the positions that travelled with the rows against those that a layout says.
 * Nobody waits for its result; it gathers in device memory, over as many checks
 * as there are, until the host asks.
 */
#include "tiles.cuh"

enum { ROWS_EACH = 8 }; /* of a thread, where there are enough */

static dim3 grid_of(int64_t n_rows)
{
    const int64_t block = CPLI_THREADS * ROWS_EACH;
    return cpli_blocks((n_rows + block - 1) / block);
}

/* The first row of this thread, and the distance to its next one. */
static __device__ __forceinline__ int64_t first_row()
{
    return (int64_t)blockIdx.x * CPLI_THREADS + threadIdx.x;
}

static __device__ __forceinline__ int64_t row_stride()
{
    return (int64_t)gridDim.x * CPLI_THREADS;
}

/* Of a check, or of positions to be written; slots within the runs. */
template <typename T>
static __device__ __forceinline__ int64_t expected_at(const T &list,
                                                      int64_t slot)
{
    const int64_t run = cpli_search(list.run_ends, list.n_runs, slot);
    const int64_t start = list.runs[run].start;
    const int64_t begin = list.run_ends[run] - list.runs[run].length;
    return start < 0 ? -1 : start + (slot - begin);
}

template <typename T>
static __device__ __forceinline__ int64_t n_covered(const T &list)
{
    return list.n_runs > 0 ? list.run_ends[list.n_runs - 1] : 0;
}

/* Counts, and finds the lowest wrong slot. Only who finds something writes. */
extern "C" __global__ void __launch_bounds__(CPLI_THREADS)
    cpli_trace_compare(const __grid_constant__ cpl_cuda_check check)
{
    const int64_t covered = n_covered(check);
    const int64_t n = check.n_rows < covered ? check.n_rows : covered;
    int64_t lowest = INT64_MAX;
    int64_t wrong = 0;
    for (int64_t slot = first_row(); slot < n; slot += row_stride())
        if (check.trace[slot] != expected_at(check, slot)) {
            wrong++;
            lowest = slot < lowest ? slot : lowest;
        }
    if (wrong > 0) {
        atomicAdd((unsigned long long *)&check.wrong->rows,
                  (unsigned long long)wrong);
        atomicMin((long long *)&check.wrong->lowest, (long long)lowest);
    }
}

/* One thread: keeps what was found, if it is the first of all. */
extern "C" __global__ void
cpli_trace_keep(const __grid_constant__ cpl_cuda_check check)
{
    cpl_cuda_wrong *wrong = check.wrong;
    const int64_t slot = wrong->lowest;
    if (wrong->check >= 0 || slot == INT64_MAX)
        return;
    wrong->check = check.check;
    wrong->slot = slot;
    wrong->expected = expected_at(check, slot);
    wrong->found = check.trace[slot];
}

extern "C" int cpl_cuda_trace_check(const cpl_cuda_check *check,
                                    cpl_cuda_stream stream)
{
    if (check->check < 0 || check->wrong == NULL)
        return cudaErrorInvalidValue;
    if (check->n_rows == 0)
        return cudaSuccess;
    const cudaError_t error =
        CPLI_LAUNCH(cpli_trace_compare, grid_of(check->n_rows), CPLI_THREADS, 0,
                    stream, *check);
    if (error != cudaSuccess)
        return error;
    return CPLI_LAUNCH(cpli_trace_keep, 1, 1, 0, stream, *check);
}

extern "C" __global__ void __launch_bounds__(CPLI_THREADS)
    cpli_trace_write(const __grid_constant__ cpl_cuda_positions positions)
{
    const int64_t covered = n_covered(positions);
    for (int64_t slot = first_row(); slot < positions.n_rows;
         slot += row_stride())
        positions.trace[slot] =
            slot < covered ? expected_at(positions, slot) : -1;
}

extern "C" int cpl_cuda_trace_write(const cpl_cuda_positions *positions,
                                    cpl_cuda_stream stream)
{
    if (positions->n_rows == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(cpli_trace_write, grid_of(positions->n_rows),
                       CPLI_THREADS, 0, stream, *positions);
}

extern "C" __global__ void __launch_bounds__(CPLI_THREADS)
    cpli_trace_divide(int64_t *trace, int64_t n_rows, int64_t copies)
{
#pragma unroll 1
    for (int64_t i = first_row(); i < n_rows; i += row_stride()) {
        const int64_t sum = trace[i];
        trace[i] = sum % copies == 0 ? sum / copies : -1;
    }
}

extern "C" int cpl_cuda_trace_divide(int64_t *trace, int64_t n_rows,
                                     int64_t copies, cpl_cuda_stream stream)
{
    if (copies < 1)
        return cudaErrorInvalidValue;
    if (n_rows == 0)
        return cudaSuccess;
    return CPLI_LAUNCH(cpli_trace_divide, grid_of(n_rows), CPLI_THREADS, 0,
                       stream, trace, n_rows, copies);
}
