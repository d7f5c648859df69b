/*
 * swiglu.cu: y = silu(gate) up, and back, a pack a thread.
 */
#include "elements.cuh"

namespace cpli
{

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    swiglu(const __grid_constant__ cpl_swiglu p)
{
    each_place(p.n_rows, p.width / V, [&](int64_t row, int64_t column) {
        const int64_t at = row * p.stride + column * V;
        const auto gate = load<T, V>(p.gate, at);
        auto y = load<T, V>(p.up, at);
#pragma unroll
        for (int i = 0; i < V; i++)
            y.at[i] *= silu(gate.at[i]);
        store<T, V>(p.y, row * p.width + column * V, y);
    });
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    swiglu_backward(const __grid_constant__ cpl_swiglu_backward p)
{
    each_place(p.n_rows, p.width / V, [&](int64_t row, int64_t column) {
        const int64_t at = row * p.stride + column * V;
        const auto dy = load<T, V>(p.dy, row * p.width + column * V);
        auto gate = load<T, V>(p.gate, at);
        auto up = load<T, V>(p.up, at);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const sum_t<T> x = gate.at[i];
            gate.at[i] = dy.at[i] * up.at[i] * silu_slope(x);
            up.at[i] = dy.at[i] * silu(x);
        }
        store<T, V>(p.dgate, at, gate);
        store<T, V>(p.dup, at, up);
    });
}

} // namespace cpli

int cpl_cuda_swiglu(const cpl_swiglu *p, int32_t dtype, int32_t way,
                    cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit =
            cpli::packs_fit<T>(p->width, {p->gate, p->up, p->y}, {p->stride});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            const auto plane = cpli::plane_of(p->n_rows, p->width / V);
            return CPLI_LAUNCH((cpli::swiglu<T, V>), plane.grid, plane.block, 0,
                               stream, *p);
        });
    });
}

int cpl_cuda_swiglu_backward(const cpl_swiglu_backward *p, int32_t dtype,
                             int32_t way, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit = cpli::packs_fit<T>(
            p->width, {p->gate, p->up, p->dy, p->dgate, p->dup}, {p->stride});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            const auto plane = cpli::plane_of(p->n_rows, p->width / V);
            return CPLI_LAUNCH((cpli::swiglu_backward<T, V>), plane.grid,
                               plane.block, 0, stream, *p);
        });
    });
}
