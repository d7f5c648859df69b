/*
 * gdn_walk.cu: the delta rule token by token, as gdn_ref.c has it, of all heads
 * of spans, or of those that a list marks. Columns of a state do not know each
 * other: a thread has a column, and walks the tokens of a span.
 */
#include "gdn/token.cuh"

namespace cpli
{

template <class T>
__global__ void __launch_bounds__(WALK_THREADS, 4)
    gdn_walk_spans(const __grid_constant__ cpl_gdn p,
                   const __grid_constant__ gdn_list list, sum_t<T> *states)
{
    using R = sum_t<T>;
    const int width = static_cast<int>(p.value_dim);
    const int key_dim = static_cast<int>(p.key_dim);
    const int head = static_cast<int>(blockIdx.y);
    for (int64_t i = blockIdx.x; i < p.n_spans; i += gridDim.x)
        for (int j = gdn_first_column(list, i, head, width); j < width;
             j += WALK_THREADS) {
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

size_t gdn_walk_bytes(const cpl_gdn *p, int32_t dtype)
{
    return gdn_states_bytes(p, dtype, p->value_dim);
}

int gdn_walk(const cpl_gdn *p, const gdn_list &list, int32_t dtype, void *space,
             cpl_cuda_stream stream)
{
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        return CPLI_LAUNCH(gdn_walk_spans<T>, gdn_walk_grid(p, WALK_BLOCKS),
                           WALK_THREADS, 0, stream, *p, list,
                           static_cast<sum_t<T> *>(space));
    });
}

} // namespace cpli
