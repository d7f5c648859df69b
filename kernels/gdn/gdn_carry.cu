/*
 * gdn_carry.cu: states that go on by summaries, out = offset + M in or M' in. A
 * block makes a tile of one state.
 */
#include "matmul/tile.cuh"

namespace cpli
{

/* One head of entry i; without a transition `inner` is 0. */
template <class R> struct carried {
    matrix<R> left, right; /* the rows of M or M', the columns of the state */
    const R *offset;
    R *out;
    int64_t inner;
};

template <class R>
static __device__ __forceinline__ carried<R> carried_at(const cpl_gdn_carry &p,
                                                        int64_t i, int64_t head)
{
    const int64_t K = p.key_dim, V = p.value_dim;
    const int64_t t = p.transition_of[i];
    const int64_t state = (p.span[i] * p.heads + head) * K * V;
    const R *m = static_cast<const R *>(p.transition);
    return {{m + (t < 0 ? 0 : (t * p.heads + head) * K * K), K, p.transpose},
            {static_cast<const R *>(p.in) + state, V, true},
            static_cast<const R *>(p.offset) +
                (p.offset_of[i] * p.heads + head) * K * V,
            static_cast<R *>(p.out) + state,
            t < 0 ? 0 : K};
}

template <class R>
__global__ void __launch_bounds__(THREADS)
    gdn_carry_naive(const __grid_constant__ cpl_gdn_carry p)
{
    const int64_t size = p.key_dim * p.value_dim, all = p.heads * size;
    for (int64_t at = first_index(); at < p.n * all; at += index_step()) {
        const int64_t i = at / all, head = at % all / size, place = at % size;
        if (p.span[i] < 0)
            continue;
        const carried<R> c = carried_at<R>(p, i, head);
        const int64_t row = place / p.value_dim, column = place % p.value_dim;
        c.out[place] = c.offset[place] +
                       multiply_rows(c.left, row, c.right, column, c.inner);
    }
}

template <class R>
__global__ void __launch_bounds__(THREADS)
    gdn_carry_tiled(const __grid_constant__ cpl_gdn_carry p)
{
    CPLI_SHARED(tile_memory<R>, memory, [1]);
    const int64_t K = p.key_dim, V = p.value_dim;
    const int64_t columns = (V + TILE - 1) / TILE;
    const int64_t size = (K + TILE - 1) / TILE * columns, all = p.heads * size;
    for (int64_t at = blockIdx.x; at < p.n * all; at += gridDim.x) {
        const int64_t i = at / all, tile = at % size;
        if (p.span[i] < 0)
            continue;
        const carried<R> c = carried_at<R>(p, i, at % all / size);
        const int64_t row = tile / columns * TILE;
        const int64_t column = tile % columns * TILE;
        R sum[TILE_EACH][TILE_EACH] = {};
        multiply_tile(memory[0], c.left, row, K, c.right, column, V, c.inner,
                      sum);
        store_tile(sum, row, K, column, V, [&](int64_t r, int64_t j, R value) {
            c.out[r * V + j] = c.offset[r * V + j] + value;
        });
    }
}

template <class R>
static int launch(const cpl_gdn_carry *p, bool best, cpl_cuda_stream stream)
{
    const int64_t size = p->heads * p->key_dim * p->value_dim;
    if (!best)
        return CPLI_LAUNCH(gdn_carry_naive<R>, blocks_for(p->n * size), THREADS,
                           0, stream, *p);
    const int64_t tiles = p->heads * ((p->key_dim + TILE - 1) / TILE) *
                          ((p->value_dim + TILE - 1) / TILE);
    return CPLI_LAUNCH(gdn_carry_tiled<R>, blocks_for(p->n * tiles, 1), THREADS,
                       0, stream, *p);
}

} // namespace cpli

int cpl_cuda_gdn_carry(const cpl_gdn_carry *p, int32_t dtype, int32_t way,
                       cpl_cuda_stream stream)
{
    if (p->n == 0)
        return cudaSuccess;
    return cpli::by_dtype(dtype, [&](auto type) {
        return cpli::launch<cpli::wide_t<decltype(type)>>(
            p, way == CPL_CUDA_BEST, stream);
    });
}
