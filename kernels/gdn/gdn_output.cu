/*
 * gdn_output.cu: the chunked forward pass and both summaries. Outputs are made
 * of the states that the chain has left, chunks side by side.
 */
#include "gdn/chunk.cuh"

namespace cpli
{

/* O = s diag(G) Q S + P N; blocks in z are tiles of 64 columns. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS, 2)
    gdn_output(const __grid_constant__ gdn_pass<T> pass)
{
    using R = sum_t<T>;
    CPLI_SHARED(uint4, stage_memory, [gdn_square_stage<T> / 16]);
    unsigned char *stage = reinterpret_cast<unsigned char *>(stage_memory);
    const cpl_gdn &p = pass.p;
    const int head = blockIdx.y, first = blockIdx.z * 64;
    const int width = static_cast<int>(p.value_dim);
    const int64_t n_chunks = gdn_n_chunks(pass.list);
    for (int64_t c = blockIdx.x; c < n_chunks; c += gridDim.x) {
        const gdn_place place = gdn_find(pass.list, c);
        const R *seen = gdn_gates(p, pass.seen, place, head);
        T *o = gdn_rows(p, static_cast<T *>(p.o), place, head, width) + first;
        gdn_tile<T, 64, 64> tile;
        gdn_clear(tile);
        gdn_multiply<false, false>(
            tile, gdn_queries<T>(p, place, head), 0,
            gdn_state_matrix(p, gdn_entering(pass, place, head)), first,
            static_cast<int>(p.key_dim), stage);
        gdn_each(tile, place.n, 64,
                 [&](R &x, int row, int) { x *= seen[row]; });
        gdn_multiply<false, false>(
            tile, gdn_row_matrix<R>(p, pass.weights, place, head, GDN_CHUNK), 0,
            gdn_row_matrix<R>(p, pass.u, place, head, width), first, place.n,
            stage);
        gdn_each(tile, place.n, width - first, [&](R x, int row, int column) {
            o[row * p.value_heads * width + column] = put<T>(x);
        });
    }
}

/* ---- forward ---- */

/* Bytes of what take(arena, dtype's number) takes. */
template <class F> static size_t gdn_bytes(int32_t dtype, F take)
{
    gdn_arena arena(nullptr);
    by_dtype(dtype, [&](auto type) {
        take(&arena, type);
        return 0;
    });
    return arena.most();
}

size_t gdn_chunked_workspace(const cpl_gdn *p, int32_t dtype)
{
    return gdn_bytes(dtype, [&](gdn_arena *arena, auto type) {
        gdn_take_pass<decltype(type)>(
            p, arena, {true, true, true, gdn_walk_bytes(p, dtype)});
    });
}

template <class T>
static int forward(const cpl_gdn *p, const gdn_pass<T> &pass, int32_t dtype,
                   cpl_cuda_stream stream)
{
    using R = sum_t<T>;
    gdn_chain_states<R> states = {};
    states.in = static_cast<const R *>(p->state_in);
    states.has_values = true;
    states.out = static_cast<R *>(p->state_out);
    states.kept = pass.kept;
    states.deltas = pass.u;
    states.width = static_cast<int>(p->value_dim);
    int error = gdn_prepare(pass, stream);
    if (error == cudaSuccess)
        error = gdn_chain(pass, states, stream);
    if (error == cudaSuccess)
        error = CPLI_LAUNCH(gdn_output<T>, gdn_chunk_grid(p, p->value_dim),
                            TILE_THREADS, 0, stream, pass);
    if (error == cudaSuccess)
        error = gdn_walk(p, pass.list, dtype, pass.walk, stream);
    return error;
}

int gdn_chunked(const cpl_gdn *p, int32_t dtype, cpl_cuda_stream stream)
{
    const int64_t width = p->value_heads * p->value_dim;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        gdn_arena arena(p->workspace);
        const gdn_pass<T> pass = gdn_take_pass<T>(
            p, &arena, {true, true, true, gdn_walk_bytes(p, dtype)});
        int error = gdn_count(pass.list, stream);
        if (error == cudaSuccess)
            error = gdn_zero_gaps(pass.list, dtype, p->o, width, width, stream);
        if (error == cudaSuccess && p->n_spans > 0)
            error = forward(p, pass, dtype, stream);
        return error;
    });
}

/* ---- summaries ---- */

size_t gdn_chunked_summary_workspace(const cpl_gdn_summary *s, int32_t dtype)
{
    return gdn_bytes(dtype, [&](gdn_arena *arena, auto type) {
        gdn_take_pass<decltype(type)>(&s->gdn, arena, {false, true, false, 0});
    });
}

template <class T>
static int summarise(const cpl_gdn_summary *s, const gdn_pass<T> &pass,
                     cpl_cuda_stream stream)
{
    using R = sum_t<T>;
    gdn_chain_states<R> transition = {}, offset = {};
    transition.is_identity = true;
    transition.out = static_cast<R *>(s->transition);
    transition.width = static_cast<int>(s->gdn.key_dim);
    offset.in = static_cast<const R *>(s->gdn.state_in);
    offset.has_values = true;
    offset.out = static_cast<R *>(s->offset);
    offset.width = static_cast<int>(s->gdn.value_dim);
    int error = gdn_prepare(pass, stream);
    if (error == cudaSuccess && s->transition != nullptr)
        error = gdn_chain(pass, transition, stream);
    if (error == cudaSuccess && s->offset != nullptr)
        error = gdn_chain(pass, offset, stream);
    return error;
}

int gdn_chunked_summary(const cpl_gdn_summary *s, int32_t dtype,
                        cpl_cuda_stream stream)
{
    if (s->gdn.n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        gdn_arena arena(s->workspace);
        gdn_pass<T> pass =
            gdn_take_pass<T>(&s->gdn, &arena, {false, true, false, 0});
        if (s->offset == nullptr)
            pass.u = nullptr;
        int error = gdn_count(pass.list, stream);
        return error == cudaSuccess ? summarise(s, pass, stream) : error;
    });
}

template <class T>
static gdn_pass_back<T> take_sweep(const cpl_gdn_summary_backward *s,
                                   gdn_arena *arena)
{
    using R = sum_t<T>;
    const cpl_gdn *p = &s->gdn;
    gdn_pass_back<T> back = {};
    back.forward = gdn_take_pass<T>(p, arena, {true, false, false, 0});
    back.d_o = static_cast<const T *>(s->d_o);
    back.d_state_out = static_cast<const R *>(s->d_state_out);
    back.z = arena->take<R>(p->n_rows * p->value_heads * p->value_dim);
    return back;
}

size_t gdn_chunked_summary_backward_workspace(const cpl_gdn_summary_backward *s,
                                              int32_t dtype)
{
    return gdn_bytes(dtype, [&](gdn_arena *arena, auto type) {
        take_sweep<decltype(type)>(s, arena);
    });
}

int gdn_chunked_summary_backward(const cpl_gdn_summary_backward *s,
                                 int32_t dtype, cpl_cuda_stream stream)
{
    if (s->gdn.n_spans == 0)
        return cudaSuccess;
    return by_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        gdn_arena arena(s->workspace);
        const gdn_pass_back<T> back = take_sweep<T>(s, &arena);
        int error = gdn_count(back.forward.list, stream);
        if (error == cudaSuccess)
            error = gdn_prepare(back.forward, stream);
        if (error == cudaSuccess)
            error = gdn_pull(back, static_cast<sum_t<T> *>(s->offset), stream);
        return error;
    });
}

} // namespace cpli
