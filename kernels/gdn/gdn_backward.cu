/*
 * gdn_backward.cu: the chunked backward pass. When the states and their
 * gradients are known at both ends of every chunk, chunks are done side by
 * side; the formulas are those of gdn_backward_cpu.c.
 */
#include "gdn/chunk.cuh"

namespace cpli
{

/* dR = T'dN, in place of dN, and dV = diag(beta) dR; blocks in z are tiles of
 * 64 columns, which do not know each other. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    gdn_back_rows(const __grid_constant__ gdn_pass_back<T> back)
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
        const R *beta =
            static_cast<const R *>(p.beta) + place.slot * p.value_heads + head;
        R *dr = gdn_rows(p, back.z, place, head, width) + first;
        T *dv = back.dv + place.slot * back.dv_stride + head * width + first;
        gdn_tile<T, 64, 64> tile;
        gdn_clear(tile);
        gdn_multiply<true, false>(
            tile, gdn_row_matrix<R>(p, pass.inverse, place, head, GDN_CHUNK), 0,
            gdn_row_matrix<R>(p, back.z, place, head, width), first, place.n,
            reinterpret_cast<unsigned char *>(stage));
        gdn_each(tile, place.n, width - first, [&](R x, int row, int column) {
            dr[row * p.value_heads * width + column] = x;
            dv[row * back.dv_stride + column] =
                put<T>(beta[row * p.value_heads] * x);
        });
        __syncthreads();
    }
}

/* ---- pairs ---- */

template <class R> struct gdn_pair_space {
    R square[GDN_CHUNK * gdn_square_pitch<R>]; /* D, then shares of dg */
    gdn_chunk_gates<R> gates;
    R dbeta[GDN_CHUNK];
};

/* Sums over i >= l > j of the shares (i, j), for every l; columns first. */
template <class R> __device__ __forceinline__ R gdn_sum_pairs(R *square, int n)
{
    constexpr int PITCH = gdn_square_pitch<R>;
    const int l = threadIdx.x;
    __syncthreads();
    if (l < n) {
        R sum = 0;
        for (int i = n - 1; i > l; i--)
            square[i * PITCH + l] = sum += square[i * PITCH + l];
    }
    __syncthreads();
    R sum = 0;
    for (int j = 0; l < n && j < l; j++)
        sum += square[l * PITCH + j];
    return sum;
}

/* From dO N', dR N' and K K' of a chunk: A over P, B over T, the shares, and E
 * M for dbeta in place of dR N'. */
template <class T>
__device__ __forceinline__ void
gdn_pair_up(const gdn_pass_back<T> &back, const gdn_place &place, int head,
            const gdn_tile<T, 64, 64> &d_weights, gdn_tile<T, 64, 64> &drn,
            const gdn_tile<T, 64, 64> &met, gdn_pair_space<sum_t<T>> &space)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int64_t stride = p.value_heads * GDN_CHUNK;
    R *weights = gdn_rows(p, pass.weights, place, head, GDN_CHUNK);
    R *inverse = gdn_rows(p, pass.inverse, place, head, GDN_CHUNK);
#pragma unroll
    for (int e = 0; e < drn.SIZE; e++) {
        const int i = drn.row(e), j = drn.column(e);
        if (i >= place.n || j > i) {
            drn.at[e] = 0;
            if (i < place.n)
                weights[i * stride + j] = inverse[i * stride + j] = 0;
            continue;
        }
        R &at = space.square[i * gdn_square_pitch<R> + j];
        const R beta = space.gates.beta[i];
        const R decay = at;
        const R share = j < i ? -drn.at[e] * met.at[e] * decay : 0;
        at = j < i ? d_weights.at[e] * weights[i * stride + j] + beta * share
                   : 0;
        weights[i * stride + j] =
            static_cast<R>(p.scale) * decay * d_weights.at[e];
        inverse[i * stride + j] = j < i ? -beta * decay * drn.at[e] : 0;
        drn.at[e] = share;
    }
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, sizeof(T) == 8 ? 1 : 2)
    gdn_back_pairs(const __grid_constant__ gdn_pass_back<T> back)
{
    using R = sum_t<T>;
    CPLI_SHARED(uint4, stage_memory, [gdn_square_stage<T> / 16]);
    CPLI_SHARED(gdn_pair_space<R>, space_memory, [1]);
    unsigned char *stage = reinterpret_cast<unsigned char *>(stage_memory);
    gdn_pair_space<R> &space = space_memory[0];
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int head = blockIdx.y, me = threadIdx.x;
    const int64_t n_chunks = gdn_n_chunks(pass.list);
    for (int64_t c = blockIdx.x; c < n_chunks; c += gridDim.x) {
        const gdn_place place = gdn_find(pass.list, c);
        const gdn_matrix<T> keys = gdn_keys<T>(p, place, head);
        const gdn_matrix<R> deltas =
            gdn_row_matrix<R>(p, pass.u, place, head, p.value_dim);
        gdn_load_gates(p, place, head, space.gates);
        if (me < GDN_CHUNK)
            space.dbeta[me] = 0;
        gdn_load_decays(space.gates, space.square);
        gdn_tile<T, 64, 64> d_weights, drn, met;
        gdn_clear(d_weights);
        gdn_clear(drn);
        gdn_clear(met);
        gdn_multiply<false, true>(
            d_weights, gdn_row_matrix<T>(p, back.d_o, place, head, p.value_dim),
            0, deltas, 0, static_cast<int>(p.value_dim), stage);
        gdn_multiply<false, true>(
            drn, gdn_row_matrix<R>(p, back.z, place, head, p.value_dim), 0,
            deltas, 0, static_cast<int>(p.value_dim), stage);
        gdn_multiply<false, true>(met, keys, 0, keys, 0,
                                  static_cast<int>(p.key_dim), stage);
        gdn_pair_up(back, place, head, d_weights, drn, met, space);
        gdn_row_sums(drn, place.n, 64, reinterpret_cast<R *>(stage),
                     space.dbeta, [](R x, int, int) { return x; });
        const R pairs = gdn_sum_pairs(space.square, place.n);
        if (me < place.n) {
            gdn_gates(p, back.pairs, place, head)[me] = pairs;
            back.dbeta[(place.slot + me) * p.value_heads + head] =
                space.dbeta[me];
        }
        __syncthreads();
    }
}

