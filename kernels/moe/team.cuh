/*
 * team.cuh: a row as the work of several lanes that stand together in a warp,
 * or of one thread: a kernel written for teams is its own naive one, with one
 * lane, whose sums are then in order.
 */
#ifndef CPLI_MOE_TEAM_CUH
#define CPLI_MOE_TEAM_CUH

#include "compute.cuh"

namespace cpli
{

constexpr int WARP = 32;
/* Of a multiprocessor, at least: without a number ptxas would rather have many
 * of them, and spill. */
constexpr int BLOCKS = 2;

/* Calls visit(row, lane) for the rows of this thread's team. */
template <int LANES, class F>
__device__ __forceinline__ void each_row(int64_t n_rows, F visit)
{
    int lane = static_cast<int>(threadIdx.x) % LANES;
    for (int64_t row = first_index() / LANES; row < n_rows;
         row += index_step() / LANES)
        visit(row, lane);
}

/* The sum over the lanes, the same in each of them. */
template <int LANES, class S> __device__ __forceinline__ S team_sum(S x)
{
#pragma unroll
    for (int flips = LANES / 2; flips > 0; flips /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, flips, LANES);
    return x;
}

} // namespace cpli

#endif
