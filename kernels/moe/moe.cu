/*
 * moe.cu: the routing of rows to experts, and its backward. A row is the work
 * of a team of lanes, each of which has every so manieth expert: a warp, or,
 * the naive way, one thread.
 */
#include "elements.cuh"
#include "moe/team.cuh"

namespace cpli
{

/* ---- choosing ---- */

template <class S> struct choice {
    S logit;
    int32_t expert; /* -1: none */
};

/* Experts stand by their logits, the largest first, the lower index where they
 * are equal. NaN is the least of all, so that whatever the logits are, the
 * chosen are so many different experts. */
template <class S>
__device__ __forceinline__ bool comes_before(choice<S> a, choice<S> b)
{
    if (a.expert < 0 || b.expert < 0)
        return b.expert < 0 && a.expert >= 0;
    if (a.logit != a.logit || b.logit != b.logit)
        return a.logit == a.logit ||
               (b.logit != b.logit && a.expert < b.expert);
    return a.logit > b.logit || (a.logit == b.logit && a.expert < b.expert);
}

/* The first of those that stand behind `last`, or of all if that is none. */
template <int LANES, class T>
__device__ __forceinline__ choice<sum_t<T>>
first_behind(const T *logits, int64_t experts, choice<sum_t<T>> last, int lane)
{
    choice<sum_t<T>> best = {0, -1};
    for (int64_t e = lane; e < experts; e += LANES) {
        choice<sum_t<T>> it = {get(logits[e]), static_cast<int32_t>(e)};
        bool is_left = last.expert < 0 || comes_before(last, it);
        if (is_left && comes_before(it, best))
            best = it;
    }
#pragma unroll
    for (int flips = LANES / 2; flips > 0; flips /= 2) {
        choice<sum_t<T>> other = {
            __shfl_xor_sync(0xffffffffu, best.logit, flips, LANES),
            __shfl_xor_sync(0xffffffffu, best.expert, flips, LANES)};
        if (comes_before(other, best))
            best = other;
    }
    return best;
}

/* ---- routing ---- */

/* Whether a span holds the row. They stand in slot order; an empty one holds
 * none, wherever it says that it is. */
__device__ __forceinline__ bool is_held(const cpl_span *spans, int64_t n_spans,
                                        int64_t row)
{
    int64_t low = 0, high = n_spans; /* the first that begins behind the row */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (spans[middle].slot <= row)
            low = middle + 1;
        else
            high = middle;
    }
    while (low > 0 && spans[low - 1].length == 0)
        low--;
    return low > 0 && row - spans[low - 1].slot < spans[low - 1].length;
}

/* Gaps are not negative, and the bits of such numbers stand as they do: the
 * least is the least in any order. A NaN is none, as on the CPU. */
__device__ __forceinline__ void keep_least(double *margin, double gap)
{
    unsigned long long bits;
    memcpy(&bits, &gap, sizeof bits);
    if (gap == gap)
        atomicMin(reinterpret_cast<unsigned long long *>(margin), bits);
}

template <int LANES, class T>
__device__ __forceinline__ void weigh(const cpl_moe_route &p, int64_t row,
                                      int lane, wide_t<T> *weights,
                                      const int32_t *chosen)
{
    const wide_t<T> *probs =
        static_cast<const wide_t<T> *>(p.probs) + row * p.experts;
    wide_t<T> sum = p.renormalise ? 0 : 1;
    for (int64_t j = 0; p.renormalise && j < p.top_k; j++)
        sum += probs[chosen[j]];
    const wide_t<T> scale = 1 / sum;
    for (int64_t j = lane; j < p.top_k; j += LANES)
        weights[j] = probs[chosen[j]] * scale;
}

template <int LANES, class T>
__device__ __forceinline__ void route_row(const cpl_moe_route &p, int64_t row,
                                          int lane)
{
    using S = sum_t<T>;
    const T *logits = static_cast<const T *>(p.logits) + row * p.experts;
    wide_t<T> *probs = static_cast<wide_t<T> *>(p.probs) + row * p.experts;
    int32_t *chosen = p.chosen + row * p.top_k;
    choice<S> last = {0, -1};
    S max = 0;
    for (int64_t j = 0; j < p.top_k; j++) {
        last = first_behind<LANES>(logits, p.experts, last, lane);
        max = j == 0 ? last.logit : max;
        if (lane == 0)
            chosen[j] = last.expert;
    }
    S sum = 0;
    for (int64_t e = lane; e < p.experts; e += LANES)
        sum += exponential(get(logits[e]) - max);
    const S scale = 1 / team_sum<LANES>(sum);
    for (int64_t e = lane; e < p.experts; e += LANES)
        probs[e] = exponential(get(logits[e]) - max) * scale;
    if (p.margin != nullptr) {
        choice<S> next = first_behind<LANES>(logits, p.experts, last, lane);
        bool is_there = next.expert >= 0 && next.logit == next.logit;
        if (lane == 0)
            keep_least(p.margin, is_there ? static_cast<double>(last.logit) -
                                                static_cast<double>(next.logit)
                                          : INFINITY);
    }
}

