/*
 * adamw.cu: one step of Adam, a pack a thread. What does not depend on the
 * element is made in double.
 */
#include "elements.cuh"

namespace cpli
{

/* m' = beta1 m + fresh1 g;  v' = beta2 v + fresh2 g^2;
 * w' = kept w - rate m' / (scale sqrt(v') + eps). */
template <class S> struct adamw_factors {
    S beta1, beta2, fresh1, fresh2, rate, scale, kept, eps, grad_scale;
};

template <class S>
static __device__ __forceinline__ adamw_factors<S>
factors_of(const cpl_adamw &p)
{
    adamw_factors<S> f;
    const double lr = p.rate != nullptr ? *p.rate : p.lr;
    f.beta1 = static_cast<S>(p.beta1);
    f.beta2 = static_cast<S>(p.beta2);
    f.fresh1 = static_cast<S>(1 - p.beta1);
    f.fresh2 = static_cast<S>(1 - p.beta2);
    f.rate = static_cast<S>(lr / p.factors[1]);
    f.scale = static_cast<S>(1 / sqrt(p.factors[2]));
    f.kept = static_cast<S>(1 - lr * p.weight_decay);
    f.eps = static_cast<S>(p.eps);
    f.grad_scale = static_cast<S>(p.factors[0]);
    return f;
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    adamw(const __grid_constant__ cpl_adamw p)
{
    using W = wide_t<T>;
    const auto f = factors_of<W>(p);
    for (int64_t i = first_index(); i < p.n / V; i += index_step()) {
        const auto grad = load<W, V>(p.grad, i * V);
        auto m = load<W, V>(p.m, i * V);
        auto v = load<W, V>(p.v, i * V);
        auto w = load<T, V>(p.w, i * V);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const W g = f.grad_scale * grad.at[j];
            m.at[j] = f.beta1 * m.at[j] + f.fresh1 * g;
            v.at[j] = f.beta2 * v.at[j] + f.fresh2 * g * g;
            w.at[j] = f.kept * w.at[j] -
                      f.rate * m.at[j] / (f.scale * root(v.at[j]) + f.eps);
        }
        store<W, V>(p.m, i * V, m);
        store<W, V>(p.v, i * V, v);
        store<T, V>(p.w, i * V, w);
    }
}

} // namespace cpli

int cpl_cuda_adamw(const cpl_adamw *p, int32_t dtype, int32_t way,
                   cpl_cuda_stream stream)
{
    if (p->n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit =
            cpli::packs_fit<T>(p->n, {p->grad, p->w, p->m, p->v}, {});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            return CPLI_LAUNCH((cpli::adamw<T, V>), cpli::blocks_for(p->n / V),
                               cpli::THREADS, 0, stream, *p);
        });
    });
}
