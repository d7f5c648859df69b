/*
 * cublas.cpp: the matrix products of cuBLAS, over emulated streams, as its
 * documents have them: by columns, in the order of the handle's stream. What
 * cuBLAS refuses is refused (a leading dimension below the rows that it has),
 * and so is what it leaves undefined: matrices that do not lie in the memory of
 * the handle's device, a capture without a workspace that is the caller's.
 */
#include <cstring>

#include <cuda_bf16.h>

#include "emulator.h"

#pragma GCC visibility push(default)
#include <cublas_v2.h>
#pragma GCC visibility pop

/* The library's own type. */
struct cublasContext {
    int device;
    cudaStream_t stream;
    bool has_workspace;
};

namespace emulation
{

namespace
{

/* A matrix as a call names it: of `rows` x `columns` as it lies. */
struct stored {
    const void *at;
    cudaDataType type;
    int64_t rows, columns, ld, step;
};

/* One call. */
struct product {
    bool turns_a, turns_b;
    int64_t m, n, k, batch;
    double alpha, beta;
    stored a, b, c;
};

int64_t size_of(cudaDataType type)
{
    switch (type) {
    case CUDA_R_64F:
        return 8;
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16BF:
        return 2;
    default:
        return 0;
    }
}

double get(const stored &m, int64_t i)
{
    switch (m.type) {
    case CUDA_R_64F:
        return static_cast<const double *>(m.at)[i];
    case CUDA_R_32F:
        return static_cast<const float *>(m.at)[i];
    default:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(m.at)[i]);
    }
}

void put(const stored &m, int64_t i, double x)
{
    void *at = const_cast<void *>(m.at);
    float rounded = static_cast<float>(x);
    if (m.type == CUDA_R_64F)
        static_cast<double *>(at)[i] = x;
    else if (m.type == CUDA_R_32F)
        static_cast<float *>(at)[i] = rounded;
    else
        static_cast<__nv_bfloat16 *>(at)[i] = __float2bfloat16_rn(rounded);
}

/* visit(where it begins, its bytes) for each column of matrix number `i`. */
template <class F> void each_column(const stored &m, int64_t i, F visit)
{
    const char *at = static_cast<const char *>(m.at);
    int64_t size = size_of(m.type);
    for (int64_t column = 0; column < m.columns; column++)
        visit(at + (i * m.step + column * m.ld) * size,
              static_cast<size_t>(m.rows * size));
}

void multiply_one(const product &p, int64_t number)
{
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) {
            double sum = 0;
            for (int64_t l = 0; l < p.k; l++) {
                int64_t left = p.turns_a ? i * p.a.ld + l : l * p.a.ld + i;
                int64_t right = p.turns_b ? l * p.b.ld + j : j * p.b.ld + l;
                sum += get(p.a, number * p.a.step + left) *
                       get(p.b, number * p.b.step + right);
            }
            int64_t at = number * p.c.step + j * p.c.ld + i;
            double before = p.beta == 0 ? 0 : p.beta * get(p.c, at);
            put(p.c, at, p.alpha * sum + before);
        }
}

void run(const product &p, cpli_check_op op)
{
    auto reads = [op](const void *at, size_t bytes) {
        cpli_check_read(op, at, bytes, 0);
    };
    for (int64_t i = 0; i < p.batch; i++) {
        each_column(p.a, i, reads);
        each_column(p.b, i, reads);
        if (p.beta != 0)
            each_column(p.c, i, reads);
        multiply_one(p, i);
        each_column(p.c, i, [op](const void *at, size_t bytes) {
            cpli_check_write(op, at, bytes);
        });
    }
}

bool is_sound(const cublasContext &handle, const product &p, const stored &m)
{
    bool inside = m.ld >= m.rows && m.rows > 0;
    for (int64_t i = 0; i < p.batch; i++)
        each_column(m, i, [&](const char *at, size_t bytes) {
            memory_place place = find_memory(at);
            inside = inside && place.kind == memory_kind::device &&
                     place.device == handle.device && place.left >= bytes;
        });
    return inside;
}

cublasStatus_t begin(cublasHandle_t handle, const product &p)
{
    stream_pointer on = find_stream(handle->stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (!on || device_of(on) != handle->device ||
        cudaStreamIsCapturing(handle->stream, &capture) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (capture != cudaStreamCaptureStatusNone && !handle->has_workspace)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_sound(*handle, p, p.a) || !is_sound(*handle, p, p.b) ||
        !is_sound(*handle, p, p.c))
        return CUBLAS_STATUS_INVALID_VALUE;
    cudaError_t error =
        enqueue(on, {"cuBLAS", [p](cpli_check_op op) { run(p, op); }});
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* The types that are multiplied here; cuBLAS has more. */
bool has_types(const product &p, cublasComputeType_t compute)
{
    bool is_double = compute == CUBLAS_COMPUTE_64F;
    if (p.a.type != p.b.type || (!is_double && compute != CUBLAS_COMPUTE_32F))
        return false;
    return is_double ? p.a.type == CUDA_R_64F && p.c.type == CUDA_R_64F
                     : (p.a.type == CUDA_R_32F || p.a.type == CUDA_R_16BF) &&
                           (p.c.type == CUDA_R_32F || p.c.type == p.a.type);
}

double factor(const void *at, cublasComputeType_t compute)
{
    return compute == CUBLAS_COMPUTE_64F ? *static_cast<const double *>(at)
                                         : *static_cast<const float *>(at);
}

} // namespace

} // namespace emulation

using namespace emulation;

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value)
{
    static const int parts[] = {CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR,
                                CUBLAS_VER_PATCH};
    *value = current_settings().cublas ? parts[type] : 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    if (enter() != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *out = new cublasContext{current_device(), nullptr, false};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    wait_for_device(handle->device);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

/* The workspace is cuBLAS's own again. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->has_workspace = false;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *at,
                                     size_t bytes)
{
    memory_place place = find_memory(at);
    if (reinterpret_cast<uintptr_t>(at) % 256 != 0 ||
        place.kind != memory_kind::device || place.left < bytes)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->has_workspace = true;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t on_a, cublasOperation_t on_b,
    int64_t m, int64_t n, int64_t k, const void *alpha, const void *a,
    cudaDataType a_type, int64_t lda, long long a_step, const void *b,
    cudaDataType b_type, int64_t ldb, long long b_step, const void *beta,
    void *c, cudaDataType c_type, int64_t ldc, long long c_step, int64_t batch,
    cublasComputeType_t compute, cublasGemmAlgo_t)
{
    bool turns_a = on_a == CUBLAS_OP_T, turns_b = on_b == CUBLAS_OP_T;
    product p = {turns_a, turns_b, m, n, k, batch, 0, 0, {}, {}, {}};
    p.a = {a, a_type, turns_a ? k : m, turns_a ? m : k, lda, a_step};
    p.b = {b, b_type, turns_b ? n : k, turns_b ? k : n, ldb, b_step};
    p.c = {c, c_type, m, n, ldc, c_step};
    if (!has_types(p, compute))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p.alpha = factor(alpha, compute);
    p.beta = factor(beta, compute);
    return begin(handle, p);
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t on_a,
                               cublasOperation_t on_b, int64_t m, int64_t n,
                               int64_t k, const void *alpha, const void *a,
                               cudaDataType a_type, int64_t lda, const void *b,
                               cudaDataType b_type, int64_t ldb,
                               const void *beta, void *c, cudaDataType c_type,
                               int64_t ldc, cublasComputeType_t compute,
                               cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx_64(
        handle, on_a, on_b, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb,
        0, beta, c, c_type, ldc, 0, 1, compute, algorithm);
}
