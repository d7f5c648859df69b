/*
 * mpi_open.h: for the programs of this folder that run under mpirun: opens the
 * plug-in of the MPI transport as the host program does, counts checks, runs
 * jobs on groups. They link no MPI. Defines _POSIX_C_SOURCE before it.
 */
#ifndef MPI_OPEN_H
#define MPI_OPEN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"
#include "comm/processes.h"

enum { MAX_RANKS = 16 };

static const cpli_processes_ops *mpi;
static cpli_processes *all;
static long n_passed;
static long n_failed;

static void check(bool ok, const char *what)
{
    n_passed += ok;
    n_failed += !ok;
    if (!ok)
        fprintf(stderr, "failed: %s, process %d of %d: %s\n", what,
                mpi->rank(all), mpi->size(all), cpl_last_error());
}

static void check_ok(cpl_status status, const char *what)
{
    check(status == CPL_OK, what);
}

static void nap(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
    nanosleep(&time, NULL);
}

static void open_plug_in(const char *program)
{
    char path[4096];
    const char *slash = strrchr(program, '/');
    int length = slash == NULL ? 0 : (int)(slash - program) + 1;
    snprintf(path, sizeof path, "%.*slibcplab_mpi.so", length, program);
    void *plug_in = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plug_in == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    const cpli_processes_ops *(*find)(void);
    *(void **)&find = dlsym(plug_in, "cpli_mpi_processes");
    mpi = find();
    if (mpi->version != CPLI_PROCESSES_VERSION || mpi->open(&all) != CPL_OK) {
        fprintf(stderr, "%s\n", cpl_last_error());
        exit(3);
    }
}

/* ---- jobs ---- */

typedef void job(cpl_comm *comm);

/* Runs a job on the first n processes. */
static void run_job(int n, double deadline_s, job *run)
{
    cpl_comm *comm;
    if (mpi->rank(all) >= n)
        return;
    cpl_status status = mpi->join(all, n, deadline_s, &comm);
    check_ok(status, "join");
    if (status != CPL_OK)
        return;
    run(comm);
    mpi->leave(comm);
    mpi->part(comm);
}

/* Closes the plug-in; the exit status: 0 if all checks held and nothing is
 * left. Process 0 says how many it made. */
static int end(void)
{
    bool is_first = mpi->rank(all) == 0;
    mpi->close(all);
    cpl_memory_stats memory;
    cpl_memory(&memory);
    if (memory.live_blocks != 0)
        fprintf(stderr, "failed: %lld blocks of %lld bytes left\n",
                (long long)memory.live_blocks, (long long)memory.live_bytes);
    if (is_first)
        printf("%ld checks passed\n", n_passed);
    return n_failed > 0 || memory.live_blocks != 0;
}

#endif
