/*
 * chunk.cuh: the phases of the chunked delta rule, between which everything
 * lies in the workspace. Letters as in chunk.h and pull.h; with T = (I + L)^-1,
 *   W = T diag(beta G) K,  U = T diag(beta) V,  N = U - W S,
 * so that only the products with S and X wait for the chunk before:
 *   prepare  G, D, T, P, W, U                     chunks side by side
 *   chain    N = U - W S,  S' = G_n S + K' diag(D_n) N         one by one
 *   output   O = s diag(G) Q S + P N                         side by side
 * and backward, after prepare and chain,
 *   values   Z = P'dO                                        side by side
 *   pull     dN = Z + diag(D_n) K X,
 *            dS = G_n X + Q' diag(s G) dO - W'dN               one by one
 *   rows     dR = T'dN, dV                                   side by side
 *   pairs    A, B, the pairs' shares of dbeta and dg         side by side
 *   keys     dQ, dK, dbeta, dg                               side by side
 * and last, by tokens, what turned out to be wild.
 */
#ifndef CPLI_GDN_CHUNK_CUH
#define CPLI_GDN_CHUNK_CUH

#include "gdn/gdn.cuh"
#include "gdn/tile.cuh"

namespace cpli
{

/* Of all tokens and value heads, in this order: [n_rows, value_heads, ..]; but
 * gates are [value_heads, n_rows]. */
template <class T> struct gdn_pass {
    using R = sum_t<T>;
    cpl_gdn p;
    gdn_list list;
    R *start;   /* G */
    R *seen;    /* s G */
    R *end;     /* D_n */
    R *inverse; /* [.., 64]: T, later B */
    R *weights; /* [.., 64]: P, later A; NULL: not wanted */
    R *w;       /* [.., K]: W, later dQ by value head */
    R *u;       /* [.., V]: U, later N; NULL: not wanted */
    R *kept;    /* states between chunks */
    void *walk; /* for what is done by tokens; in all of these but W */
};
template <class T> struct gdn_pass_back {
    using R = sum_t<T>;
    gdn_pass<T> forward;
    const T *d_o;
    const R *d_state_out;
    R *z;     /* [.., V]: Z, then dN, then dR */
    R *kept;  /* gradients of states between chunks */
    R *dk;    /* [.., K]: dK by value head */
    R *pairs; /* gates: sum over i >= l > j of the shares of dg */
    T *dv;
    R *dg, *dbeta;
    int64_t dv_stride;
};

/* What a pass wants besides gates, the inverse and W; no bytes to walk with:
 * nothing will be done by tokens. */
struct gdn_wants {
    bool weights, values, kept;
    size_t walk_bytes;
};

/* The pieces of a pass; what is not wanted stays NULL. */
template <class T>
gdn_pass<T> gdn_take_pass(const cpl_gdn *p, gdn_arena *arena,
                          const gdn_wants &wants)
{
    using R = sum_t<T>;
    const int64_t rows = p->n_rows * p->value_heads;
    gdn_pass<T> pass;
    pass.p = *p;
    pass.list = gdn_take_list(p, arena, wants.walk_bytes > 0);
    pass.w = arena->take<R>(rows * p->key_dim);
    pass.walk = arena->take_again(wants.walk_bytes);
    pass.start = arena->take<R>(rows);
    pass.seen = arena->take<R>(rows);
    pass.end = arena->take<R>(rows);
    pass.inverse = arena->take<R>(rows * GDN_CHUNK);
    pass.weights = wants.weights ? arena->take<R>(rows * GDN_CHUNK) : nullptr;
    pass.u = wants.values ? arena->take<R>(rows * p->value_dim) : nullptr;
    pass.kept = wants.kept ? arena->take<R>(gdn_most_kept(p) * p->value_heads *
                                            gdn_state_size(*p))
                           : nullptr;
    return pass;
}

/* ---- where a chunk of a head is ---- */

/* Rows of [n_rows, value_heads, width]. */
template <class R>
__device__ __forceinline__ R *gdn_rows(const cpl_gdn &p, R *all,
                                       const gdn_place &place, int head,
                                       int64_t width)
{
    return all + (place.slot * p.value_heads + head) * width;
}

template <class R>
__device__ __forceinline__ gdn_matrix<R>
gdn_row_matrix(const cpl_gdn &p, const R *all, const gdn_place &place, int head,
               int64_t width)
{
    return gdn_plain(gdn_rows(p, all, place, head, width),
                     p.value_heads * width, place.n, static_cast<int>(width));
}

/* Of [value_heads, n_rows]. */
template <class R>
__device__ __forceinline__ R *gdn_gates(const cpl_gdn &p, R *all,
                                        const gdn_place &place, int head)
{
    return all + head * p.n_rows + place.slot;
}

template <class T>
__device__ __forceinline__ gdn_matrix<T>
gdn_queries(const cpl_gdn &p, const gdn_place &place, int head)
{
    return gdn_plain(static_cast<const T *>(p.q) + place.slot * p.q_stride +
                         gdn_key_head(p, head) * p.key_dim,
                     p.q_stride, place.n, static_cast<int>(p.key_dim));
}

template <class T>
__device__ __forceinline__ gdn_matrix<T>
gdn_keys(const cpl_gdn &p, const gdn_place &place, int head)
{
    return gdn_plain(static_cast<const T *>(p.k) + place.slot * p.k_stride +
                         gdn_key_head(p, head) * p.key_dim,
                     p.k_stride, place.n, static_cast<int>(p.key_dim));
}

template <class T>
__device__ __forceinline__ gdn_matrix<T>
gdn_values(const cpl_gdn &p, const gdn_place &place, int head)
{
    return gdn_plain(static_cast<const T *>(p.v) + place.slot * p.v_stride +
                         head * p.value_dim,
                     p.v_stride, place.n, static_cast<int>(p.value_dim));
}

/* The same rows, each times its factor. */
template <class E>
__device__ __forceinline__ gdn_matrix<E, true>
gdn_times(const gdn_matrix<E> &m, const sum_t<E> *factors)
{
    return gdn_scaled(m.at, m.stride, m.rows, m.columns, factors);
}

/* The state that enters a chunk, and the gradient of the one that leaves. */
template <class T>
__device__ __forceinline__ const sum_t<T> *
gdn_entering(const gdn_pass<T> &pass, const gdn_place &place, int head)
{
    const cpl_gdn &p = pass.p;
    if (place.first)
        return gdn_state(p, static_cast<const sum_t<T> *>(p.state_in),
                         place.span, head);
    return gdn_state(p, pass.kept, place.kept - 1, head);
}

template <class T>
__device__ __forceinline__ const sum_t<T> *
gdn_leaving(const gdn_pass_back<T> &pass, const gdn_place &place, int head)
{
    const cpl_gdn &p = pass.forward.p;
    if (place.last)
        return gdn_state(p, pass.d_state_out, place.span, head);
    return gdn_state(p, pass.kept, place.kept, head);
}

template <class R>
__device__ __forceinline__ gdn_matrix<R> gdn_state_matrix(const cpl_gdn &p,
                                                          const R *state)
{
    return gdn_plain(state, p.value_dim, static_cast<int>(p.key_dim),
                     static_cast<int>(p.value_dim));
}

/* ---- gates of a chunk ---- */

template <class R> struct gdn_chunk_gates {
    R g[GDN_CHUNK], beta[GDN_CHUNK]; /* 0 beyond the chunk */
};

/* A barrier follows. */
template <class R>
__device__ __forceinline__ void gdn_load_gates(const cpl_gdn &p,
                                               const gdn_place &place, int head,
                                               gdn_chunk_gates<R> &gates)
{
    const int i = threadIdx.x;
    if (i >= GDN_CHUNK)
        return;
    const int64_t at = (place.slot + i) * p.value_heads + head;
    gates.g[i] = i < place.n ? static_cast<const R *>(p.g)[at] : 0;
    gates.beta[i] = i < place.n ? static_cast<const R *>(p.beta)[at] : 0;
}

/* ---- shared memory of a block ---- */

constexpr int gdn_larger(int a, int b)
{
    return a > b ? a : b;
}

/* For any product of 64 x 64. */
template <class T>
constexpr int gdn_square_stage =
    gdn_larger(gdn_larger(gdn_stage_bytes<T, 64, 64, false, false>,
                          gdn_stage_bytes<T, 64, 64, true, false>),
               gdn_larger(gdn_stage_bytes<T, 64, 64, false, true>,
                          gdn_stage_bytes<T, 64, 64, true, true>));

/* Rows of a square of 64 x 64 numbers lie so far apart. */
template <class R>
constexpr int gdn_square_pitch = 64 + 16 / static_cast<int>(sizeof(R));

/* e^(g_from + .. + g_to); 1 of nothing. */
template <class R>
__device__ __forceinline__ R gdn_decay(const gdn_chunk_gates<R> &gates,
                                       int from, int to)
{
    R sum = 0;
#pragma unroll 1
    for (int i = from; i <= to; i++)
        sum += gates.g[i];
    return gdn_exp(sum);
}

/* D into a square. Its exponents are sums of decays and no differences of sums:
 * a reset costs no accuracy after it; above the diagonal none is formed. Four
 * threads have a column, 16 rows each. Barriers stand before and behind. */
template <class R>
__device__ __forceinline__ void gdn_load_decays(const gdn_chunk_gates<R> &gates,
                                                R *square)
{
    const int j = threadIdx.x % GDN_CHUNK;
    const int first = threadIdx.x / GDN_CHUNK * (GDN_CHUNK / 4);
    R sum = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = j + 1; i < first; i++)
        sum += gates.g[i];
#pragma unroll 4
    for (int i = first; i < first + GDN_CHUNK / 4; i++) {
        sum += i > j ? gates.g[i] : 0;
        square[i * gdn_square_pitch<R> + j] = i >= j ? gdn_exp(sum) : 0;
    }
    __syncthreads();
}

