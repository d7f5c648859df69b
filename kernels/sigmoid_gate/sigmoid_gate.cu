/*
 * sigmoid_gate.cu: y = x sigmoid(gate), and back, a pack a thread. The heads of
 * all rows stand one after another; only the gate has strides.
 */
#include "elements.cuh"

namespace cpli
{

template <class P>
static __device__ __forceinline__ int64_t gate_at(const P &p, int64_t head)
{
    return head / p.heads * p.gate_stride + head % p.heads * p.gate_head_stride;
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    sigmoid_gate(const __grid_constant__ cpl_sigmoid_gate p)
{
    each_place(p.n_rows * p.heads, p.width / V, [&](int64_t head, int64_t i) {
        const int64_t at = head * p.width + i * V;
        const auto gate = load<T, V>(p.gate, gate_at(p, head) + i * V);
        auto y = load<T, V>(p.x, at);
#pragma unroll
        for (int j = 0; j < V; j++)
            y.at[j] *= sigmoid(gate.at[j]);
        store<T, V>(p.y, at, y);
    });
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    sigmoid_gate_backward(const __grid_constant__ cpl_sigmoid_gate_backward p)
{
    each_place(p.n_rows * p.heads, p.width / V, [&](int64_t head, int64_t i) {
        const int64_t at = head * p.width + i * V;
        const int64_t at_gate = gate_at(p, head) + i * V;
        const auto x = load<T, V>(p.x, at);
        auto gate = load<T, V>(p.gate, at_gate);
        auto dy = load<T, V>(p.dy, at);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const sum_t<T> s = sigmoid(gate.at[j]);
            gate.at[j] = dy.at[j] * x.at[j] * s * (1 - s);
            dy.at[j] *= s;
        }
        store<T, V>(p.dx, at, dy);
        store<T, V>(p.dgate, at_gate, gate);
    });
}

} // namespace cpli

int cpl_cuda_sigmoid_gate(const cpl_sigmoid_gate *p, int32_t dtype, int32_t way,
                          cpl_cuda_stream stream)
{
    const int64_t n = p->n_rows * p->heads;
    if (n == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit =
            cpli::packs_fit<T>(p->width, {p->x, p->gate, p->y},
                               {p->gate_stride, p->gate_head_stride});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            const auto plane = cpli::plane_of(n, p->width / V);
            return CPLI_LAUNCH((cpli::sigmoid_gate<T, V>), plane.grid,
                               plane.block, 0, stream, *p);
        });
    });
}

int cpl_cuda_sigmoid_gate_backward(const cpl_sigmoid_gate_backward *p,
                                   int32_t dtype, int32_t way,
                                   cpl_cuda_stream stream)
{
    const int64_t n = p->n_rows * p->heads;
    if (n == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit = cpli::packs_fit<T>(
            p->width, {p->x, p->gate, p->dy, p->dx, p->dgate},
            {p->gate_stride, p->gate_head_stride});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            const auto plane = cpli::plane_of(n, p->width / V);
            return CPLI_LAUNCH((cpli::sigmoid_gate_backward<T, V>), plane.grid,
                               plane.block, 0, stream, *p);
        });
    });
}
