/*
 * axpby.cu: y = alpha x + beta y, a pack a thread.
 */
#include "elements.cuh"

namespace cpli
{

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    axpby(const T *x, T *y, int64_t n, sum_t<T> alpha, sum_t<T> beta)
{
    for (int64_t i = first_index(); i < n / V; i += index_step()) {
        pack<sum_t<T>, V> sum = {};
        if (beta != 0)
            sum = load<T, V>(y, i * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum.at[j] *= beta;
        if (alpha != 0) {
            const auto more = load<T, V>(x, i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum.at[j] += alpha * more.at[j];
        }
        store<T, V>(y, i * V, sum);
    }
}

template <class T>
static int launch(const cpl_axpby *p, bool best, cpl_cuda_stream stream)
{
    const bool fit = packs_fit<T>(p->n, {p->x, p->y}, {});
    return by_pack<T>(fit && best, [&](auto v) {
        constexpr int V = decltype(v)::value;
        return static_cast<int>(CPLI_LAUNCH(
            (axpby<T, V>), blocks_for(p->n / V), THREADS, 0, stream,
            static_cast<const T *>(p->x), static_cast<T *>(p->y), p->n,
            static_cast<sum_t<T>>(p->alpha), static_cast<sum_t<T>>(p->beta)));
    });
}

} // namespace cpli

int cpl_cuda_axpby(const cpl_axpby *p, int32_t dtype, int32_t way,
                   cpl_cuda_stream stream)
{
    const bool best = way == CPL_CUDA_BEST;
    if (p->n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return p->wide ? cpli::launch<cpli::wide_t<T>>(p, best, stream)
                       : cpli::launch<T>(p, best, stream);
    });
}
