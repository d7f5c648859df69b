/*
 * add_chunks.cu: the second half of sums along columns (rows.cuh), for all ops
 * that have them: what the chunks left is added in their order.
 */
#include "rows.cuh"

namespace cpli
{

/* A lane a column, each warp every so many chunks; kinds are those of a grid's
 * y. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    add_chunks(const __grid_constant__ chunk_sums<T> c, int64_t width,
               int first_kind, wide_t<T> *grad, int64_t grad_stride)
{
    constexpr int WARPS = THREADS / LANES;
    CPLI_SHARED(wide_t<T>, parts, [WARPS][LANES]);
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    const int kind = static_cast<int>(blockIdx.y);
    for (int64_t first = static_cast<int64_t>(blockIdx.x) * LANES;
         first < width; first += static_cast<int64_t>(gridDim.x) * LANES) {
        const int64_t column = first + lane;
        wide_t<T> sum = 0;
        for (int64_t i = warp; column < width && i < c.n_chunks; i += WARPS)
            sum += sum_left(c, i, first_kind + kind, column);
        parts[warp][lane] = sum;
        __syncthreads();
        sum = 0;
        for (int i = 0; i < WARPS; i++)
            sum += parts[i][lane];
        if (warp == 0 && column < width)
            grad[column * grad_stride + kind] += sum;
        __syncthreads();
    }
}

template <class T>
int launch_add_chunks(const chunk_sums<T> &c, int64_t width, int first_kind,
                      int kinds, void *grad, cpl_cuda_stream stream)
{
    if (grad == nullptr || c.n_chunks == 1)
        return cudaSuccess;
    const dim3 grid(blocks_for(width, LANES), static_cast<unsigned>(kinds));
    return CPLI_LAUNCH(add_chunks<T>, grid, THREADS, 0, stream, c, width,
                       first_kind, static_cast<wide_t<T> *>(grad),
                       static_cast<int64_t>(kinds));
}

template int launch_add_chunks<double>(const chunk_sums<double> &, int64_t, int,
                                       int, void *, cpl_cuda_stream);
template int launch_add_chunks<float>(const chunk_sums<float> &, int64_t, int,
                                      int, void *, cpl_cuda_stream);
template int launch_add_chunks<__nv_bfloat16>(const chunk_sums<__nv_bfloat16> &,
                                              int64_t, int, int, void *,
                                              cpl_cuda_stream);

} // namespace cpli
