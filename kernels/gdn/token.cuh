/*
 * token.cuh: what walks over tokens share: a token and its step, columns of
 * states, and the blocks that walk.
 */
#ifndef CPLI_GDN_TOKEN_CUH
#define CPLI_GDN_TOKEN_CUH

#include "gdn/gdn.cuh"

namespace cpli
{

/* Threads of a block that walks a head of a span, and such blocks at most (but
 * one a head): each has a state in the workspace. */
constexpr int WALK_THREADS = 128;
constexpr int64_t WALK_BLOCKS = 512;

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

/* A thread's first column of `width`; none of what tokens do not do. */
__device__ __forceinline__ int
gdn_first_column(const gdn_list &list, int64_t span, int head, int width)
{
    return gdn_is_by_tokens(list, span, head) ? static_cast<int>(threadIdx.x)
                                              : width;
}

/* ---- launches ---- */

/* Blocks: spans in x, heads in y; about `most` of them. */
inline dim3 gdn_walk_grid(const cpl_gdn *p, int64_t most)
{
    const int64_t each = most / p->value_heads > 0 ? most / p->value_heads : 1;
    return dim3(static_cast<unsigned>(p->n_spans < each ? p->n_spans : each),
                static_cast<unsigned>(p->value_heads));
}

/* A state of `width` columns for every block of a walk. */
template <class R>
R *gdn_take_states(const cpl_gdn *p, gdn_arena *arena, int64_t width)
{
    const dim3 grid = gdn_walk_grid(p, WALK_BLOCKS);
    return arena->take<R>(static_cast<int64_t>(grid.x) * grid.y * p->key_dim *
                          width);
}

/* f(what sums of a dtype are made in). */
template <class F> size_t gdn_sum_bytes(int32_t dtype, F f)
{
    return dtype == CPL_F64 ? f(double()) : f(float());
}

/* Bytes of the states of a walk. */
inline size_t gdn_states_bytes(const cpl_gdn *p, int32_t dtype, int64_t width)
{
    return gdn_sum_bytes(dtype, [&](auto sum) {
        gdn_arena arena(nullptr);
        gdn_take_states<decltype(sum)>(p, &arena, width);
        return arena.most();
    });
}

} // namespace cpli

#endif
