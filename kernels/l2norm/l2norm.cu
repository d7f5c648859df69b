/*
 * l2norm.cu: y = x r with r = 1 / sqrt(sum x^2 + eps) per head, and back:
 * dx = r (dy - x r^2 (dy . x)).
 */
#include "rows.cuh"

namespace cpli
{

template <class T>
static __device__ sum_t<T> product(const T *x, const T *y, int64_t n)
{
    sum_t<T> sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += get(x[i]) * get(y[i]);
    return sum;
}

/* Where a head of the heads of all rows begins. */
static __device__ __forceinline__ int64_t head_at(int64_t head, int64_t heads,
                                                  int64_t stride, int64_t width)
{
    return head / heads * stride + head % heads * width;
}

/* A thread a head. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    l2norm_naive(const __grid_constant__ cpl_l2norm p)
{
    const int64_t n = p.n_rows * p.heads;
    for (int64_t head = first_index(); head < n; head += index_step()) {
        const T *x = static_cast<const T *>(p.x) +
                     head_at(head, p.heads, p.x_stride, p.width);
        T *y =
            static_cast<T *>(p.y) + head_at(head, p.heads, p.y_stride, p.width);
        const sum_t<T> r = reciprocal_root(product(x, x, p.width) +
                                           static_cast<sum_t<T>>(p.eps));
        for (int64_t i = 0; i < p.width; i++)
            y[i] = put<T>(get(x[i]) * r);
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    l2norm_backward_naive(const __grid_constant__ cpl_l2norm_backward p)
{
    const int64_t n = p.n_rows * p.heads;
    for (int64_t head = first_index(); head < n; head += index_step()) {
        const T *x = static_cast<const T *>(p.x) +
                     head_at(head, p.heads, p.x_stride, p.width);
        const T *dy = static_cast<const T *>(p.dy) +
                      head_at(head, p.heads, p.dy_stride, p.width);
        T *dx = static_cast<T *>(p.dx) +
                head_at(head, p.heads, p.dx_stride, p.width);
        const sum_t<T> r = reciprocal_root(product(x, x, p.width) +
                                           static_cast<sum_t<T>>(p.eps));
        const sum_t<T> pull = r * r * product(dy, x, p.width);
        for (int64_t i = 0; i < p.width; i++)
            dx[i] = put<T>(r * (get(dy[i]) - get(x[i]) * pull));
    }
}

/* ---- a group a head ---- */

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    l2norm(const __grid_constant__ cpl_l2norm p)
{
    using S = sum_t<T>;
    each_row<G>(p.n_rows * p.heads, [&](int64_t head, int member) {
        const int64_t at = head_at(head, p.heads, p.x_stride, p.width);
        const int64_t to = head_at(head, p.heads, p.y_stride, p.width);
        S squares = 0;
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                squares += x.at[j] * x.at[j];
        }
        const S r =
            reciprocal_root(group_sum<G>(squares) + static_cast<S>(p.eps));
        for (int64_t i = member; i < p.width / V; i += G) {
            auto y = load<T, V>(p.x, at + i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                y.at[j] *= r;
            store<T, V>(p.y, to + i * V, y);
        }
    });
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    l2norm_backward(const __grid_constant__ cpl_l2norm_backward p)
{
    using S = sum_t<T>;
    each_row<G>(p.n_rows * p.heads, [&](int64_t head, int member) {
        const int64_t at = head_at(head, p.heads, p.x_stride, p.width);
        const int64_t at_dy = head_at(head, p.heads, p.dy_stride, p.width);
        const int64_t to = head_at(head, p.heads, p.dx_stride, p.width);
        S squares = 0;
        S along = 0;
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
            const auto dy = load<T, V>(p.dy, at_dy + i * V);
#pragma unroll
            for (int j = 0; j < V; j++) {
                squares += x.at[j] * x.at[j];
                along += dy.at[j] * x.at[j];
            }
        }
        const S r =
            reciprocal_root(group_sum<G>(squares) + static_cast<S>(p.eps));
        const S pull = r * r * group_sum<G>(along);
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
            auto dx = load<T, V>(p.dy, at_dy + i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                dx.at[j] = r * (dx.at[j] - x.at[j] * pull);
            store<T, V>(p.dx, to + i * V, dx);
        }
    });
}

} // namespace cpli

int cpl_cuda_l2norm(const cpl_l2norm *p, int32_t dtype, int32_t way,
                    cpl_cuda_stream stream)
{
    const int64_t n = p->n_rows * p->heads;
    if (n == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(CPLI_LAUNCH(cpli::l2norm_naive<T>,
                                                cpli::blocks_for(n),
                                                cpli::THREADS, 0, stream, *p));
        const bool fit = cpli::packs_fit<T>(p->width, {p->x, p->y},
                                            {p->x_stride, p->y_stride});
        return cpli::by_row<T>(
            fit, n, p->width, [&](auto v, auto g, unsigned blocks) {
                constexpr int V = decltype(v)::value;
                constexpr int G = decltype(g)::value;
                return static_cast<int>(CPLI_LAUNCH((cpli::l2norm<T, V, G>),
                                                    blocks, cpli::THREADS, 0,
                                                    stream, *p));
            });
    });
}

int cpl_cuda_l2norm_backward(const cpl_l2norm_backward *p, int32_t dtype,
                             int32_t way, cpl_cuda_stream stream)
{
    const int64_t n = p->n_rows * p->heads;
    if (n == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(CPLI_LAUNCH(cpli::l2norm_backward_naive<T>,
                                                cpli::blocks_for(n),
                                                cpli::THREADS, 0, stream, *p));
        const bool fit =
            cpli::packs_fit<T>(p->width, {p->x, p->dy, p->dx},
                               {p->x_stride, p->dy_stride, p->dx_stride});
        return cpli::by_row<T>(
            fit, n, p->width, [&](auto v, auto g, unsigned blocks) {
                constexpr int V = decltype(v)::value;
                constexpr int G = decltype(g)::value;
                return static_cast<int>(
                    CPLI_LAUNCH((cpli::l2norm_backward<T, V, G>), blocks,
                                cpli::THREADS, 0, stream, *p));
            });
    });
}
