/* blas.h: see blas.c. */
#ifndef CPLAB_HOST_BLAS_H
#define CPLAB_HOST_BLAS_H

#include "host.h"

/* Starts the program again, with the same arguments, if OpenBLAS chose kernels
 * far below what the processor can run. Returns if there is nothing to mend. */
void host_blas_restart(char **argv);

#endif
