/*
 * zero.c: the first touch of fresh memory. The kernel promises more than it
 * has, and ends whom it cannot serve; so a large block is refused in a sentence
 * while the machine still has some to spare. Asked before, and again at every
 * step, since other ranks take theirs at the same time.
 */
#include <stdio.h>

#include "base.h"

static const size_t STEP_BYTES = (size_t)64 << 20;

/* Bytes on the line of /proc/meminfo that begins with `name`; -1: none. */
static int64_t read_meminfo(const char *name)
{
    char line[128];
    long long kib = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file == NULL)
        return -1;
    while (kib < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), "%lld", &kib);
    fclose(file);
    return kib < 0 ? -1 : (int64_t)kib * 1024;
}

/* A number alone in a file; -1: none. */
static int64_t read_number(const char *path)
{
    long long number = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%lld", &number) != 1)
        number = -1;
    fclose(file);
    return (int64_t)number;
}

/* What a container may have at most, and what is free in the machine. */
static const char *const limits[] = {
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};

int64_t cpl_memory_available(void)
{
    int64_t available = read_meminfo("MemAvailable:");
    if (available < 0)
        return INT64_MAX;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int64_t limit = read_number(limits[i]);
        if (limit >= 0)
            available = cpli_min(available, limit);
    }
    return available;
}

/* Left to the system, and to ranks that take a step at the same moment. */
static int64_t spare_bytes(void)
{
    return cpli_min((int64_t)1 << 30, read_meminfo("MemTotal:") / 16);
}

cpl_status cpli_ask_for(size_t bytes)
{
    if (bytes < STEP_BYTES)
        return CPL_OK;
    int64_t available = cpli_max(cpl_memory_available() - spare_bytes(), 0);
    if ((size_t)available >= bytes)
        return CPL_OK;
    return cpli_fail(CPL_MEMORY,
                     "memory: no %zu bytes left: the machine can give %lld",
                     bytes, (long long)available);
}

cpl_status cpli_zero(void *memory, size_t bytes)
{
    char *at = memory;
    while (bytes >= STEP_BYTES) {
        CPL_TRY(cpli_ask_for(STEP_BYTES));
        memset(at, 0, STEP_BYTES);
        at += STEP_BYTES;
        bytes -= STEP_BYTES;
    }
    memset(at, 0, bytes);
    return CPL_OK;
}
