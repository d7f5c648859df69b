/* trace.c: the counters and the planted faults of the calling rank. */
#include "trace.h"

#include <stdarg.h>
#include <stdio.h>

#include "base.h"

enum { SENTENCE_BYTES = 512 };

static _Thread_local cpl_counters counters;
static _Thread_local cpl_faults faults;
static _Thread_local char first_wrong[SENTENCE_BYTES];

cpl_counters *cpl_counters_here(void)
{
    return &counters;
}

void cpl_counters_reset(void)
{
    counters = (cpl_counters){0};
    first_wrong[0] = 0;
}

const char *cpl_trace_first_wrong(void)
{
    return first_wrong;
}

void cpli_trace_wrong(int64_t n, const char *format, ...)
{
    if (counters.wrong_rows == 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(first_wrong, sizeof first_wrong, format, arguments);
        va_end(arguments);
    }
    counters.wrong_rows += n;
}

cpl_faults *cpl_faults_here(void)
{
    return &faults;
}
