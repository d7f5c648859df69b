/*
 * sgd.cu: w -= lr factors[0] grad, a pack a thread.
 */
#include "elements.cuh"

namespace cpli
{

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    sgd(const __grid_constant__ cpl_sgd p)
{
    using W = wide_t<T>;
    const double lr = p.rate != nullptr ? *p.rate : p.lr;
    const W rate = static_cast<W>(-lr * p.factors[0]);
    for (int64_t i = first_index(); i < p.n / V; i += index_step()) {
        const auto grad = load<W, V>(p.grad, i * V);
        auto w = load<T, V>(p.w, i * V);
#pragma unroll
        for (int j = 0; j < V; j++)
            w.at[j] += rate * grad.at[j];
        store<T, V>(p.w, i * V, w);
    }
}

} // namespace cpli

int cpl_cuda_sgd(const cpl_sgd *p, int32_t dtype, int32_t way,
                 cpl_cuda_stream stream)
{
    if (p->n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit = cpli::packs_fit<T>(p->n, {p->grad, p->w}, {});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            return CPLI_LAUNCH((cpli::sgd<T, V>), cpli::blocks_for(p->n / V),
                               cpli::THREADS, 0, stream, *p);
        });
    });
}
