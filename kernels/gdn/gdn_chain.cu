/*
 * gdn_chain.cu: states from chunk to chunk, forward, and their gradients,
 * backward. A block has some columns of a state of a head of a span, in
 * registers, in the wide dtype, and walks the chunks.
 */
#include "gdn/chunk.cuh"

namespace cpli
{

/* Columns of a block. */
template <class T> constexpr int SLICE = sizeof(T) == 8 ? 16 : 32;

/* For products of 64 and of 128 rows; the latter's left side is transposed. */
template <class T>
constexpr int gdn_chain_stage =
    gdn_larger(gdn_stage_bytes<T, 64, SLICE<T>, false, false>,
               gdn_stage_bytes<T, GDN_FAST_DIM, SLICE<T>, true, false>);

template <class T>
using gdn_slice_of_state = gdn_tile<T, GDN_FAST_DIM, SLICE<T>>;
template <class T> using gdn_slice_of_rows = gdn_tile<T, GDN_CHUNK, SLICE<T>>;

template <class T> struct gdn_chain_space {
    uint4 stage[gdn_chain_stage<T> / 16];
    sum_t<T> state[GDN_FAST_DIM * SLICE<T>]; /* S or X */
    sum_t<T> rows[GDN_CHUNK * SLICE<T>];     /* diag(D_n) N or -dN */
};

/* A slice of a state of `width` columns, in memory that may be NULL. */
template <class T>
__device__ __forceinline__ void gdn_load_slice(gdn_slice_of_state<T> &slice,
                                               const sum_t<T> *state, int width,
                                               int key_dim, bool is_identity)
{
    const int first = blockIdx.z * SLICE<T>;
    gdn_clear(slice);
    gdn_each(slice, key_dim, width - first,
             [&](sum_t<T> &x, int row, int column) {
                 if (state != nullptr)
                     x = state[row * width + first + column];
                 else
                     x = is_identity && row == first + column ? 1 : 0;
             });
}

template <class T>
__device__ __forceinline__ void gdn_store_slice(gdn_slice_of_state<T> &slice,
                                                sum_t<T> *state, int width,
                                                int key_dim)
{
    const int first = blockIdx.z * SLICE<T>;
    if (state != nullptr)
        gdn_each(slice, key_dim, width - first,
                 [&](sum_t<T> x, int row, int column) {
                     state[row * width + first + column] = x;
                 });
}

/* The slice to shared memory, for products; a barrier follows. */
template <class T>
__device__ __forceinline__ gdn_matrix<sum_t<T>>
gdn_share_slice(gdn_slice_of_state<T> &slice, gdn_chain_space<T> &space,
                int key_dim)
{
    gdn_each(slice, GDN_FAST_DIM, SLICE<T>,
             [&](sum_t<T> x, int row, int column) {
                 space.state[row * SLICE<T> + column] = x;
             });
    return gdn_plain<sum_t<T>>(space.state, SLICE<T>, key_dim, SLICE<T>);
}

/* Where of (span, head) a state of `width` columns lies. */
template <class R>
__device__ __forceinline__ R *gdn_wide_state(const cpl_gdn &p, R *states,
                                             int64_t index, int head, int width)
{
    return states == nullptr
               ? nullptr
               : states + (index * p.value_heads + head) * p.key_dim * width;
}

/* Asks for `columns` columns of rows that the next chunk reads: a walk waits
 * for memory more than for anything else. */
template <class E>
__device__ __forceinline__ void gdn_ask_for(const gdn_matrix<E> &m, int first,
                                            int columns)
{
    constexpr int LINE = 128 / static_cast<int>(sizeof(E));
    const int left = m.columns - first;
    const int width = columns < left ? columns : left;
    const int lines = (width + LINE - 1) / LINE;
    for (int i = threadIdx.x; i < m.rows * lines; i += TILE_THREADS)
        cpli_prefetch(m.at + i / lines * m.stride + first + i % lines * LINE);
}

/* N = U - W S of a chunk, to where it is wanted, and diag(D_n) N to shared
 * memory: keys then are multiplied as they are. */
template <class T>
__device__ __forceinline__ void
gdn_chain_deltas(const gdn_pass<T> &pass,
                 const gdn_chain_states<sum_t<T>> &states,
                 const gdn_place &place, int head,
                 const gdn_matrix<sum_t<T>> &state, gdn_chain_space<T> &space)
{
    using R = sum_t<T>;
    const cpl_gdn &p = pass.p;
    const int first = blockIdx.z * SLICE<T>;
    const int64_t stride = p.value_heads * states.width;
    const R *u = states.has_values
                     ? gdn_rows(p, pass.u, place, head, states.width) + first
                     : nullptr;
    R *deltas =
        states.deltas == nullptr
            ? nullptr
            : gdn_rows(p, states.deltas, place, head, states.width) + first;
    const R *end = gdn_gates(p, pass.end, place, head);
    gdn_slice_of_rows<T> met;
    gdn_clear(met);
    gdn_multiply<false, false>(
        met, gdn_row_matrix<R>(p, pass.w, place, head, p.key_dim), 0, state, 0,
        static_cast<int>(p.key_dim),
        reinterpret_cast<unsigned char *>(space.stage));
    gdn_each(met, place.n, SLICE<T>, [&](R x, int row, int column) {
        const bool is_inside = first + column < states.width;
        R delta = -x;
        if (u != nullptr && is_inside)
            delta = u[row * stride + column] - x;
        space.rows[row * SLICE<T> + column] = end[row] * delta;
        if (deltas != nullptr && is_inside)
            deltas[row * stride + column] = delta;
    });
}

template <class T>
__device__ __forceinline__ void
gdn_ask_ahead(const gdn_pass<T> &pass, const gdn_chain_states<sum_t<T>> &states,
              const gdn_place &next, int head)
{
    using R = sum_t<T>;
    const cpl_gdn &p = pass.p;
    const int key_dim = static_cast<int>(p.key_dim);
    gdn_ask_for(gdn_row_matrix<R>(p, pass.w, next, head, key_dim), 0, key_dim);
    gdn_ask_for(gdn_keys<T>(p, next, head), 0, key_dim);
    if (states.has_values)
        gdn_ask_for(gdn_row_matrix<R>(p, pass.u, next, head, states.width),
                    blockIdx.z * SLICE<T>, SLICE<T>);
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    gdn_chain_chunks(const __grid_constant__ gdn_pass<T> pass,
                     const __grid_constant__ gdn_chain_states<sum_t<T>> states)
{
    using R = sum_t<T>;
    CPLI_SHARED(gdn_chain_space<T>, space_memory, [1]);
    gdn_chain_space<T> &space = space_memory[0];
    const cpl_gdn &p = pass.p;
    const int key_dim = static_cast<int>(p.key_dim);
    const int width = states.width;
    const int head = blockIdx.y;
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x) {
        gdn_slice_of_state<T> slice;
        gdn_load_slice<T>(slice, gdn_wide_state(p, states.in, i, head, width),
                          width, key_dim, states.is_identity);
        const int64_t n_chunks = gdn_span_chunks(pass.list, i);
        for (int64_t c = 0; c < n_chunks; c++) {
            const gdn_place place = gdn_chunk_of(pass.list, i, c);
            if (!place.first && states.kept != nullptr)
                gdn_store_slice<T>(
                    slice,
                    gdn_wide_state(p, states.kept, place.kept - 1, head, width),
                    width, key_dim);
            if (c + 1 < n_chunks)
                gdn_ask_ahead(pass, states, gdn_chunk_of(pass.list, i, c + 1),
                              head);
            const gdn_matrix<R> state =
                gdn_share_slice<T>(slice, space, key_dim);
            gdn_chain_deltas(pass, states, place, head, state, space);
            const R decay = gdn_gates(p, pass.start, place, head)[place.n - 1];
#pragma unroll
            for (int e = 0; e < slice.SIZE; e++)
                slice.at[e] *= decay;
            gdn_multiply<true, false>(
                slice, gdn_keys<T>(p, place, head), 0,
                gdn_plain<R>(space.rows, SLICE<T>, place.n, SLICE<T>), 0,
                place.n, reinterpret_cast<unsigned char *>(space.stage));
        }
        gdn_store_slice<T>(slice, gdn_wide_state(p, states.out, i, head, width),
                           width, key_dim);
    }
}

/* ---- backward ---- */

/* Z = P'dO, where every gradient of outputs that is not finite is seen; blocks
 * in z are tiles of 64 columns. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    gdn_pull_values(const __grid_constant__ gdn_pass_back<T> back)
{
    using R = sum_t<T>;
    CPLI_SHARED(uint4, stage, [gdn_square_stage<T> / 16]);
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int head = blockIdx.y, first = blockIdx.z * 64;
    const int width = static_cast<int>(p.value_dim);
    const int64_t n_chunks = gdn_n_chunks(pass.list);
    for (int64_t c = blockIdx.x; c < n_chunks; c += gridDim.x) {
        const gdn_place place = gdn_find(pass.list, c);
        R *z = gdn_rows(p, back.z, place, head, width) + first;
        gdn_tile<T, 64, 64> tile;
        bool is_finite = true;
        gdn_clear(tile);
        gdn_multiply<true, false>(
            tile, gdn_row_matrix<R>(p, pass.weights, place, head, GDN_CHUNK), 0,
            gdn_row_matrix<T>(p, back.d_o, place, head, width), first, place.n,
            reinterpret_cast<unsigned char *>(stage));
        gdn_each(tile, place.n, width - first, [&](R x, int row, int column) {
            z[row * p.value_heads * width + column] = x;
            is_finite = is_finite && gdn_is_finite(x);
        });
        if (!is_finite)
            gdn_mark_wild(pass.list, place.span, head);
    }
}

/* dN = Z + diag(D_n) K X of a chunk, in place of Z, and -dN to shared memory.
 */
template <class T>
__device__ __forceinline__ void
gdn_pull_deltas(const gdn_pass_back<T> &back, const gdn_place &place, int head,
                const gdn_matrix<sum_t<T>> &x, gdn_chain_space<T> &space)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int first = blockIdx.z * SLICE<T>;
    const int width = static_cast<int>(p.value_dim);
    R *z = gdn_rows(p, back.z, place, head, width) + first;
    const R *end = gdn_gates(p, pass.end, place, head);
    gdn_slice_of_rows<T> met;
    gdn_clear(met);
    gdn_multiply<false, false>(met, gdn_keys<T>(p, place, head), 0, x, 0,
                               static_cast<int>(p.key_dim),
                               reinterpret_cast<unsigned char *>(space.stage));
    gdn_each(met, place.n, SLICE<T>, [&](R sum, int row, int column) {
        R d_delta = 0;
        if (first + column < width) {
            R *at = z + row * p.value_heads * width + column;
            d_delta = *at + end[row] * sum;
            *at = d_delta;
        }
        space.rows[row * SLICE<T> + column] = -d_delta;
    });
}

