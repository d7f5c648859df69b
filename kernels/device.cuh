/*
 * device.cuh: the only place where a kernel file differs between its two
 * compilers. nvcc makes device code of it; the host's compiler makes functions
 * that the emulator runs on the CPU. Kernels use CPLI_SHARED and
 * CPLI_DYNAMIC_SHARED for shared memory, and launchers CPLI_LAUNCH; all else is
 * CUDA's own.
 */
#ifndef CPLI_DEVICE_CUH
#define CPLI_DEVICE_CUH

#ifdef __CUDACC__

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* Enqueues kernel(arguments...) and is its cudaError_t. */
#define CPLI_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)      \
    (kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__), \
     cudaGetLastError())
/* T name dims; in shared memory: CPLI_SHARED(float, tile, [16][16]). */
#define CPLI_SHARED(T, name, dims) __shared__ T name dims
/* T *name: the bytes that the launch asked for, aligned to 16. */
#define CPLI_DYNAMIC_SHARED(T, name)                                 \
    extern __shared__ __align__(16) unsigned char cpli_shared_all[]; \
    T *name = reinterpret_cast<T *>(cpli_shared_all)

#else
#include "emulation/cuda_on_host.h"
#endif

#endif
