/*
 * attention_latent.cu: the forward of latent attention (latent.cuh). A tile of
 * 64 queries of one head meets strips of 32 keys: 16 rows of scores have two
 * warps, a half of the keys each, that agree on a row's maximum.
 */
#include "join.cuh"
#include "latent.cuh"

namespace cpli
{

constexpr int LATENT_ROWS = 64, LATENT_KEYS = 32;
constexpr int LATENT_M = LATENT_ROWS / 16;
constexpr int LATENT_D = LATENT_VALUES / 16 / LATENT_WARPS;
constexpr size_t LATENT_BYTES =
    sizeof(uint4) * ((LATENT_ROWS + 2 * LATENT_KEYS) * LATENT_CHUNKS +
                     LATENT_ROWS * WEIGHT_CHUNKS<LATENT_KEYS>);

/* What passes between the warps, by row; of two halves of the keys. */
struct latent_memory {
    strip_feed<false, LATENT_ROWS, LATENT_KEYS> feed;
    float most[2][LATENT_ROWS], sum[2][LATENT_ROWS];
    float shrink[LATENT_ROWS];
    joined<float> ends[LATENT_ROWS];
    bool votes[LATENT_WARPS];
};

__device__ __forceinline__ void load_latent_keys(const cpl_attention &p,
                                                 const strip &keys, uint4 *to)
{
    if (keys.n > 0)
        load_latent(to, row_of<bf16>(p.k, keys.slot, p.k_stride, 0, p.key_dim),
                    p.k_stride, keys.n, p.key_dim, LATENT_KEYS);
    cpli_copy_async_commit();
}

/* What a warp knows of the 16 rows whose weights it makes: the sums are those
 * of its half of the keys, by lane. */
struct latent_softmax {
    float max[2], sum[2];
};

/* Products of the warp's rows from `row` on and the keys of one half become
 * scores; notes the largest of each row. */
__device__ __forceinline__ void score_latent(float (&s)[1][2][4],
                                             latent_memory &memory, int row,
                                             int half, const strip &keys,
                                             float scale)
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[0][n][i] *= scale;
    mask<1, 16>(s, row, keys, -INFINITY);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const float most =
            most_of_four_lanes(fmaxf(fmaxf(s[0][0][i], s[0][0][i + 1]),
                                     fmaxf(s[0][1][i], s[0][1][i + 1])));
        if (column_of_sum(0) == 0)
            memory.most[half][row + row_of_sum(i)] = most;
    }
}

/* They become weights; notes by how much earlier sums shrink. */
__device__ __forceinline__ void soften_latent(float (&s)[1][2][4],
                                              latent_softmax &state,
                                              latent_memory &memory, int row,
                                              int half, const strip &keys)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const int r = row + row_of_sum(i);
        float &max = state.max[i / 2];
        const float most =
            fmaxf(max, fmaxf(memory.most[0][r], memory.most[1][r]));
        const float shrink = max == most ? 1 : cpli_exp2((max - most) * LOG2_E);
        max = most;
        state.sum[i / 2] *= shrink;
        if (half == 0 && column_of_sum(0) == 0)
            memory.shrink[r] = shrink;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = i; j < i + 2; j++)
                s[0][n][j] =
                    cpli_exp2(fmaf(s[0][n][j], LOG2_E, -most * LOG2_E));
    }
    mask<1, 16>(s, row, keys, 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
        state.sum[i / 2] += s[0][0][i] + s[0][1][i];
}

__device__ __forceinline__ void
shrink_latent(latent_sums<LATENT_M, LATENT_D> &o, const latent_memory &memory)
{
#pragma unroll
    for (int m = 0; m < LATENT_M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float shrink = memory.shrink[16 * m + row_of_sum(i)];
#pragma unroll
            for (int d = 0; d < 2 * LATENT_D; d++)
                o[m][d][i] *= shrink;
        }
}

/* lse of all rows, and the factors of what they have and had. By all threads,
 * with barriers. */
__device__ __forceinline__ void
join_latent(const cpl_attention &p, const parts<float> &workspace,
            const latent_softmax &state, latent_memory &memory, int row,
            int half, int64_t slot, int64_t head)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float sum = sum_of_four_lanes(state.sum[i]);
        const int r = row + row_of_sum(2 * i);
        if (column_of_sum(0) == 0) {
            memory.sum[half][r] = sum;
            memory.most[half][r] = state.max[i];
        }
    }
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x);
    if (r < LATENT_ROWS) /* whole warps */
        memory.ends[r] =
            join<bf16>(p, workspace.rows, slot + r, head, memory.most[0][r],
                       memory.sum[0][r] + memory.sum[1][r], true);
    __syncthreads();
}

