/*
 * blas.c: makes OpenBLAS use the vector units that the processor has.
 *
 * OpenBLAS 0.3.21 (Debian 12) does not know newer Intel models (Emerald Rapids
 * is one) and then falls back to "Prescott", which has SSE3 and a quarter of
 * the speed. Its kernels are chosen while the library is loaded, so the only
 * cure is to name them in the environment and to start again.
 */
#define _POSIX_C_SOURCE 200809L
#include "blas.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *openblas_get_corename(void); /* not in every cblas.h */

/* The best set of kernels that the processor can run, or NULL. */
static const char *best_core(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

void host_blas_restart(char **argv)
{
    const char *best = best_core();
    if (getenv("OPENBLAS_CORETYPE") != NULL || best == NULL ||
        strcmp(openblas_get_corename(), "Prescott") != 0)
        return;
    setenv("OPENBLAS_CORETYPE", best, 1);
    execv("/proc/self/exe", argv); /* where it fails we go on, slower */
}

const char *cpl_host_blas_core(void)
{
    return openblas_get_corename();
}
