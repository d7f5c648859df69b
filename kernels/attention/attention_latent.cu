/*
 * attention_latent.cu: the forward of latent attention in bf16 on tensor cores:
 * one head of keys for all queries, and values in the keys' rows (DeepSeek-V2,
 * arXiv 2405.04434: 512 of 576 numbers). A strip is in shared memory once and
 * is both.
 *
 * A row of the result does not fit a warp's registers, so a block of threads
 * divides its work twice. Of the scores of 64 queries and 32 keys each of eight
 * warps has 16 x 16, and makes weights of them; then each has 64 columns of the
 * result for all queries. Between them weights, and by how much earlier sums
 * shrink, pass through shared memory.
 */
#include "attention_tiles.cuh"
#include "join.cuh"

namespace cpli
{

constexpr int LATENT_WARPS = 8, LATENT_THREADS = 32 * LATENT_WARPS;
constexpr int LATENT_WIDTH = 576, LATENT_CHUNKS = LATENT_WIDTH / 8;
constexpr int LATENT_ROWS = 64, LATENT_KEYS = 32;
constexpr int LATENT_M = LATENT_ROWS / 16;
constexpr int LATENT_COLUMNS = 64; /* of the result, each warp's */
constexpr int LATENT_VALUES = LATENT_COLUMNS * LATENT_WARPS;
/* Chunks of a row of weights, one more than there are: other banks. */
constexpr int WEIGHT_CHUNKS = LATENT_KEYS / 8 + 1;
constexpr size_t LATENT_BYTES =
    sizeof(uint4) * ((LATENT_ROWS + 2 * LATENT_KEYS) * LATENT_CHUNKS +
                     LATENT_ROWS * WEIGHT_CHUNKS);

/* What passes between the warps, by row; of two halves of the keys. */
struct latent_memory {
    strip_feed<false, LATENT_ROWS, LATENT_KEYS> feed;
    float most[2][LATENT_ROWS], sum[2][LATENT_ROWS];
    float shrink[LATENT_ROWS];
    joined<float> ends[LATENT_ROWS];
    bool is_finite[LATENT_WARPS];
};

/* Begins to copy n rows of `width` numbers; the rest of the tile is zeros. */
__device__ __forceinline__ void load_latent(uint4 *tile, const bf16 *from,
                                            int64_t stride, int n, int width,
                                            int rows)
{
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * LATENT_CHUNKS;
         i += LATENT_THREADS) {
        const int row = i / LATENT_CHUNKS, chunk = i % LATENT_CHUNKS;
        uint4 *to = chunk_of<LATENT_WIDTH>(tile, row, chunk);
        if (row < n && chunk * 8 < width)
            cpli_copy_async(to, from + row * stride + chunk * 8);
        else
            *to = uint4{0, 0, 0, 0};
    }
}

__device__ __forceinline__ void load_latent_keys(const cpl_attention &p,
                                                 const strip &keys, uint4 *to)
{
    if (keys.n > 0)
        load_latent(to, row_of<bf16>(p.k, keys.slot, p.k_stride, 0, p.key_dim),
                    p.k_stride, keys.n, static_cast<int>(p.key_dim),
                    LATENT_KEYS);
    cpli_copy_async_commit();
}

/* What a warp knows of the 16 rows whose weights it makes: the sums are those
 * of its half of the keys, by lane. */
struct latent_softmax {
    float max[2], sum[2];
};

/* Scores of the warp's rows from `row` on and the keys of one half, and the
 * largest of each row. */
__device__ __forceinline__ void
score_latent(float (&s)[1][2][4], latent_memory &memory, const uint4 *q,
             int row, const uint4 *k, int half, const strip &keys, float scale)
{
    k += half * 16 * LATENT_CHUNKS;
#pragma unroll
    for (int d = 0; d < LATENT_WIDTH / 64; d++)
        times_rows<LATENT_WIDTH, 1, 16, 64>(s, q + 8 * d, row, k + 8 * d);
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

/* They become weights, in shared memory. */
__device__ __forceinline__ void
soften_latent(float (&s)[1][2][4], latent_softmax &state, latent_memory &memory,
              uint32_t *weights, int row, int half, const strip &keys)
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
    for (int i = 0; i < 4; i += 2)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int r = row + row_of_sum(i);
            const int word = 8 * half + 4 * n + column_of_sum(0) / 2;
            state.sum[i / 2] += s[0][n][i] + s[0][n][i + 1];
            weights[r * WEIGHT_CHUNKS * 4 + word] =
                two_bf16(s[0][n][i], s[0][n][i + 1]);
        }
}

/* A warp's columns of the result, of all rows. */
using latent_result = float[LATENT_M][LATENT_COLUMNS / 8][4];

/* o shrinks, and grows by the weights times the values, whose first column is
 * the warp's. */
