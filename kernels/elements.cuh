/*
 * elements.cuh: for kernels that make an element of others at the same place:
 * packs of neighbours, read and written by one access; the way through rows and
 * columns; the arithmetic of gates. With packs of one, which are always right,
 * the same kernel is the naive one.
 */
#ifndef CPLI_ELEMENTS_CUH
#define CPLI_ELEMENTS_CUH

#include <initializer_list>

#include "compute.cuh"

namespace cpli
{

/* Blocks of a multiprocessor, at least. Said in every __launch_bounds__: left
 * to itself, ptxas may go for more of them and spill a register or two. */
constexpr int RESIDENT = 2;

/* ---- packs ---- */

constexpr size_t ACCESS = 16; /* bytes: the widest there is */
template <class T> constexpr int WIDEST = static_cast<int>(ACCESS / sizeof(T));

/* A pack wider than an access is several. */
template <class T, int V>
struct __align__((sizeof(T) * V < ACCESS ? sizeof(T) * V : ACCESS)) pack
{
    T at[V];
};

/* Elements first .. first + V - 1, in the type of sums. */
template <class T, int V>
__device__ __forceinline__ pack<sum_t<T>, V> load(const void *from,
                                                  int64_t first)
{
    const pack<T, V> raw = *reinterpret_cast<const pack<T, V> *>(
        static_cast<const T *>(from) + first);
    pack<sum_t<T>, V> values;
#pragma unroll
    for (int i = 0; i < V; i++)
        values.at[i] = get(raw.at[i]);
    return values;
}

template <class T, int V>
__device__ __forceinline__ void store(void *to, int64_t first,
                                      const pack<sum_t<T>, V> &values)
{
    pack<T, V> raw;
#pragma unroll
    for (int i = 0; i < V; i++)
        raw.at[i] = put<T>(values.at[i]);
    *reinterpret_cast<pack<T, V> *>(static_cast<T *>(to) + first) = raw;
}

/* Whether the widest packs of T fit: into rows of `width` elements, at these
 * addresses (NULL fits), by these strides. */
template <class T>
bool packs_fit(int64_t width, std::initializer_list<const void *> addresses,
               std::initializer_list<int64_t> strides)
{
    bool fit = width % WIDEST<T> == 0;
    for (const void *address : addresses)
        fit = fit && reinterpret_cast<uintptr_t>(address) % ACCESS == 0;
    for (int64_t stride : strides)
        fit = fit && stride % WIDEST<T> == 0;
    return fit;
}

/* f(the size of packs: an integral_constant). */
template <class T, class F> int by_pack(bool widest, F f)
{
    return widest ? f(std::integral_constant<int, WIDEST<T>>())
                  : f(std::integral_constant<int, 1>());
}

/* ---- rows and columns ---- */

/* Threads lie along the columns, as many rows of them as fit into a block. */
struct plane {
    dim3 grid, block;
};

inline plane plane_of(int64_t n_rows, int64_t n_columns)
{
    unsigned across = 1;
    while (across < THREADS && across < n_columns)
        across *= 2;
    const unsigned down = THREADS / across;
    plane p;
    p.block = dim3(across, down);
    p.grid = dim3(blocks_for(n_columns, across), blocks_for(n_rows, down));
    /* What a grid can have that way; kernels step on. */
    p.grid.y = p.grid.y < 65535 ? p.grid.y : 65535;
    return p;
}

/* visit(row, column) for all of them, by the threads of a plane. */
template <class F>
__device__ __forceinline__ void each_place(int64_t n_rows, int64_t n_columns,
                                           F visit)
{
    const int64_t down = static_cast<int64_t>(gridDim.y) * blockDim.y;
    int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
    for (; row < n_rows; row += down)
        for (int64_t i = first_index(); i < n_columns; i += index_step())
            visit(row, i);
}

/* ---- arithmetic ---- */

__device__ __forceinline__ float exponential(float x)
{
    return expf(x);
}
__device__ __forceinline__ double exponential(double x)
{
    return exp(x);
}
__device__ __forceinline__ float log_of_1_plus(float x)
{
    return log1pf(x);
}
__device__ __forceinline__ double log_of_1_plus(double x)
{
    return log1p(x);
}
/* For numbers that are no subnormal ones; a division would call a subroutine
 * for those. */
__device__ __forceinline__ float reciprocal(float x)
{
    return __fdividef(1.0f, x);
}
__device__ __forceinline__ double reciprocal(double x)
{
    return 1 / x;
}
__device__ __forceinline__ float reciprocal_root(float x)
{
    return rsqrtf(x);
}
__device__ __forceinline__ double reciprocal_root(double x)
{
    return rsqrt(x);
}
__device__ __forceinline__ float root(float x)
{
    return sqrtf(x);
}
__device__ __forceinline__ double root(double x)
{
    return sqrt(x);
}

template <class S> __device__ __forceinline__ S sigmoid(S x)
{
    return reciprocal(1 + exponential(-x));
}

template <class S> __device__ __forceinline__ S silu(S x)
{
    return x * sigmoid(x);
}

/* d silu(x) / dx */
template <class S> __device__ __forceinline__ S silu_slope(S x)
{
    const S s = sigmoid(x);
    return s * (1 + x * (1 - s));
}

/* log(1 + e^x), without overflow. */
template <class S> __device__ __forceinline__ S softplus(S x)
{
    const S magnitude = x > 0 ? x : -x;
    return (x > 0 ? x : 0) + log_of_1_plus(exponential(-magnitude));
}

} // namespace cpli

#endif
