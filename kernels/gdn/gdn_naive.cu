/*
 * gdn_naive.cu: the delta rule token by token, as gdn_ref.c has it. Columns of
 * a state do not know each other: forward and summaries are a thread a column,
 * which walks the tokens of a span. Gradients of q and k are sums over columns:
 * backward is a block a head of a span, and threads are columns and rows in
 * turns.
 */
#include "gdn/gdn.cuh"

namespace cpli
{

/* Threads of a block that walks a head of a span, and such blocks at most (but
 * one a head): each has a state in the workspace. */
constexpr int WALK_THREADS = 128;
constexpr int64_t WALK_BLOCKS = 512;
/* Blocks of the backward pass: each has the states before a chunk's tokens. */
constexpr int64_t BACKWARD_BLOCKS = 64;

/* One token of one value head. */
template <class T> struct gdn_token {
    const T *q, *k, *v;
    sum_t<T> decay, beta;
};

template <class T>
__device__ __forceinline__ gdn_token<T> gdn_token_at(const cpl_gdn &p,
                                                     int64_t slot, int head)
{
    using R = sum_t<T>;
    const int64_t key_at = gdn_key_head(p, head) * p.key_dim;
    const int64_t gate = slot * p.value_heads + head;
    gdn_token<T> t;
    t.q = static_cast<const T *>(p.q) + slot * p.q_stride + key_at;
    t.k = static_cast<const T *>(p.k) + slot * p.k_stride + key_at;
    t.v = static_cast<const T *>(p.v) + slot * p.v_stride + head * p.value_dim;
    t.decay = gdn_exp(static_cast<const R *>(p.g)[gate]);
    t.beta = static_cast<const R *>(p.beta)[gate];
    return t;
}

/* S~ + k delta for a column, of `width` in its state: from where the token
 * meets it to where it leaves it, which may be the same. */
template <class T>
__device__ __forceinline__ void
gdn_step(const gdn_token<T> &t, int key_dim, int width, sum_t<T> v,
         const sum_t<T> *before, sum_t<T> *after)
{
    sum_t<T> prediction = 0;
#pragma unroll 1
    for (int i = 0; i < key_dim; i++) {
        const sum_t<T> decayed = t.decay * before[i * width];
        prediction += decayed * get(t.k[i]);
        after[i * width] = decayed;
    }
    const sum_t<T> delta = t.beta * (v - prediction);
#pragma unroll 1
    for (int i = 0; i < key_dim; i++)
        after[i * width] += get(t.k[i]) * delta;
}

/* Copies a column of a state of `width` columns; NULL reads as zeros and is not
 * written. */
template <class R>
__device__ __forceinline__ void gdn_copy_column(const R *from, R *to, int width,
                                                int key_dim)
{
#pragma unroll 1
    for (int i = 0; to != nullptr && i < key_dim; i++)
        to[i * width] = from == nullptr ? 0 : from[i * width];
}

/* Column j of a state that may be NULL. */
template <class R> __device__ __forceinline__ R *gdn_column(R *state, int j)
{
    return state == nullptr ? nullptr : state + j;
}

/* The state of the calling block among those of a walk. */
template <class R>
__device__ __forceinline__ R *gdn_my_state(R *states, int64_t size)
{
    return states +
           (blockIdx.x * static_cast<int64_t>(gridDim.y) + blockIdx.y) * size;
}

/* ---- forward ---- */

template <class T>
__global__ void __launch_bounds__(WALK_THREADS, 4)
    gdn_walk(const __grid_constant__ cpl_gdn p, sum_t<T> *states)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(p.value_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = threadIdx.x; j < width; j += WALK_THREADS) {
            R *s = gdn_my_state(states, gdn_state_size(p)) + j;
            const cpl_span span = p.spans[i];
            const R *in =
                gdn_state(p, static_cast<const R *>(p.state_in), i, head);
            gdn_copy_column(gdn_column(in, j), s, width, key_dim);
            for (int64_t n = 0; n < span.length; n++) {
                const int64_t slot = span.slot + n;
                const gdn_token<T> t = gdn_token_at<T>(p, slot, head);
                gdn_step<T>(t, key_dim, width, get(t.v[j]), s, s);
                R o = 0;
#pragma unroll 1
                for (int a = 0; a < key_dim; a++)
                    o += s[a * width] * get(t.q[a]);
                o *= static_cast<R>(p.scale);
                static_cast<T *>(
                    p.o)[(slot * p.value_heads + head) * width + j] = put<T>(o);
            }
            R *out = gdn_state(p, static_cast<R *>(p.state_out), i, head);
            gdn_copy_column(s, gdn_column(out, j), width, key_dim);
        }
}

