/*
 * rms_norm.cu: y = x r (weight + offset) with r = 1 / sqrt(mean x^2 + eps), and
 * back: dx = r (t - x r^2 mean(t x)) with t = dy (weight + offset).
 */
#include "rms.cuh"

namespace cpli
{

/* A thread a row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm_naive(const __grid_constant__ cpl_rms_norm p)
{
    const auto weight = static_cast<const T *>(p.weight);
    const auto offset = static_cast<sum_t<T>>(p.weight_offset);
    for (int64_t row = first_index(); row < p.n_rows; row += index_step()) {
        const T *x = static_cast<const T *>(p.x) + row * p.x_stride;
        T *y = static_cast<T *>(p.y) + row * p.y_stride;
        const sum_t<T> r = inverse_rms(x, p.width, p.eps);
        for (int64_t i = 0; i < p.width; i++)
            y[i] = put<T>(get(x[i]) * r * (get(weight[i]) + offset));
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm_backward_naive(const __grid_constant__ cpl_rms_norm_backward p)
{
    const auto weight = static_cast<const T *>(p.weight);
    const auto offset = static_cast<sum_t<T>>(p.weight_offset);
    for (int64_t row = first_index(); row < p.n_rows; row += index_step()) {
        const T *x = static_cast<const T *>(p.x) + row * p.x_stride;
        const T *dy = static_cast<const T *>(p.dy) + row * p.dy_stride;
        T *dx = static_cast<T *>(p.dx) + row * p.dx_stride;
        const sum_t<T> r = inverse_rms(x, p.width, p.eps);
        sum_t<T> pull = 0;
        for (int64_t i = 0; i < p.width; i++)
            pull += get(dy[i]) * (get(weight[i]) + offset) * get(x[i]);
        pull *= r * r / static_cast<sum_t<T>>(p.width);
        for (int64_t i = 0; i < p.width; i++)
            dx[i] = put<T>(r * (get(dy[i]) * (get(weight[i]) + offset) -
                                get(x[i]) * pull));
    }
}

/* A thread a column, row after row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm_weight_naive(const __grid_constant__ cpl_rms_norm_backward p)
{
    const auto grad = static_cast<wide_t<T> *>(p.grad_weight);
    for (int64_t i = first_index(); i < p.width; i += index_step()) {
        wide_t<T> sum = 0;
        for (int64_t row = 0; row < p.n_rows; row++) {
            const T *x = static_cast<const T *>(p.x) + row * p.x_stride;
            const T *dy = static_cast<const T *>(p.dy) + row * p.dy_stride;
            sum += get(dy[i]) * get(x[i]) * inverse_rms(x, p.width, p.eps);
        }
        grad[i] += sum;
    }
}

/* dx may be dy, so what reads dy comes first. */
template <class T>
static int backward_naive(const cpl_rms_norm_backward *p,
                          cpl_cuda_stream stream)
{
    if (p->grad_weight != nullptr) {
        int error = CPLI_LAUNCH(rms_norm_weight_naive<T>, blocks_for(p->width),
                                THREADS, 0, stream, *p);
        if (error != cudaSuccess)
            return error;
    }
    return CPLI_LAUNCH(rms_norm_backward_naive<T>, blocks_for(p->n_rows),
                       THREADS, 0, stream, *p);
}

/* ---- a group a row ---- */

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm(const __grid_constant__ cpl_rms_norm p)
{
    const auto offset = static_cast<sum_t<T>>(p.weight_offset);
    each_row<G>(p.n_rows, [&](int64_t row, int member) {
        const T *x = static_cast<const T *>(p.x) + row * p.x_stride;
        const sum_t<T> r =
            group_inverse_rms<T, V, G>(x, p.width, p.eps, member);
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto weight = load<T, V>(p.weight, i * V);
            auto y = load<T, V>(x, i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                y.at[j] = y.at[j] * r * (weight.at[j] + offset);
            store<T, V>(p.y, row * p.y_stride + i * V, y);
        }
    });
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm_backward(const __grid_constant__ cpl_rms_norm_backward p)
{
    using S = sum_t<T>;
    const S offset = static_cast<S>(p.weight_offset);
    const S n = static_cast<S>(p.width);
    each_row<G>(p.n_rows, [&](int64_t row, int member) {
        const int64_t at = row * p.x_stride;
        const int64_t at_dy = row * p.dy_stride;
        S squares = 0;
        S along = 0;
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
            const auto dy = load<T, V>(p.dy, at_dy + i * V);
            const auto weight = load<T, V>(p.weight, i * V);
#pragma unroll
            for (int j = 0; j < V; j++) {
                squares += x.at[j] * x.at[j];
                along += dy.at[j] * (weight.at[j] + offset) * x.at[j];
            }
        }
        const S r =
            reciprocal_root(group_sum<G>(squares) / n + static_cast<S>(p.eps));
        const S pull = r * r * group_sum<G>(along) / n;
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
            const auto weight = load<T, V>(p.weight, i * V);
            auto dx = load<T, V>(p.dy, at_dy + i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                dx.at[j] =
                    r * (dx.at[j] * (weight.at[j] + offset) - x.at[j] * pull);
            store<T, V>(p.dx, row * p.dx_stride + i * V, dx);
        }
    });
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rms_norm_weight(const __grid_constant__ cpl_rms_norm_backward p,
                    const __grid_constant__ chunk_sums<T> chunks)
{
    using W = wide_t<T>;
    sum_columns<T, V, G>(
        chunks, p.width, p.grad_weight, [&](int64_t row, int member, W *sums) {
            const T *x = static_cast<const T *>(p.x) + row * p.x_stride;
            const W r = group_inverse_rms<T, V, G>(x, p.width, p.eps, member);
            for (int64_t i = member; i < p.width / V; i += G) {
                const auto values = load<T, V>(x, i * V);
                const auto dy = load<T, V>(p.dy, row * p.dy_stride + i * V);
#pragma unroll
                for (int j = 0; j < V; j++)
                    sums[i * V + j] += dy.at[j] * values.at[j] * r;
            }
        });
}

/* Of the weight's gradient: in dx, or beside it where that is dy. */
template <class T>
static chunk_sums<T> chunks_of(const cpl_rms_norm_backward *p)
{
    const bool in_place = p->dx == p->dy;
    return chunks_in<T>(in_place ? p->workspace : p->dx,
                        in_place ? p->width : p->dx_stride, p->n_rows, 1,
                        false);
}

template <class T>
static int backward(const cpl_rms_norm_backward *p, cpl_cuda_stream stream)
{
    const bool fit = packs_fit<T>(p->width, {p->x, p->weight, p->dy, p->dx},
                                  {p->x_stride, p->dy_stride, p->dx_stride});
    const auto chunks = chunks_of<T>(p);
    return by_row<T>(fit, p->n_rows, p->width, [&](auto v, auto g, unsigned n) {
        constexpr int V = decltype(v)::value;
        constexpr int G = decltype(g)::value;
        const size_t shared = column_bytes<T>(p->width, G);
        int error = cudaSuccess;
        if (shared > SHARED_BYTES)
            return backward_naive<T>(p, stream);
        if (p->grad_weight != nullptr)
            error = CPLI_LAUNCH((rms_norm_weight<T, V, G>),
                                static_cast<unsigned>(chunks.n_chunks), THREADS,
                                shared, stream, *p, chunks);
        if (error == cudaSuccess)
            error = launch_add_chunks<T>(chunks, p->width, 0, 1, p->grad_weight,
                                         stream);
        if (error != cudaSuccess)
            return error;
        return static_cast<int>(CPLI_LAUNCH((rms_norm_backward<T, V, G>), n,
                                            THREADS, 0, stream, *p));
    });
}

} // namespace cpli

int cpl_cuda_rms_norm(const cpl_rms_norm *p, int32_t dtype, int32_t way,
                      cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(CPLI_LAUNCH(cpli::rms_norm_naive<T>,
                                                cpli::blocks_for(p->n_rows),
                                                cpli::THREADS, 0, stream, *p));
        const bool fit = cpli::packs_fit<T>(p->width, {p->x, p->weight, p->y},
                                            {p->x_stride, p->y_stride});
        return cpli::by_row<T>(
            fit, p->n_rows, p->width, [&](auto v, auto g, unsigned n) {
                constexpr int V = decltype(v)::value;
                constexpr int G = decltype(g)::value;
                return static_cast<int>(CPLI_LAUNCH((cpli::rms_norm<T, V, G>),
                                                    n, cpli::THREADS, 0, stream,
                                                    *p));
            });
    });
}

size_t cpl_cuda_rms_norm_backward_workspace(const cpl_rms_norm_backward *p,
                                            int32_t dtype)
{
    size_t bytes = 0;
    if (p->dx != p->dy || p->grad_weight == nullptr)
        return 0;
    cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        bytes = cpli::chunk_bytes(cpli::chunks_of<T>(p), p->width);
        return cudaSuccess;
    });
    return bytes;
}

int cpl_cuda_rms_norm_backward(const cpl_rms_norm_backward *p, int32_t dtype,
                               int32_t way, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return way == CPL_CUDA_NAIVE ? cpli::backward_naive<T>(p, stream)
                                     : cpli::backward<T>(p, stream);
    });
}