/* ---- keys ---- */

template <class R> struct gdn_key_space {
    R q_h[GDN_CHUNK];  /* q.(dO S') */
    R k_dr[GDN_CHUNK]; /* k.(dR S') */
    R k_x[GDN_CHUNK];  /* k.(N X') */
    R v_dr[GDN_CHUNK]; /* v.dR */
    R whole[TILE_THREADS / 32];
};

template <class R> __device__ __forceinline__ R gdn_warp_sum(R x)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

/* <S, X>, a part by every warp. */
template <class R>
__device__ __forceinline__ void gdn_dot_states(const R *s, const R *x, int n,
                                               R *parts)
{
    R sum = 0;
    if (s != nullptr && x != nullptr)
        for (int e = threadIdx.x; e < n; e += TILE_THREADS)
            sum += s[e] * x[e];
    sum = gdn_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = sum;
}

/* Row by row v.dR, a row a warp. */
template <class T>
__device__ __forceinline__ void gdn_dot_rows(const gdn_matrix<T> &v,
                                             const gdn_matrix<sum_t<T>> &dr,
                                             sum_t<T> *dots)
{
    for (int row = threadIdx.x / 32; row < v.rows; row += TILE_THREADS / 32) {
        sum_t<T> sum = 0;
        for (int j = threadIdx.x % 32; j < v.columns; j += 32)
            sum += get(v.at[row * v.stride + j]) * dr.at[row * dr.stride + j];
        sum = gdn_warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            dots[row] = sum;
    }
}

/* What the phases of a block need of its chunk. */
template <class T> struct gdn_key_view {
    using R = sum_t<T>;
    const gdn_pass_back<T> &back;
    gdn_place place;
    int head;
    gdn_matrix<T> queries, keys;
    gdn_matrix<R> state, x; /* S, X */
    unsigned char *stage;
};

