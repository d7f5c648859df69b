/*
 * gdn.cuh: what the kernels of the gated delta rule share: where a chunk lies,
 * and what lies where in a workspace. The maths is that of chunk.h, pull.h and
 * gdn_ref.c, in their letters.
 *
 * Spans lie on the device, so a first kernel counts their chunks there. What
 * is kept per token lies in rows of [n_rows, value_heads, ..], whatever the
 * spans are. States are kept between two chunks of a span only: there are at
 * most n_rows / chunk such places, for its ends are state_in and state_out.
 *
 * Products of chunks multiply zeros by what is no finite number, which gives
 * NaN in rows that never met it. So who prepares chunks marks the heads of
 * spans with such inputs as wild, and those are done once more, by tokens. What
 * gets into a state goes to its whole column in either way: summaries have no
 * marks.
 */
#ifndef CPLI_GDN_CUH
#define CPLI_GDN_CUH

#include "compute.cuh"

namespace cpli
{

constexpr int GDN_CHUNK = 64;     /* rows of a chunk at most */
constexpr int GDN_FAST_DIM = 128; /* key_dim and value_dim of the fast way */
constexpr int GDN_MOST_DIM = 256; /* and of the naive one */

/* Blocks that n things are walked by, each by one at a time: enough to fill a
 * device, whatever n is. */
constexpr unsigned GDN_BLOCKS = 1024;

inline unsigned gdn_blocks(int64_t n)
{
    return n < GDN_BLOCKS ? static_cast<unsigned>(n) : GDN_BLOCKS;
}

/* Entry i counts what spans 0 .. i hold. */
struct gdn_list {
    const cpl_span *spans;
    int64_t n_spans;
    int64_t n_rows;
    int64_t chunk;
    int64_t *chunks; /* chunks */
    int64_t *kept;   /* states between two chunks */
    int64_t *done;   /* rows until the end of the last one that is not empty */
    int32_t *wild; /* [n_spans, heads]: 0, or 1 of a wild one; NULL: no marks */
    int64_t heads;
};

/* A chunk; or, with n = 0, a span without one. */
struct gdn_place {
    int64_t span;
    int64_t slot;
    int n;            /* rows */
    bool first, last; /* of its span */
    int64_t kept;     /* the state that leaves it, if it is not the last; the
                         one that enters, if not the first, is kept - 1 */
};

/* Chunks are walked by a grid that may be too large or too small. */
inline int64_t gdn_most_chunks(const cpl_gdn *p)
{
    return p->n_rows / p->chunk + p->n_spans;
}

inline int64_t gdn_most_kept(const cpl_gdn *p)
{
    return p->n_rows / p->chunk;
}

__device__ __forceinline__ int64_t gdn_before(const int64_t *ends, int64_t i)
{
    return i == 0 ? 0 : ends[i - 1];
}

__device__ __forceinline__ int64_t gdn_n_chunks(const gdn_list &list)
{
    return gdn_before(list.chunks, list.n_spans);
}

/* Chunk `at` of a span, 0 <= at < the span's. */
__device__ __forceinline__ gdn_place gdn_chunk_of(const gdn_list &list,
                                                  int64_t span, int64_t at)
{
    const cpl_span s = list.spans[span];
    const int64_t left = s.length - at * list.chunk;
    gdn_place place;
    place.span = span;
    place.slot = s.slot + at * list.chunk;
    place.n = static_cast<int>(left < list.chunk ? left : list.chunk);
    place.first = at == 0;
    place.last = left <= list.chunk;
    place.kept = gdn_before(list.kept, span) + at;
    return place;
}

/* Chunk `index` of all. */
__device__ __forceinline__ gdn_place gdn_find(const gdn_list &list,
                                              int64_t index)
{
    int64_t low = 0, high = list.n_spans - 1; /* the first that ends beyond */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (list.chunks[middle] > index)
            high = middle;
        else
            low = middle + 1;
    }
    return gdn_chunk_of(list, low, index - gdn_before(list.chunks, low));
}

__device__ __forceinline__ int64_t gdn_span_chunks(const gdn_list &list,
                                                   int64_t span)
{
    return list.chunks[span] - gdn_before(list.chunks, span);
}

/* Whether a span's head is to be done by tokens: all are without marks. */
__device__ __forceinline__ bool gdn_is_by_tokens(const gdn_list &list,
                                                 int64_t span, int head)
{
    return list.wild == nullptr || list.wild[span * list.heads + head] != 0;
}

template <class R> __device__ __forceinline__ bool gdn_is_finite(R x)
{
    return x - x == 0;
}

__device__ __forceinline__ void gdn_mark_wild(const gdn_list &list,
                                              int64_t span, int head)
{
    if (list.wild != nullptr)
        atomicOr(list.wild + span * list.heads + head, 1);
}

/* Elements of a state, and the state of (span, head); NULL of NULL. */
__host__ __device__ __forceinline__ int64_t gdn_state_size(const cpl_gdn &p)
{
    return p.key_dim * p.value_dim;
}

