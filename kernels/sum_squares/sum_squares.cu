/*
 * sum_squares.cu: in double, by one block: each thread takes every THREADS-th
 * element, and their sums are added in the order of the threads.
 */
#include "elements.cuh"

namespace cpli
{

/* One thread, from the first element to the last. */
template <class T>
__global__ void __launch_bounds__(THREADS)
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

} // namespace cpli

int cpl_cuda_sum_squares(const cpl_sum_squares *p, int32_t dtype, int32_t,
                         cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using W = cpli::wide_t<decltype(type)>;
        return CPLI_LAUNCH(cpli::sum_squares_naive<W>, 1, 1, 0, stream, *p);
    });
}
