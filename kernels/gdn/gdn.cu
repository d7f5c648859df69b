/*
 * gdn.cu: the launchers of the delta rule; see launch.h.
 */
#include <cstdio>

#include "gdn/gdn.cuh"

/* Heads are blocks in y. */
static constexpr int64_t GDN_MOST_HEADS = 65535;

const char *cpl_cuda_gdn_refusal(const cpl_gdn *p, int32_t dtype)
{
    static thread_local char said[200];
    if (dtype != CPL_F64 && dtype != CPL_F32 && dtype != CPL_BF16)
        snprintf(said, sizeof said,
                 "gdn: a device takes f64, f32 and bf16, not the dtype of "
                 "number %d",
                 static_cast<int>(dtype));
    else if (p->key_heads < 1 || p->value_heads < 1 ||
             p->value_heads > GDN_MOST_HEADS ||
             p->value_heads % p->key_heads != 0)
        snprintf(said, sizeof said,
                 "gdn: a device takes 1 to %lld value heads, a multiple of the "
                 "key heads, not %lld and %lld",
                 static_cast<long long>(GDN_MOST_HEADS),
                 static_cast<long long>(p->value_heads),
                 static_cast<long long>(p->key_heads));
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

/* Chunks take states of up to 128 x 128, tokens larger ones too. Both ways have
 * one workspace: who asks for it does not say which it will be. */
#define CPLI_GDN_LAUNCHER(op, part)                                          \
    size_t cpl_cuda_gdn##op##_workspace(const cpl_gdn##op *p, int32_t dtype) \
    {                                                                        \
        const size_t naive = cpli::gdn_naive##op##_workspace(p, dtype);      \
        const size_t chunked =                                               \
            cpli::gdn_is_fast(&(part))                                       \
                ? cpli::gdn_chunked##op##_workspace(p, dtype)                \
                : 0;                                                         \
        return naive > chunked ? naive : chunked;                            \
    }                                                                        \
    int cpl_cuda_gdn##op(const cpl_gdn##op *p, int32_t dtype, int32_t way,   \
                         cpl_cuda_stream stream)                             \
    {                                                                        \
        if (cpl_cuda_gdn_refusal(&(part), dtype) != nullptr)                 \
            return cudaErrorInvalidValue;                                    \
        return way == CPL_CUDA_NAIVE || !cpli::gdn_is_fast(&(part))          \
                   ? cpli::gdn_naive##op(p, dtype, stream)                   \
                   : cpli::gdn_chunked##op(p, dtype, stream);                \
    }
CPLI_GDN_LAUNCHER(, *p)
CPLI_GDN_LAUNCHER(_backward, p->forward)
CPLI_GDN_LAUNCHER(_summary, p->gdn)
CPLI_GDN_LAUNCHER(_summary_backward, p->gdn)
