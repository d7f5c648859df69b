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

#ifdef __cplusplus
extern "C" {
#endif

enum { CPL_CUDA_BEST, CPL_CUDA_NAIVE };

/* The ops that have a launcher, and those of them that need a workspace. */
#define CPLI_CUDA_POINTWISE(X) \
    X(axpby)                   \
    X(rms_norm)                \
    X(rms_norm_backward)       \
    X(gated_rms_norm)          \
    X(gated_rms_norm_backward) \
    X(l2norm)                  \
    X(l2norm_backward)         \
    X(rope)                    \
    X(conv1d)                  \
    X(conv1d_backward)         \
    X(gates)                   \
    X(gates_backward)          \
    X(merge)                   \
    X(merge_backward)          \
    X(sigmoid_gate)            \
    X(sigmoid_gate_backward)   \
    X(swiglu)                  \
    X(swiglu_backward)         \
    X(embedding)               \
    X(embedding_backward)      \
    X(cross_entropy)           \
    X(move_rows)               \
    X(sum_squares)             \
    X(adamw)
#define CPLI_CUDA_DENSE(X) \
    X(matmul) X(grouped_matmul) X(grouped_matmul_backward)
#define CPLI_CUDA_MOE(X)  \
    X(moe_route)          \
    X(moe_route_backward) \
    X(moe_group)          \
    X(moe_load)           \
    X(moe_balance)        \
    X(moe_dispatch)       \
    X(moe_combine)        \
    X(moe_combine_backward)
#define CPLI_CUDA_ATTENTION(X) X(attention) X(attention_backward)
#define CPLI_CUDA_GDN(X) \
    X(gdn)               \
    X(gdn_backward)      \
    X(gdn_summary)       \
    X(gdn_summary_backward)
#define CPLI_CUDA_LIST(X)  \
    CPLI_CUDA_POINTWISE(X) \
    CPLI_CUDA_DENSE(X)     \
    CPLI_CUDA_MOE(X)
#define CPLI_CUDA_WORKSPACE_LIST(X) \
    CPLI_CUDA_ATTENTION(X)          \
    CPLI_CUDA_GDN(X)

#define CPLI_LAUNCHER(op)                                                    \
    CPL_API int cpl_cuda_##op(const cpl_##op *p, int32_t dtype, int32_t way, \
                              cpl_cuda_stream stream);
#define CPLI_LAUNCHER_WORKSPACE(op) \
    CPL_API size_t cpl_cuda_##op##_workspace(const cpl_##op *p, int32_t dtype);
CPLI_CUDA_LIST(CPLI_LAUNCHER)
CPLI_CUDA_WORKSPACE_LIST(CPLI_LAUNCHER)
CPLI_CUDA_WORKSPACE_LIST(CPLI_LAUNCHER_WORKSPACE)
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
