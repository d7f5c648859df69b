/* clock.c: the monotonic clock and the CPU clock of a thread, in seconds. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "base.h"

static double read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cpl_clock(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double cpl_thread_clock(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}
