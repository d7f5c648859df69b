/*
 * sum_squares.cu: in double. Each block sums every so many packs, and one adds
 * what they left.
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
    leave_part(p.sum, sum);
}

/* Fewer elements are not worth a block. */
constexpr int64_t LEAST = 4096;

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    sum_squares(const __grid_constant__ cpl_sum_squares p, double *parts)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t i = first_index(); i < p.n / V; i += index_step()) {
        const auto x = load<T, V>(p.x, i * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum += static_cast<double>(x.at[j]) * static_cast<double>(x.at[j]);
    }
    leave_part(parts, block_sum<THREADS>(sum));
}

template <class T>
static int best(const cpl_sum_squares *p, cpl_cuda_stream stream)
{
    const int64_t n = parts_for(p->n, LEAST);
    double *parts = n == 1 ? p->sum : static_cast<double *>(p->workspace);
    const bool fit = packs_fit<T>(p->n, {p->x}, {});
    const int error = by_pack<T>(fit, [&](auto v) {
        constexpr int V = decltype(v)::value;
        return static_cast<int>(CPLI_LAUNCH((sum_squares<T, V>),
                                            static_cast<unsigned>(n), THREADS,
                                            0, stream, *p, parts));
    });
    return error != cudaSuccess ? error
                                : launch_add_parts(parts, n, p->sum, stream);
}

} // namespace cpli

size_t cpl_cuda_sum_squares_workspace(const cpl_sum_squares *p, int32_t)
{
    return cpli::part_bytes(cpli::parts_for(p->n, cpli::LEAST));
}

int cpl_cuda_sum_squares(const cpl_sum_squares *p, int32_t dtype, int32_t way,
                         cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using W = cpli::wide_t<decltype(type)>;
        return way == CPL_CUDA_NAIVE
                   ? static_cast<int>(CPLI_LAUNCH(cpli::sum_squares_naive<W>, 1,
                                                  1, 0, stream, *p))
                   : cpli::best<W>(p, stream);
    });
}
