/*
 * gdn_walk_back.cu: the backward pass token by token, as gdn_ref.c has it.
 * Gradients of q and k are sums over the columns of a state: a block has a head
 * of a span, and its threads are columns and rows in turns.
 */
#include "gdn/token.cuh"

namespace cpli
{

/* Blocks of the backward pass: each has the states before a chunk's tokens. */
constexpr int64_t BACKWARD_BLOCKS = 64;

/* The state that enters every chunk of a span but the first. */
template <class T>
__global__ void __launch_bounds__(WALK_THREADS, 4)
    gdn_walk_chunks(const __grid_constant__ cpl_gdn p,
                    const __grid_constant__ gdn_list list, sum_t<T> *states,
                    sum_t<T> *kept)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(p.value_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = gdn_first_column(list, i, head, width); j < width;
             j += WALK_THREADS) {
            R *s = gdn_my_state(states, gdn_state_size(p)) + j;
            const int64_t n_chunks = gdn_span_chunks(list, i);
            const R *in =
                gdn_state(p, static_cast<const R *>(p.state_in), i, head);
            gdn_copy_column(gdn_column(in, j), s, width, key_dim);
            for (int64_t c = 0; c + 1 < n_chunks; c++) {
                const gdn_place place = gdn_chunk_of(list, i, c);
                for (int n = 0; n < place.n; n++) {
                    const gdn_token<T> t =
                        gdn_token_at<T>(p, place.slot + n, head);
                    gdn_step<T>(t, key_dim, width, get(t.v[j]), s, s);
                }
                R *out = gdn_state(p, kept, place.kept, head);
                gdn_copy_column(s, out + j, width, key_dim);
            }
        }
}

/* What the columns of a token tell its rows, and the sums of both. */
template <class R> struct gdn_token_sums {
    R delta[GDN_MOST_DIM], d_prediction[GDN_MOST_DIM];
    R dbeta[GDN_MOST_DIM], dg[GDN_MOST_DIM];
};

/* The gradients by value head: q and k in the workspace, the rest in place. */
template <class T> struct gdn_back {
    cpl_gdn p;
    const T *d_o;
    T *dv;
    sum_t<T> *dq, *dk, *dg, *dbeta;
    int64_t dv_stride;
};

/* Column j of a token: x += s q do', and what follows for d, p, v and beta. */
template <class T>
__device__ __forceinline__ void
gdn_back_column(const gdn_back<T> &b, const gdn_token<T> &t, int64_t slot,
                int head, const sum_t<T> *before, sum_t<T> *x, int j,
                gdn_token_sums<sum_t<T>> &sums)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(b.p.value_dim);
    const R d_o = static_cast<R>(b.p.scale) *
                  get(b.d_o[(slot * b.p.value_heads + head) * width + j]);
    R prediction = 0, d_delta = 0;
#pragma unroll 1
    for (int i = 0; i < b.p.key_dim; i++) {
        const R k = get(t.k[i]);
        const R grown = x[i * width + j] + get(t.q[i]) * d_o;
        x[i * width + j] = grown;
        prediction += t.decay * before[i * width + j] * k;
        d_delta += grown * k;
    }
    const R surprise = get(t.v[j]) - prediction;
    sums.delta[j] = t.beta * surprise;
    sums.dbeta[j] = d_delta * surprise;
    sums.d_prediction[j] = -t.beta * d_delta;
    b.dv[slot * b.dv_stride + head * width + j] = put<T>(t.beta * d_delta);
}

/* Row i of a token: dq, dk, its share of dg, and x as the token met it. */
template <class T>
__device__ __forceinline__ void
gdn_back_row(const gdn_back<T> &b, const gdn_token<T> &t, int64_t slot,
             int head, const sum_t<T> *before, sum_t<T> *x, int i,
             gdn_token_sums<sum_t<T>> &sums)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(b.p.value_dim);
    const int64_t at = slot * b.p.value_heads + head;
    const T *d_o = b.d_o + at * width;
    const R k = get(t.k[i]);
    R dq = 0, dk = 0, dg = 0;
#pragma unroll 1
    for (int j = 0; j < width; j++) {
        const R decayed = t.decay * before[i * width + j];
        const R grown = x[i * width + j];
        const R d_decayed = grown + k * sums.d_prediction[j];
        dq += (decayed + k * sums.delta[j]) * get(d_o[j]);
        dk += grown * sums.delta[j] + decayed * sums.d_prediction[j];
        dg += d_decayed * decayed;
        x[i * width + j] = t.decay * d_decayed;
    }
    sums.dg[i] = dg;
    b.dq[at * b.p.key_dim + i] = static_cast<R>(b.p.scale) * dq;
    b.dk[at * b.p.key_dim + i] = dk;
}

template <class R> __device__ __forceinline__ R gdn_sum(const R *from, int n)
{
    R sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++)
        sum += from[i];
    return sum;
}

