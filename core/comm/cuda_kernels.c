/*
 * cuda_kernels.c: the tables of the kernels that compute, for a CUDA device.
 * An entry launches into the stream of the calling thread's rank. Entries of
 * one table have its name, "best_f32".
 */
#include "cuda_rank.h"
#include "launch.h"

#define ENTRY(op, name, DTYPE, WAY)                                           \
    static void op##_##name(const cpl_##op *p)                                \
    {                                                                         \
        cpl_##op words = *p;                                                  \
        if (CPLI_CUDA_NOTES(cpli_cuda_here(), #op #name, words))              \
            return;                                                           \
        cpli_cuda_ran(                                                        \
            cpl_cuda_##op(&words, DTYPE, WAY, cpli_cuda_stream_here()), #op); \
    }
#define ENTRIES(op)                               \
    ENTRY(op, best_f64, CPL_F64, CPL_CUDA_BEST)   \
    ENTRY(op, best_f32, CPL_F32, CPL_CUDA_BEST)   \
    ENTRY(op, best_bf16, CPL_BF16, CPL_CUDA_BEST) \
    ENTRY(op, naive_f64, CPL_F64, CPL_CUDA_NAIVE) \
    ENTRY(op, naive_f32, CPL_F32, CPL_CUDA_NAIVE) \
    ENTRY(op, naive_bf16, CPL_BF16, CPL_CUDA_NAIVE)
CPLI_PLAIN_LIST(ENTRIES)
CPLI_WORKSPACE_LIST(ENTRIES)

#define SIZE(op, name, DTYPE)                              \
    static size_t op##_workspace_##name(const cpl_##op *p) \
    {                                                      \
        return cpl_cuda_##op##_workspace(p, DTYPE);        \
    }
#define SIZES(op)          \
    SIZE(op, f64, CPL_F64) \
    SIZE(op, f32, CPL_F32) \
    SIZE(op, bf16, CPL_BF16)
CPLI_WORKSPACE_LIST(SIZES)

#define REFUSAL(op, name, DTYPE)                              \
    static const char *op##_refusal_##name(const cpl_##op *p) \
    {                                                         \
        return cpl_cuda_##op##_refusal(p, DTYPE);             \
    }
#define REFUSALS(op)          \
    REFUSAL(op, f64, CPL_F64) \
    REFUSAL(op, f32, CPL_F32) \
    REFUSAL(op, bf16, CPL_BF16)
REFUSALS(attention)
REFUSALS(gdn)

#define BEST_F64(op) .op = op##_best_f64,
#define BEST_F32(op) .op = op##_best_f32,
#define BEST_BF16(op) .op = op##_best_bf16,
#define NAIVE_F64(op) .op = op##_naive_f64,
#define NAIVE_F32(op) .op = op##_naive_f32,
#define NAIVE_BF16(op) .op = op##_naive_bf16,
#define SIZE_F64(op) .op##_workspace = op##_workspace_f64,
#define SIZE_F32(op) .op##_workspace = op##_workspace_f32,
#define SIZE_BF16(op) .op##_workspace = op##_workspace_bf16,
#define HEAD(DTYPE, WIDE, name)                    \
    .dtype = DTYPE, .wide = WIDE,                  \
    .attention_refusal = attention_refusal_##name, \
    .gdn_refusal = gdn_refusal_##name,
#define ALL(ENTRY_OF, SIZE_OF) \
    CPLI_PLAIN_LIST(ENTRY_OF)  \
    CPLI_WORKSPACE_LIST(ENTRY_OF) CPLI_WORKSPACE_LIST(SIZE_OF)

const cpl_kernels *cpli_cuda_kernels(cpl_dtype dtype, bool naive)
{
    static cpl_kernels tables[][2] = {
        {{HEAD(CPL_F64, CPL_F64, f64) ALL(BEST_F64, SIZE_F64)},
         {HEAD(CPL_F64, CPL_F64, f64) ALL(NAIVE_F64, SIZE_F64)}},
        {{HEAD(CPL_F32, CPL_F32, f32) ALL(BEST_F32, SIZE_F32)},
         {HEAD(CPL_F32, CPL_F32, f32) ALL(NAIVE_F32, SIZE_F32)}},
        {{HEAD(CPL_BF16, CPL_F32, bf16) ALL(BEST_BF16, SIZE_BF16)},
         {HEAD(CPL_BF16, CPL_F32, bf16) ALL(NAIVE_BF16, SIZE_BF16)}},
    };
    static void (*const products[])(const cpl_matmul *) = {
        cpli_matmul_f64, cpli_matmul_f32, cpli_matmul_bf16};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (tables[i][naive].dtype == dtype) {
            tables[i][naive].device = cpli_cuda_name;
            if (!naive) /* by cuBLAS where it is there */
                tables[i][naive].matmul = products[i];
            return &tables[i][naive];
        }
    return NULL;
}
