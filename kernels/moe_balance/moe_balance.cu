/*
 * moe_balance.cu: how many rows each expert got, and the loss that wants them
 * to be as many as those of the others. Experts stand side by side in a warp,
 * so that it reads whole lines of the probs; the rows are dealt to the warps of
 * a block, whose sums are added in order.
 */
#include "compute.cuh"

namespace cpli
{

constexpr int EXPERTS = 32; /* of a block */
constexpr int GROUPS = 8;   /* of rows; 1: all of them in order */

template <class T, int N>
__global__ void __launch_bounds__(EXPERTS *N)
    moe_load(const __grid_constant__ cpl_moe_load p)
{
    CPLI_SHARED(double, sums, [N][EXPERTS]);
    const auto probs = static_cast<const wide_t<T> *>(p.probs);
    const int64_t expert =
        static_cast<int64_t>(blockIdx.x) * EXPERTS + threadIdx.x;
    const int group = static_cast<int>(threadIdx.y);
    double sum = 0;
    if (expert < p.experts)
        for (int64_t row = group; row < p.n_rows; row += N)
            sum += static_cast<double>(probs[row * p.experts + expert]);
    sums[group][threadIdx.x] = sum;
    __syncthreads();
    if (group != 0 || expert >= p.experts)
        return;
    for (int i = 1; i < N; i++)
        sum += sums[i][threadIdx.x];
    p.load[expert] =
        static_cast<double>(p.offsets[expert + 1] - p.offsets[expert]);
    p.load[p.experts + expert] = sum;
}

/* Experts are few: one thread adds, and one kernel serves both ways. `scale` is
 * coefficient E top_k^2, so that there is one division. */
__global__ void __launch_bounds__(THREADS)
    moe_balance(const __grid_constant__ cpl_moe_balance p, double scale)
{
    CPLI_SHARED(double, factors, [1]);
    if (threadIdx.x == 0) {
        double choices = 0;
#pragma unroll 1
        for (int64_t e = 0; e < p.experts; e++)
            choices += p.load[e];
        factors[0] = choices > 0 ? scale / (choices * choices) : 0;
    }
    __syncthreads();
    const double factor = factors[0];
    for (int64_t e = threadIdx.x; e < p.experts; e += THREADS)
        p.dprobs[e] = factor * p.load[e];
    if (threadIdx.x != 0)
        return;
    double loss = 0;
#pragma unroll 1
    for (int64_t e = 0; e < p.experts; e++)
        loss += factor * p.load[e] * p.load[p.experts + e];
    *p.loss = loss;
}

template <class T, int N>
int launch_moe_load(const cpl_moe_load *p, cpl_cuda_stream stream)
{
    return CPLI_LAUNCH((moe_load<T, N>), blocks_for(p->experts, EXPERTS),
                       dim3(EXPERTS, N), 0, stream, *p);
}

} // namespace cpli

int cpl_cuda_moe_load(const cpl_moe_load *p, int32_t dtype, int32_t way,
                      cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return way == CPL_CUDA_NAIVE
                   ? cpli::launch_moe_load<T, 1>(p, stream)
                   : cpli::launch_moe_load<T, cpli::GROUPS>(p, stream);
    });
}

int cpl_cuda_moe_balance(const cpl_moe_balance *p, int32_t, int32_t,
                         cpl_cuda_stream stream)
{
    const auto top_k = static_cast<double>(p->top_k);
    const double scale =
        p->coefficient * static_cast<double>(p->experts) * top_k * top_k;
    return CPLI_LAUNCH(cpli::moe_balance, 1, cpli::THREADS, 0, stream, *p,
                       scale);
}