/* ---- backward ---- */

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
        for (int j = threadIdx.x; j < width; j += WALK_THREADS) {
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

/* ---- summaries ---- */

/* M starts as the identity and meets V = 0, B as state_in and meets V. */
template <class T>
__global__ void __launch_bounds__(WALK_THREADS, 4)
    gdn_walk_summary(const __grid_constant__ cpl_gdn p, bool is_offset,
                     sum_t<T> *results, sum_t<T> *states)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(is_offset ? p.value_dim : p.key_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = threadIdx.x; j < width; j += WALK_THREADS) {
            R *s = gdn_my_state(states, key_dim * width) + j;
            const R *in =
                is_offset
                    ? gdn_state(p, static_cast<const R *>(p.state_in), i, head)
                    : nullptr;
            gdn_copy_column(gdn_column(in, j), s, width, key_dim);
            if (!is_offset)
                s[j * width] = 1;
            const cpl_span span = p.spans[i];
            for (int64_t n = 0; n < span.length; n++) {
                const gdn_token<T> t = gdn_token_at<T>(p, span.slot + n, head);
                gdn_step<T>(t, key_dim, width, is_offset ? get(t.v[j]) : 0, s,
                            s);
            }
            gdn_copy_column(
                s, results + (i * p.value_heads + head) * key_dim * width + j,
                width, key_dim);
        }
}

/* X -> e^g (I - beta k k') (X + s q do'), from the last token. */
template <class T>
__global__ void __launch_bounds__(WALK_THREADS, 4)
    gdn_walk_summary_back(const __grid_constant__ cpl_gdn p, const T *d_o,
                          const sum_t<T> *d_state_out, sum_t<T> *offset,
                          sum_t<T> *states)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(p.value_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = threadIdx.x; j < width; j += WALK_THREADS) {
            R *x = gdn_my_state(states, gdn_state_size(p)) + j;
            const R *leaving = gdn_state(p, d_state_out, i, head);
            gdn_copy_column(gdn_column(leaving, j), x, width, key_dim);
            for (int64_t n = p.spans[i].length - 1; n >= 0; n--) {
                const int64_t slot = p.spans[i].slot + n;
                const gdn_token<T> t = gdn_token_at<T>(p, slot, head);
                const R d = static_cast<R>(p.scale) *
                            get(d_o[(slot * p.value_heads + head) * width + j]);
                R along = 0;
#pragma unroll 1
                for (int a = 0; a < key_dim; a++) {
                    x[a * width] += get(t.q[a]) * d;
                    along += get(t.k[a]) * x[a * width];
                }
#pragma unroll 1
                for (int a = 0; a < key_dim; a++)
                    x[a * width] =
                        t.decay * (x[a * width] - t.beta * get(t.k[a]) * along);
            }
            gdn_copy_column(x, gdn_state(p, offset, i, head) + j, width,
                            key_dim);
        }
}

/* ---- launches ---- */

/* Blocks: spans in x, heads in y; about `most` of them. */
static dim3 walk_grid(const cpl_gdn *p, int64_t most)
{
    const int64_t each = most / p->value_heads > 0 ? most / p->value_heads : 1;
    return dim3(static_cast<unsigned>(p->n_spans < each ? p->n_spans : each),
                static_cast<unsigned>(p->value_heads));
}

/* A state of `width` columns for every block of a walk. */
template <class R>
static R *take_states(const cpl_gdn *p, gdn_arena *arena, int64_t width)
{
    const dim3 grid = walk_grid(p, WALK_BLOCKS);
    return arena->take<R>(static_cast<int64_t>(grid.x) * grid.y * p->key_dim *
                          width);
}

static int64_t wider(const cpl_gdn *p)
{
    return p->key_dim > p->value_dim ? p->key_dim : p->value_dim;
}

/* f(what sums of a dtype are made in). */
template <class F> static size_t bytes_of(int32_t dtype, F f)
{
    return dtype == CPL_F64 ? f(double()) : f(float());
}

size_t gdn_naive_workspace(const cpl_gdn *p, int32_t dtype)
{
    return bytes_of(dtype, [&](auto sum) {
        gdn_arena arena(nullptr);
        gdn_take_list(p, &arena);
        take_states<decltype(sum)>(p, &arena, p->value_dim);
        return arena.used;
    });
}

int gdn_naive(const cpl_gdn *p, int32_t dtype, cpl_cuda_stream stream)
{
    gdn_arena arena(p->workspace);
    const gdn_list list = gdn_take_list(p, &arena);
    const int64_t width = p->value_heads * p->value_dim;
    int error = gdn_count(list, stream);
    if (error == cudaSuccess)
        error = gdn_zero_gaps(list, dtype, p->o, width, width, stream);
    if (error != cudaSuccess || p->n_spans == 0)
        return error;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(gdn_walk<T>, walk_grid(p, WALK_BLOCKS), WALK_THREADS,
                           0, stream, *p,
                           take_states<sum_t<T>>(p, &arena, p->value_dim));
    });
}