template <class T>
__device__ __forceinline__ void gdn_ask_behind(const gdn_pass_back<T> &back,
                                               const gdn_place &next, int head)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int key_dim = static_cast<int>(p.key_dim);
    const int first = blockIdx.z * SLICE<T>;
    gdn_ask_for(gdn_keys<T>(p, next, head), 0, key_dim);
    gdn_ask_for(gdn_queries<T>(p, next, head), 0, key_dim);
    gdn_ask_for(gdn_row_matrix<R>(p, pass.w, next, head, key_dim), 0, key_dim);
    gdn_ask_for(gdn_row_matrix<R>(p, back.z, next, head, p.value_dim), first,
                SLICE<T>);
    gdn_ask_for(gdn_row_matrix<T>(p, back.d_o, next, head, p.value_dim), first,
                SLICE<T>);
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    gdn_pull_chunks(const __grid_constant__ gdn_pass_back<T> back,
                    sum_t<T> *out)
{
    using R = sum_t<T>;
    CPLI_SHARED(gdn_chain_space<T>, space_memory, [1]);
    gdn_chain_space<T> &space = space_memory[0];
    unsigned char *stage = reinterpret_cast<unsigned char *>(space.stage);
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int key_dim = static_cast<int>(p.key_dim);
    const int width = static_cast<int>(p.value_dim);
    const int head = blockIdx.y, first = blockIdx.z * SLICE<T>;
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x) {
        gdn_slice_of_state<T> slice;
        gdn_load_slice<T>(slice, gdn_state(p, back.d_state_out, i, head), width,
                          key_dim, false);
        for (int64_t c = gdn_span_chunks(pass.list, i) - 1; c >= 0; c--) {
            const gdn_place place = gdn_chunk_of(pass.list, i, c);
            if (!place.last && back.kept != nullptr)
                gdn_store_slice<T>(slice,
                                   gdn_state(p, back.kept, place.kept, head),
                                   width, key_dim);
            if (c > 0)
                gdn_ask_behind(back, gdn_chunk_of(pass.list, i, c - 1), head);
            gdn_pull_deltas(back, place, head,
                            gdn_share_slice<T>(slice, space, key_dim), space);
            const R decay = gdn_gates(p, pass.start, place, head)[place.n - 1];
#pragma unroll
            for (int e = 0; e < slice.SIZE; e++)
                slice.at[e] *= decay;
            gdn_multiply<true, false>(
                slice,
                gdn_times(gdn_queries<T>(p, place, head),
                          gdn_gates<const R>(p, pass.seen, place, head)),
                0, gdn_row_matrix<T>(p, back.d_o, place, head, width), first,
                place.n, stage);
            gdn_multiply<true, false>(
                slice, gdn_row_matrix<R>(p, pass.w, place, head, key_dim), 0,
                gdn_plain<R>(space.rows, SLICE<T>, place.n, SLICE<T>), 0,
                place.n, stage);
        }
        gdn_store_slice<T>(slice, gdn_state(p, out, i, head), width, key_dim);
    }
}

