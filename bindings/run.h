/*
 * run.h: what a run of ranks asks for and what it leaves, whatever the ranks
 * are: shared by threads.c and processes.c.
 */
#ifndef CPLAB_RUN_H
#define CPLAB_RUN_H

#include "host.h"

/* A kind of device, and how ranks reach each other there; both 0: the host's
 * memory (devices.c). */
typedef struct host_device {
    int kind;
    int transport;
} host_device;

/* Borrows its texts. */
typedef struct host_job {
    int n_ranks;
    double deadline_s;
    const char *module;
    const char *payload;
    size_t payload_bytes;
    host_device device; /* that rows are on */
} host_job;

/* What one rank left behind. */
typedef struct host_outcome {
    char *result;
    size_t result_bytes;
    char *message; /* NULL: it did not fail */
    char *traceback;
    bool is_stuck; /* it did not return, and left nothing */
} host_outcome;

void host_outcome_free(host_outcome *left);

/* When ranks were stopped, and how long those get that have not returned. */
typedef struct host_patience {
    double deadline_s;
    double stopped_at; /* 0: nobody failed yet */
    double given_up_at;
} host_patience;

/* Whether what still runs is to be given up now. Once `has_failed`, a rank has
 * one more deadline, and at least 2 s. */
bool host_patience_ends(host_patience *patience, bool has_failed);

struct cpl_host_run {
    int n_ranks;
    int failed_rank;
    bool is_stuck;
    host_outcome *outcomes;
    char *message; /* NULL: none failed */
};

/* A run with nothing in it yet. Errors: MEMORY. */
cpl_status host_run_create(int n_ranks, cpl_host_run **out);

/* Called when all outcomes are there. failed_rank -1: none failed; said: what
 * the group knows of the failure, where that rank left no message. */
cpl_status host_run_conclude(cpl_host_run *run, int failed_rank,
                             const char *said, const host_patience *patience);

/* Remembers that a rank of this process's runs does not return. */
void host_run_leave_stuck(void);

#endif
