/*
 * gated_rms_norm.cu: y = x r weight silu(z) with r = 1 / sqrt(mean x^2 + eps),
 * and back: with t = dy weight silu(z), dx = r (t - x r^2 mean(t x)) and
 * dz = dy weight x r silu'(z).
 */
#include "rms.cuh"

namespace cpli
{

/* Row i is head i % heads of token i / heads. */
static __device__ __forceinline__ int64_t gate_at(int64_t i, int64_t heads,
                                                  int64_t stride, int64_t d)
{
    return i / heads * stride + i % heads * d;
}

/* A thread a row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gated_rms_norm_naive(const __grid_constant__ cpl_gated_rms_norm p)
{
    const auto weight = static_cast<const T *>(p.weight);
    for (int64_t row = first_index(); row < p.n_rows; row += index_step()) {
        const T *x = static_cast<const T *>(p.x) + row * p.width;
        const T *z = static_cast<const T *>(p.z) +
                     gate_at(row, p.heads, p.z_stride, p.width);
        T *y = static_cast<T *>(p.y) + row * p.width;
        const sum_t<T> r = inverse_rms(x, p.width, p.eps);
        for (int64_t i = 0; i < p.width; i++)
            y[i] = put<T>(get(x[i]) * r * get(weight[i]) * silu(get(z[i])));
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gated_rms_norm_backward_naive(
        const __grid_constant__ cpl_gated_rms_norm_backward p)
{
    const auto weight = static_cast<const T *>(p.weight);
    for (int64_t row = first_index(); row < p.n_rows; row += index_step()) {
        const int64_t gate = gate_at(row, p.heads, p.z_stride, p.width);
        const T *x = static_cast<const T *>(p.x) + row * p.width;
        const T *z = static_cast<const T *>(p.z) + gate;
        const T *dy = static_cast<const T *>(p.dy) + row * p.width;
        T *dx = static_cast<T *>(p.dx) + row * p.width;
        T *dz = static_cast<T *>(p.dz) + gate;
        const sum_t<T> r = inverse_rms(x, p.width, p.eps);
        sum_t<T> pull = 0;
        for (int64_t i = 0; i < p.width; i++)
            pull += get(dy[i]) * get(weight[i]) * silu(get(z[i])) * get(x[i]);
        pull *= r * r / static_cast<sum_t<T>>(p.width);
        for (int64_t i = 0; i < p.width; i++) {
            const sum_t<T> t = get(dy[i]) * get(weight[i]);
            const sum_t<T> along = get(x[i]) * pull;
            dz[i] = put<T>(t * get(x[i]) * r * silu_slope(get(z[i])));
            dx[i] = put<T>(r * (t * silu(get(z[i])) - along));
        }
    }
}

/* A thread a column, row after row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gated_rms_norm_weight_naive(
        const __grid_constant__ cpl_gated_rms_norm_backward p)
{
    const auto grad = static_cast<wide_t<T> *>(p.grad_weight);
    for (int64_t i = first_index(); i < p.width; i += index_step()) {
        wide_t<T> sum = 0;
        for (int64_t row = 0; row < p.n_rows; row++) {
            const T *x = static_cast<const T *>(p.x) + row * p.width;
            const T *z = static_cast<const T *>(p.z) +
                         gate_at(row, p.heads, p.z_stride, p.width);
            const T *dy = static_cast<const T *>(p.dy) + row * p.width;
            sum += get(dy[i]) * get(x[i]) * inverse_rms(x, p.width, p.eps) *
                   silu(get(z[i]));
        }
        grad[i] += sum;
    }
}

template <class T>
static int backward_naive(const cpl_gated_rms_norm_backward *p,
                          cpl_cuda_stream stream)
{
    if (p->grad_weight != nullptr) {
        int error = CPLI_LAUNCH(gated_rms_norm_weight_naive<T>,
                                blocks_for(p->width), THREADS, 0, stream, *p);
        if (error != cudaSuccess)
            return error;
    }
    return CPLI_LAUNCH(gated_rms_norm_backward_naive<T>, blocks_for(p->n_rows),
                       THREADS, 0, stream, *p);
}

/* ---- a group a row ---- */

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gated_rms_norm(const __grid_constant__ cpl_gated_rms_norm p)
{
    each_row<G>(p.n_rows, [&](int64_t row, int member) {
        const T *x = static_cast<const T *>(p.x) + row * p.width;
        const int64_t gate = gate_at(row, p.heads, p.z_stride, p.width);
        const sum_t<T> r =
            group_inverse_rms<T, V, G>(x, p.width, p.eps, member);
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto weight = load<T, V>(p.weight, i * V);
            const auto z = load<T, V>(p.z, gate + i * V);
            auto y = load<T, V>(x, i * V);
#pragma unroll
            for (int j = 0; j < V; j++)
                y.at[j] = y.at[j] * r * weight.at[j] * silu(z.at[j]);
            store<T, V>(p.y, row * p.width + i * V, y);
        }
    });
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT) gated_rms_norm_backward(
    const __grid_constant__ cpl_gated_rms_norm_backward p)
{
    using S = sum_t<T>;
    const S n = static_cast<S>(p.width);
    each_row<G>(p.n_rows, [&](int64_t row, int member) {
        const int64_t at = row * p.width;
        const int64_t gate = gate_at(row, p.heads, p.z_stride, p.width);
        S squares = 0;
        S along = 0;
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
            const auto z = load<T, V>(p.z, gate + i * V);
            const auto dy = load<T, V>(p.dy, at + i * V);
            const auto weight = load<T, V>(p.weight, i * V);
#pragma unroll
            for (int j = 0; j < V; j++) {
                squares += x.at[j] * x.at[j];
                along += dy.at[j] * weight.at[j] * silu(z.at[j]) * x.at[j];
            }
        }
        const S r =
            reciprocal_root(group_sum<G>(squares) / n + static_cast<S>(p.eps));
        const S pull = r * r * group_sum<G>(along) / n;
        for (int64_t i = member; i < p.width / V; i += G) {
            const auto x = load<T, V>(p.x, at + i * V);
            const auto weight = load<T, V>(p.weight, i * V);
            auto z = load<T, V>(p.z, gate + i * V);
            auto dy = load<T, V>(p.dy, at + i * V);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const S t = dy.at[j] * weight.at[j];
                const S s = sigmoid(z.at[j]);
                dy.at[j] = r * (t * z.at[j] * s - x.at[j] * pull);
                z.at[j] = t * x.at[j] * r * s * (1 + z.at[j] * (1 - s));
            }
            store<T, V>(p.dx, at + i * V, dy);
            store<T, V>(p.dz, gate + i * V, z);
        }
    });
}

