/*
 * gdn_naive.cu: the naive way, all by tokens: a list without marks, and behind
 * it what the walk needs.
 */
#include "gdn/gdn.cuh"

namespace cpli
{

static gdn_list take_all(const cpl_gdn *p, gdn_arena *arena, size_t bytes,
                         void **space)
{
    const gdn_list list = gdn_take_list(p, arena, false);
    *space = arena->take<char>(static_cast<int64_t>(bytes));
    return list;
}

static size_t all_bytes(const cpl_gdn *p, size_t bytes)
{
    gdn_arena arena(nullptr);
    void *space;
    take_all(p, &arena, bytes, &space);
    return arena.most();
}

size_t gdn_naive_workspace(const cpl_gdn *p, int32_t dtype)
{
    return all_bytes(p, gdn_walk_bytes(p, dtype));
}

int gdn_naive(const cpl_gdn *p, int32_t dtype, cpl_cuda_stream stream)
{
    gdn_arena arena(p->workspace);
    void *space;
    const gdn_list list = take_all(p, &arena, gdn_walk_bytes(p, dtype), &space);
    const int64_t width = p->value_heads * p->value_dim;
    int error = gdn_count(list, stream);
    if (error == cudaSuccess)
        error = gdn_zero_gaps(list, dtype, p->o, width, width, stream);
    if (error != cudaSuccess || p->n_spans == 0)
        return error;
    return gdn_walk(p, list, dtype, space, stream);
}

/* dq and dk by value head: before what is walked with. */
static gdn_by_head take_by_head(const cpl_gdn *p, gdn_arena *arena,
                                int32_t dtype)
{
    const int64_t bytes =
        p->n_rows * p->value_heads * p->key_dim *
        static_cast<int64_t>(dtype == CPL_F64 ? sizeof(double) : sizeof(float));
    return {arena->take<char>(bytes), arena->take<char>(bytes)};
}

size_t gdn_naive_backward_workspace(const cpl_gdn_backward *b, int32_t dtype)
{
    gdn_arena arena(nullptr);
    void *space;
    take_by_head(&b->forward, &arena, dtype);
    take_all(&b->forward, &arena, gdn_walk_backward_bytes(b, dtype), &space);
    return arena.most();
}

int gdn_naive_backward(const cpl_gdn_backward *b, int32_t dtype,
                       cpl_cuda_stream stream)
{
    const cpl_gdn *p = &b->forward;
    gdn_arena arena(b->workspace);
    void *space;
    const gdn_by_head sums = take_by_head(p, &arena, dtype);
    const gdn_list list =
        take_all(p, &arena, gdn_walk_backward_bytes(b, dtype), &space);
    int error = gdn_begin_backward(b, list, dtype, stream);
    if (error == cudaSuccess && p->n_spans > 0)
        error = gdn_walk_backward(b, list, dtype, sums, space, stream);
    if (error == cudaSuccess)
        error =
            gdn_sum_heads(list, p, dtype, sums.dq, b->dq, b->dq_stride, stream);
    if (error == cudaSuccess)
        error =
            gdn_sum_heads(list, p, dtype, sums.dk, b->dk, b->dk_stride, stream);
    return error;
}

} // namespace cpli