/* 64 columns of dQ = s diag(G) dO S' + A K, from column j on. */
template <class T>
__device__ __forceinline__ void gdn_back_queries(const gdn_key_view<T> &v,
                                                 int j,
                                                 gdn_key_space<sum_t<T>> &space)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = v.back.forward;
    const cpl_gdn &p = pass.p;
    const int n = v.place.n, columns = v.keys.columns - j;
    const R *seen = gdn_gates(p, pass.seen, v.place, v.head);
    R *dq = gdn_rows(p, pass.w, v.place, v.head, p.key_dim) + j;
    gdn_tile<T, 64, 64> tile;
    gdn_clear(tile);
    gdn_multiply<false, true>(
        tile, gdn_row_matrix<T>(p, v.back.d_o, v.place, v.head, p.value_dim), 0,
        v.state, j, static_cast<int>(p.value_dim), v.stage);
    gdn_row_sums(
        tile, n, columns, reinterpret_cast<R *>(v.stage), space.q_h,
        [&](R x, int row, int column) {
            return x * get(v.queries.at[row * v.queries.stride + j + column]);
        });
    gdn_each(tile, n, 64, [&](R &x, int row, int) { x *= seen[row]; });
    gdn_multiply<false, false>(
        tile, gdn_row_matrix<R>(p, pass.weights, v.place, v.head, GDN_CHUNK), 0,
        v.keys, j, n, v.stage);
    gdn_each(tile, n, columns, [&](R x, int row, int column) {
        dq[row * p.value_heads * p.key_dim + column] = x;
    });
}

/* 64 columns of what S and X give to dK: diag(D_n) N X' - diag(beta G) dR S'.
 */
template <class T>
__device__ __forceinline__ void
gdn_back_key_states(const gdn_key_view<T> &v, int j, gdn_tile<T, 64, 64> &tile,
                    gdn_key_space<sum_t<T>> &space)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = v.back.forward;
    const cpl_gdn &p = pass.p;
    const int n = v.place.n, columns = v.keys.columns - j;
    const int width = static_cast<int>(p.value_dim);
    const R *start = gdn_gates(p, pass.start, v.place, v.head);
    const R *end = gdn_gates(p, pass.end, v.place, v.head);
    const R *beta =
        static_cast<const R *>(p.beta) + v.place.slot * p.value_heads + v.head;
    const auto with_k = [&](R x, int row, int column) {
        return x * get(v.keys.at[row * v.keys.stride + j + column]);
    };
    R *parts = reinterpret_cast<R *>(v.stage);
    gdn_tile<T, 64, 64> from_x;
    gdn_clear(tile);
    gdn_clear(from_x);
    gdn_multiply<false, true>(
        tile, gdn_row_matrix<R>(p, v.back.z, v.place, v.head, width), 0,
        v.state, j, width, v.stage);
    gdn_row_sums(tile, n, columns, parts, space.k_dr, with_k);
    gdn_multiply<false, true>(
        from_x, gdn_row_matrix<R>(p, pass.u, v.place, v.head, width), 0, v.x, j,
        width, v.stage);
    gdn_row_sums(from_x, n, columns, parts, space.k_x, with_k);
#pragma unroll
    for (int e = 0; e < tile.SIZE; e++) {
        const int row = tile.row(e);
        if (row < n)
            tile.at[e] = end[row] * from_x.at[e] -
                         beta[row * p.value_heads] * start[row] * tile.at[e];
    }
}

/* 64 columns of dK. */
template <class T>
__device__ __forceinline__ void gdn_back_keys(const gdn_key_view<T> &v, int j,
                                              gdn_key_space<sum_t<T>> &space)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = v.back.forward;
    const cpl_gdn &p = pass.p;
    const int n = v.place.n;
    R *dk = gdn_rows(p, v.back.dk, v.place, v.head, p.key_dim) + j;
    const gdn_matrix<R> a =
        gdn_row_matrix<R>(p, pass.weights, v.place, v.head, GDN_CHUNK);
    const gdn_matrix<R> b =
        gdn_row_matrix<R>(p, pass.inverse, v.place, v.head, GDN_CHUNK);
    gdn_tile<T, 64, 64> tile;
    gdn_back_key_states(v, j, tile, space);
    gdn_multiply<false, false>(tile, b, 0, v.keys, j, n, v.stage);
    gdn_multiply<true, false>(tile, b, 0, v.keys, j, n, v.stage);
    gdn_multiply<true, false>(tile, a, 0, v.queries, j, n, v.stage);
    gdn_each(tile, n, v.keys.columns - j, [&](R x, int row, int column) {
        dk[row * p.value_heads * p.key_dim + column] = x;
    });
}

