/*
 * embedding.cu: rows of a table, and their gradients added to its rows, in the
 * order of the rows. Blocks share the tokens by their lowest bits: each looks
 * through all tokens and adds the rows of its own. So n tokens are read by up
 * to CLASSES blocks, mostly from the cache, and each row of dy once; what takes
 * longest is the token that most rows have.
 */
#include "rows.cuh"

namespace cpli
{

/* Whether the table has such a row. */
template <class P>
static __device__ __forceinline__ bool is_there(const P &p, int64_t token)
{
    return token >= 0 && (p.vocabulary == 0 || token < p.vocabulary);
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    embedding(const __grid_constant__ cpl_embedding p)
{
    each_place(p.n_rows, p.width / V, [&](int64_t row, int64_t column) {
        const int64_t token = p.tokens[row];
        pack<sum_t<T>, V> values = {};
        if (is_there(p, token))
            values = load<T, V>(p.table, token * p.width + column * V);
#pragma unroll
        for (int i = 0; i < V; i++)
            if (token >= 0 && !is_there(p, token))
                values.at[i] = static_cast<sum_t<T>>(NAN);
        store<T, V>(p.y, row * p.width + column * V, values);
    });
}

/* A thread a column, row after row. */
template <class T>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    embedding_backward_naive(const __grid_constant__ cpl_embedding_backward p)
{
    const auto dy = static_cast<const T *>(p.dy);
    const auto grad = static_cast<wide_t<T> *>(p.grad_table);
    for (int64_t i = first_index(); i < p.width; i += index_step())
        for (int64_t row = 0; row < p.n_rows; row++) {
            const int64_t token = p.tokens[row];
            if (is_there(p, token))
                grad[token * p.width + i] += get(dy[row * p.width + i]);
        }
}

constexpr int64_t CLASSES = 1024; /* a power of two */

/* The rows of a batch that are a block's own, in their order. */
struct own_rows {
    int n, row[THREADS], token[THREADS];
};

/* Thread i looks at row `first` + i. Ends with a barrier. */
static __device__ __forceinline__ void find_own(const cpl_embedding_backward &p,
                                                int64_t first, own_rows *own)
{
    CPLI_SHARED(int, found, [THREADS / LANES]);
    const int lane = static_cast<int>(threadIdx.x) % LANES;
    const int warp = static_cast<int>(threadIdx.x) / LANES;
    const int64_t row = first + threadIdx.x;
    const int token = row < p.n_rows ? p.tokens[row] : -1;
    const bool is_own = is_there(p, token) &&
                        static_cast<unsigned>(token) % gridDim.x == blockIdx.x;
    const unsigned votes = __ballot_sync(~0u, is_own);
    __syncthreads(); /* what was here before has been read */
    if (lane == 0)
        found[warp] = __popc(votes);
    __syncthreads();
    int at = __popc(votes & ((1u << lane) - 1));
    for (int i = 0; i < warp; i++)
        at += found[i];
    if (is_own) {
        own->row[at] = static_cast<int>(threadIdx.x);
        own->token[at] = token;
    }
    if (threadIdx.x == THREADS - 1)
        own->n = at + is_own;
    __syncthreads();
}

/* A thread a pack of columns; y is across those of a row. The sum of a token
 * stays in registers while it is the one that comes. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    embedding_backward(const __grid_constant__ cpl_embedding_backward p)
{
    using W = wide_t<T>;
    CPLI_SHARED(own_rows, own, [1]);
    const int64_t column =
        (static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x) * V;
    const bool has_columns = column < p.width;
    pack<W, V> sum = {};
    int64_t current = -1;
    for (int64_t first = 0; first < p.n_rows; first += THREADS) {
        find_own(p, first, own);
        for (int i = 0; has_columns && i < own->n; i++) {
            const int64_t token = own->token[i];
            if (token != current) {
                if (current >= 0)
                    store<W, V>(p.grad_table, current * p.width + column, sum);
                sum = load<W, V>(p.grad_table, token * p.width + column);
                current = token;
            }
            const auto dy =
                load<T, V>(p.dy, (first + own->row[i]) * p.width + column);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum.at[j] += dy.at[j];
        }
    }
    if (current >= 0)
        store<W, V>(p.grad_table, current * p.width + column, sum);
}

template <class T>
static int backward(const cpl_embedding_backward *p, cpl_cuda_stream stream)
{
    const bool fit = packs_fit<T>(p->width, {p->dy, p->grad_table}, {});
    int64_t classes = 1;
    while (classes < CLASSES && classes < p->n_rows)
        classes *= 2;
    return by_pack<T>(fit, [&](auto v) {
        constexpr int V = decltype(v)::value;
        const dim3 grid(static_cast<unsigned>(classes),
                        blocks_for(p->width, THREADS * V));
        return static_cast<int>(CPLI_LAUNCH((embedding_backward<T, V>), grid,
                                            THREADS, 0, stream, *p));
    });
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
                                int32_t way, cpl_cuda_stream stream)
{
    if (p->n_rows == 0 || p->width == 0 || p->grad_table == nullptr)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        if (way == CPL_CUDA_BEST)
            return cpli::backward<T>(p, stream);
        return static_cast<int>(CPLI_LAUNCH(cpli::embedding_backward_naive<T>,
                                            cpli::blocks_for(p->width),
                                            cpli::THREADS, 0, stream, *p));
    });
}
