/*
 * cross_entropy.cu: loss of a row = log sum exp(logits) - logits[label], its
 * gradient = (softmax(logits) - onehot(label)) grad_scale. Losses are summed in
 * double, in one order.
 *
 * A block makes a row: one pass for the sums, one for the gradient. The loss of
 * the row lies in the first numbers of the gradient until a block has added up
 * all losses and puts there what belongs there. Where there is no such place
 * (no gradient, or one that takes the place of the logits), blocks go through
 * the rows for the losses first, and one adds what they left in a workspace.
 * Rows too short for that place are few numbers: one block goes through them.
 */
#include "rows.cuh"

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

static __device__ __forceinline__ double grad_scale(const cpl_cross_entropy &p)
{
    return p.scale != nullptr ? *p.scale * p.grad_scale : p.grad_scale;
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
    leave_part(p.loss_sum, loss);
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
        const S factor = static_cast<S>(label < 0 ? 0 : grad_scale(p) / s.sum);
        const S onehot = static_cast<S>(grad_scale(p));
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

/* ---- a block a row ---- */

/* What a thread has met of a row. */
template <class S> struct online {
    S max, sum; /* of e^(x - max) */
};

/* What e^(x - max) may be taken of where no number was seen yet. */
template <class S> static __device__ __forceinline__ S base_of(S max)
{
    return max == -static_cast<S>(INFINITY) ? 0 : max;
}

template <class S, int V>
static __device__ __forceinline__ void meet(online<S> *o, const pack<S, V> &x)
{
    S max = o->max;
#pragma unroll
    for (int i = 0; i < V; i++)
        max = x.at[i] > max ? x.at[i] : max;
    const S base = base_of(max);
    if (max > o->max)
        o->sum *= exponential(o->max - base);
#pragma unroll
    for (int i = 0; i < V; i++)
        o->sum += exponential(x.at[i] - base);
    o->max = max;
}

/* The largest of all threads of a block of THREADS; passes over NaN. */
template <class S> static __device__ __forceinline__ S block_max(S x)
{
    CPLI_SHARED(S, parts, [THREADS / LANES]);
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) {
        const S other = __shfl_xor_sync(~0u, x, by);
        x = other > x ? other : x;
    }
    __syncthreads(); /* what was here before has been read */
    if (threadIdx.x % LANES == 0)
        parts[threadIdx.x / LANES] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / LANES; i++)
        x = parts[i] > x ? parts[i] : x;
    return x;
}

/* Of a whole row, to all threads. Where nothing is above -inf, and where +inf
 * is, the sum is NaN, as e^(x - max) is. */
template <class T, int V>
static __device__ __forceinline__ softmax_sums block_sums(const T *x, int64_t n)
{
    using S = sum_t<T>;
    online<S> own = {-static_cast<S>(INFINITY), 0};
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < n / V; i += THREADS)
        meet(&own, load<T, V>(x, i * V));
    const S max = block_max(own.max);
    double sum = own.sum;
    if (own.max != max)
        sum *= exp(static_cast<double>(own.max) - static_cast<double>(max));
    if (max == -static_cast<S>(INFINITY))
        sum = static_cast<double>(NAN);
    return {max, block_sum<THREADS>(sum)};
}

template <class T>
static __device__ __forceinline__ double
loss_of(const cpl_cross_entropy &p, int64_t row, const softmax_sums &s)
{
    const T *logits = static_cast<const T *>(p.logits) + row * p.vocab;
    return s.max + log(s.sum) - static_cast<double>(get(logits[p.labels[row]]));
}

/* The gradient of a row: from a logit and its place. */
template <class S> struct slope {
    S max, factor, onehot;
};

template <class T, int V>
static __device__ __forceinline__ void
put_slopes(const cpl_cross_entropy &p, int64_t row,
           const slope<sum_t<T>> &slope, int64_t i)
{
    const int64_t at = row * p.vocab + i;
    const int64_t label = p.labels[row] - i;
    auto x = load<T, V>(p.logits, at);
#pragma unroll
    for (int j = 0; j < V; j++) {
        x.at[j] = exponential(x.at[j] - slope.max) * slope.factor;
        x.at[j] -= label == j ? slope.onehot : 0;
    }
    store<T, V>(p.dlogits, at, x);
}

/* What a row leaves where its first gradients belong. */
template <class S> struct left {
    double loss;
    S max, factor;
};
template <class T>
constexpr int LEFT = static_cast<int>(sizeof(left<sum_t<T>>) / sizeof(T));

template <class T>
static __device__ __forceinline__ word_t<T> *
place_left(const cpl_cross_entropy &p, int64_t row)
{
    return static_cast<word_t<T> *>(p.dlogits) + row * p.vocab;
}

template <class T>
static __device__ __forceinline__ void leave(word_t<T> *place,
                                             const left<sum_t<T>> &l)
{
    word_t<T> words[LEFT<T>];
    memcpy(words, &l, sizeof l);
#pragma unroll
    for (int i = 0; i < LEFT<T>; i++)
        place[i] = words[i];
}

