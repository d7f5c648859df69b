/*
 * rms.cuh: 1 / sqrt(mean x^2 + eps) of a row of n, as both norms take it.
 */
#ifndef CPLI_RMS_CUH
#define CPLI_RMS_CUH

#include "rows.cuh"

namespace cpli
{

/* By one thread. */
template <class T>
__device__ __forceinline__ sum_t<T> inverse_rms(const T *x, int64_t n,
                                                double eps)
{
    sum_t<T> sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += get(x[i]) * get(x[i]);
    return reciprocal_root(sum / static_cast<sum_t<T>>(n) +
                           static_cast<sum_t<T>>(eps));
}

/* By a group; all members get it. */
template <class T, int V, int G>
__device__ __forceinline__ sum_t<T> group_inverse_rms(const T *x, int64_t n,
                                                      double eps, int member)
{
    sum_t<T> sum = 0;
    for (int64_t i = member; i < n / V; i += G) {
        const auto values = load<T, V>(x, i * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum += values.at[j] * values.at[j];
    }
    return reciprocal_root(group_sum<G>(sum) / static_cast<sum_t<T>>(n) +
                           static_cast<sum_t<T>>(eps));
}

} // namespace cpli

#endif
