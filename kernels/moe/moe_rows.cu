/*
 * moe_rows.cu: rows to the slots of their experts, and what the experts made of
 * them back to the rows, weighted. The naive way has packs of one element, and
 * a thread where the other has a warp.
 */
#include "elements.cuh"
#include "moe/team.cuh"

namespace cpli
{

/* ---- dispatch ---- */

template <class T, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    moe_dispatch(const __grid_constant__ cpl_moe_dispatch p)
{
    using raw = pack<T, V>;
    each_place(p.n_rows, p.width / V, [&](int64_t row, int64_t i) {
        const raw x = static_cast<const raw *>(p.x)[row * (p.width / V) + i];
        for (int64_t j = 0; j < p.top_k; j++) {
            const int64_t place = p.places[row * p.top_k + j];
            if (place >= 0)
                static_cast<raw *>(p.y)[place * (p.width / V) + i] = x;
        }
    });
}

/* ---- combine ---- */

template <class T, int V>
__device__ __forceinline__ void add(pack<sum_t<T>, V> &sum, sum_t<T> weight,
                                    const void *from, int64_t at)
{
    const auto x = load<T, V>(from, at);
#pragma unroll
    for (int i = 0; i < V; i++)
        sum.at[i] += weight * x.at[i];
}

/* How much of a row's shared expert there is: sigmoid(its gate). */
template <class T>
__device__ __forceinline__ sum_t<T> share_of(const cpl_moe_combine &p,
                                             int64_t row)
{
    return p.shared == nullptr
               ? 0
               : sigmoid(get(static_cast<const T *>(p.shared_gate)[row]));
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    moe_combine(const __grid_constant__ cpl_moe_combine p)
{
    each_place(p.n_rows, p.width / V, [&](int64_t row, int64_t column) {
        const int64_t *places = p.places + row * p.top_k;
        const wide_t<T> *weights = static_cast<const wide_t<T> *>(p.weights);
        const sum_t<T> share = share_of<T>(p, row);
        const int64_t at = row * p.width + column * V;
        pack<sum_t<T>, V> sum = {};
        const bool is_routed = places[0] >= 0;
        for (int64_t j = 0; is_routed && j < p.top_k; j++)
            add<T, V>(sum, weights == nullptr ? 1 : weights[row * p.top_k + j],
                      p.h, places[j] * p.width + column * V);
        if (is_routed && p.shared != nullptr)
            add<T, V>(sum, share, p.shared, at);
        store<T, V>(p.y, at, sum);
    });
}

/* ---- combine, backward ---- */

/* to = scale dy, and the product of dy and x, over a row. */
template <int LANES, class T, int V>
__device__ __forceinline__ sum_t<T> scale_row(T *to, sum_t<T> scale,
                                              const T *dy, const T *x,
                                              int64_t width, int lane)
{
    sum_t<T> dot = 0;
    for (int64_t i = lane * V; i < width; i += LANES * V) {
        auto slope = load<T, V>(dy, i);
        const auto value = load<T, V>(x, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            dot += slope.at[j] * value.at[j];
            slope.at[j] *= scale;
        }
        store<T, V>(to, i, slope);
    }
    return team_sum<LANES>(dot);
}

template <int LANES, class T, int V>
__device__ __forceinline__ void
shared_backward(const cpl_moe_combine_backward &p, int64_t row, int lane)
{
    const cpl_moe_combine &f = p.forward;
    const sum_t<T> share = share_of<T>(f, row);
    T *dshared = static_cast<T *>(p.dshared) + row * f.width;
    const bool is_routed = f.places[row * f.top_k] >= 0;
    sum_t<T> slope = 0;
    if (is_routed)
        slope = scale_row<LANES, T, V>(
            dshared, share, static_cast<const T *>(p.dy) + row * f.width,
            static_cast<const T *>(f.shared) + row * f.width, f.width, lane);
    else
        for (int64_t i = lane; i < f.width; i += LANES)
            dshared[i] = put<T>(0);
    if (lane == 0)
        static_cast<T *>(p.dshared_gate)[row] =
            put<T>(is_routed ? slope * share * (1 - share) : 0);
}

/* Of the j-th choice of a row. */
template <int LANES, class T, int V>
__device__ __forceinline__ void
choice_backward(const cpl_moe_combine_backward &p, int64_t row, int64_t j,
                int lane)
{
    const cpl_moe_combine &f = p.forward;
    const int64_t at = row * f.top_k + j, place = f.places[at];
    sum_t<T> slope = 0;
    if (place >= 0)
        slope = scale_row<LANES, T, V>(
            static_cast<T *>(p.dh) + place * f.width,
            static_cast<const wide_t<T> *>(f.weights)[at],
            static_cast<const T *>(p.dy) + row * f.width,
            static_cast<const T *>(f.h) + place * f.width, f.width, lane);
    if (lane == 0)
        static_cast<wide_t<T> *>(p.dweights)[at] = slope;
}

template <int LANES, class T, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    moe_combine_backward(const __grid_constant__ cpl_moe_combine_backward p)
{
    each_row<LANES>(p.forward.n_rows, [&](int64_t row, int lane) {
        for (int64_t j = 0; j < p.forward.top_k; j++)
            choice_backward<LANES, T, V>(p, row, j, lane);
        if (p.forward.shared != nullptr)
            shared_backward<LANES, T, V>(p, row, lane);
    });
}

template <class T>
static int launch_combine_backward(const cpl_moe_combine_backward *p,
                                   int32_t way, cpl_cuda_stream stream)
{
    const cpl_moe_combine *f = &p->forward;
    if (way == CPL_CUDA_NAIVE)
        return CPLI_LAUNCH((moe_combine_backward<1, T, 1>),
                           blocks_for(f->n_rows), THREADS, 0, stream, *p);
    const bool fit =
        packs_fit<T>(f->width, {f->h, f->shared, p->dy, p->dh, p->dshared}, {});
    return by_pack<T>(fit, [&](auto v) {
        return CPLI_LAUNCH((moe_combine_backward<WARP, T, v>),
                           blocks_for(f->n_rows, THREADS / WARP), THREADS, 0,
                           stream, *p);
    });
}

} // namespace cpli

int cpl_cuda_moe_dispatch(const cpl_moe_dispatch *p, int32_t dtype, int32_t way,
                          cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit = cpli::packs_fit<T>(p->width, {p->x, p->y}, {});
        return cpli::by_pack<T>(way == CPL_CUDA_BEST && fit, [&](auto v) {
            const cpli::plane on = cpli::plane_of(p->n_rows, p->width / v);
            return CPLI_LAUNCH((cpli::moe_dispatch<T, v>), on.grid, on.block, 0,
                               stream, *p);
        });
    });
}

int cpl_cuda_moe_combine(const cpl_moe_combine *p, int32_t dtype, int32_t way,
                         cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit =
            cpli::packs_fit<T>(p->width, {p->h, p->shared, p->y}, {});
        return cpli::by_pack<T>(way == CPL_CUDA_BEST && fit, [&](auto v) {
            const cpli::plane on = cpli::plane_of(p->n_rows, p->width / v);
            return CPLI_LAUNCH((cpli::moe_combine<T, v>), on.grid, on.block, 0,
                               stream, *p);
        });
    });
}

int cpl_cuda_moe_combine_backward(const cpl_moe_combine_backward *p,
                                  int32_t dtype, int32_t way,
                                  cpl_cuda_stream stream)
{
    if (p->forward.n_rows == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch_combine_backward<decltype(type)>(p, way, stream);
    });
}
