/* threads.h: see threads.c. */
#ifndef CPLAB_THREADS_H
#define CPLAB_THREADS_H

#include "run.h"

/* cpl_host_run_ranks, with ranks that are threads of this process. */
cpl_status host_threads_run(const host_job *job, cpl_host_run **out);

#endif
