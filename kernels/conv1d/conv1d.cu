/*
 * conv1d.cu: depthwise causal convolution over spans, then SiLU, and back.
 *   pre[t] = bias + sum_j weight[j] x[t - (W-1) + j],  y = silu(pre)
 *   dpre[t] = dy[t] silu'(pre[t]),  dx[t] = sum_j weight[j] dpre[t + (W-1) - j]
 * The rows t < 0 of a span are its halo; without one a tap that would meet them
 * meets nothing, whatever its weight is.
 *
 * The fast kernels have four taps, those of every model here. A thread goes
 * down a tile of rows with the last inputs of its channels in registers. Sums
 * of weights are made first, and lie where dx will (rows.cuh).
 */
#include "rows.cuh"

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

/* Of row t, the taps that meet nothing: they are the first. */
template <class P>
static __device__ __forceinline__ int64_t idle_taps(const P &p, int64_t t)
{
    const bool is_whole = p.halo != nullptr || t >= p.width - 1;
    return is_whole ? 0 : p.width - 1 - t;
}

/* Row t of a span, or of its halo where t < 0. */
template <class T, class P>
static __device__ __forceinline__ sum_t<T> input_at(const P &p, int64_t span,
                                                    int64_t t, int64_t c)
{
    if (t >= 0)
        return get(static_cast<const T *>(
            p.x)[(p.spans[span].slot + t) * p.x_stride + c]);
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
    for (int64_t j = idle_taps(p, t); j < p.width; j++)
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
                if (j >= idle_taps(p, t))
                    weight +=
                        dpre * input_at<T>(p, span, t - (p.width - 1) + j, c);
                bias += dpre;
            }
        if (p.grad_weight != nullptr)
            static_cast<W *>(p.grad_weight)[i] += weight;
        if (p.grad_bias != nullptr && j == 0)
            static_cast<W *>(p.grad_bias)[c] += bias;
    }
}

/* ---- a pack of channels down a tile of rows ---- */

constexpr int TAPS = 4;
constexpr int64_t TILE_ROWS = 32;

/* The weights of a pack of channels, and the inputs that the taps meet; the
 * first `idle` taps meet none. */
template <class T, int V> struct window {
    pack<sum_t<T>, V> weight[TAPS], x[TAPS], bias;
    int idle;
};

template <class T, int V, class P>
static __device__ __forceinline__ void set_weights(window<T, V> *w, const P &p,
                                                   int64_t c)
{
    w->bias = {};
    if (p.bias != nullptr)
        w->bias = load<T, V>(p.bias, c);
#pragma unroll
    for (int k = 0; k < TAPS; k++) { /* a channel has its taps side by side */
        const auto flat = load<T, V>(p.weight, c * TAPS + k * V);
#pragma unroll
        for (int i = 0; i < V; i++)
            w->weight[(k * V + i) % TAPS].at[(k * V + i) / TAPS] = flat.at[i];
    }
}

template <class T, int V, class P>
static __device__ __forceinline__ pack<sum_t<T>, V>
inputs_at(const P &p, int64_t span, int64_t t, int64_t c)
{
    if (t >= 0)
        return load<T, V>(p.x, (p.spans[span].slot + t) * p.x_stride + c);
    if (p.halo == nullptr)
        return {};
    return load<T, V>(p.halo, ((span + 1) * (TAPS - 1) + t) * p.channels + c);
}

/* What stands before row t: of idle taps there is one more than at t. */
template <class T, int V, class P>
static __device__ __forceinline__ void fill(window<T, V> *w, const P &p,
                                            int64_t span, int64_t t, int64_t c)
{
#pragma unroll
    for (int j = 1; j < TAPS; j++)
        w->x[j] = inputs_at<T, V>(p, span, t - TAPS + j, c);
    w->idle = p.halo == nullptr && t < TAPS ? static_cast<int>(TAPS - t) : 0;
}

/* Down to the row whose inputs are `x`; returns its pre. */
template <class T, int V>
static __device__ __forceinline__ pack<sum_t<T>, V>
advance(window<T, V> *w, const pack<sum_t<T>, V> &x)
{
    pack<sum_t<T>, V> pre = w->bias;
    w->idle -= w->idle > 0;
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        w->x[j] = j + 1 < TAPS ? w->x[j + 1] : x;
        if (j < w->idle)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++)
            pre.at[i] += w->weight[j].at[i] * w->x[j].at[i];
    }
    return pre;
}

/* Rows first .. last - 1 in pieces that lie in one span (-1: in none):
 * visit(span, t, row, end of the piece). */
