/*
 * tensor_cores.cu: one product by mma.m16n8k16, with fragments that ldmatrix
 * brings and with fragments that lanes read by themselves, against a naive one.
 */
#include "ptx.cuh"
#include "trial.h"

namespace
{

constexpr int M = 16, N = 8, K = 16;

struct operands {
    __nv_bfloat16 a[M][K], columns[N][K], rows[K][N]; /* B twice */
};

/* Two matrices of 8 x 8 halves of B are what ldmatrix.x4 brings too much. */
__device__ const void *row_of_b(operands &all, bool trans)
{
    const int lane = static_cast<int>(threadIdx.x) % 16;
    if (trans)
        return &all.rows[lane][0];
    return &all.columns[lane % 8][lane / 8 * 8];
}

__device__ void store(float *to, const float (&c)[4])
{
    const int g = static_cast<int>(threadIdx.x) / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    for (int i = 0; i < 4; i++)
        to[(g + i / 2 * 8) * N + 2 * t + i % 2] = c[i];
}

/* Product 0 loads B by columns, 1 by rows, 2 nothing by ldmatrix; all of them
 * add to 1. */
__global__ void multiply(const operands *from, float *to)
{
    CPLI_SHARED(operands, all, [1]);
    const int lane = static_cast<int>(threadIdx.x);
    for (size_t i = 16 * threadIdx.x; i < sizeof all[0]; i += 16 * 32)
        cpli_copy_async(reinterpret_cast<char *>(all) + i,
                        reinterpret_cast<const char *>(from) + i);
    cpli_copy_async_commit();
    cpli_copy_async_wait<0>();
    __syncwarp();
    uint32_t a[4], b[4];
    cpli_ldmatrix(a, &all[0].a[lane % 16][lane / 16 * 8]);
    for (int product = 0; product < 3; product++) {
        float c[4] = {1, 1, 1, 1};
        if (product == 0)
            cpli_ldmatrix(b, row_of_b(all[0], false));
        if (product == 1)
            cpli_ldmatrix_trans(b, row_of_b(all[0], true));
        if (product == 2) {
            for (int i = 0; i < 4; i++)
                std::memcpy(
                    &a[i],
                    &from->a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8],
                    4);
            for (int i = 0; i < 2; i++)
                std::memcpy(&b[i],
                            &from->columns[lane / 4][lane % 4 * 2 + i * 8], 4);
        }
        cpli_mma_bf16(c, a, b[0], b[1]);
        store(to + product * M * N, c);
    }
}

/* Small integers: every sum is exact. */
void fill(operands &all)
{
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < M; i++)
            all.a[i][k] = __float2bfloat16_rn(
                static_cast<float>((7 * i + 3 * k + i * k) % 13 - 6));
        for (int j = 0; j < N; j++)
            all.columns[j][k] = all.rows[k][j] = __float2bfloat16_rn(
                static_cast<float>((5 * j + 11 * k + j * k) % 17 - 8));
    }
}

float naive(const operands &all, int i, int j)
{
    float sum = 1;
    for (int k = 0; k < K; k++)
        sum +=
            __bfloat162float(all.a[i][k]) * __bfloat162float(all.columns[j][k]);
    return sum;
}

} // namespace

TRIAL(tensor_cores)
{
    operands all;
    fill(all);
    operands *from = on_device<operands>(1);
    float *to = on_device<float>(3 * M * N);
    MUST(cudaMemcpy(from, &all, sizeof all, cudaMemcpyHostToDevice));
    MUST(CPLI_LAUNCH(multiply, 1, 32, 0, nullptr, from, to));
    const std::vector<float> seen = on_host(to, 3 * M * N);
    std::vector<int> wrong(3);
    for (int i = 0; i < 3 * M * N; i++)
        wrong[static_cast<size_t>(i / (M * N))] +=
            seen[static_cast<size_t>(i)] != naive(all, i / N % M, i % N);
    say("wrong", wrong);
}

__global__ void load_between_rows(uint32_t *out)
{
    CPLI_SHARED(uint4, tile, [32]);
    tile[threadIdx.x] = uint4{};
    __syncwarp();
    uint32_t to[4];
    cpli_ldmatrix(to, reinterpret_cast<char *>(&tile[threadIdx.x % 16]) + 8);
    out[threadIdx.x] = to[0];
}

TRIAL(ldmatrix_between_rows)
{
    MUST(CPLI_LAUNCH(load_between_rows, 1, 32, 0, nullptr,
                     on_device<uint32_t>(32)));
    tell("sync", cudaDeviceSynchronize());
}
