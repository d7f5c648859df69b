/*
 * guard.h: one lock around a plug-in that may be used from one thread at a
 * time: rank 0 of a group uses its comm while process 0 looks for letters.
 */
#ifndef CPLAB_GUARD_H
#define CPLAB_GUARD_H

#include <stdbool.h>

#include "cplab.h"

/* From now on every operation of the comm holds the lock. One comm at a time.
 */
void host_guard_comm(cpl_comm *comm);

/* For everything else of the plug-in. A lock is held again by who holds it. */
void host_guard_lock(void);
bool host_guard_try(void);
void host_guard_unlock(void);

#endif
