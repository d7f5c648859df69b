/*
 * processes.h: ranks that are processes, as the host program sees them. The
 * plug-in libcplab_mpi.so (mpi.c) fills this table and is the only code that
 * knows MPI; the host opens it when mpirun has started it.
 *
 * Process 0 is the controller: it hands out jobs, and the others serve. For a
 * job the first n processes join a group; its comm is the rank's handle, as
 * that of a world is a rank thread's. Used from one thread.
 */
#ifndef CPLI_PROCESSES_H
#define CPLI_PROCESSES_H

#include "base.h"

enum { CPLI_PROCESSES_VERSION = 1 }; /* grows when this header changes */

/* This process among all. */
typedef struct cpli_processes cpli_processes;

/* Bytes from one process to another, outside all groups. */
typedef struct cpli_letter {
    int from;
    int kind;   /* the host program's own numbers, 0..15 */
    void *data; /* freed with cpl_free */
    size_t bytes;
} cpli_letter;

typedef struct cpli_processes_ops {
    int version;
    /* Starts MPI. Errors: SYSTEM. */
    cpl_status (*open)(cpli_processes **out);
    /* Ends MPI here; returns when every process has come to it. */
    void (*close)(cpli_processes *all);
    /* Ends every process at once, with this exit status; flushes first, prints
     * nothing, does not return. */
    void (*abort)(cpli_processes *all, int status);
    int (*rank)(const cpli_processes *all);
    int (*size)(const cpli_processes *all);

    /* Local. Sends a letter and does not wait until it is read. Copies. Those
     * from one process to another arrive in order. Errors: MEMORY, SYSTEM. */
    cpl_status (*send)(cpli_processes *all, int to, int kind, const void *data,
                       size_t bytes);
    /* Local. The next letter, from whomever; waits at most patience_s for one
     * (0: only looks), asleep after a while. *came says whether there was one.
     * Errors: MEMORY, SYSTEM. */
    cpl_status (*receive)(cpli_processes *all, double patience_s,
                          cpli_letter *out, bool *came);

    /* Collective over processes 0 .. n-1, who all know that the others come to
     * it at once: a fresh group, in which every wait ends after deadline_s. A
     * group that failed leaves nothing behind that the next one could meet.
     * Errors: MEMORY, SYSTEM. */
    cpl_status (*join)(cpli_processes *all, int n, double deadline_s,
                       cpl_comm **out);
    /* Local. Frees the comm, after leave or fail. */
    void (*part)(cpl_comm *comm);
    /* Local. As cpl_world_abort, cpl_world_leave, cpl_world_aborted and
     * cpl_world_message are for threads: a group hears of its first failure in
     * every wait, and a wait for a rank that has left fails at once. */
    void (*fail)(cpl_comm *comm, const char *message);
    void (*leave)(cpl_comm *comm);
    int (*failed)(const cpl_comm *comm);
    const char *(*message)(const cpl_comm *comm);
} cpli_processes_ops;

/* The one symbol of the plug-in. */
CPL_API const cpli_processes_ops *cpli_mpi_processes(void);

#endif
