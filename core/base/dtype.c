/*
 * dtype.c: names and sizes of the storage types, and elements as doubles for
 * references, tests and Lua tables.
 */
#include <math.h>

#include "base.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[CPL_N_DTYPES] = {
    [CPL_F64] = {"f64", 8}, [CPL_F32] = {"f32", 4}, [CPL_BF16] = {"bf16", 2},
    [CPL_I64] = {"i64", 8}, [CPL_I32] = {"i32", 4},
};

const char *cpl_dtype_name(cpl_dtype dtype)
{
    return (unsigned)dtype < CPL_N_DTYPES ? dtypes[dtype].name : "?";
}

size_t cpl_dtype_bytes(cpl_dtype dtype)
{
    return (unsigned)dtype < CPL_N_DTYPES ? dtypes[dtype].bytes : 0;
}

float cpli_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

uint16_t cpli_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN stays a NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double load(cpl_dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case CPL_F64:
        return ((const double *)data)[i];
    case CPL_F32:
        return ((const float *)data)[i];
    case CPL_BF16:
        return cpli_from_bf16(((const uint16_t *)data)[i]);
    case CPL_I64:
        return (double)((const int64_t *)data)[i];
    case CPL_I32:
        return ((const int32_t *)data)[i];
    case CPL_N_DTYPES:
        break;
    }
    return 0;
}

double cpl_dtype_load(cpl_dtype dtype, const void *data, int64_t i)
{
    /* LuaJIT keeps its types in the payload of NaNs, so there is one NaN. */
    double x = load(dtype, data, i);
    return x == x ? x : (double)NAN;
}

void cpl_dtype_store(cpl_dtype dtype, void *data, int64_t i, double x)
{
    switch (dtype) {
    case CPL_F64:
        ((double *)data)[i] = x;
        break;
    case CPL_F32:
        ((float *)data)[i] = (float)x;
        break;
    case CPL_BF16:
        ((uint16_t *)data)[i] = cpli_to_bf16((float)x);
        break;
    case CPL_I64:
        ((int64_t *)data)[i] = (int64_t)x;
        break;
    case CPL_I32:
        ((int32_t *)data)[i] = (int32_t)x;
        break;
    case CPL_N_DTYPES:
        break;
    }
}