/* dbeta and dg of row l from the sums of all rows. */
template <class T>
__device__ __forceinline__ void
gdn_back_gates(const gdn_key_view<T> &v, const gdn_key_space<sum_t<T>> &space)
{
    using R = sum_t<T>;
    const gdn_pass<T> &pass = v.back.forward;
    const cpl_gdn &p = pass.p;
    const int n = v.place.n, l = threadIdx.x;
    if (l >= n)
        return;
    const R *start = gdn_gates(p, pass.start, v.place, v.head);
    const R *seen = gdn_gates(p, pass.seen, v.place, v.head);
    const R *end = gdn_gates(p, pass.end, v.place, v.head);
    const int64_t gate = v.place.slot * p.value_heads + v.head;
    const R *beta = static_cast<const R *>(p.beta) + gate;
    R sum = 0;
    for (int i = 0; i < TILE_THREADS / 32; i++)
        sum += space.whole[i];
    sum *= start[n - 1];
    for (int j = 0; j < l; j++)
        sum += end[j] * space.k_x[j];
    for (int i = n - 1; i >= l; i--)
        sum += seen[i] * space.q_h[i] -
               beta[i * p.value_heads] * start[i] * space.k_dr[i];
    const int64_t mine = gate + l * p.value_heads;
    v.back.dg[mine] = sum + gdn_gates(p, v.back.pairs, v.place, v.head)[l];
    v.back.dbeta[mine] += space.v_dr[l] - start[l] * space.k_dr[l];
}

template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    gdn_back_chunks(const __grid_constant__ gdn_pass_back<T> back)
{
    using R = sum_t<T>;
    CPLI_SHARED(uint4, stage, [gdn_square_stage<T> / 16]);
    CPLI_SHARED(gdn_key_space<R>, space_memory, [1]);
    gdn_key_space<R> &space = space_memory[0];
    const gdn_pass<T> &pass = back.forward;
    const cpl_gdn &p = pass.p;
    const int head = blockIdx.y;
    const int64_t n_chunks = gdn_n_chunks(pass.list);
    for (int64_t c = blockIdx.x; c < n_chunks; c += gridDim.x) {
        const gdn_place place = gdn_find(pass.list, c);
        const R *s = gdn_entering(pass, place, head);
        const R *x = gdn_leaving(back, place, head);
        const gdn_key_view<T> view = {back,
                                      place,
                                      head,
                                      gdn_queries<T>(p, place, head),
                                      gdn_keys<T>(p, place, head),
                                      gdn_state_matrix(p, s),
                                      gdn_state_matrix(p, x),
                                      reinterpret_cast<unsigned char *>(stage)};
        if (threadIdx.x < GDN_CHUNK)
            space.q_h[threadIdx.x] = space.k_dr[threadIdx.x] =
                space.k_x[threadIdx.x] = 0;
        gdn_dot_states(s, x, static_cast<int>(gdn_state_size(p)), space.whole);
        gdn_dot_rows(gdn_values<T>(p, place, head),
                     gdn_row_matrix<R>(p, back.z, place, head, p.value_dim),
                     space.v_dr);
#pragma unroll 1
        for (int j = 0; j < p.key_dim; j += 64) {
            gdn_back_queries(view, j, space);
            gdn_back_keys(view, j, space);
        }
        gdn_back_gates(view, space);
        __syncthreads();
    }
}

/* ---- launches ---- */