/* Writes o, or marks its rows. */
__device__ __forceinline__ void end_result(const cpl_attention &p,
                                           const parts<float> &workspace,
                                           latent_sums<LATENT_M, LATENT_D> &o,
                                           latent_memory &memory, int64_t slot,
                                           int64_t head)
{
    float kept[LATENT_M][2];
#pragma unroll
    for (int m = 0; m < LATENT_M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const joined<float> both = memory.ends[16 * m + row_of_sum(i)];
            kept[m][i / 2] = both.kept;
#pragma unroll
            for (int d = 0; d < 2 * LATENT_D; d++)
                o[m][d][i] *= both.mine;
        }
    const int64_t stride = p.heads * p.value_dim;
    end_latent<LATENT_M, LATENT_D>(
        o, kept, memory.votes,
        {row_of<bf16>(p.o, slot, stride, head, p.value_dim), stride,
         p.n_queries - slot, p.value_dim, workspace.marks, nullptr, slot,
         p.n_queries, head, p.heads});
}

/* Later queries see more keys where masks are causal: their tiles go first. */
__global__ void __launch_bounds__(LATENT_THREADS, 1)
    attention_latent(const __grid_constant__ cpl_attention p,
                     const __grid_constant__ parts<float> workspace,
                     int64_t n_tiles)
{
    constexpr int TILE = LATENT_KEYS * LATENT_CHUNKS;
    CPLI_DYNAMIC_SHARED(uint4, q);
    CPLI_SHARED(latent_memory, memories, [1]);
    latent_memory &memory = memories[0];
    uint4 *keys = q + LATENT_ROWS * LATENT_CHUNKS, *weights = keys + 2 * TILE;
    const int64_t head = blockIdx.x % p.heads;
    const int64_t slot = (n_tiles - 1 - blockIdx.x / p.heads) * LATENT_ROWS;
    const int row = warp_here() % LATENT_M * 16, half = warp_here() / LATENT_M;

    load_latent(q, row_of<bf16>(p.q, slot, p.q_stride, head, p.key_dim),
                p.q_stride, p.n_queries - slot, p.key_dim, LATENT_ROWS);
    memory.feed.begin(p, workspace.groups, slot, p.n_queries, 1);
    load_latent_keys(p, memory.feed.ring[0], keys);
    latent_softmax state = {{-INFINITY, -INFINITY}, {0, 0}};
    latent_sums<LATENT_M, LATENT_D> o = {};
    for (int i = 0; memory.feed.ring[i % 4].n > 0; i++) {
        load_latent_keys(p, memory.feed.ring[(i + 1) % 4],
                         keys + (i + 1) % 2 * TILE);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const uint4 *k = keys + i % 2 * TILE;
        const strip now = memory.feed.ring[i % 4].from(16 * half);
        float s[1][2][4];
        multiply_latent<LATENT_WIDTH>(s, q, row, k, 16 * half);
        score_latent(s, memory, row, half, now, static_cast<float>(p.scale));
        __syncthreads();
        soften_latent(s, state, memory, row, half, now);
        keep_weights<LATENT_KEYS>(s, weights, row, 16 * half);
        __syncthreads();
        shrink_latent(o, memory);
        sum_latent<LATENT_M, LATENT_D, LATENT_KEYS>(o, weights, k, p.value_dim);
        memory.feed.end(p, workspace.groups, i);
    }
    cpli_copy_async_wait<0>();
    join_latent(p, workspace, state, memory, row, half, slot, head);
    end_result(p, workspace, o, memory, slot, head);
}

bool has_latent(const cpl_attention &p)
{
    const bool is_wide_enough =
        p.key_dim > MOST_WIDTH || p.value_dim > MOST_WIDTH;
    const bool is_taken =
        is_wide_enough && p.kv_heads == 1 && p.k == p.v &&
        p.k_stride == p.v_stride && p.value_dim <= p.key_dim &&
        p.key_dim <= LATENT_WIDTH && p.value_dim <= LATENT_VALUES &&
        p.key_dim % 8 == 0 && p.value_dim % 8 == 0 &&
        is_wide(p.q, p.q_stride) && is_wide(p.k, p.k_stride) &&
        is_wide(p.o, 0) && p.n_queries / UNIT + 1 <= INT32_MAX / p.heads &&
        p.n_blocks <= p.n_queries / SHORTEST;
    return is_taken && has_shared(attention_latent, LATENT_BYTES);
}

int attention_latent_forward(const cpl_attention &p,
                             const parts<float> &workspace,
                             cpl_cuda_stream stream)
{
    const int64_t n_tiles = (p.n_queries + LATENT_ROWS - 1) / LATENT_ROWS;
    return CPLI_LAUNCH(attention_latent,
                       static_cast<unsigned>(n_tiles * p.heads), LATENT_THREADS,
                       LATENT_BYTES, stream, p, workspace, n_tiles);
}

} // namespace cpli
