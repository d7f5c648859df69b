/*
 * sum_squares.cu: in double, by one block, because there is no place where
 * several could leave their sums: it is bound by what one multiprocessor can
 * read.
 */
#include "rows.cuh"

namespace cpli
{

/* One thread, from the first element to the last. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    sum_squares_naive(const __grid_constant__ cpl_sum_squares p)
{
    const auto x = static_cast<const T *>(p.x);
    double sum = 0;
    if (first_index() != 0)
        return;
    for (int64_t i = 0; i < p.n; i++)
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    *p.sum = sum;
}

constexpr int ALL = 1024; /* the most threads of a block */

/* A thread every ALL-th pack. */
template <class T, int V>
__global__ void __launch_bounds__(ALL, 1)
    sum_squares(const __grid_constant__ cpl_sum_squares p)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < p.n / V; i += ALL) {
        const auto x = load<T, V>(p.x, i * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum += static_cast<double>(x.at[j]) * static_cast<double>(x.at[j]);
    }
    sum = block_sum<ALL>(sum);
    if (threadIdx.x == 0)
        *p.sum = sum;
}

} // namespace cpli

int cpl_cuda_sum_squares(const cpl_sum_squares *p, int32_t dtype, int32_t way,
                         cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using W = cpli::wide_t<decltype(type)>;
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(
                CPLI_LAUNCH(cpli::sum_squares_naive<W>, 1, 1, 0, stream, *p));
        return cpli::by_pack<W>(
            cpli::packs_fit<W>(p->n, {p->x}, {}), [&](auto v) {
                return static_cast<int>(
                    CPLI_LAUNCH((cpli::sum_squares<W, decltype(v)::value>), 1,
                                cpli::ALL, 0, stream, *p));
            });
    });
}
