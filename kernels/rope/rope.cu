/*
 * rope.cu: rotary position embedding, half-split. Angles are made in double:
 * what is left of one after whole half turns goes to sincospi, which needs no
 * slow path for large arguments.
 */
#include "elements.cuh"

namespace cpli
{

template <class S> struct rotation {
    S cosine, sine;
};

/* pi in two parts. With up to 2^53 half turns the first product is exact: what
 * it leaves of the angle has no more bits than a double (a fused
 * multiply-add rounds once). */
constexpr double PI_HIGH = 0x1.921fb54442d18p+1;
constexpr double PI_LOW = 0x1.1a62633145c07p-53;
constexpr double INVERSE_PI = 0x1.45f306dc9c883p-2;

static __device__ __forceinline__ double frequency_of(const cpl_rope &p,
                                                      int64_t i)
{
    return pow(p.theta, -2.0 * static_cast<double>(i) /
                            static_cast<double>(p.rotary_dim));
}

template <class S>
static __device__ __forceinline__ rotation<S> turn(double angle, bool inverse)
{
    const double half_turns = rint(angle * INVERSE_PI);
    const double rest =
        fma(-half_turns, PI_LOW, fma(-half_turns, PI_HIGH, angle));
    double sine;
    double cosine;
    sincospi(rest * INVERSE_PI, &sine, &cosine);
    const bool is_odd = half_turns != 2 * rint(half_turns / 2);
    cosine = is_odd ? -cosine : cosine;
    sine = is_odd != inverse ? -sine : sine;
    return {static_cast<S>(cosine), static_cast<S>(sine)};
}

/* A thread a pair of a row, or a dimension that stays, of all heads. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rope_naive(const __grid_constant__ cpl_rope p)
{
    const int64_t half = p.rotary_dim / 2;
    each_place(p.n_rows, p.width - half, [&](int64_t row, int64_t i) {
        const T *x = static_cast<const T *>(p.x) + row * p.x_stride;
        T *y = static_cast<T *>(p.y) + row * p.y_stride;
        if (i >= half) {
            for (int64_t h = 0; h < p.heads; h++)
                y[h * p.width + half + i] = x[h * p.width + half + i];
            return;
        }
        const auto t = turn<sum_t<T>>(static_cast<double>(p.positions[row]) *
                                          frequency_of(p, i),
                                      p.inverse);
        for (int64_t at = i; at < p.heads * p.width; at += p.width) {
            const sum_t<T> first = get(x[at]);
            const sum_t<T> second = get(x[at + half]);
            y[at] = put<T>(first * t.cosine - second * t.sine);
            y[at + half] = put<T>(second * t.cosine + first * t.sine);
        }
    });
}

/* Rows that a block takes, about: it makes its frequencies once. */
constexpr int64_t ROPE_ROWS = 8;
/* Pairs of a head whose frequencies and rotations fit into shared memory. */
constexpr int64_t ROPE_PAIRS = 1024;

template <class T, int V>
static __device__ __forceinline__ void
turn_pack(const rotation<sum_t<T>> *turns, const T *x, T *y, int64_t half)
{
    auto first = load<T, V>(x, 0);
    auto second = load<T, V>(x, half);
#pragma unroll
    for (int j = 0; j < V; j++) {
        const auto t = turns[j];
        const sum_t<T> before = first.at[j];
        first.at[j] = before * t.cosine - second.at[j] * t.sine;
        second.at[j] = second.at[j] * t.cosine + before * t.sine;
    }
    store<T, V>(y, 0, first);
    store<T, V>(y, half, second);
}

/* Packs of a head: those of its first half, and those that stay. */
template <class T, int V>
static __device__ __forceinline__ void
turn_row(const cpl_rope &p, const rotation<sum_t<T>> *turns, int64_t row)
{
    const int half = static_cast<int>(p.rotary_dim / 2);
    const int packs = static_cast<int>(p.width - half) / V;
    const int64_t n = p.heads * packs;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const int64_t head = i / packs;
        const int64_t in_head = (i - head * packs) * V;
        const T *x = static_cast<const T *>(p.x) + row * p.x_stride +
                     head * p.width + in_head;
        T *y =
            static_cast<T *>(p.y) + row * p.y_stride + head * p.width + in_head;
        if (in_head < half)
            turn_pack<T, V>(turns + in_head, x, y, half);
        else
            store<T, V>(y, half, load<T, V>(x, half));
    }
}

/* A block a row: its angles are made once, for all heads. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    rope(const __grid_constant__ cpl_rope p)
{
    using S = sum_t<T>;
    CPLI_DYNAMIC_SHARED(rotation<S>, turns); /* the wider ones come first */
    const int half = static_cast<int>(p.rotary_dim / 2);
    auto *frequencies = reinterpret_cast<double *>(turns + half);
    for (int i = static_cast<int>(threadIdx.x); i < half; i += THREADS)
        frequencies[i] = frequency_of(p, i);
    for (int64_t row = blockIdx.x; row < p.n_rows; row += gridDim.x) {
        const double position = static_cast<double>(p.positions[row]);
        __syncthreads(); /* the turns of the row before have been read */
        for (int i = static_cast<int>(threadIdx.x); i < half; i += THREADS)
            turns[i] = turn<S>(position * frequencies[i], p.inverse);
        __syncthreads();
        turn_row<T, V>(p, turns, row);
    }
}

template <class T> static int best(const cpl_rope *p, cpl_cuda_stream stream)
{
    const int64_t half = p->rotary_dim / 2;
    const bool fit =
        half % WIDEST<T> == 0 &&
        packs_fit<T>(p->width, {p->x, p->y}, {p->x_stride, p->y_stride});
    const size_t shared = static_cast<size_t>(half) *
                          (sizeof(double) + sizeof(rotation<sum_t<T>>));
    return by_pack<T>(fit, [&](auto v) {
        return static_cast<int>(CPLI_LAUNCH((rope<T, decltype(v)::value>),
                                            blocks_for(p->n_rows, ROPE_ROWS),
                                            THREADS, shared, stream, *p));
    });
}

} // namespace cpli

int cpl_cuda_rope(const cpl_rope *p, int32_t dtype, int32_t way,
                  cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->heads == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const int64_t pairs = p->rotary_dim / 2;
        if (way == CPL_CUDA_BEST && pairs > 0 && pairs <= cpli::ROPE_PAIRS)
            return cpli::best<T>(p, stream);
        const auto plane = cpli::plane_of(p->n_rows, p->width - pairs);
        return static_cast<int>(CPLI_LAUNCH(cpli::rope_naive<T>, plane.grid,
                                            plane.block, 0, stream, *p));
    });
}
