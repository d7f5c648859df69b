/*
 * cross_entropy.cu: loss of a row = log sum exp(logits) - logits[label], its
 * gradient = (softmax(logits) - onehot(label)) grad_scale. Losses are summed in
 * double, row after row.
 */
#include "elements.cuh"

namespace cpli
{

/* The largest logit, and the sum of what e^(x - max) is; n >= 1. */
struct softmax_sums {
    double max, sum;
};

template <class T> static __device__ softmax_sums sums_of(const T *x, int64_t n)
{
    sum_t<T> max = get(x[0]);
    for (int64_t i = 1; i < n; i++)
        max = get(x[i]) > max ? get(x[i]) : max;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exponential(get(x[i]) - max);
    return {max, sum};
}

/* One thread, row after row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    cross_entropy_loss_naive(const __grid_constant__ cpl_cross_entropy p)
{
    if (first_index() != 0)
        return;
    double loss = 0;
    for (int64_t row = 0; row < p.n_rows; row++) {
        const T *logits = static_cast<const T *>(p.logits) + row * p.vocab;
        if (p.labels[row] < 0)
            continue;
        const softmax_sums s = sums_of(logits, p.vocab);
        loss += s.max + log(s.sum) -
                static_cast<double>(get(logits[p.labels[row]]));
    }
    *p.loss_sum = loss == loss ? loss : static_cast<double>(NAN);
}

/* A thread a row; dlogits may be logits. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    cross_entropy_slope_naive(const __grid_constant__ cpl_cross_entropy p)
{
    using S = sum_t<T>;
    for (int64_t row = first_index(); row < p.n_rows; row += index_step()) {
        const T *logits = static_cast<const T *>(p.logits) + row * p.vocab;
        T *dlogits = static_cast<T *>(p.dlogits) + row * p.vocab;
        const int64_t label = p.labels[row];
        softmax_sums s = {0, 1};
        if (label >= 0)
            s = sums_of(logits, p.vocab);
        const S factor = static_cast<S>(label < 0 ? 0 : p.grad_scale / s.sum);
        const S onehot = static_cast<S>(p.grad_scale);
        for (int64_t i = 0; i < p.vocab; i++) {
            const S x = label < 0 ? 0 : get(logits[i]) - static_cast<S>(s.max);
            dlogits[i] =
                put<T>(exponential(x) * factor - (i == label ? onehot : 0));
        }
    }
}

template <class T>
static int naive(const cpl_cross_entropy *p, cpl_cuda_stream stream)
{
    int error = CPLI_LAUNCH(cross_entropy_loss_naive<T>, 1, 1, 0, stream, *p);
    if (error != cudaSuccess || p->dlogits == nullptr || p->n_rows == 0)
        return error;
    return CPLI_LAUNCH(cross_entropy_slope_naive<T>, blocks_for(p->n_rows),
                       THREADS, 0, stream, *p);
}

} // namespace cpli

int cpl_cuda_cross_entropy(const cpl_cross_entropy *p, int32_t dtype, int32_t,
                           cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::naive<decltype(type)>(p, stream);
    });
}