__device__ __forceinline__ void sum_latent(latent_result &o,
                                           const latent_memory &memory,
                                           const uint4 *weights,
                                           const uint4 *values)
{
    const int lane = lane_here();
    const unsigned at = corner<LATENT_WIDTH>(lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < LATENT_M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float shrink = memory.shrink[16 * m + row_of_sum(i)];
#pragma unroll
            for (int d = 0; d < LATENT_COLUMNS / 8; d++)
                o[m][d][i] *= shrink;
        }
#pragma unroll
    for (int n = 0; n < LATENT_KEYS / 16; n++) {
        uint32_t x[LATENT_M][4];
#pragma unroll
        for (int m = 0; m < LATENT_M; m++)
            cpli_ldmatrix(x[m], weights + (16 * m + lane % 16) * WEIGHT_CHUNKS +
                                    2 * n + lane / 16);
#pragma unroll
        for (int d = 0; d < LATENT_COLUMNS / 16; d++) {
            uint32_t y[4];
            cpli_ldmatrix_trans(
                y, bytes_on(values, (at ^ d * 32) + n * 32 * LATENT_WIDTH));
#pragma unroll
            for (int m = 0; m < LATENT_M; m++) {
                cpli_mma_bf16(o[m][2 * d], x[m], y[0], y[1]);
                cpli_mma_bf16(o[m][2 * d + 1], x[m], y[2], y[3]);
            }
        }
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

/* Writes o, or marks its rows. By all threads, with a barrier. */
__device__ __forceinline__ void end_latent(const cpl_attention &p,
                                           const parts<float> &workspace,
                                           latent_result &o,
                                           latent_memory &memory, uint4 *tile,
                                           int64_t slot, int64_t head)
{
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float kept[LATENT_M][2];
#pragma unroll
    for (int m = 0; m < LATENT_M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const joined<float> both = memory.ends[16 * m + row_of_sum(i)];
            kept[m][i / 2] = both.kept;
#pragma unroll
            for (int d = 0; d < LATENT_COLUMNS / 8; d++)
                o[m][d][i] *= both.mine;
        }
    const bool mine = is_finite<LATENT_COLUMNS, LATENT_M>(o, kept);
    if (lane_here() == 0)
        memory.is_finite[warp] = mine;
    __syncthreads();
    bool all = true;
#pragma unroll
    for (int w = 0; w < LATENT_WARPS; w++)
        all = all && memory.is_finite[w];
    if (threadIdx.x < LATENT_M)
        mark_unit(workspace.marks, slot + UNIT * threadIdx.x, p.n_queries, head,
                  p.heads, all);
    const int from = LATENT_COLUMNS * warp;
    if (!all || from >= p.value_dim)
        return;
    const int64_t stride = p.heads * p.value_dim;
    store_rows<LATENT_COLUMNS, LATENT_M>(
        o, kept, tile + warp * LATENT_ROWS * LATENT_COLUMNS / 8, 0,
        row_of<bf16>(p.o, slot, stride, head, p.value_dim) + from, stride,
        static_cast<int>(min(p.n_queries - slot, FAR)),
        static_cast<int>(p.value_dim) - from);
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
    const reach *groups = workspace.groups;
    const int64_t head = blockIdx.x % p.heads;
    const int64_t slot = (n_tiles - 1 - blockIdx.x / p.heads) * LATENT_ROWS;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int row = warp % LATENT_M * 16, half = warp / LATENT_M;

    load_latent(q, row_of<bf16>(p.q, slot, p.q_stride, head, p.key_dim),
                p.q_stride, static_cast<int>(min(p.n_queries - slot, FAR)),
                static_cast<int>(p.key_dim), LATENT_ROWS);
    memory.feed.begin(p, groups, slot, p.n_queries, 1);
    load_latent_keys(p, memory.feed.ring[0], keys);
    latent_softmax state = {{-INFINITY, -INFINITY}, {0, 0}};
    latent_result o = {};
    for (int i = 0; memory.feed.ring[i % 4].n > 0; i++) {
        load_latent_keys(p, memory.feed.ring[(i + 1) % 4],
                         keys + (i + 1) % 2 * TILE);
        cpli_copy_async_wait<1>();
        __syncthreads();
        const uint4 *k = keys + i % 2 * TILE;
        const strip now = memory.feed.ring[i % 4].from(16 * half);
        float s[1][2][4] = {};
        score_latent(s, memory, q, row, k, half, now,
                     static_cast<float>(p.scale));
        __syncthreads();
        soften_latent(s, state, memory, reinterpret_cast<uint32_t *>(weights),
                      row, half, now);
        __syncthreads();
        sum_latent(o, memory, weights, k + LATENT_COLUMNS / 8 * warp);
        memory.feed.end(p, groups, i);
    }
    cpli_copy_async_wait<0>();
    join_latent(p, workspace, state, memory, row, half, slot, head);
    end_latent(p, workspace, o, memory, q, slot, head);
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
        is_wide(p.o, 0) && p.n_queries / 64 + 1 <= INT32_MAX / p.heads &&
        p.n_blocks <= p.n_queries / SHORTEST;
    if (!is_taken)
        return false;
    if (allow_shared(attention_latent, LATENT_BYTES) == cudaSuccess)
        return true;
    cudaGetLastError(); /* a device with less */
    return false;
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