template <class T>
static __device__ __forceinline__ left<sum_t<T>>
find_left(const word_t<T> *place)
{
    word_t<T> words[LEFT<T>];
    left<sum_t<T>> l;
#pragma unroll
    for (int i = 0; i < LEFT<T>; i++)
        words[i] = place[i];
    memcpy(&l, words, sizeof l);
    return l;
}

template <class T, int V>
static __device__ __forceinline__ void clear_row(const cpl_cross_entropy &p,
                                                 int64_t row)
{
    for (int64_t i = threadIdx.x; i < p.vocab / V; i += THREADS)
        store<T, V>(p.dlogits, row * p.vocab + i * V, pack<sum_t<T>, V>{});
}

/* `leaves`: rows leave their losses; dlogits is not logits. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    cross_entropy_rows(const __grid_constant__ cpl_cross_entropy p, bool leaves)
{
    using S = sum_t<T>;
    for (int64_t row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        if (p.labels[row] < 0) {
            clear_row<T, V>(p, row);
            continue;
        }
        const T *logits = static_cast<const T *>(p.logits) + row * p.vocab;
        const softmax_sums s = block_sums<T, V>(logits, p.vocab);
        const slope<S> slope = {static_cast<S>(s.max),
                                static_cast<S>(grad_scale(p) / s.sum),
                                static_cast<S>(grad_scale(p))};
        for (int64_t i = threadIdx.x; i < p.vocab / V; i += THREADS)
            put_slopes<T, V>(p, row, slope, i * V);
        __syncthreads();
        if (leaves && threadIdx.x == 0)
            leave<T>(place_left<T>(p, row),
                     {loss_of<T>(p, row, s), slope.max, slope.factor});
    }
}

constexpr int ALL = 1024; /* the most threads of a block */

/* Adds up what the rows left, a thread every ALL-th row, and writes the
 * gradients that belong there. */
template <class T>
__global__ void __launch_bounds__(ALL, 1)
    cross_entropy_left(const __grid_constant__ cpl_cross_entropy p)
{
    using S = sum_t<T>;
    double loss = 0;
    for (int64_t row = threadIdx.x; row < p.n_rows; row += ALL) {
        if (p.labels[row] < 0)
            continue;
        const auto l = find_left<T>(place_left<T>(p, row));
        loss += l.loss;
        const slope<S> slope = {l.max, l.factor, static_cast<S>(grad_scale(p))};
        for (int i = 0; i < LEFT<T>; i++)
            put_slopes<T, 1>(p, row, slope, i);
    }
    leave_part(p.loss_sum, block_sum<ALL>(loss));
}

/* A block every so many rows. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    cross_entropy_loss(const __grid_constant__ cpl_cross_entropy p,
                       double *parts)
{
    double loss = 0;
    for (int64_t row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        if (p.labels[row] < 0)
            continue;
        const T *logits = static_cast<const T *>(p.logits) + row * p.vocab;
        loss += loss_of<T>(p, row, block_sums<T, V>(logits, p.vocab));
    }
    leave_part(parts, loss);
}

/* Blocks that go through the rows for their losses alone. */
static int64_t loss_parts(const cpl_cross_entropy *p)
{
    const bool is_beside = p->dlogits != nullptr && p->dlogits != p->logits;
    return is_beside ? 1 : parts_for(p->n_rows, 1);
}

template <class T, int V>
static int sum_losses(const cpl_cross_entropy *p, cpl_cuda_stream stream)
{
    const int64_t n = loss_parts(p);
    double *parts = n == 1 ? p->loss_sum : static_cast<double *>(p->workspace);
    const int error =
        CPLI_LAUNCH((cross_entropy_loss<T, V>), static_cast<unsigned>(n),
                    THREADS, 0, stream, *p, parts);
    return error != cudaSuccess
               ? error
               : launch_add_parts(parts, n, p->loss_sum, stream);
}

template <class T>
static int best(const cpl_cross_entropy *p, cpl_cuda_stream stream)
{
    const bool leaves =
        p->dlogits != nullptr && p->dlogits != p->logits && p->vocab >= LEFT<T>;
    const bool fit = packs_fit<T>(p->vocab, {p->logits, p->dlogits}, {});
    return by_pack<T>(fit, [&](auto v) {
        constexpr int V = decltype(v)::value;
        int error = cudaSuccess;
        if (!leaves)
            error = sum_losses<T, V>(p, stream);
        if (error == cudaSuccess && p->dlogits != nullptr && p->n_rows > 0)
            error = CPLI_LAUNCH((cross_entropy_rows<T, V>),
                                blocks_for(p->n_rows, 1), THREADS, 0, stream,
                                *p, leaves);
        if (error == cudaSuccess && leaves)
            error = CPLI_LAUNCH(cross_entropy_left<T>, 1, ALL, 0, stream, *p);
        return error;
    });
}

} // namespace cpli

size_t cpl_cuda_cross_entropy_workspace(const cpl_cross_entropy *p, int32_t)
{
    return cpli::part_bytes(cpli::loss_parts(p));
}

int cpl_cuda_cross_entropy(const cpl_cross_entropy *p, int32_t dtype,
                           int32_t way, cpl_cuda_stream stream)
{
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return way == CPL_CUDA_NAIVE ? cpli::naive<T>(p, stream)
                                     : cpli::best<T>(p, stream);
    });
}
