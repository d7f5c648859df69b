/*
 * gates.cu: the gates of the delta rule, a head of a token a thread; there is
 * nothing between them, so the naive kernel is the only one. Their gradients
 * are sums over rows.
 */
#include "rows.cuh"

namespace cpli
{

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gates(const __grid_constant__ cpl_gates p)
{
    using W = wide_t<T>;
    const auto a_log = static_cast<const W *>(p.a_log);
    const auto dt_bias = static_cast<const W *>(p.dt_bias);
    each_place(p.n_rows, p.heads, [&](int64_t row, int64_t h) {
        const W a = get(static_cast<const T *>(p.a)[row * p.a_stride + h]);
        const W b = get(static_cast<const T *>(p.b)[row * p.b_stride + h]);
        static_cast<W *>(p.g)[row * p.heads + h] =
            -exponential(a_log[h]) * softplus(a + dt_bias[h]);
        static_cast<W *>(p.beta)[row * p.heads + h] = sigmoid(b);
    });
}

/* What softplus and exp meet of a row and head, and dg exp(a_log), negative. */
template <class T>
static __device__ __forceinline__ wide_t<T> biased(const cpl_gates_backward &p,
                                                   int64_t row, int64_t h)
{
    return get(static_cast<const T *>(p.a)[row * p.a_stride + h]) +
           static_cast<const wide_t<T> *>(p.dt_bias)[h];
}
template <class T>
static __device__ __forceinline__ wide_t<T> drive(const cpl_gates_backward &p,
                                                  int64_t row, int64_t h)
{
    return -exponential(static_cast<const wide_t<T> *>(p.a_log)[h]) *
           static_cast<const wide_t<T> *>(p.dg)[row * p.heads + h];
}

template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gates_backward(const __grid_constant__ cpl_gates_backward p)
{
    using W = wide_t<T>;
    each_place(p.n_rows, p.heads, [&](int64_t row, int64_t h) {
        static_cast<T *>(p.da)[row * p.da_stride + h] =
            put<T>(drive<T>(p, row, h) * sigmoid(biased<T>(p, row, h)));
    });
    each_place(p.n_rows, p.heads, [&](int64_t row, int64_t h) {
        const W beta =
            sigmoid(get(static_cast<const T *>(p.b)[row * p.b_stride + h]));
        const W dbeta = static_cast<const W *>(p.dbeta)[row * p.heads + h];
        static_cast<T *>(p.db)[row * p.db_stride + h] =
            put<T>(dbeta * beta * (1 - beta));
    });
}

/* A thread a head, row after row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gates_parameters_naive(const __grid_constant__ cpl_gates_backward p)
{
    using W = wide_t<T>;
    for (int64_t h = first_index(); h < p.heads; h += index_step()) {
        W da_log = 0;
        W da = 0;
        for (int64_t row = 0; row < p.n_rows; row++) {
            const W x = biased<T>(p, row, h);
            const W driven = drive<T>(p, row, h);
            da_log += driven * softplus(x);
            da += driven * sigmoid(x);
        }
        if (p.grad_a_log != nullptr)
            static_cast<W *>(p.grad_a_log)[h] += da_log;
        if (p.grad_dt_bias != nullptr)
            static_cast<W *>(p.grad_dt_bias)[h] += da;
    }
}

/* A thread a head of a chunk of rows; y is across the chunks. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    gates_parameters(const __grid_constant__ cpl_gates_backward p,
                     const __grid_constant__ chunk_sums<T> chunks)
{
    using W = wide_t<T>;
    each_place(chunks.n_chunks, p.heads, [&](int64_t chunk, int64_t h) {
        const int64_t end = chunk_end(chunks, chunk);
        W da_log = 0;
        W da = 0;
        for (int64_t row = chunk_begin(chunks, chunk); row < end; row++) {
            const W x = biased<T>(p, row, h);
            const W driven = drive<T>(p, row, h);
            da_log += driven * softplus(x);
            da += driven * sigmoid(x);
        }
        if (p.grad_a_log != nullptr)
            leave_sum(chunks, chunk, 0, h, da_log,
                      static_cast<W *>(p.grad_a_log) + h);
        if (p.grad_dt_bias != nullptr)
            leave_sum(chunks, chunk, 1, h, da,
                      static_cast<W *>(p.grad_dt_bias) + h);
    });
}

/* Before da is written: what chunks find lies there. */
template <class T>
static int parameters(const cpl_gates_backward *p, bool best,
                      cpl_cuda_stream stream)
{
    if (p->grad_a_log == nullptr && p->grad_dt_bias == nullptr)
        return cudaSuccess;
    if (!best)
        return CPLI_LAUNCH(gates_parameters_naive<T>, blocks_for(p->heads),
                           THREADS, 0, stream, *p);
    const auto chunks = chunks_in<T>(p->da, p->da_stride, p->n_rows, 2,
                                     p->da == p->a || p->da == p->b);
    const plane at = plane_of(chunks.n_chunks, p->heads);
    int error = CPLI_LAUNCH(gates_parameters<T>, at.grid, at.block, 0, stream,
                            *p, chunks);
    if (error == cudaSuccess)
        error =
            launch_add_chunks<T>(chunks, p->heads, 0, 1, p->grad_a_log, stream);
    if (error == cudaSuccess)
        error = launch_add_chunks<T>(chunks, p->heads, 1, 1, p->grad_dt_bias,
                                     stream);
    return error;
}

} // namespace cpli

int cpl_cuda_gates(const cpl_gates *p, int32_t dtype, int32_t,
                   cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->heads == 0)
        return cudaSuccess;
    const auto plane = cpli::plane_of(p->n_rows, p->heads);
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(cpli::gates<T>, plane.grid, plane.block, 0, stream,
                           *p);
    });
}

int cpl_cuda_gates_backward(const cpl_gates_backward *p, int32_t dtype,
                            int32_t way, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->heads == 0)
        return cudaSuccess;
    const auto plane = cpli::plane_of(p->n_rows, p->heads);
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        int error = cpli::parameters<T>(p, way == CPL_CUDA_BEST, stream);
        if (error != cudaSuccess)
            return error;
        return static_cast<int>(CPLI_LAUNCH(cpli::gates_backward<T>, plane.grid,
                                            plane.block, 0, stream, *p));
    });
}