template <class R>
__device__ __forceinline__ R *gdn_state(const cpl_gdn &p, R *states,
                                        int64_t index, int64_t head)
{
    return states == nullptr
               ? nullptr
               : states + (index * p.value_heads + head) * gdn_state_size(p);
}

__device__ __forceinline__ int64_t gdn_key_head(const cpl_gdn &p, int head)
{
    const unsigned heads = static_cast<unsigned>(p.value_heads);
    return static_cast<unsigned>(head) /
           (heads / static_cast<unsigned>(p.key_heads));
}

__device__ __forceinline__ float gdn_exp(float x)
{
    return expf(x);
}
__device__ __forceinline__ double gdn_exp(double x)
{
    return exp(x);
}

/* ---- workspaces ---- */

/* Pieces of a workspace; of NULL only their sizes. */
class gdn_arena
{
  public:
    explicit gdn_arena(void *workspace) : at_(static_cast<char *>(workspace))
    {
    }

    template <class E> E *take(int64_t n)
    {
        E *piece = here<E>();
        used_ += (static_cast<size_t>(n) * sizeof(E) + 63) / 64 * 64;
        keep(0);
        return piece;
    }

    /* So many bytes of what is taken next, for when that is of no more use. */
    void *take_again(size_t bytes)
    {
        keep(bytes);
        return here<char>();
    }

    size_t most(void) const
    {
        return most_;
    }

  private:
    template <class E> E *here(void) const
    {
        return at_ == nullptr ? nullptr : reinterpret_cast<E *>(at_ + used_);
    }
    void keep(size_t more)
    {
        most_ = used_ + more > most_ ? used_ + more : most_;
    }

    char *at_;
    size_t used_ = 0, most_ = 0;
};

/* With marks, if heads of spans may turn out to be wild. */
gdn_list gdn_take_list(const cpl_gdn *p, gdn_arena *arena, bool with_marks);

/* ---- launches that all passes share; each is a cudaError_t ---- */

/* Fills the list, and takes all marks away. */
int gdn_count(const gdn_list &list, cpl_cuda_stream stream);

/* Rows outside of the spans become zero; width and stride in elements. */
int gdn_zero_gaps(const gdn_list &list, int32_t dtype, void *rows,
                  int64_t width, int64_t stride, cpl_cuda_stream stream);

/* Rows of dq or dk: the sum over the value heads of each key head, in order, of
 * what lies in [n_rows, value_heads, K] of the dtype's sums. */
int gdn_sum_heads(const gdn_list &list, const cpl_gdn *p, int32_t dtype,
                  const void *by_value_head, void *rows, int64_t stride,
                  cpl_cuda_stream stream);

/* The list of a backward pass, and zeros in the gaps of its gradients. */
int gdn_begin_backward(const cpl_gdn_backward *b, const gdn_list &list,
                       int32_t dtype, cpl_cuda_stream stream);

inline bool gdn_is_fast(const cpl_gdn *p)
{
    return p->key_dim <= GDN_FAST_DIM && p->value_dim <= GDN_FAST_DIM;
}

/* ---- by tokens (gdn_walk.cu, gdn_walk_back.cu): what a list says ---- */

/* `space` has so many bytes; what lies in it before does not matter. */
size_t gdn_walk_bytes(const cpl_gdn *p, int32_t dtype);
int gdn_walk(const cpl_gdn *p, const gdn_list &list, int32_t dtype, void *space,
             cpl_cuda_stream stream);
/* dq and dk by value head go to where they are summed from. */
struct gdn_by_head {
    void *dq, *dk; /* [n_rows, value_heads, K] of the dtype's sums */
};
size_t gdn_walk_backward_bytes(const cpl_gdn_backward *p, int32_t dtype);
int gdn_walk_backward(const cpl_gdn_backward *p, const gdn_list &list,
                      int32_t dtype, const gdn_by_head &sums, void *space,
                      cpl_cuda_stream stream);

/* ---- the ways: by tokens (gdn_naive.cu), and by chunks ---- */

#define CPLI_GDN_WAYS(op)                                                    \
    size_t gdn_naive##op##_workspace(const cpl_gdn##op *p, int32_t dtype);   \
    int gdn_naive##op(const cpl_gdn##op *p, int32_t dtype,                   \
                      cpl_cuda_stream stream);                               \
    size_t gdn_chunked##op##_workspace(const cpl_gdn##op *p, int32_t dtype); \
    int gdn_chunked##op(const cpl_gdn##op *p, int32_t dtype,                 \
                        cpl_cuda_stream stream);
CPLI_GDN_WAYS()
CPLI_GDN_WAYS(_backward)
CPLI_GDN_WAYS(_summary)
CPLI_GDN_WAYS(_summary_backward)
#undef CPLI_GDN_WAYS

} // namespace cpli

#endif
