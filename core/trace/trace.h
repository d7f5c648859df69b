/*
 * trace.h: what one rank did, and the first wrong row that it saw. A rank is a
 * thread (or a process), so all of it is thread-local.
 */
#ifndef CPLI_TRACE_H
#define CPLI_TRACE_H

#include "cplab.h"

/* Counts `n` wrong rows of a check, from 1; the sentence of the earliest check
 * since the reset is kept. */
void cpli_trace_wrong(int64_t n, int64_t check, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
