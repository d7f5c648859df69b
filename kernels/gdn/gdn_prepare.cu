/*
 * gdn_prepare.cu: everything of a chunk that no state enters: gates, the
 * inverse of I + L, P, W and U; a block a chunk of a head. A gate, key or value
 * that is not finite is in W or U, a query in P: with the 1 of the diagonal of
 * the inverse, and, of P, with its key.
 */
#include "gdn/chunk.cuh"

namespace cpli
{

/* What a block has in shared memory beside the stage of its products. */
template <class R> struct gdn_prepare_space {
    alignas(
        16) R square[GDN_CHUNK * gdn_square_pitch<R>]; /* D, then L, then T */
    gdn_chunk_gates<R> gates;
    R beta_start[GDN_CHUNK]; /* beta G */
};

template <class T>
__device__ __forceinline__ void
gdn_prepare_gates(const gdn_pass<T> &pass, const gdn_place &place, int head,
                  gdn_prepare_space<sum_t<T>> &space)
{
    using R = sum_t<T>;
    const int i = threadIdx.x;
    gdn_load_gates(pass.p, place, head, space.gates);
    gdn_load_decays(space.gates, space.square);
    if (i >= GDN_CHUNK)
        return;
    const R start = gdn_decay(space.gates, 0, i);
    space.beta_start[i] = space.gates.beta[i] * start;
    if (i >= place.n)
        return;
    gdn_gates(pass.p, pass.start, place, head)[i] = start;
    gdn_gates(pass.p, pass.seen, place, head)[i] =
        static_cast<R>(pass.p.scale) * start;
    gdn_gates(pass.p, pass.end, place, head)[i] =
        space.square[(place.n - 1) * gdn_square_pitch<R> + i];
}

/* L into the square and P to where it is wanted. */
template <class T>
__device__ __forceinline__ void
gdn_prepare_pairs(const gdn_pass<T> &pass, const gdn_place &place, int head,
                  gdn_prepare_space<sum_t<T>> &space, unsigned char *stage)
{
    using R = sum_t<T>;
    const cpl_gdn &p = pass.p;
    const int key_dim = static_cast<int>(p.key_dim);
    const gdn_matrix<T> keys = gdn_keys<T>(p, place, head);
    gdn_tile<T, 64, 64> met, seen;
    gdn_clear(met);
    gdn_clear(seen);
    bool is_finite = true;
    gdn_multiply<false, true>(met, keys, 0, keys, 0, key_dim, stage);
    if (pass.weights != nullptr)
        gdn_multiply<false, true>(seen, gdn_queries<T>(p, place, head), 0, keys,
                                  0, key_dim, stage);
#pragma unroll
    for (int e = 0; e < met.SIZE; e++) {
        const int i = met.row(e), j = met.column(e);
        R &at = space.square[i * gdn_square_pitch<R> + j];
        const R decay = at; /* 0 above the diagonal */
        at = j < i && i < place.n ? space.gates.beta[i] * met.at[e] * decay : 0;
        if (pass.weights == nullptr || i >= place.n)
            continue;
        const R weight =
            j <= i ? static_cast<R>(p.scale) * seen.at[e] * decay : 0;
        gdn_rows(p, pass.weights, place, head,
                 GDN_CHUNK)[i * p.value_heads * GDN_CHUNK + j] = weight;
        is_finite = is_finite && gdn_is_finite(weight);
    }
    if (!is_finite)
        gdn_mark_wild(pass.list, place.span, head);
    __syncthreads();
}

constexpr int BLOCK = 16; /* of the inverse */

/* The four blocks of 16 x 16 on the diagonal of I + L become their inverses: a
 * thread a column, from the first row to the last. */
template <class R> __device__ __forceinline__ void gdn_invert_blocks(R *square)
{
    constexpr int PITCH = gdn_square_pitch<R>;
    const int column = threadIdx.x % BLOCK;
    R *block = square + threadIdx.x / BLOCK % 4 * BLOCK * (PITCH + 1);
    R x[BLOCK];
#pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        R sum = i == column ? 1 : 0;
#pragma unroll
        for (int l = 0; l < i; l++)
            sum -= block[i * PITCH + l] * x[l];
        x[i] = sum;
    }
    __syncthreads();
    if (threadIdx.x < GDN_CHUNK) {
#pragma unroll
        for (int i = 0; i < BLOCK; i++)
            block[i * PITCH + column] = x[i];
    }
    __syncthreads();
}

/* Block row `a` of the inverse, from those above: X_ab = -X_aa sum over b <= c
 * < a of L_ac X_cb, a thread an element of every block. */
