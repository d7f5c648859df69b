/*
 * cublas.c: matrix products of a rank by cuBLAS, which is opened when a rank
 * joins; where there is none, the project's own kernel multiplies. The only
 * file that knows cuBLAS.
 *
 * A rank has a handle with its stream and a workspace that is its own from the
 * start: a product takes no memory and may be captured into a graph. Sums of
 * f32 and of bf16 are made in f32: no TF32, and no partial sums in bf16.
 *
 * cuBLAS has matrices by columns. By columns our c is its transpose, op(b)'
 * times op(a)': the operands change places.
 */
#include "cuda_rank.h"
#include "launch.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdio.h>

/* What cuBLAS's own documents advise for sm_90 (cublasSetWorkspace). */
enum { WORKSPACE_BYTES = 32 << 20 };

/* ---- the library ---- */

#define STRING(x) #x
#define LIBRARY_OF(major) "libcublas.so." STRING(major)
#define LIBRARY LIBRARY_OF(CUBLAS_VER_MAJOR)

/* As the library calls them: some have a version in their names. */
#define CUBLAS_FUNCTIONS(X) \
    X(GetProperty)          \
    X(Create_v2)            \
    X(Destroy_v2)           \
    X(SetStream_v2)         \
    X(SetWorkspace_v2)      \
    X(SetMathMode)          \
    X(GemmEx_64)            \
    X(GemmStridedBatchedEx_64)

typedef struct library {
#define X(name) __typeof__(cublas##name) *name;
    CUBLAS_FUNCTIONS(X)
#undef X
} library;

#ifdef CPLAB_CUDA_EMULATED

/* The double is part of the emulator; as long as it is not asked for, it has
 * the version 0. */
static cpl_status load(library *out)
{
    int major = 0;
#define X(name) out->name = cublas##name;
    CUBLAS_FUNCTIONS(X)
#undef X
    out->GetProperty(MAJOR_VERSION, &major);
    return major != 0 ? CPL_OK
                      : cpli_fail(CPL_UNSUPPORTED,
                                  "cublas: the emulator's is not switched on");
}

#else

static cpl_status load(library *out)
{
    static const char *const names[] = {
#define X(name) "cublas" #name,
        CUBLAS_FUNCTIONS(X)
#undef X
    };
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return cpli_fail(CPL_UNSUPPORTED, "cublas: cannot open cuBLAS: %s",
                         dlerror());
    void **entry = (void **)out;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        entry[i] = dlsym(handle, names[i]);
        if (entry[i] == NULL)
            return cpli_fail(CPL_MISMATCH, "cublas: " LIBRARY " has no %s",
                             names[i]);
    }
    return CPL_OK;
}

#endif

int cpli_cublas_version(char *why, size_t room)
{
    library cublas;
    int parts[3] = {0};
    if (load(&cublas) != CPL_OK) {
        snprintf(why, room, "%s", cpl_last_error());
        return 0;
    }
    cublas.GetProperty(MAJOR_VERSION, &parts[0]);
    cublas.GetProperty(MINOR_VERSION, &parts[1]);
    cublas.GetProperty(PATCH_LEVEL, &parts[2]);
    return parts[0] * 10000 + parts[1] * 100 + parts[2];
}

/* ---- a rank's handle ---- */

struct cpli_cublas {
    library has;
    cublasHandle_t handle;
    void *workspace;
};

static cpl_status check(const cpli_cuda *device, cublasStatus_t status,
                        const char *doing)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return CPL_OK;
    return cpli_fail(CPL_SYSTEM, "%s %d: cuBLAS fails with status %d in %s",
                     cpli_cuda_name, device->number, (int)status, doing);
}

