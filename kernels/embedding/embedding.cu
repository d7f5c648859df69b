/*
 * embedding.cu: rows of a table, and their gradients added to its rows.
 */
#include "elements.cuh"

namespace cpli
{

template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    embedding(const __grid_constant__ cpl_embedding p)
{
    each_place(p.n_rows, p.width / V, [&](int64_t row, int64_t column) {
        const int64_t token = p.tokens[row];
        pack<sum_t<T>, V> values = {};
        if (token >= 0)
            values = load<T, V>(p.table, token * p.width + column * V);
        store<T, V>(p.y, row * p.width + column * V, values);
    });
}

/* A thread a column, row after row. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    embedding_backward_naive(const __grid_constant__ cpl_embedding_backward p)
{
    const auto dy = static_cast<const T *>(p.dy);
    const auto grad = static_cast<wide_t<T> *>(p.grad_table);
    for (int64_t i = first_index(); i < p.width; i += index_step())
        for (int64_t row = 0; row < p.n_rows; row++) {
            const int64_t token = p.tokens[row];
            if (token >= 0)
                grad[token * p.width + i] += get(dy[row * p.width + i]);
        }
}

} // namespace cpli

int cpl_cuda_embedding(const cpl_embedding *p, int32_t dtype, int32_t way,
                       cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        const bool fit = cpli::packs_fit<T>(p->width, {p->table, p->y}, {});
        return cpli::by_pack<T>(fit && way == CPL_CUDA_BEST, [&](auto v) {
            constexpr int V = decltype(v)::value;
            const auto plane = cpli::plane_of(p->n_rows, p->width / V);
            return CPLI_LAUNCH((cpli::embedding<T, V>), plane.grid, plane.block,
                               0, stream, *p);
        });
    });
}

int cpl_cuda_embedding_backward(const cpl_embedding_backward *p, int32_t dtype,
                                int32_t, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0 || p->grad_table == nullptr)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(cpli::embedding_backward_naive<T>,
                           cpli::blocks_for(p->width), cpli::THREADS, 0, stream,
                           *p);
    });
}