template <class P, class F>
static __device__ __forceinline__ void each_piece(const P &p, int64_t first,
                                                  int64_t last, F visit)
{
#pragma unroll 1
    for (int64_t row = first; row < last;) {
        const row_place at = place_of(p.spans, p.n_spans, row);
        int64_t end = row + 1;
        if (at.span >= 0)
            end = p.spans[at.span].slot + p.spans[at.span].length;
        end = end < last ? end : last;
        visit(at.span, at.t, row, end);
        row = end;
    }
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, 1)
    conv1d(const __grid_constant__ cpl_conv1d p, int64_t n_tiles)
{
    each_place(n_tiles, p.channels / V, [&](int64_t tile, int64_t column) {
        const int64_t c = column * V;
        const int64_t last = (tile + 1) * TILE_ROWS;
        window<T, V> w;
        set_weights(&w, p, c);
        each_piece(
            p, tile * TILE_ROWS, last < p.n_rows ? last : p.n_rows,
            [&](int64_t span, int64_t t, int64_t row, int64_t end) {
                if (span < 0) {
                    store<T, V>(p.y, row * p.channels + c, pack<sum_t<T>, V>{});
                    return;
                }
                fill(&w, p, span, t, c);
#pragma unroll 1
                for (; row < end; row++) {
                    auto y = advance(&w, load<T, V>(p.x, row * p.x_stride + c));
#pragma unroll
                    for (int i = 0; i < V; i++)
                        y.at[i] = p.silu ? silu(y.at[i]) : y.at[i];
                    store<T, V>(p.y, row * p.channels + c, y);
                }
            });
    });
}

/* dpre of the row that the window comes down to. */
template <class T, int V>
static __device__ __forceinline__ pack<sum_t<T>, V>
advance_back(window<T, V> *w, const cpl_conv1d_backward &p, int64_t row,
             int64_t c)
{
    auto dpre = load<T, V>(p.dy, row * p.channels + c);
    const auto pre = advance(w, load<T, V>(p.x, row * p.x_stride + c));
#pragma unroll
    for (int i = 0; i < V; i++)
        dpre.at[i] *= p.silu ? silu_slope(pre.at[i]) : 1;
    return dpre;
}

/* dx of the rows row .. end - 1 of a span; the rows that they were used for end
 * TAPS - 1 rows later. */
template <class T, int V>
static __device__ __forceinline__ void
piece_backward(window<T, V> *w, const cpl_conv1d_backward &p, int64_t span,
               int64_t row, int64_t end, int64_t c)
{
    const int64_t behind = p.spans[span].slot + p.spans[span].length;
    pack<sum_t<T>, V> dpre[TAPS] = {};
#pragma unroll 1
    for (int64_t user = row; user < end + TAPS - 1; user++) {
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++)
            dpre[j] = dpre[j + 1];
        dpre[TAPS - 1] = {};
        if (user < behind)
            dpre[TAPS - 1] = advance_back(w, p, user, c);
        if (user - (TAPS - 1) < row)
            continue;
        pack<sum_t<T>, V> dx = {};
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            if (user - (TAPS - 1) + j >= behind)
                continue;
#pragma unroll
            for (int i = 0; i < V; i++)
                dx.at[i] += w->weight[TAPS - 1 - j].at[i] * dpre[j].at[i];
        }
        store<T, V>(p.dx, (user - (TAPS - 1)) * p.dx_stride + c, dx);
    }
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, 1)
    conv1d_backward(const __grid_constant__ cpl_conv1d_backward p,
                    int64_t n_tiles)
{
    each_place(n_tiles, p.channels / V, [&](int64_t tile, int64_t column) {
        const int64_t c = column * V;
        const int64_t last = (tile + 1) * TILE_ROWS;
        window<T, V> w;
        set_weights(&w, p, c);
        each_piece(p, tile * TILE_ROWS, last < p.n_rows ? last : p.n_rows,
                   [&](int64_t span, int64_t t, int64_t row, int64_t end) {
                       if (span < 0) {
                           store<T, V>(p.dx, row * p.dx_stride + c,
                                       pack<sum_t<T>, V>{});
                           return;
                       }
                       fill(&w, p, span, t, c);
                       piece_backward(&w, p, span, row, end, c);
                   });
    });
}

