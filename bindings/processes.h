/*
 * processes.h: ranks that are processes, which mpirun started. Process 0 runs
 * the script (controller.c), the others serve it (server.c).
 */
#ifndef CPLAB_PROCESSES_H
#define CPLAB_PROCESSES_H

#include "comm/processes.h"
#include "run.h"

/* This process among those that mpirun started; ops is NULL without mpirun. */
typedef struct host_processes {
    const cpli_processes_ops *ops;
    cpli_processes *all;
    int rank, size;
} host_processes;

extern host_processes host_world;

/* Whether mpirun started this process. */
bool host_processes_are_asked_for(void);

/* Opens the plug-in beside the program. On failure one process says why, on
 * stderr, and the exit status is to be 3. */
bool host_processes_open(void);

/* Process 0: ends all processes when it exits. */
void host_processes_end_at_exit(void);

/* Ends all processes now, after a sentence on stderr. */
void host_processes_give_up(const char *sentence);

/* Process 0: cpl_host_run_ranks, with processes 0 .. n-1 as ranks. */
cpl_status host_processes_run(const host_job *job, cpl_host_run **out);

/* The others: what they do until process 0 ends; returns the exit status. */
int host_processes_serve(void);

/* How a rank that is a process tells its group of its end. */
extern const struct host_rank_ops host_process_rank_ops;

#endif
