/*
 * compute.cuh: what the kernels that compute share: number types by dtype, the
 * arithmetic of a sum, launches over elements. Kernels stand in the namespace
 * cpli, never in an unnamed one: the static gate knows them by name.
 */
#ifndef CPLI_COMPUTE_CUH
#define CPLI_COMPUTE_CUH

#include "device.cuh"
#include "launch.h"

namespace cpli
{

/* Of a storage type T: what sums are made in, and what is WIDE (kernels.h). */
template <class T> struct number {
    using sum = float;
    using wide = float;
};
template <> struct number<double> {
    using sum = double;
    using wide = double;
};
template <class T> using sum_t = typename number<T>::sum;
template <class T> using wide_t = typename number<T>::wide;

__device__ __forceinline__ double get(double x)
{
    return x;
}
__device__ __forceinline__ float get(float x)
{
    return x;
}
__device__ __forceinline__ float get(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <class T> __device__ __forceinline__ T put(sum_t<T> x)
{
    return static_cast<T>(x);
}
template <> __device__ __forceinline__ __nv_bfloat16 put<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Threads of a block, and the blocks for n things, a thread each; kernels step
 * on by the whole grid, so that a grid may be smaller than asked for. */
constexpr int THREADS = 256;
constexpr int64_t MAX_BLOCKS = 1 << 16;

inline unsigned blocks_for(int64_t n, int64_t per_block = THREADS)
{
    int64_t blocks = (n + per_block - 1) / per_block;
    return static_cast<unsigned>(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

__device__ __forceinline__ int64_t first_index()
{
    return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t index_step()
{
    return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

/* f(a number of the dtype's storage type); what f returns. */
template <class F> int by_dtype(int32_t dtype, F f)
{
    switch (dtype) {
    case CPL_F64:
        return f(double());
    case CPL_F32:
        return f(float());
    case CPL_BF16:
        return f(__nv_bfloat16());
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace cpli

#endif