template <int LANES, class T>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    moe_route(const __grid_constant__ cpl_moe_route p)
{
    each_row<LANES>(p.n_rows, [&](int64_t row, int lane) {
        wide_t<T> *weights =
            static_cast<wide_t<T> *>(p.weights) + row * p.top_k;
        int32_t *chosen = p.chosen + row * p.top_k;
        if (is_held(p.spans, p.n_spans, row)) {
            route_row<LANES, T>(p, row, lane);
            if (LANES > 1)
                __syncwarp(); /* all see what each has written */
            weigh<LANES, T>(p, row, lane, weights, chosen);
            return;
        }
        wide_t<T> *probs = static_cast<wide_t<T> *>(p.probs) + row * p.experts;
        for (int64_t e = lane; e < p.experts; e += LANES)
            probs[e] = 0;
        for (int64_t j = lane; j < p.top_k; j += LANES) {
            weights[j] = 0;
            chosen[j] = -1;
        }
    });
}

__global__ void __launch_bounds__(1) moe_margin_start(double *margin)
{
    *margin = INFINITY;
}

template <class T>
static int launch_route(const cpl_moe_route *p, int32_t way,
                        cpl_cuda_stream stream)
{
    int error = cudaSuccess;
    if (p->margin != nullptr)
        error = CPLI_LAUNCH(moe_margin_start, 1, 1, 0, stream, p->margin);
    if (error != cudaSuccess || p->n_rows == 0)
        return error;
    return way == CPL_CUDA_NAIVE
               ? CPLI_LAUNCH((moe_route<1, T>), blocks_for(p->n_rows), THREADS,
                             0, stream, *p)
               : CPLI_LAUNCH((moe_route<WARP, T>),
                             blocks_for(p->n_rows, THREADS / WARP), THREADS, 0,
                             stream, *p);
}

/* ---- backward ---- */

/* With w_j = p_j / s (s the sum of the chosen): dp_j = (dw_j - sum dw w) / s;
 * without: dp_j = dw_j. Then dz = p (dp - sum p dp). */
template <class W> struct slopes {
    const W *probs, *dweights;
    const double *dprobs;
    const int32_t *chosen;
    int64_t top_k;
    W mean, scale;

    __device__ __forceinline__ W of(int64_t e) const
    {
        W slope = dprobs == nullptr ? 0 : static_cast<W>(dprobs[e]);
        for (int64_t j = 0; j < top_k; j++)
            if (chosen[j] == e)
                slope += (dweights[j] - mean) * scale;
        return slope;
    }
};

template <class W>
__device__ __forceinline__ slopes<W> slopes_of(const cpl_moe_route_backward &p,
                                               int64_t row)
{
    slopes<W> s = {static_cast<const W *>(p.probs) + row * p.experts,
                   static_cast<const W *>(p.dweights) + row * p.top_k,
                   p.dprobs,
                   p.chosen + row * p.top_k,
                   p.top_k,
                   0,
                   1};
    W sum = 0;
    for (int64_t j = 0; p.renormalise && j < p.top_k; j++) {
        W prob = s.probs[s.chosen[j]];
        sum += prob;
        s.mean += s.dweights[j] * prob;
    }
    if (p.renormalise) {
        s.mean /= sum;
        s.scale = 1 / sum;
    }
    return s;
}

template <int LANES, class T>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    moe_route_backward(const __grid_constant__ cpl_moe_route_backward p)
{
    using W = wide_t<T>;
    each_row<LANES>(p.n_rows, [&](int64_t row, int lane) {
        T *dlogits = static_cast<T *>(p.dlogits) + row * p.experts;
        if (p.chosen[row * p.top_k] < 0) {
            for (int64_t e = lane; e < p.experts; e += LANES)
                dlogits[e] = put<T>(0);
            return;
        }
        slopes<W> slope = slopes_of<W>(p, row);
        W mean = 0; /* sum of p dp */
        for (int64_t e = lane; e < p.experts; e += LANES)
            mean += slope.probs[e] * slope.of(e);
        mean = team_sum<LANES>(mean);
        for (int64_t e = lane; e < p.experts; e += LANES)
            dlogits[e] = put<T>(slope.probs[e] * (slope.of(e) - mean));
    });
}

template <class T>
static int launch_route_backward(const cpl_moe_route_backward *p, int32_t way,
                                 cpl_cuda_stream stream)
{
    return way == CPL_CUDA_NAIVE
               ? CPLI_LAUNCH((moe_route_backward<1, T>), blocks_for(p->n_rows),
                             THREADS, 0, stream, *p)
               : CPLI_LAUNCH((moe_route_backward<WARP, T>),
                             blocks_for(p->n_rows, THREADS / WARP), THREADS, 0,
                             stream, *p);
}

} // namespace cpli

int cpl_cuda_moe_route(const cpl_moe_route *p, int32_t dtype, int32_t way,
                       cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch_route<decltype(type)>(p, way, stream);
    });
}

int cpl_cuda_moe_route_backward(const cpl_moe_route_backward *p, int32_t dtype,
                                int32_t way, cpl_cuda_stream stream)
{
    if (p->n_rows == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch_route_backward<decltype(type)>(p, way, stream);
    });
}
