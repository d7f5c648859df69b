/* pause.c: the pauses of who looks again and again whether others have come. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <sched.h>
#include <time.h>

#include "comm.h"

/* A wait looks all the time for as long as LOOK_S, then sleeps between looks,
 * a part of what it has waited so far: late by that part at most. */
#define LOOK_S 0.0005
#define NAP_PART (1.0 / 16)
#define SHORTEST_NAP_S 2e-5
#define LONGEST_NAP_S 1e-3

void cpli_pause(double waited_s)
{
    if (waited_s < LOOK_S) {
        sched_yield();
        return;
    }
    double nap = fmax(SHORTEST_NAP_S, fmin(LONGEST_NAP_S, waited_s * NAP_PART));
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * nap)}, NULL);
}