/* Column j of the states before the tokens of a chunk. */
template <class T>
__device__ __forceinline__ void
gdn_back_states(const cpl_gdn &p, const gdn_place &place, int head,
                const sum_t<T> *entering, sum_t<T> *states, int j)
{
    const int width = static_cast<int>(p.value_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    sum_t<T> *s = states + j;
    gdn_copy_column(gdn_column(entering, j), s, width, key_dim);
    for (int n = 0; n + 1 < place.n; n++) {
        const gdn_token<T> t = gdn_token_at<T>(p, place.slot + n, head);
        gdn_step<T>(t, key_dim, width, get(t.v[j]), s, s + gdn_state_size(p));
        s += gdn_state_size(p);
    }
}

/* Tokens of a chunk, from the last to the first. */
template <class T>
__device__ __forceinline__ void
gdn_back_chunk(const gdn_back<T> &b, const gdn_place &place, int head,
               const sum_t<T> *states, sum_t<T> *x,
               gdn_token_sums<sum_t<T>> &sums)
{
    const int me = static_cast<int>(threadIdx.x);
    for (int n = place.n - 1; n >= 0; n--) {
        const int64_t slot = place.slot + n;
        const int64_t gate = slot * b.p.value_heads + head;
        const gdn_token<T> t = gdn_token_at<T>(b.p, slot, head);
        const sum_t<T> *before = states + n * gdn_state_size(b.p);
        if (me < b.p.value_dim)
            gdn_back_column(b, t, slot, head, before, x, me, sums);
        __syncthreads();
        if (me < b.p.key_dim)
            gdn_back_row(b, t, slot, head, before, x, me, sums);
        __syncthreads();
        if (me == 0) {
            b.dg[gate] = gdn_sum(sums.dg, static_cast<int>(b.p.key_dim));
            b.dbeta[gate] =
                gdn_sum(sums.dbeta, static_cast<int>(b.p.value_dim));
        }
        __syncthreads();
    }
}

/* A block has in `states` those before the tokens of a chunk, and x. */
template <class T>
__global__ void __launch_bounds__(GDN_MOST_DIM, 2)
    gdn_walk_back(const __grid_constant__ gdn_back<T> b,
                  const __grid_constant__ gdn_list list,
                  const sum_t<T> *d_state_out, sum_t<T> *d_state_in,
                  const sum_t<T> *kept, sum_t<T> *states)
{
    using R = sum_t<T>;
    CPLI_SHARED(gdn_token_sums<R>, sums, [1]);
    const cpl_gdn &p = b.p;
    const int head = static_cast<int>(blockIdx.y);
    const int size = static_cast<int>(gdn_state_size(p));
    const int me = static_cast<int>(threadIdx.x);
    states = gdn_my_state(states, (list.chunk + 1) * size);
    R *x = states + list.chunk * size;
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x) {
        if (!gdn_is_by_tokens(list, i, head))
            continue;
        const R *leaving = gdn_state(p, d_state_out, i, head);
        for (int e = me; e < size; e += GDN_MOST_DIM)
            x[e] = leaving == nullptr ? 0 : leaving[e];
        for (int64_t c = gdn_span_chunks(list, i) - 1; c >= 0; c--) {
            const gdn_place place = gdn_chunk_of(list, i, c);
            const R *entering =
                place.first
                    ? gdn_state(p, static_cast<const R *>(p.state_in), i, head)
                    : gdn_state(p, kept, place.kept - 1, head);
            __syncthreads();
            if (me < p.value_dim)
                gdn_back_states<T>(p, place, head, entering, states, me);
            __syncthreads();
            gdn_back_chunk(b, place, head, states, x, sums[0]);
        }
        R *arriving = gdn_state(p, d_state_in, i, head);
        for (int e = me; arriving != nullptr && e < size; e += GDN_MOST_DIM)
            arriving[e] = x[e];
        __syncthreads();
    }
}

/* ---- launches ---- */

/* What the backward pass walks with. */
template <class R> struct gdn_back_space {
    R *walking, *kept, *states;

    gdn_back_space(const cpl_gdn *p, gdn_arena *arena)
    {
        const int64_t size = gdn_state_size(*p);
        const dim3 grid = gdn_walk_grid(p, BACKWARD_BLOCKS);
        walking = gdn_take_states<R>(p, arena, p->value_dim);
        kept = arena->take<R>(gdn_most_kept(p) * p->value_heads * size);
        states = arena->take<R>(static_cast<int64_t>(grid.x) * grid.y *
                                (p->chunk + 1) * size);
    }
};

size_t gdn_walk_backward_bytes(const cpl_gdn_backward *b, int32_t dtype)
{
    return gdn_sum_bytes(dtype, [&](auto sum) {
        gdn_arena arena(nullptr);
        gdn_back_space<decltype(sum)> space(&b->forward, &arena);
        return arena.most();
    });
}

template <class T>
static int walk_back(const cpl_gdn_backward *b, const gdn_list &list,
                     const gdn_by_head &sums, void *space,
                     cpl_cuda_stream stream)
{
    using R = sum_t<T>;
    const cpl_gdn *p = &b->forward;
    gdn_arena arena(space);
    const gdn_back_space<R> at(p, &arena);
    int error =
        CPLI_LAUNCH(gdn_walk_chunks<T>, gdn_walk_grid(p, WALK_BLOCKS),
                    WALK_THREADS, 0, stream, *p, list, at.walking, at.kept);
    if (error != cudaSuccess)
        return error;
    gdn_back<T> back;
    back.p = *p;
    back.d_o = static_cast<const T *>(b->d_o);
    back.dv = static_cast<T *>(b->dv);
    back.dq = static_cast<R *>(sums.dq);
    back.dk = static_cast<R *>(sums.dk);
    back.dg = static_cast<R *>(b->dg);
    back.dbeta = static_cast<R *>(b->dbeta);
    back.dv_stride = b->dv_stride;
    return CPLI_LAUNCH(gdn_walk_back<T>, gdn_walk_grid(p, BACKWARD_BLOCKS),
                       GDN_MOST_DIM, 0, stream, back, list,
                       static_cast<const R *>(b->d_state_out),
                       static_cast<R *>(b->d_state_in), at.kept, at.states);
}

int gdn_walk_backward(const cpl_gdn_backward *b, const gdn_list &list,
                      int32_t dtype, const gdn_by_head &sums, void *space,
                      cpl_cuda_stream stream)
{
    return by_dtype(dtype, [&](auto type) {
        return walk_back<decltype(type)>(b, list, sums, space, stream);
    });
}

} // namespace cpli