/* The workspace of the backward pass. */
template <class R> struct gdn_back_space {
    gdn_list list;
    R *walking, *kept, *states, *dq, *dk;

    gdn_back_space(const cpl_gdn *p, gdn_arena *arena)
    {
        const int64_t size = gdn_state_size(*p);
        const int64_t rows = p->n_rows * p->value_heads * p->key_dim;
        const dim3 grid = walk_grid(p, BACKWARD_BLOCKS);
        list = gdn_take_list(p, arena);
        walking = take_states<R>(p, arena, p->value_dim);
        kept = arena->take<R>(gdn_most_kept(p) * p->value_heads * size);
        states = arena->take<R>(static_cast<int64_t>(grid.x) * grid.y *
                                (p->chunk + 1) * size);
        dq = arena->take<R>(rows);
        dk = arena->take<R>(rows);
    }
};

size_t gdn_naive_backward_workspace(const cpl_gdn_backward *b, int32_t dtype)
{
    return bytes_of(dtype, [&](auto sum) {
        gdn_arena arena(nullptr);
        gdn_back_space<decltype(sum)> space(&b->forward, &arena);
        return arena.used;
    });
}

template <class T>
static int walk_back(const cpl_gdn_backward *b,
                     const gdn_back_space<sum_t<T>> &space,
                     cpl_cuda_stream stream)
{
    using R = sum_t<T>;
    const cpl_gdn *p = &b->forward;
    int error =
        CPLI_LAUNCH(gdn_walk_chunks<T>, walk_grid(p, WALK_BLOCKS), WALK_THREADS,
                    0, stream, *p, space.list, space.walking, space.kept);
    if (error != cudaSuccess)
        return error;
    gdn_back<T> back;
    back.p = *p;
    back.d_o = static_cast<const T *>(b->d_o);
    back.dv = static_cast<T *>(b->dv);
    back.dq = space.dq;
    back.dk = space.dk;
    back.dg = static_cast<R *>(b->dg);
    back.dbeta = static_cast<R *>(b->dbeta);
    back.dv_stride = b->dv_stride;
    return CPLI_LAUNCH(
        gdn_walk_back<T>, walk_grid(p, BACKWARD_BLOCKS), GDN_MOST_DIM, 0,
        stream, back, space.list, static_cast<const R *>(b->d_state_out),
        static_cast<R *>(b->d_state_in), space.kept, space.states);
}

int gdn_naive_backward(const cpl_gdn_backward *b, int32_t dtype,
                       cpl_cuda_stream stream)
{
    const cpl_gdn *p = &b->forward;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        gdn_arena arena(b->workspace);
        const gdn_back_space<sum_t<T>> space(p, &arena);
        int error = gdn_begin_backward(b, space.list, dtype, stream);
        if (error == cudaSuccess && p->n_spans > 0)
            error = walk_back<T>(b, space, stream);
        if (error == cudaSuccess)
            error = gdn_sum_heads(space.list, p, dtype, space.dq, b->dq,
                                  b->dq_stride, stream);
        if (error == cudaSuccess)
            error = gdn_sum_heads(space.list, p, dtype, space.dk, b->dk,
                                  b->dk_stride, stream);
        return error;
    });
}

size_t gdn_naive_summary_workspace(const cpl_gdn_summary *s, int32_t dtype)
{
    return bytes_of(dtype, [&](auto sum) {
        gdn_arena arena(nullptr);
        take_states<decltype(sum)>(&s->gdn, &arena, wider(&s->gdn));
        return arena.used;
    });
}

int gdn_naive_summary(const cpl_gdn_summary *s, int32_t dtype,
                      cpl_cuda_stream stream)
{
    const cpl_gdn *p = &s->gdn;
    if (p->n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using R = sum_t<decltype(type)>;
        gdn_arena arena(s->workspace);
        R *states = take_states<R>(p, &arena, wider(p));
        void *const results[] = {s->transition, s->offset};
        int error = cudaSuccess;
        for (int is_offset = 0; is_offset < 2; is_offset++)
            if (error == cudaSuccess && results[is_offset] != nullptr)
                error = CPLI_LAUNCH(
                    gdn_walk_summary<decltype(type)>, walk_grid(p, WALK_BLOCKS),
                    WALK_THREADS, 0, stream, *p, is_offset == 1,
                    static_cast<R *>(results[is_offset]), states);
        return error;
    });
}

size_t gdn_naive_summary_backward_workspace(const cpl_gdn_summary_backward *s,
                                            int32_t dtype)
{
    return bytes_of(dtype, [&](auto sum) {
        gdn_arena arena(nullptr);
        take_states<decltype(sum)>(&s->gdn, &arena, s->gdn.value_dim);
        return arena.used;
    });
}

int gdn_naive_summary_backward(const cpl_gdn_summary_backward *s, int32_t dtype,
                               cpl_cuda_stream stream)
{
    const cpl_gdn *p = &s->gdn;
    if (p->n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        using R = sum_t<T>;
        gdn_arena arena(s->workspace);
        return CPLI_LAUNCH(
            gdn_walk_summary_back<T>, walk_grid(p, WALK_BLOCKS), WALK_THREADS,
            0, stream, *p, static_cast<const T *>(s->d_o),
            static_cast<const R *>(s->d_state_out), static_cast<R *>(s->offset),
            take_states<R>(p, &arena, p->value_dim));
    });
}

} // namespace cpli