/* ---- launches ---- */

/* Spans in x, heads in y, slices in z. */
template <class T> static dim3 gdn_chain_grid(const cpl_gdn *p, int64_t width)
{
    return dim3(gdn_blocks(p->n_spans), static_cast<unsigned>(p->value_heads),
                static_cast<unsigned>((width + SLICE<T> - 1) / SLICE<T>));
}

template <class T>
int gdn_chain(const gdn_pass<T> &pass, const gdn_chain_states<sum_t<T>> &states,
              cpl_cuda_stream stream)
{
    return CPLI_LAUNCH(gdn_chain_chunks<T>,
                       gdn_chain_grid<T>(&pass.p, states.width), TILE_THREADS,
                       0, stream, pass, states);
}

template <class T>
int gdn_pull(const gdn_pass_back<T> &back, sum_t<T> *out,
             cpl_cuda_stream stream)
{
    const cpl_gdn *p = &back.forward.p;
    int error = CPLI_LAUNCH(gdn_pull_values<T>, gdn_chunk_grid(p, p->value_dim),
                            TILE_THREADS, 0, stream, back);
    if (error != cudaSuccess)
        return error;
    return CPLI_LAUNCH(gdn_pull_chunks<T>, gdn_chain_grid<T>(p, p->value_dim),
                       TILE_THREADS, 0, stream, back, out);
}

#define INSTANTIATE(T)                                          \
    template int gdn_chain(const gdn_pass<T> &,                 \
                           const gdn_chain_states<sum_t<T>> &,  \
                           cpl_cuda_stream);                    \
    template int gdn_pull(const gdn_pass_back<T> &, sum_t<T> *, \
                          cpl_cuda_stream);
INSTANTIATE(double)
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)

} // namespace cpli
