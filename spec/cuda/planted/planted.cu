/*
 * planted.cu: kernels that the static gate must refuse, and one that has each
 * kind of instruction which the reader of cubins counts.
 */
#include <cstdint>

/* Bytes one by one, and no load before the store of the one before. */
extern "C" __global__ void planted_narrow(char *to, const char *from, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = from[i];
}

/* More than a thread of so large a block has registers for. */
extern "C" __global__ void __launch_bounds__(1024)
    planted_spill(float *to, const float *from, int n)
{
    float x[96];
#pragma unroll
    for (int i = 0; i < 96; i++)
        x[i] = from[i * n + threadIdx.x];
    for (int j = 0; j < n; j++)
#pragma unroll
        for (int i = 0; i < 96; i++)
            x[i] = x[i] * x[(i * 7 + 1) % 96] + from[j];
#pragma unroll
    for (int i = 0; i < 96; i++)
        to[i * n + threadIdx.x] = x[i];
}

extern "C" __global__ void planted_instructions(float *to, const uint4 *from,
                                                unsigned *counter)
{
    __shared__ uint4 tile[64];
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(tile + threadIdx.x);
    float c[4] = {0, 0, 0, 0};
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at),
                 "l"(from + threadIdx.x)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    const uint4 a = tile[63 - threadIdx.x];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(a.x), "r"(a.z));
    to[threadIdx.x] =
        __shfl_xor_sync(0xffffffffu, c[0] + c[1] + c[2] + c[3], 1);
    if (atomicExch(counter, threadIdx.x) == 7u)
        atomicAdd(counter + 1, 1u);
}