/* ---- launches ---- */

inline dim3 gdn_chunk_grid(const cpl_gdn *p, int64_t columns = 1)
{
    return dim3(gdn_blocks(gdn_most_chunks(p)),
                static_cast<unsigned>(p->value_heads),
                static_cast<unsigned>((columns + 63) / 64));
}

/* Fills gates, inverse, w, and what of weights and u is wanted. */
template <class T>
int gdn_prepare(const gdn_pass<T> &pass, cpl_cuda_stream stream);

/* States from chunk to chunk of every span, `width` columns of them. */
template <class R> struct gdn_chain_states {
    const R *in;      /* [n_spans, value_heads, K, width]; NULL: zeros, or */
    bool is_identity; /* the identity */
    bool has_values;  /* else V = 0 */
    R *out;           /* as in; may be it; or NULL */
    R *kept;          /* or NULL */
    R *deltas;        /* [.., width]: N; may be u; or NULL */
    int width;
};
template <class T>
int gdn_chain(const gdn_pass<T> &pass, const gdn_chain_states<sum_t<T>> &states,
              cpl_cuda_stream stream);

/* Z, and then the gradients of states from the last chunk to the first, to
 * `out`, which may be NULL. */
template <class T>
int gdn_pull(const gdn_pass_back<T> &pass, sum_t<T> *out,
             cpl_cuda_stream stream);

} // namespace cpli

#endif
