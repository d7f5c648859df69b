/*
 * gdn.cu: the launchers of the delta rule; see launch.h.
 */
#include <cstdio>

#include "gdn/gdn.cuh"

const char *cpl_cuda_gdn_refusal(const cpl_gdn *p, int32_t dtype)
{
    static thread_local char said[200];
    if (dtype != CPL_F64 && dtype != CPL_F32 && dtype != CPL_BF16)
        snprintf(said, sizeof said,
                 "gdn: a device has f64, f32 and bf16, not dtype %d",
                 static_cast<int>(dtype));
    else if (p->key_dim < 1 || p->key_dim > cpli::GDN_MOST_DIM ||
             p->value_dim < 1 || p->value_dim > cpli::GDN_MOST_DIM)
        snprintf(said, sizeof said,
                 "gdn: a device takes key_dim and value_dim from 1 to %d, not "
                 "%lld and %lld",
                 cpli::GDN_MOST_DIM, static_cast<long long>(p->key_dim),
                 static_cast<long long>(p->value_dim));
    else if (p->chunk < 1 || p->chunk > cpli::GDN_CHUNK)
        snprintf(said, sizeof said,
                 "gdn: a device takes chunks of 1 to %d rows, not %lld",
                 cpli::GDN_CHUNK, static_cast<long long>(p->chunk));
    else
        return nullptr;
    return said;
}

size_t cpl_cuda_gdn_workspace(const cpl_gdn *p, int32_t dtype)
{
    return cpli::gdn_naive_workspace(p, dtype);
}

int cpl_cuda_gdn(const cpl_gdn *p, int32_t dtype, int32_t,
                 cpl_cuda_stream stream)
{
    if (cpl_cuda_gdn_refusal(p, dtype) != nullptr)
        return cudaErrorInvalidValue;
    return cpli::gdn_naive(p, dtype, stream);
}

size_t cpl_cuda_gdn_backward_workspace(const cpl_gdn_backward *p, int32_t dtype)
{
    return cpli::gdn_naive_backward_workspace(p, dtype);
}

int cpl_cuda_gdn_backward(const cpl_gdn_backward *p, int32_t dtype, int32_t,
                          cpl_cuda_stream stream)
{
    if (cpl_cuda_gdn_refusal(&p->forward, dtype) != nullptr)
        return cudaErrorInvalidValue;
    return cpli::gdn_naive_backward(p, dtype, stream);
}

size_t cpl_cuda_gdn_summary_workspace(const cpl_gdn_summary *p, int32_t dtype)
{
    return cpli::gdn_naive_summary_workspace(p, dtype);
}

int cpl_cuda_gdn_summary(const cpl_gdn_summary *p, int32_t dtype, int32_t,
                         cpl_cuda_stream stream)
{
    if (cpl_cuda_gdn_refusal(&p->gdn, dtype) != nullptr)
        return cudaErrorInvalidValue;
    return cpli::gdn_naive_summary(p, dtype, stream);
}

size_t
cpl_cuda_gdn_summary_backward_workspace(const cpl_gdn_summary_backward *p,
                                        int32_t dtype)
{
    return cpli::gdn_naive_summary_backward_workspace(p, dtype);
}

int cpl_cuda_gdn_summary_backward(const cpl_gdn_summary_backward *p,
                                  int32_t dtype, int32_t,
                                  cpl_cuda_stream stream)
{
    if (cpl_cuda_gdn_refusal(&p->gdn, dtype) != nullptr)
        return cudaErrorInvalidValue;
    return cpli::gdn_naive_summary_backward(p, dtype, stream);
}
