/*
 * gdn_naive_summary.cu: the summaries token by token, as gdn_ref.c has them: a
 * thread has a column, and walks the tokens of a span.
 */
#include "gdn/token.cuh"

namespace cpli
{

/* M starts as the identity and meets V = 0, B as state_in and meets V. */
template <class T>
__global__ void __launch_bounds__(WALK_THREADS, 4)
    gdn_walk_maps(const __grid_constant__ cpl_gdn p, bool is_offset,
                  sum_t<T> *results, sum_t<T> *states)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(is_offset ? p.value_dim : p.key_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = static_cast<int>(threadIdx.x); j < width;
             j += WALK_THREADS) {
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
    gdn_walk_maps_back(const __grid_constant__ cpl_gdn p, const T *d_o,
                       const sum_t<T> *d_state_out, sum_t<T> *offset,
                       sum_t<T> *states)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(p.value_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = static_cast<int>(threadIdx.x); j < width;
             j += WALK_THREADS) {
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

static int64_t wider(const cpl_gdn *p)
{
    return p->key_dim > p->value_dim ? p->key_dim : p->value_dim;
}

size_t gdn_naive_summary_workspace(const cpl_gdn_summary *s, int32_t dtype)
{
    return gdn_states_bytes(&s->gdn, dtype, wider(&s->gdn));
}

int gdn_naive_summary(const cpl_gdn_summary *s, int32_t dtype,
                      cpl_cuda_stream stream)
{
    if (s->gdn.n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using R = sum_t<decltype(type)>;
        void *const results[] = {s->transition, s->offset};
        int error = cudaSuccess;
        for (int is_offset = 0; is_offset < 2; is_offset++)
            if (error == cudaSuccess && results[is_offset] != nullptr)
                error =
                    CPLI_LAUNCH(gdn_walk_maps<decltype(type)>,
                                gdn_walk_grid(&s->gdn, WALK_BLOCKS),
                                WALK_THREADS, 0, stream, s->gdn, is_offset == 1,
                                static_cast<R *>(results[is_offset]),
                                static_cast<R *>(s->workspace));
        return error;
    });
}

size_t gdn_naive_summary_backward_workspace(const cpl_gdn_summary_backward *s,
                                            int32_t dtype)
{
    return gdn_states_bytes(&s->gdn, dtype, s->gdn.value_dim);
}

int gdn_naive_summary_backward(const cpl_gdn_summary_backward *s, int32_t dtype,
                               cpl_cuda_stream stream)
{
    if (s->gdn.n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        using R = sum_t<T>;
        return CPLI_LAUNCH(
            gdn_walk_maps_back<T>, gdn_walk_grid(&s->gdn, WALK_BLOCKS),
            WALK_THREADS, 0, stream, s->gdn, static_cast<const T *>(s->d_o),
            static_cast<const R *>(s->d_state_out), static_cast<R *>(s->offset),
            static_cast<R *>(s->workspace));
    });
}

} // namespace cpli
