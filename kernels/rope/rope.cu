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
__global__ void __launch_bounds__(THREADS)
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

} // namespace cpli

int cpl_cuda_rope(const cpl_rope *p, int32_t dtype, int32_t,
                  cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->heads == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const auto plane =
            cpli::plane_of(p->n_rows, p->width - p->rotary_dim / 2);
        return CPLI_LAUNCH(cpli::rope_naive<T>, plane.grid, plane.block, 0,
                           stream, *p);
    });
}
