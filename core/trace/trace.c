/* trace.c: the counters and the planted faults of the calling rank. */
#include "trace.h"

#include <stdarg.h>
#include <stdio.h>

#include "base.h"

static _Thread_local cpl_counters counters;
static _Thread_local cpl_faults faults;
static _Thread_local cpl_first_wrong first_wrong;

cpl_counters *cpl_counters_here(void)
{
    return &counters;
}

void cpl_counters_reset(void)
{
    counters = (cpl_counters){0};
    first_wrong = (cpl_first_wrong){0};
}

void cpl_trace_first_wrong(cpl_first_wrong *out)
{
    *out = first_wrong;
}

void cpli_trace_wrong(int64_t n, int64_t check, const char *format, ...)
{
    if (first_wrong.check == 0 || check < first_wrong.check) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(first_wrong.sentence, sizeof first_wrong.sentence, format,
                  arguments);
        va_end(arguments);
        first_wrong.check = check;
    }
    counters.wrong_rows += n;
}

cpl_faults *cpl_faults_here(void)
{
    return &faults;
}
