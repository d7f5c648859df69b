/*
 * add_parts.cu: the second half of sums to one number (rows.cuh), for all ops
 * that have them: what the blocks left is added in one order.
 */
#include "rows.cuh"

namespace cpli
{

/* One block, a thread every THREADS-th part. */
__global__ void __launch_bounds__(THREADS)
    add_parts(const double *parts, int64_t n_parts, double *total)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n_parts; i += THREADS)
        sum += parts[i];
    leave_part(total, block_sum<THREADS>(sum));
}

int launch_add_parts(const double *parts, int64_t n_parts, double *sum,
                     cpl_cuda_stream stream)
{
    if (n_parts == 1)
        return cudaSuccess;
    return CPLI_LAUNCH(add_parts, 1, THREADS, 0, stream, parts, n_parts, sum);
}

} // namespace cpli