template <class T, int V, int G>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gated_rms_norm_weight(const __grid_constant__ cpl_gated_rms_norm_backward p,
                          const __grid_constant__ chunk_sums<T> chunks)
{
    using W = wide_t<T>;
    sum_columns<T, V, G>(
        chunks, p.width, p.grad_weight, [&](int64_t row, int member, W *sums) {
            const int64_t at = row * p.width;
            const int64_t gate = gate_at(row, p.heads, p.z_stride, p.width);
            const T *x = static_cast<const T *>(p.x) + at;
            const W r = group_inverse_rms<T, V, G>(x, p.width, p.eps, member);
            for (int64_t i = member; i < p.width / V; i += G) {
                const auto values = load<T, V>(x, i * V);
                const auto z = load<T, V>(p.z, gate + i * V);
                const auto dy = load<T, V>(p.dy, at + i * V);
#pragma unroll
                for (int j = 0; j < V; j++)
                    sums[i * V + j] +=
                        dy.at[j] * values.at[j] * r * silu(z.at[j]);
            }
        });
}

template <class T>
static int backward(const cpl_gated_rms_norm_backward *p,
                    cpl_cuda_stream stream)
{
    const bool fit = packs_fit<T>(
        p->width, {p->x, p->z, p->weight, p->dy, p->dx, p->dz}, {p->z_stride});
    const auto chunks =
        chunks_in<T>(p->dx, p->width, p->n_rows, 1, p->dx == p->dy);
    return by_row<T>(fit, p->n_rows, p->width, [&](auto v, auto g, unsigned n) {
        constexpr int V = decltype(v)::value;
        constexpr int G = decltype(g)::value;
        const size_t shared = column_bytes<T>(p->width, G);
        int error = cudaSuccess;
        if (shared > SHARED_BYTES)
            return backward_naive<T>(p, stream);
        if (p->grad_weight != nullptr)
            error = CPLI_LAUNCH((gated_rms_norm_weight<T, V, G>),
                                static_cast<unsigned>(chunks.n_chunks), THREADS,
                                shared, stream, *p, chunks);
        if (error == cudaSuccess)
            error = launch_add_chunks<T>(chunks, p->width, 0, 1, p->grad_weight,
                                         stream);
        if (error != cudaSuccess)
            return error;
        return static_cast<int>(CPLI_LAUNCH((gated_rms_norm_backward<T, V, G>),
                                            n, THREADS, 0, stream, *p));
    });
}

} // namespace cpli

int cpl_cuda_gated_rms_norm(const cpl_gated_rms_norm *p, int32_t dtype,
                            int32_t way, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_NAIVE)
            return static_cast<int>(CPLI_LAUNCH(cpli::gated_rms_norm_naive<T>,
                                                cpli::blocks_for(p->n_rows),
                                                cpli::THREADS, 0, stream, *p));
        const bool fit = cpli::packs_fit<T>(
            p->width, {p->x, p->z, p->weight, p->y}, {p->z_stride});
        return cpli::by_row<T>(
            fit, p->n_rows, p->width, [&](auto v, auto g, unsigned n) {
                constexpr int V = decltype(v)::value;
                constexpr int G = decltype(g)::value;
                return static_cast<int>(
                    CPLI_LAUNCH((cpli::gated_rms_norm<T, V, G>), n,
                                cpli::THREADS, 0, stream, *p));
            });
    });
}

int cpl_cuda_gated_rms_norm_backward(const cpl_gated_rms_norm_backward *p,
                                     int32_t dtype, int32_t way,
                                     cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return way == CPL_CUDA_NAIVE ? cpli::backward_naive<T>(p, stream)
                                     : cpli::backward<T>(p, stream);
    });
}
