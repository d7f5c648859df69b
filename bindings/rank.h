/*
 * rank.h: one rank of a run: a Lua state of its own in which the module's
 * function runs, in this thread or in one made for it.
 */
#ifndef CPLAB_RANK_H
#define CPLAB_RANK_H

#include <pthread.h>

#include "run.h"

typedef struct host_rank host_rank;

/* How a rank's group hears of its end. */
typedef struct host_rank_ops {
    void (*fail)(const host_rank *self, const char *message);
    void (*leave)(const host_rank *self);
    size_t max_result; /* bytes that can be brought back */
} host_rank_ops;

struct host_rank {
    const host_rank_ops *ops;
    const host_job *job;
    void *group; /* what ops need to know beside the comm */
    cpl_comm *comm;
    cpl_comm *device_comm; /* what the rank sees where rows are on a device;
                              whoever made the rank gives it back */
    int rank;
    host_outcome outcome; /* there when the rank has ended */
};

/* Runs the rank; the group has heard of its failure or leaving when this
 * returns, and no object of its Lua state is alive. */
void host_rank_run(host_rank *self);

/* The same in a thread. Errors: SYSTEM. */
cpl_status host_rank_start(host_rank *self, pthread_t *out);

/* Whether the thread ended within one look; it is joined then. */
bool host_rank_has_ended(pthread_t thread);

#endif
