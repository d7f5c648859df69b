/*
 * rms_norm.cu: y = x r (weight + offset) with r = 1 / sqrt(mean x^2 + eps), and
 * back: dx = r (t - x r^2 mean(t x)) with t = dy (weight + offset).
 */
#include "elements.cuh"

namespace cpli
{

template <class T>
static __device__ sum_t<T> inverse_rms(const T *x, int64_t n, double eps)
{
    sum_t<T> sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += get(x[i]) * get(x[i]);
    return 1 /
           root(sum / static_cast<sum_t<T>>(n) + static_cast<sum_t<T>>(eps));
}

/* A thread a row. */
template <class T>
__global__ void __launch_bounds__(THREADS)
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
__global__ void __launch_bounds__(THREADS)
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
__global__ void __launch_bounds__(THREADS)
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

} // namespace cpli

int cpl_cuda_rms_norm(const cpl_rms_norm *p, int32_t dtype, int32_t,
                      cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(cpli::rms_norm_naive<T>, cpli::blocks_for(p->n_rows),
                           cpli::THREADS, 0, stream, *p);
    });
}

int cpl_cuda_rms_norm_backward(const cpl_rms_norm_backward *p, int32_t dtype,
                               int32_t, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::backward_naive<decltype(type)>(p, stream);
    });
}
