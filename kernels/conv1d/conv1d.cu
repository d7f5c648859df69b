/*
 * conv1d.cu: depthwise causal convolution over spans, then SiLU, and back.
 *   pre[t] = bias + sum_j weight[j] x[t - (W-1) + j],  y = silu(pre)
 *   dpre[t] = dy[t] silu'(pre[t]),  dx[t] = sum_j weight[j] dpre[t + (W-1) - j]
 * The rows t < 0 of a span are its halo.
 */
#include "elements.cuh"

namespace cpli
{

/* Where a row is: row t of a span, or in none (span -1). */
struct row_place {
    int64_t span, t;
};

/* The first span that ends behind the row has it, or none. */
static __device__ __forceinline__ row_place place_of(const cpl_span *spans,
                                                     int64_t n_spans,
                                                     int64_t row)
{
    int64_t low = 0;
    int64_t high = n_spans;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (spans[middle].slot + spans[middle].length > row)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == n_spans || spans[low].slot > row)
        return {-1, 0};
    return {low, row - spans[low].slot};
}

/* Row t of a span, or of its halo where t < 0; no halo: zeros. */
template <class T, class P>
static __device__ __forceinline__ sum_t<T> input_at(const P &p, int64_t span,
                                                    int64_t t, int64_t c)
{
    if (t >= 0)
        return get(static_cast<const T *>(
            p.x)[(p.spans[span].slot + t) * p.x_stride + c]);
    if (p.halo == nullptr)
        return 0;
    const int64_t row = (span + 1) * (p.width - 1) + t;
    return get(static_cast<const T *>(p.halo)[row * p.channels + c]);
}

template <class T, class P>
static __device__ __forceinline__ sum_t<T> pre_at(const P &p, int64_t span,
                                                  int64_t t, int64_t c)
{
    const T *weight = static_cast<const T *>(p.weight) + c * p.width;
    sum_t<T> pre = 0;
    if (p.bias != nullptr)
        pre = get(static_cast<const T *>(p.bias)[c]);
    for (int64_t j = 0; j < p.width; j++)
        pre += get(weight[j]) * input_at<T>(p, span, t - (p.width - 1) + j, c);
    return pre;
}

template <class T>
static __device__ __forceinline__ sum_t<T>
dpre_at(const cpl_conv1d_backward &p, int64_t span, int64_t t, int64_t c)
{
    const int64_t at = (p.spans[span].slot + t) * p.channels + c;
    const sum_t<T> dy = get(static_cast<const T *>(p.dy)[at]);
    return p.silu ? dy * silu_slope(pre_at<T>(p, span, t, c)) : dy;
}

/* What row t of a span, or of its halo, gets back. */
template <class T>
static __device__ __forceinline__ sum_t<T>
slope_at(const cpl_conv1d_backward &p, int64_t span, int64_t t, int64_t c)
{
    const T *weight = static_cast<const T *>(p.weight) + c * p.width;
    sum_t<T> sum = 0;
    for (int64_t j = p.width - 1; j >= 0; j--) {
        const int64_t user = t + (p.width - 1) - j;
        if (user >= 0 && user < p.spans[span].length)
            sum += get(weight[j]) * dpre_at<T>(p, span, user, c);
    }
    return sum;
}

/* ---- naive: a thread an element; what others have is made again ---- */

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    conv1d_naive(const __grid_constant__ cpl_conv1d p)
{
    each_place(p.n_rows, p.channels, [&](int64_t row, int64_t c) {
        const row_place at = place_of(p.spans, p.n_spans, row);
        sum_t<T> y = 0;
        if (at.span >= 0)
            y = pre_at<T>(p, at.span, at.t, c);
        static_cast<T *>(p.y)[row * p.channels + c] =
            put<T>(p.silu && at.span >= 0 ? silu(y) : y);
    });
}

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    conv1d_backward_naive(const __grid_constant__ cpl_conv1d_backward p)
{
    each_place(p.n_rows, p.channels, [&](int64_t row, int64_t c) {
        const row_place at = place_of(p.spans, p.n_spans, row);
        sum_t<T> dx = 0;
        if (at.span >= 0)
            dx = slope_at<T>(p, at.span, at.t, c);
        static_cast<T *>(p.dx)[row * p.dx_stride + c] = put<T>(dx);
    });
}

