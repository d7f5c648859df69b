/*
 * cuda_kernels.c: the tables of the kernels that compute, for a CUDA device.
 * An entry launches into the stream of the calling thread's rank.
 */
#include "cuda_rank.h"
#include "launch.h"

#define ENTRY(op, name, DTYPE)                                               \
    static void op##_##name(const cpl_##op *p)                               \
    {                                                                        \
        cpli_cuda_ran(                                                       \
            cpl_cuda_##op(p, DTYPE, CPL_CUDA_BEST, cpli_cuda_stream_here()), \
            #op);                                                            \
    }
#define ENTRIES(op)         \
    ENTRY(op, f64, CPL_F64) \
    ENTRY(op, f32, CPL_F32) \
    ENTRY(op, bf16, CPL_BF16)
CPLI_CUDA_LIST(ENTRIES)
CPLI_CUDA_WORKSPACE_LIST(ENTRIES)

#define SIZE(op, name, DTYPE)                              \
    static size_t op##_workspace_##name(const cpl_##op *p) \
    {                                                      \
        return cpl_cuda_##op##_workspace(p, DTYPE);        \
    }
#define SIZES(op)          \
    SIZE(op, f64, CPL_F64) \
    SIZE(op, f32, CPL_F32) \
    SIZE(op, bf16, CPL_BF16)
CPLI_CUDA_WORKSPACE_LIST(SIZES)

#define F64(op) .op = op##_f64,
#define F32(op) .op = op##_f32,
#define BF16(op) .op = op##_bf16,
#define F64_SIZED(op) .op = op##_f64, .op##_workspace = op##_workspace_f64,
#define F32_SIZED(op) .op = op##_f32, .op##_workspace = op##_workspace_f32,
#define BF16_SIZED(op) .op = op##_bf16, .op##_workspace = op##_workspace_bf16,

const cpl_kernels *cpli_cuda_kernels(cpl_dtype dtype)
{
    static cpl_kernels tables[] = {
        {.dtype = CPL_F64,
         .wide = CPL_F64,
         CPLI_CUDA_LIST(F64) CPLI_CUDA_WORKSPACE_LIST(F64_SIZED)},
        {.dtype = CPL_F32,
         .wide = CPL_F32,
         CPLI_CUDA_LIST(F32) CPLI_CUDA_WORKSPACE_LIST(F32_SIZED)},
        {.dtype = CPL_BF16,
         .wide = CPL_F32,
         CPLI_CUDA_LIST(BF16) CPLI_CUDA_WORKSPACE_LIST(BF16_SIZED)},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (tables[i].dtype == dtype) {
            tables[i].device = cpli_cuda_name;
            return &tables[i];
        }
    return NULL;
}