template <class T>
static gdn_pass_back<T> take_back(const cpl_gdn_backward *b, gdn_arena *arena,
                                  int32_t dtype)
{
    using R = sum_t<T>;
    const cpl_gdn *p = &b->forward;
    const int64_t rows = p->n_rows * p->value_heads;
    gdn_pass_back<T> back;
    back.dk = arena->take<R>(rows * p->key_dim); /* lives on, as W does */
    back.forward = gdn_take_pass<T>(
        p, arena, {true, true, true, gdn_walk_backward_bytes(b, dtype)});
    back.d_o = static_cast<const T *>(b->d_o);
    back.d_state_out = static_cast<const R *>(b->d_state_out);
    back.z = arena->take<R>(rows * p->value_dim);
    back.kept =
        arena->take<R>(gdn_most_kept(p) * p->value_heads * gdn_state_size(*p));
    back.pairs = arena->take<R>(rows);
    back.dv = static_cast<T *>(b->dv);
    back.dg = static_cast<R *>(b->dg);
    back.dbeta = static_cast<R *>(b->dbeta);
    back.dv_stride = b->dv_stride;
    return back;
}

size_t gdn_chunked_backward_workspace(const cpl_gdn_backward *b, int32_t dtype)
{
    gdn_arena arena(nullptr);
    by_dtype(dtype, [&](auto type) {
        take_back<decltype(type)>(b, &arena, dtype);
        return 0;
    });
    return arena.most();
}

/* States and their gradients at the ends of all chunks. */
template <class T>
static int sweep(const cpl_gdn_backward *b, const gdn_pass_back<T> &back,
                 cpl_cuda_stream stream)
{
    using R = sum_t<T>;
    const cpl_gdn *p = &b->forward;
    gdn_chain_states<R> states = {};
    states.in = static_cast<const R *>(p->state_in);
    states.has_values = true;
    states.kept = back.forward.kept;
    states.deltas = back.forward.u;
    states.width = static_cast<int>(p->value_dim);
    int error = gdn_prepare(back.forward, stream);
    if (error == cudaSuccess)
        error = gdn_chain(back.forward, states, stream);
    if (error == cudaSuccess)
        error = gdn_pull(back, static_cast<R *>(b->d_state_in), stream);
    return error;
}

template <class T>
static int gradients(const cpl_gdn_backward *b, const gdn_pass_back<T> &back,
                     int32_t dtype, cpl_cuda_stream stream)
{
    const cpl_gdn *p = &b->forward;
    const gdn_pass<T> &pass = back.forward;
    int error = CPLI_LAUNCH(gdn_back_rows<T>, gdn_chunk_grid(p, p->value_dim),
                            TILE_THREADS, 0, stream, back);
    if (error == cudaSuccess)
        error = CPLI_LAUNCH(gdn_back_pairs<T>, gdn_chunk_grid(p), TILE_THREADS,
                            0, stream, back);
    if (error == cudaSuccess)
        error = CPLI_LAUNCH(gdn_back_chunks<T>, gdn_chunk_grid(p), TILE_THREADS,
                            0, stream, back);
    if (error == cudaSuccess)
        error = gdn_walk_backward(b, pass.list, dtype, {pass.w, back.dk},
                                  pass.walk, stream);
    if (error == cudaSuccess)
        error = gdn_sum_heads(pass.list, p, dtype, pass.w, b->dq, b->dq_stride,
                              stream);
    if (error == cudaSuccess)
        error = gdn_sum_heads(pass.list, p, dtype, back.dk, b->dk, b->dk_stride,
                              stream);
    return error;
}

int gdn_chunked_backward(const cpl_gdn_backward *b, int32_t dtype,
                         cpl_cuda_stream stream)
{
    return by_dtype(dtype, [&](auto type) {
        gdn_arena arena(b->workspace);
        const auto back = take_back<decltype(type)>(b, &arena, dtype);
        int error = gdn_begin_backward(b, back.forward.list, dtype, stream);
        if (error != cudaSuccess || b->forward.n_spans == 0)
            return error;
        error = sweep(b, back, stream);
        return error == cudaSuccess ? gradients(b, back, dtype, stream) : error;
    });
}

} // namespace cpli
