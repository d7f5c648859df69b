/*
 * axpby.cu: y = alpha x + beta y. There is nothing between the elements, so the
 * naive kernel is the only one.
 */
#include "compute.cuh"

namespace cpli
{

template <class T>
__global__ void axpby(const T *x, T *y, int64_t n, sum_t<T> alpha,
                      sum_t<T> beta)
{
    for (int64_t i = first_index(); i < n; i += index_step()) {
        sum_t<T> sum = beta == 0 ? 0 : beta * get(y[i]);
        if (alpha != 0)
            sum += alpha * get(x[i]);
        y[i] = put<T>(sum);
    }
}

template <class T> static int launch(const cpl_axpby *p, cpl_cuda_stream stream)
{
    return CPLI_LAUNCH(axpby<T>, blocks_for(p->n), THREADS, 0, stream,
                       static_cast<const T *>(p->x), static_cast<T *>(p->y),
                       p->n, static_cast<sum_t<T>>(p->alpha),
                       static_cast<sum_t<T>>(p->beta));
}

} // namespace cpli

int cpl_cuda_axpby(const cpl_axpby *p, int32_t dtype, int32_t,
                   cpl_cuda_stream stream)
{
    if (p->n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return p->wide ? cpli::launch<cpli::wide_t<T>>(p, stream)
                       : cpli::launch<T>(p, stream);
    });
}
