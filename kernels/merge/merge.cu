/*
 * merge.cu: with the weights w = exp(lse - max) of both sides, of which one is
 * 1, o = (w o + w_b o_b) / (w + w_b) and lse = max + log1p(the lesser weight);
 * and back. What is not finite goes where these formulas take it.
 */
#include "rows.cuh"

namespace cpli
{

/* The share of either side, and log(e^a + e^b), of which b is no -inf. A share
 * is not 1 less the other: the smaller one would be lost in rounding. A product
 * of the weights is the lesser of them, or NaN. */
template <class S> struct merge_shares {
    S a, b, lse;
};
template <class S>
static __device__ __forceinline__ merge_shares<S> shares_of(S a, S b)
{
    if (b == -static_cast<S>(INFINITY))
        return {1, 0, a};
    const S max = b > a ? b : a;
    const S weight_a = exponential(a - max), weight_b = exponential(b - max);
    const S scale = reciprocal(weight_a + weight_b);
    return {weight_a * scale, weight_b * scale,
            max + log_of_1_plus(weight_a * weight_b)};
}

/* A thread a head of a row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    merge_naive(const __grid_constant__ cpl_merge p)
{
    using W = wide_t<T>;
    const int64_t n = p.n_rows * p.heads;
    const auto lse = static_cast<W *>(p.lse);
    for (int64_t i = first_index(); i < n; i += index_step()) {
        T *o = static_cast<T *>(p.o) + i * p.width;
        const T *o_b = static_cast<const T *>(p.o_b) + i * p.width;
        const W a = lse[i];
        const W b = static_cast<const W *>(p.lse_b)[i];
        if (b == -static_cast<W>(INFINITY))
            continue;
        const auto share = shares_of(a, b);
        for (int64_t j = 0; j < p.width; j++)
            o[j] = put<T>(share.a * get(o[j]) + share.b * get(o_b[j]));
        lse[i] = share.lse;
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    merge_backward_naive(const __grid_constant__ cpl_merge_backward p)
{
    using W = wide_t<T>;
    const int64_t n = p.n_rows * p.heads;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t at = i * p.width;
        const T *o = static_cast<const T *>(p.o) + at;
        const T *o_b = static_cast<const T *>(p.o_b) + at;
        const T *d_o = static_cast<const T *>(p.d_o) + at;
        T *d_o_a = static_cast<T *>(p.d_o_a) + at;
        T *d_o_b = static_cast<T *>(p.d_o_b) + at;
        const auto share = shares_of(static_cast<const W *>(p.lse)[i],
                                     static_cast<const W *>(p.lse_b)[i]);
        W moved = 0;
        for (int64_t j = 0; j < p.width; j++) {
            moved += get(d_o[j]) * (get(o_b[j]) - get(o[j]));
            d_o_a[j] = put<T>(share.a * get(d_o[j]));
            d_o_b[j] = put<T>(share.b * get(d_o[j]));
        }
        const W own =
            p.d_lse == nullptr ? 0 : static_cast<const W *>(p.d_lse)[i];
        moved *= share.a * share.b;
        static_cast<W *>(p.d_lse_a)[i] = share.a * own - moved;
        static_cast<W *>(p.d_lse_b)[i] = share.b * own + moved;
    }
}

/* ---- a group a head of a row ---- */

template <int G> static __device__ __forceinline__ void group_barrier()
{
    if constexpr (G == LANES)
        __syncwarp();
    else
        __syncthreads();
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    merge(const __grid_constant__ cpl_merge p)
{
    using W = wide_t<T>;
    each_row<G>(p.n_rows * p.heads, [&](int64_t i, int member) {
        const int64_t at = i * p.width;
        W *lse = static_cast<W *>(p.lse) + i;
        const W a = *lse;
        const W b = static_cast<const W *>(p.lse_b)[i];
        if (b == -static_cast<W>(INFINITY))
            return;
        const auto share = shares_of(a, b);
        for (int64_t j = member; j < p.width / V; j += G) {
            const auto o_b = load<T, V>(p.o_b, at + j * V);
            auto o = load<T, V>(p.o, at + j * V);
#pragma unroll
            for (int k = 0; k < V; k++)
                o.at[k] = share.a * o.at[k] + share.b * o_b.at[k];
            store<T, V>(p.o, at + j * V, o);
        }
        group_barrier<G>(); /* all have read lse */
        if (member == 0)
            *lse = share.lse;
    });
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    merge_backward(const __grid_constant__ cpl_merge_backward p)
{
    using W = wide_t<T>;
    each_row<G>(p.n_rows * p.heads, [&](int64_t i, int member) {
        const int64_t at = i * p.width;
        const auto share = shares_of(static_cast<const W *>(p.lse)[i],
                                     static_cast<const W *>(p.lse_b)[i]);
        W moved = 0;
        for (int64_t j = member; j < p.width / V; j += G) {
            const auto o = load<T, V>(p.o, at + j * V);
            const auto o_b = load<T, V>(p.o_b, at + j * V);
            auto a = load<T, V>(p.d_o, at + j * V);
            auto b = a;
#pragma unroll
            for (int k = 0; k < V; k++) {
                moved += a.at[k] * (o_b.at[k] - o.at[k]);
                b.at[k] *= share.b;
                a.at[k] *= share.a;
            }
            store<T, V>(p.d_o_a, at + j * V, a);
            store<T, V>(p.d_o_b, at + j * V, b);
        }
        moved = share.a * share.b * group_sum<G>(moved);
        if (member != 0)
            return;
        const W own =
            p.d_lse == nullptr ? 0 : static_cast<const W *>(p.d_lse)[i];
        static_cast<W *>(p.d_lse_a)[i] = share.a * own - moved;
        static_cast<W *>(p.d_lse_b)[i] = share.b * own + moved;
    });
}

} // namespace cpli

int cpl_cuda_merge(const cpl_merge *p, int32_t dtype, int32_t way,
                   cpl_cuda_stream stream)
{
    const int64_t n = p->n_rows * p->heads;
    if (n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(CPLI_LAUNCH(cpli::merge_naive<T>,
                                                cpli::blocks_for(n),
                                                cpli::THREADS, 0, stream, *p));
        const bool fit = cpli::packs_fit<T>(p->width, {p->o, p->o_b}, {});
        return cpli::by_row<T>(
            fit, n, p->width, [&](auto v, auto g, unsigned blocks) {
                constexpr int V = decltype(v)::value;
                constexpr int G = decltype(g)::value;
                return static_cast<int>(CPLI_LAUNCH((cpli::merge<T, V, G>),
                                                    blocks, cpli::THREADS, 0,
                                                    stream, *p));
            });
    });
}

int cpl_cuda_merge_backward(const cpl_merge_backward *p, int32_t dtype,
                            int32_t way, cpl_cuda_stream stream)
{
    const int64_t n = p->n_rows * p->heads;
    if (n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(CPLI_LAUNCH(cpli::merge_backward_naive<T>,
                                                cpli::blocks_for(n),
                                                cpli::THREADS, 0, stream, *p));
        const bool fit = cpli::packs_fit<T>(
            p->width, {p->o, p->o_b, p->d_o, p->d_o_a, p->d_o_b}, {});
        return cpli::by_row<T>(
            fit, n, p->width, [&](auto v, auto g, unsigned blocks) {
                constexpr int V = decltype(v)::value;
                constexpr int G = decltype(g)::value;
                return static_cast<int>(
                    CPLI_LAUNCH((cpli::merge_backward<T, V, G>), blocks,
                                cpli::THREADS, 0, stream, *p));
            });
    });
}