static cpl_status start(const cpli_cuda *device, cpli_cublas *me)
{
    CPL_TRY(check(device, me->has.Create_v2(&me->handle), "starting"));
    /* Sums of bf16 stay in f32 where they are split, too. */
    CPL_TRY(check(
        device,
        me->has.SetMathMode(
            me->handle, CUBLAS_DEFAULT_MATH |
                            CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
        "choosing its arithmetic"));
    /* In this order: a stream brings a workspace of cuBLAS's own. */
    CPL_TRY(check(device, me->has.SetStream_v2(me->handle, device->stream),
                  "taking a stream"));
    return check(
        device,
        me->has.SetWorkspace_v2(me->handle, me->workspace, WORKSPACE_BYTES),
        "taking a workspace");
}

cpl_status cpli_cublas_open(cpli_cuda *device)
{
    library has;
    if (load(&has) != CPL_OK)
        return CPL_OK; /* our own kernel will do */
    CPL_TRY(CPL_ALLOC(1, &device->cublas));
    device->cublas->has = has;
    CPL_TRY(cpli_cuda_check(
        device, cudaMalloc(&device->cublas->workspace, WORKSPACE_BYTES),
        "taking a workspace for cuBLAS"));
    return start(device, device->cublas);
}

void cpli_cublas_close(cpli_cuda *device)
{
    cpli_cublas *me = device->cublas;
    if (me == NULL)
        return;
    if (me->handle != NULL)
        me->has.Destroy_v2(me->handle);
    cudaFree(me->workspace);
    cpli_free(me);
    device->cublas = NULL;
}

/* ---- products ---- */

/* A dtype as cuBLAS says it, and what it computes in. */
typedef struct arithmetic {
    cudaDataType_t type, wide;
    cublasComputeType_t compute;
} arithmetic;

static arithmetic arithmetic_of(cpl_dtype dtype)
{
    switch (dtype) {
    case CPL_F64:
        return (arithmetic){CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case CPL_F32:
        return (arithmetic){CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    default:
        return (arithmetic){CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F};
    }
}

/* alpha and beta in the type that is computed in. */
typedef union factor {
    double f64;
    float f32;
} factor;

static factor factor_of(double x, cpl_dtype dtype)
{
    factor result;
    if (dtype == CPL_F64)
        result.f64 = x;
    else
        result.f32 = (float)x;
    return result;
}

static cublasOperation_t operation(bool transpose)
{
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

static cublasStatus_t multiply(const cpli_cublas *me, const cpl_matmul *p,
                               cpl_dtype dtype)
{
    const arithmetic in = arithmetic_of(dtype);
    const cudaDataType_t c = p->wide_c ? in.wide : in.type;
    const factor alpha = factor_of(p->alpha, dtype);
    const factor beta = factor_of(p->beta, dtype);
    if (p->batch <= 1)
        return me->has.GemmEx_64(
            me->handle, operation(p->transpose_b), operation(p->transpose_a),
            p->n, p->m, p->k, &alpha, p->b, in.type, p->ldb, p->a, in.type,
            p->lda, &beta, p->c, c, p->ldc, in.compute, CUBLAS_GEMM_DEFAULT);
    return me->has.GemmStridedBatchedEx_64(
        me->handle, operation(p->transpose_b), operation(p->transpose_a), p->n,
        p->m, p->k, &alpha, p->b, in.type, p->ldb, p->b_step, p->a, in.type,
        p->lda, p->a_step, &beta, p->c, c, p->ldc, p->c_step, p->batch,
        in.compute, CUBLAS_GEMM_DEFAULT);
}

/* A sum of nothing is left to our own kernel, which says what it is. */
static void matmul(const cpl_matmul *p, cpl_dtype dtype)
{
    cpli_cuda *device = cpli_cuda_here();
    cpl_matmul words = *p;
    if (CPLI_CUDA_NOTES(device, cpl_dtype_name(dtype), words))
        return;
    if (device->cublas == NULL || p->m == 0 || p->n == 0 || p->k == 0) {
        cpli_cuda_ran(cpl_cuda_matmul(p, dtype, CPL_CUDA_BEST, device->stream),
                      "matmul");
        return;
    }
    cpli_cuda_keep(device, check(device, multiply(device->cublas, p, dtype),
                                 "a matrix product"));
}

void cpli_matmul_f64(const cpl_matmul *p)
{
    matmul(p, CPL_F64);
}

void cpli_matmul_f32(const cpl_matmul *p)
{
    matmul(p, CPL_F32);
}

void cpli_matmul_bf16(const cpl_matmul *p)
{
    matmul(p, CPL_BF16);
}