/* Kinds 0 .. TAPS - 1 are the taps, the last one is the bias. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, 1)
    conv1d_weight(const __grid_constant__ cpl_conv1d_backward p,
                  const __grid_constant__ chunk_sums<T> chunks)
{
    using W = wide_t<T>;
    const auto grad = static_cast<W *>(p.grad_weight);
    const auto grad_bias = static_cast<W *>(p.grad_bias);
    each_place(
        chunks.n_chunks, p.channels / V, [&](int64_t chunk, int64_t column) {
            const int64_t c = column * V;
            window<T, V> w;
            pack<W, V> sum[TAPS + 1] = {};
            set_weights(&w, p, c);
            each_piece(p, chunk_begin(chunks, chunk), chunk_end(chunks, chunk),
                       [&](int64_t span, int64_t t, int64_t row, int64_t end) {
                           if (span < 0)
                               return;
                           fill(&w, p, span, t, c);
#pragma unroll 1
                           for (; row < end; row++) {
                               const auto dpre = advance_back(&w, p, row, c);
#pragma unroll
                               for (int i = 0; i < V; i++) {
#pragma unroll
                                   for (int j = 0; j < TAPS; j++)
                                       if (j >= w.idle)
                                           sum[j].at[i] +=
                                               dpre.at[i] * w.x[j].at[i];
                                   sum[TAPS].at[i] += dpre.at[i];
                               }
                           }
                       });
#pragma unroll
            for (int i = 0; i < V; i++) {
#pragma unroll
                for (int j = 0; j < TAPS; j++)
                    if (grad != nullptr)
                        leave_sum(chunks, chunk, j, c + i, sum[j].at[i],
                                  grad + (c + i) * TAPS + j);
                if (grad_bias != nullptr)
                    leave_sum(chunks, chunk, TAPS, c + i, sum[TAPS].at[i],
                              grad_bias + c + i);
            }
        });
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

static int64_t tiles_of(int64_t n_rows)
{
    return (n_rows + TILE_ROWS - 1) / TILE_ROWS;
}

template <class T>
static int forward_best(const cpl_conv1d *p, cpl_cuda_stream stream)
{
    const bool fit = packs_fit<T>(
        p->channels, {p->x, p->weight, p->bias, p->halo, p->y}, {p->x_stride});
    return by_pack<T>(fit, [&](auto v) {
        constexpr int V = decltype(v)::value;
        const int64_t n_tiles = tiles_of(p->n_rows);
        const plane at = plane_of(n_tiles, p->channels / V);
        return static_cast<int>(CPLI_LAUNCH((conv1d<T, V>), at.grid, at.block,
                                            0, stream, *p, n_tiles));
    });
}

template <class T, int V>
static int weight_best(const cpl_conv1d_backward *p, cpl_cuda_stream stream)
{
    if (p->grad_weight == nullptr && p->grad_bias == nullptr)
        return cudaSuccess;
    const auto chunks =
        chunks_in<T>(p->dx, p->dx_stride, p->n_rows, TAPS + 1, false);
    const plane at = plane_of(chunks.n_chunks, p->channels / V);
    int error = CPLI_LAUNCH((conv1d_weight<T, V>), at.grid, at.block, 0, stream,
                            *p, chunks);
    if (error == cudaSuccess)
        error = launch_add_chunks<T>(chunks, p->channels, 0, TAPS,
                                     p->grad_weight, stream);
    if (error == cudaSuccess)
        error = launch_add_chunks<T>(chunks, p->channels, TAPS, 1, p->grad_bias,
                                     stream);
    return error;
}

template <class T>
static int backward_best(const cpl_conv1d_backward *p, cpl_cuda_stream stream)
{
    if (p->n_rows == 0)
        return cudaSuccess;
    const bool fit = packs_fit<T>(
        p->channels, {p->x, p->weight, p->bias, p->halo, p->dy, p->dx},
        {p->x_stride, p->dx_stride});
    return by_pack<T>(fit, [&](auto v) {
        constexpr int V = decltype(v)::value;
        const int64_t n_tiles = tiles_of(p->n_rows);
        const plane at = plane_of(n_tiles, p->channels / V);
        const int error = weight_best<T, V>(p, stream);
        if (error != cudaSuccess)
            return error;
        return static_cast<int>(CPLI_LAUNCH((conv1d_backward<T, V>), at.grid,
                                            at.block, 0, stream, *p, n_tiles));
    });
}

/* Of activations and weights; not of the halo. */
template <class T>
static int backward_rows(const cpl_conv1d_backward *p, bool best,
                         cpl_cuda_stream stream)
{
    if (best && p->width == TAPS)
        return backward_best<T>(p, stream);
    const int error = weight_naive<T>(p, stream);
    return error != cudaSuccess ? error : backward_naive<T>(p, stream);
}

} // namespace cpli

int cpl_cuda_conv1d(const cpl_conv1d *p, int32_t dtype, int32_t way,
                    cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->channels == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const cpli::plane at = cpli::plane_of(p->n_rows, p->channels);
        if (way == CPL_CUDA_BEST && p->width == cpli::TAPS)
            return cpli::forward_best<T>(p, stream);
        return static_cast<int>(CPLI_LAUNCH(cpli::conv1d_naive<T>, at.grid,
                                            at.block, 0, stream, *p));
    });
}

int cpl_cuda_conv1d_backward(const cpl_conv1d_backward *p, int32_t dtype,
                             int32_t way, cpl_cuda_stream stream)
{
    if (p->channels == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const int error =
            cpli::backward_rows<T>(p, way == CPL_CUDA_BEST, stream);
        return error != cudaSuccess ? error : cpli::halo_backward<T>(p, stream);
    });
}
