/*
 * status.c: statuses by name, and the one sentence that a failing call leaves
 * in its thread.
 */
#include <stdio.h>

#include "base.h"

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

static const struct {
    const char *name;
    const char *text;
} statuses[] = {
#define X(name, text) {#name, text},
    CPL_STATUS_LIST(X)
#undef X
};

const char *cpl_version(void)
{
    return "0.1.0";
}

const char *cpl_status_name(cpl_status status)
{
    return (unsigned)status < CPL_N_STATUSES ? statuses[status].name : "?";
}

const char *cpl_status_text(cpl_status status)
{
    return (unsigned)status < CPL_N_STATUSES ? statuses[status].text : "?";
}

const char *cpl_last_error(void)
{
    return message;
}

cpl_status cpli_fail(cpl_status status, const char *format, ...)
{
    /* Through a second buffer, so that an argument may be the old message. */
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof text);
    return status;
}
