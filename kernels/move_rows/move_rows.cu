/*
 * move_rows.cu: rows by lists, y[to[i]] = x[from[i]] or += it, a pack a thread.
 */
#include "elements.cuh"

namespace cpli
{

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    move_rows(const __grid_constant__ cpl_move_rows p)
{
    each_place(p.n, p.width / V, [&](int64_t i, int64_t column) {
        const int64_t from = p.from != nullptr ? p.from[i] : i;
        const int64_t to = p.to != nullptr ? p.to[i] : i;
        if (to < 0)
            return;
        const int64_t at = to * p.y_stride + column * V;
        pack<sum_t<T>, V> row = {};
        if (from >= 0)
            row = load<T, V>(p.x, from * p.x_stride + column * V);
        if (p.add) {
            const auto before = load<T, V>(p.y, at);
#pragma unroll
            for (int j = 0; j < V; j++)
                row.at[j] += before.at[j];
        }
        store<T, V>(p.y, at, row);
    });
}

template <class T>
static int launch(const cpl_move_rows *p, bool best, cpl_cuda_stream stream)
{
    const bool fit =
        packs_fit<T>(p->width, {p->x, p->y}, {p->x_stride, p->y_stride});
    return by_pack<T>(fit && best, [&](auto v) {
        constexpr int V = decltype(v)::value;
        const auto plane = plane_of(p->n, p->width / V);
        return CPLI_LAUNCH((move_rows<T, V>), plane.grid, plane.block, 0,
                           stream, *p);
    });
}

} // namespace cpli

int cpl_cuda_move_rows(const cpl_move_rows *p, int32_t dtype, int32_t way,
                       cpl_cuda_stream stream)
{
    const bool best = way == CPL_CUDA_BEST;
    if (p->n == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return p->wide ? cpli::launch<cpli::wide_t<T>>(p, best, stream)
                       : cpli::launch<T>(p, best, stream);
    });
}