template <class R>
__device__ __forceinline__ void gdn_invert_row(R *square, int a)
{
    constexpr int PITCH = gdn_square_pitch<R>;
    const int i = threadIdx.x / BLOCK, j = threadIdx.x % BLOCK;
    R *row = square + (a * BLOCK + i) * PITCH;
    R sums[3] = {0, 0, 0};
#pragma unroll
    for (int b = 0; b < 3; b++)
        if (b < a) {
#pragma unroll 4
            for (int l = b * BLOCK; l < a * BLOCK; l++)
                sums[b] += row[l] * square[l * PITCH + b * BLOCK + j];
        }
    for (int step = 0; step < 2; step++) { /* the sums, then the block row */
        __syncthreads();
#pragma unroll
        for (int b = 0; b < 3; b++)
            if (b < a)
                row[b * BLOCK + j] = sums[b];
        __syncthreads();
        if (step == 1)
            break;
#pragma unroll
        for (int b = 0; b < 3; b++)
            if (b < a) {
                sums[b] = 0;
#pragma unroll 4
                for (int l = 0; l < BLOCK; l++)
                    sums[b] -= row[a * BLOCK + l] *
                               square[(a * BLOCK + l) * PITCH + b * BLOCK + j];
            }
    }
}

/* to = T diag(factors) rows, in tiles of 64 columns. */
template <class T>
__device__ __forceinline__ void
gdn_prepare_rows(const gdn_pass<T> &pass, const gdn_place &place, int head,
                 const sum_t<T> *inverse, const gdn_matrix<T> &rows,
                 const sum_t<T> *factors, sum_t<T> *to, unsigned char *stage)
{
    using R = sum_t<T>;
    const int64_t stride = pass.p.value_heads * rows.columns;
    to = gdn_rows(pass.p, to, place, head, rows.columns);
    const gdn_matrix<R> left =
        gdn_plain(inverse, gdn_square_pitch<R>, place.n, place.n);
#pragma unroll 1
    for (int j = 0; j < rows.columns; j += 64) {
        gdn_tile<T, 64, 64> tile;
        bool is_finite = true;
        gdn_clear(tile);
        gdn_multiply<false, false>(tile, left, 0, gdn_times(rows, factors), j,
                                   place.n, stage);
        gdn_each(tile, place.n, rows.columns - j,
                 [&](R x, int row, int column) {
                     to[row * stride + j + column] = x;
                     is_finite = is_finite && gdn_is_finite(x);
                 });
        if (!is_finite)
            gdn_mark_wild(pass.list, place.span, head);
    }
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, sizeof(T) == 8 ? 1 : 2)
    gdn_prepare_chunks(const __grid_constant__ gdn_pass<T> pass)
{
    using R = sum_t<T>;
    CPLI_SHARED(uint4, stage_memory, [gdn_square_stage<T> / 16]);
    CPLI_SHARED(gdn_prepare_space<R>, space_memory, [1]);
    unsigned char *stage = reinterpret_cast<unsigned char *>(stage_memory);
    gdn_prepare_space<R> &space = space_memory[0];
    const int head = blockIdx.y;
    const int64_t n_chunks = gdn_n_chunks(pass.list);
    for (int64_t c = blockIdx.x; c < n_chunks; c += gridDim.x) {
        const gdn_place place = gdn_find(pass.list, c);
        __syncthreads();
        gdn_prepare_gates(pass, place, head, space);
        gdn_prepare_pairs(pass, place, head, space, stage);
        gdn_invert_blocks(space.square);
#pragma unroll 1
        for (int a = 1; a < 4; a++)
            gdn_invert_row(space.square, a);
        R *inverse = gdn_rows(pass.p, pass.inverse, place, head, GDN_CHUNK);
        for (int e = threadIdx.x; e < place.n * GDN_CHUNK; e += TILE_THREADS)
            inverse[e / GDN_CHUNK * pass.p.value_heads * GDN_CHUNK +
                    e % GDN_CHUNK] =
                space.square[e / GDN_CHUNK * gdn_square_pitch<R> +
                             e % GDN_CHUNK];
        gdn_prepare_rows(pass, place, head, space.square,
                         gdn_keys<T>(pass.p, place, head), space.beta_start,
                         pass.w, stage);
        if (pass.u != nullptr)
            gdn_prepare_rows(pass, place, head, space.square,
                             gdn_values<T>(pass.p, place, head),
                             space.gates.beta, pass.u, stage);
    }
}

template <class T>
int gdn_prepare(const gdn_pass<T> &pass, cpl_cuda_stream stream)
{
    return CPLI_LAUNCH(gdn_prepare_chunks<T>, gdn_chunk_grid(&pass.p),
                       TILE_THREADS, 0, stream, pass);
}

template int gdn_prepare(const gdn_pass<double> &, cpl_cuda_stream);
template int gdn_prepare(const gdn_pass<float> &, cpl_cuda_stream);
template int gdn_prepare(const gdn_pass<__nv_bfloat16> &, cpl_cuda_stream);

} // namespace cpli