/* There is only a row or so of it for each span: one way serves both. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    conv1d_halo_backward(const __grid_constant__ cpl_conv1d_backward p)
{
    const int64_t depth = p.width - 1;
    each_place(p.n_spans * depth, p.channels, [&](int64_t row, int64_t c) {
        const int64_t span = row / depth;
        static_cast<T *>(p.dhalo)[row * p.channels + c] =
            put<T>(slope_at<T>(p, span, row % depth - depth, c));
    });
}

/* A thread a channel and tap, row after row; the first tap has the bias. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    conv1d_weight_naive(const __grid_constant__ cpl_conv1d_backward p)
{
    using W = wide_t<T>;
    const int64_t n = p.channels * p.width;
    for (int64_t i = first_index(); i < n; i += index_step()) {
        const int64_t c = i / p.width;
        const int64_t j = i % p.width;
        W weight = 0;
        W bias = 0;
        for (int64_t span = 0; span < p.n_spans; span++)
            for (int64_t t = 0; t < p.spans[span].length; t++) {
                const W dpre = dpre_at<T>(p, span, t, c);
                weight += dpre * input_at<T>(p, span, t - (p.width - 1) + j, c);
                bias += dpre;
            }
        if (p.grad_weight != nullptr)
            static_cast<W *>(p.grad_weight)[i] += weight;
        if (p.grad_bias != nullptr && j == 0)
            static_cast<W *>(p.grad_bias)[c] += bias;
    }
}

/* ---- launches ---- */

template <class T>
static int halo_backward(const cpl_conv1d_backward *p, cpl_cuda_stream stream)
{
    const int64_t n = p->n_spans * (p->width - 1);
    if (p->dhalo == nullptr || n == 0)
        return cudaSuccess;
    const plane at = plane_of(n, p->channels);
    return CPLI_LAUNCH(conv1d_halo_backward<T>, at.grid, at.block, 0, stream,
                       *p);
}

template <class T>
static int weight_naive(const cpl_conv1d_backward *p, cpl_cuda_stream stream)
{
    if (p->grad_weight == nullptr && p->grad_bias == nullptr)
        return cudaSuccess;
    return CPLI_LAUNCH(conv1d_weight_naive<T>,
                       blocks_for(p->channels * p->width), THREADS, 0, stream,
                       *p);
}

template <class T>
static int backward_naive(const cpl_conv1d_backward *p, cpl_cuda_stream stream)
{
    if (p->n_rows == 0)
        return cudaSuccess;
    const plane at = plane_of(p->n_rows, p->channels);
    return CPLI_LAUNCH(conv1d_backward_naive<T>, at.grid, at.block, 0, stream,
                       *p);
}

} // namespace cpli

int cpl_cuda_conv1d(const cpl_conv1d *p, int32_t dtype, int32_t,
                    cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->channels == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const cpli::plane at = cpli::plane_of(p->n_rows, p->channels);
        return CPLI_LAUNCH(cpli::conv1d_naive<T>, at.grid, at.block, 0, stream,
                           *p);
    });
}

int cpl_cuda_conv1d_backward(const cpl_conv1d_backward *p, int32_t dtype,
                             int32_t, cpl_cuda_stream stream)
{
    if (p->channels == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        int error = cpli::backward_naive<T>(p, stream);
        if (error == cudaSuccess)
            error = cpli::halo_backward<T>(p, stream);
        if (error == cudaSuccess)
            error = cpli::weight_naive<T>(p, stream);
        return error;
    });
}
