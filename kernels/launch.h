/*
 * launch.h: the kernels of layers on a CUDA device: a launcher per op, over the
 * parameter structs of kernels.h. <op>/<op>.cu defines it, with the naive
 * kernel beside the fast one.
 *
 * Contracts: those of kernels.h and of cuda.h. A launcher enqueues on `stream`
 * and returns a cudaError_t as an int; it allocates nothing, waits for nothing,
 * and may be captured. All pointers in the struct are device memory; the struct
 * is copied when it is launched. `dtype` is F64, F32 or BF16 (sums in f32, WIDE
 * arrays are f32). Sums over rows (gradients of parameters, sums of squares)
 * are made in a fixed order: the same numbers give the same bits. NaN and Inf
 * go the way that they go on the CPU.
 *
 * `way`: CPL_CUDA_BEST, or CPL_CUDA_NAIVE, a thread an element and sums in
 * order, which is what a spec holds the best one against.
 */
#ifndef CPLAB_LAUNCH_H
#define CPLAB_LAUNCH_H

#include "cuda.h"
#include "kernels.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CPL_CUDA_BEST, CPL_CUDA_NAIVE };

#define CPLI_LAUNCHER(op)                                                    \
    CPL_API int cpl_cuda_##op(const cpl_##op *p, int32_t dtype, int32_t way, \
                              cpl_cuda_stream stream);
#define CPLI_LAUNCHER_WORKSPACE(op) \
    CPL_API size_t cpl_cuda_##op##_workspace(const cpl_##op *p, int32_t dtype);
CPLI_PLAIN_LIST(CPLI_LAUNCHER)
CPLI_WORKSPACE_LIST(CPLI_LAUNCHER)
CPLI_WORKSPACE_LIST(CPLI_LAUNCHER_WORKSPACE)
#undef CPLI_LAUNCHER
#undef CPLI_LAUNCHER_WORKSPACE

/* What attention and the delta rule do not take: a sentence that says what they
 * do and what was asked for, or NULL. */
CPL_API const char *cpl_cuda_attention_refusal(const cpl_attention *p,
                                               int32_t dtype);
CPL_API const char *cpl_cuda_gdn_refusal(const cpl_gdn *p, int32_t dtype);

#ifdef __cplusplus
}
#endif

#endif
