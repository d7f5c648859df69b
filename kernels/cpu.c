/*
 * cpu.c: the table of the fast kernels, once per dtype.
 */
#include "real.h"

#ifdef CPLI_F32
#define DTYPE CPL_F32
#else
#define DTYPE CPL_F64
#endif

#define TABLE NAME(kernels)
const cpl_kernels TABLE = {
    .device = "cpu", .dtype = DTYPE, .wide = DTYPE, CPLI_ENTRIES};
