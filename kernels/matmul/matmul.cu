/*
 * matmul.cu: c = alpha op(a) op(b) + beta c. The plug-in multiplies by cuBLAS
 * where that is there (core/comm/cublas.c); these are for everywhere else, the
 * one by tensor cores for bf16 that can be read 128 bits at a time.
 */
#include "matmul/tensor_tile.cuh"

namespace cpli
{

/* What a kernel is given: b by its columns, so that both operands are walked
 * along the inner index. */
template <class T, class C> struct product {
    matrix<T> a, b;
    C *c;
    int64_t m, n, k, ldc;
    sum_t<T> alpha, beta;
    int64_t batch, a_step, b_step, c_step;
};

template <class T, class C>
__device__ __forceinline__ void store(const product<T, C> &p, int64_t batch,
                                      int64_t i, int64_t j, sum_t<T> sum)
{
    C *c = p.c + batch * p.c_step + i * p.ldc + j;
    sum_t<T> before = p.beta == 0 ? 0 : p.beta * get(*c);
    *c = put<C>(p.alpha * sum + before);
}

template <class T>
__device__ __forceinline__ matrix<T> moved(matrix<T> m, int64_t by)
{
    m.at += by;
    return m;
}

template <class T, class C>
__global__ void __launch_bounds__(THREADS)
    matmul_naive(const __grid_constant__ product<T, C> p)
{
    int64_t size = p.m * p.n;
    for (int64_t i = first_index(); i < size * p.batch; i += index_step()) {
        int64_t batch = i / size, row = i % size / p.n, column = i % p.n;
        sum_t<T> sum = multiply_rows(moved(p.a, batch * p.a_step), row,
                                     moved(p.b, batch * p.b_step), column, p.k);
        store(p, batch, row, column, sum);
    }
}

template <class T, class C>
__global__ void __launch_bounds__(THREADS)
    matmul_tiled(const __grid_constant__ product<T, C> p)
{
    CPLI_SHARED(tile_memory<T>, memory, [1]);
    int64_t columns = (p.n + TILE - 1) / TILE;
    int64_t size = (p.m + TILE - 1) / TILE * columns;
    for (int64_t i = blockIdx.x; i < size * p.batch; i += gridDim.x) {
        int64_t batch = i / size;
        int64_t row = i % size / columns * TILE, column = i % columns * TILE;
        sum_t<T> sum[TILE_EACH][TILE_EACH] = {};
        multiply_tile(memory[0], moved(p.a, batch * p.a_step), row, p.m,
                      moved(p.b, batch * p.b_step), column, p.n, p.k, sum);
        store_tile(sum, row, p.m, column, p.n,
                   [&](int64_t r, int64_t c, sum_t<T> value) {
                       store(p, batch, r, c, value);
                   });
    }
}

template <bool TURNS_A, bool TURNS_B, class C>
__global__ void __launch_bounds__(THREADS)
    matmul_tensor(const __grid_constant__ product<bf16, C> p)
{
    CPLI_SHARED(tensor_memory, memory, [1]);
    int64_t columns = (p.n + BROAD - 1) / BROAD;
    int64_t size = (p.m + BROAD - 1) / BROAD * columns;
    for (int64_t i = blockIdx.x; i < size * p.batch; i += gridDim.x) {
        int64_t batch = i / size;
        int64_t row = i % size / columns * BROAD, column = i % columns * BROAD;
        warp_sums sums = {};
        multiply_tensor_tile<TURNS_A, TURNS_B>(
            memory[0], moved(p.a, batch * p.a_step), row, p.m,
            moved(p.b, batch * p.b_step), column, p.n, p.k, sums);
        store_tensor_tile(sums, row, p.m, column, p.n,
                          [&](int64_t r, int64_t c, float value) {
                              store(p, batch, r, c, value);
                          });
    }
}

template <class C>
static int launch_tensor(const product<bf16, C> &p, cpl_cuda_stream stream)
{
    auto *kernel = p.a.transposed
                       ? (p.b.transposed ? matmul_tensor<true, true, C>
                                         : matmul_tensor<true, false, C>)
                   : p.b.transposed ? matmul_tensor<false, true, C>
                                    : matmul_tensor<false, false, C>;
    int64_t tiles =
        (p.m + BROAD - 1) / BROAD * ((p.n + BROAD - 1) / BROAD) * p.batch;
    return CPLI_LAUNCH(kernel, blocks_for(tiles, 1), THREADS, 0, stream, p);
}

template <class T, class C>
static int launch(const cpl_matmul *p, int32_t way, cpl_cuda_stream stream)
{
    product<T, C> made = {
        {static_cast<const T *>(p->a), p->lda, p->transpose_a},
        {static_cast<const T *>(p->b), p->ldb, !p->transpose_b},
        static_cast<C *>(p->c),
        p->m,
        p->n,
        p->k,
        p->ldc,
        static_cast<sum_t<T>>(p->alpha),
        static_cast<sum_t<T>>(p->beta),
        p->batch > 1 ? p->batch : 1,
        p->a_step,
        p->b_step,
        p->c_step};
    if (way == CPL_CUDA_NAIVE)
        return CPLI_LAUNCH((matmul_naive<T, C>),
                           blocks_for(made.m * made.n * made.batch), THREADS, 0,
                           stream, made);
    if constexpr (std::is_same<T, bf16>::value)
        if (fits_chunks(p->a, p->lda) && fits_chunks(p->b, p->ldb) &&
            p->a_step % CHUNK == 0 && p->b_step % CHUNK == 0)
            return launch_tensor<C>(made, stream);
    int64_t tiles =
        (made.m + TILE - 1) / TILE * ((made.n + TILE - 1) / TILE) * made.batch;
    return CPLI_LAUNCH((matmul_tiled<T, C>), blocks_for(tiles, 1), THREADS, 0,
                       stream, made);
}

} // namespace cpli

int cpl_cuda_matmul(const cpl_matmul *p, int32_t dtype, int32_t way,
                    cpl_cuda_stream stream)
{
    if (p->m == 0 || p->n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return p->wide_c ? cpli::launch<T, cpli::wide_t<T>>(p, way, stream)
                         : cpli::launch<T, T>(p, way, stream);
    });
}
