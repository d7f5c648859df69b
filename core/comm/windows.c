/* windows.c: see windows.h. */
#define _GNU_SOURCE
#include "windows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ALIGNMENT = 64 };

/* Small blocks share a segment; a larger one has its own. */
static const size_t SEGMENT_BYTES = (size_t)64 << 20;
static const size_t PAGE_BYTES = 4096;

/* Stands before every block, free or taken. */
struct cpli_span {
    size_t bytes;    /* with this head */
    size_t taken;    /* what was asked for */
    cpli_span *next; /* the next free one */
    cpli_segment *home;
    char padding[32];
};

/* Stands at the start of every segment. */
struct cpli_segment {
    cpli_segment *next;
    size_t bytes; /* with this head */
    int64_t file;
    char padding[40];
};

_Static_assert(sizeof(cpli_span) == ALIGNMENT, "blocks stay aligned");
_Static_assert(sizeof(cpli_segment) == ALIGNMENT, "blocks stay aligned");

/* ---- blocks ---- */

static char *end_of(const cpli_span *span)
{
    return (char *)span + span->bytes;
}

static bool are_neighbours(const cpli_span *a, const cpli_span *b)
{
    return a->home == b->home && end_of(a) == (const char *)b;
}

/* Puts a span into the list of free ones and joins it with its neighbours. */
static void put(cpli_windows *windows, cpli_span *span)
{
    cpli_span *before = NULL;
    cpli_span *after = windows->free;
    while (after != NULL && after < span) {
        before = after;
        after = after->next;
    }
    span->next = after;
    if (after != NULL && are_neighbours(span, after)) {
        span->bytes += after->bytes;
        span->next = after->next;
    }
    if (before == NULL) {
        windows->free = span;
    } else if (are_neighbours(before, span)) {
        before->bytes += span->bytes;
        before->next = span->next;
    } else {
        before->next = span;
    }
}

/* Takes `bytes` bytes of the first free span that has them; NULL: none has. */
static cpli_span *find(cpli_windows *windows, size_t bytes)
{
    cpli_span **at = &windows->free;
    while (*at != NULL && (*at)->bytes < bytes)
        at = &(*at)->next;
    cpli_span *span = *at;
    if (span == NULL)
        return NULL;
    if (span->bytes - bytes <= sizeof *span) {
        *at = span->next;
        return span;
    }
    cpli_span *rest = (cpli_span *)((char *)span + bytes);
    *rest = (cpli_span){
        .bytes = span->bytes - bytes, .next = span->next, .home = span->home};
    span->bytes = bytes;
    *at = rest;
    return span;
}

/* ---- segments ---- */

static void *map(int file, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED)
        return NULL;
    madvise(base, bytes, MADV_HUGEPAGE); /* where the machine has them */
    return base;
}

/* The memory of a segment, touched where it is for one block alone. */
static cpl_status take_segment(int file, size_t bytes, cpli_segment **out)
{
    void *base = ftruncate(file, (off_t)bytes) == 0 ? map(file, bytes) : NULL;
    if (base == NULL)
        return cpli_fail(CPL_MEMORY, "memory: no window of %zu bytes left",
                         bytes);
    cpl_status status = bytes > SEGMENT_BYTES ? cpli_zero(base, bytes) : CPL_OK;
    if (status != CPL_OK) {
        munmap(base, bytes);
        return status;
    }
    *out = base;
    return CPL_OK;
}

static cpl_status add_segment(cpli_windows *windows, size_t block_bytes)
{
    size_t bytes = block_bytes + sizeof(cpli_segment) + PAGE_BYTES - 1;
    bytes = bytes / PAGE_BYTES * PAGE_BYTES;
    if (bytes < SEGMENT_BYTES)
        bytes = SEGMENT_BYTES;
    CPL_TRY(cpli_ask_for(block_bytes));
    int file = memfd_create("cplab", MFD_CLOEXEC);
    if (file < 0)
        return cpli_fail(CPL_MEMORY, "memory: no window left: %s",
                         strerror(errno));
    cpli_segment *segment = NULL;
    cpl_status status = take_segment(file, bytes, &segment);
    if (status != CPL_OK) {
        close(file);
        return status;
    }
    *segment =
        (cpli_segment){.next = windows->segments, .bytes = bytes, .file = file};
    windows->segments = segment;
    cpli_span *span = (cpli_span *)(segment + 1);
    *span = (cpli_span){.bytes = bytes - sizeof *segment, .home = segment};
    put(windows, span);
    return CPL_OK;
}

static const size_t LARGEST = SIZE_MAX / 4;

/* A free span, of a new segment if need be. */
static cpl_status find_or_add(cpli_windows *windows, size_t bytes,
                              cpli_span **out)
{
    if (bytes >= LARGEST)
        return cpli_fail(CPL_MEMORY, "memory: no window of %zu bytes left",
                         bytes);
    size_t whole =
        (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + sizeof **out;
    bool is_touched = false;
    *out = find(windows, whole);
    if (*out == NULL) {
        CPL_TRY(add_segment(windows, whole));
        *out = find(windows, whole);
        is_touched = (*out)->home->bytes > SEGMENT_BYTES;
    }
    if (!is_touched)
        memset(*out + 1, 0, bytes);
    return CPL_OK;
}

cpl_status cpli_windows_alloc(cpli_windows *windows, size_t bytes, void **out)
{
    CPL_TRY(cpli_count_block(bytes));
    cpli_span *span = NULL;
    cpl_status status = find_or_add(windows, bytes, &span);
    if (status != CPL_OK) {
        cpli_uncount_blocks(1, (int64_t)bytes);
        return status;
    }
    span->taken = bytes;
    windows->live_blocks++;
    windows->live_bytes += (int64_t)bytes;
    *out = span + 1;
    return CPL_OK;
}

void cpli_windows_free(cpli_windows *windows, void *memory)
{
    if (memory == NULL)
        return;
    cpli_span *span = (cpli_span *)memory - 1;
    int64_t bytes = (int64_t)span->taken;
    cpli_uncount_blocks(1, bytes);
    windows->live_blocks--;
    windows->live_bytes -= bytes;
    put(windows, span);
}

void cpli_windows_destroy(cpli_windows *windows)
{
    cpli_uncount_blocks(windows->live_blocks, windows->live_bytes);
    while (windows->segments != NULL) {
        cpli_segment *segment = windows->segments;
        windows->segments = segment->next;
        close((int)segment->file);
        munmap(segment, segment->bytes);
    }
    *windows = (cpli_windows){0};
}

cpli_spot cpli_windows_spot(const cpli_windows *windows, const void *memory)
{
    cpli_spot spot = {.address = (uint64_t)(uintptr_t)memory, .file = -1};
    for (const cpli_segment *segment = windows->segments; segment != NULL;
         segment = segment->next) {
        uint64_t base = (uint64_t)(uintptr_t)segment;
        if (spot.address < base || spot.address >= base + segment->bytes)
            continue;
        spot.file = segment->file;
        spot.offset = (int64_t)(spot.address - base);
        spot.segment_bytes = (int64_t)segment->bytes;
    }
    return spot;
}

/* ---- another process ---- */

static bool add_mapping(cpli_neighbour *neighbour, const cpli_spot *spot)
{
    char path[64];
    if (neighbour->n_mappings == CPLI_MAPPINGS)
        return false;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)neighbour->pid,
             (long long)spot->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return false;
    void *base = map(file, (size_t)spot->segment_bytes);
    close(file);
    if (base == NULL)
        return false;
    neighbour->mappings[neighbour->n_mappings++] = (cpli_mapping){
        .base = base, .file = spot->file, .bytes = (size_t)spot->segment_bytes};
    return true;
}

void *cpli_neighbour_map(cpli_neighbour *neighbour, const cpli_spot *spot)
{
    int i = 0;
    if (spot->file < 0)
        return NULL;
    while (i < neighbour->n_mappings &&
           neighbour->mappings[i].file != spot->file)
        i++;
    if (i == neighbour->n_mappings && !add_mapping(neighbour, spot))
        return NULL;
    return (char *)neighbour->mappings[i].base + spot->offset;
}

void cpli_neighbour_unmap(cpli_neighbour *neighbour)
{
    for (int i = 0; i < neighbour->n_mappings; i++)
        munmap(neighbour->mappings[i].base, neighbour->mappings[i].bytes);
    neighbour->n_mappings = 0;
}

typedef ssize_t vm_call(pid_t pid, const struct iovec *mine,
                        unsigned long n_mine, const struct iovec *theirs,
                        unsigned long n_theirs, unsigned long flags);

/* The kernel moves at most 2 GiB at a time, and may move less. */
static cpl_status copy(const cpli_neighbour *neighbour, vm_call *call,
                       char *mine, uint64_t address, size_t bytes)
{
    while (bytes > 0) {
        struct iovec here = {mine, bytes};
        struct iovec there = {(void *)(uintptr_t)address, bytes};
        ssize_t moved = call((pid_t)neighbour->pid, &here, 1, &there, 1, 0);
        if (moved <= 0)
            return cpli_fail(CPL_SYSTEM,
                             "windows: no way into the memory of process "
                             "%lld: %s",
                             (long long)neighbour->pid,
                             moved < 0 ? strerror(errno) : "nothing moved");
        mine += moved;
        address += (uint64_t)moved;
        bytes -= (size_t)moved;
    }
    return CPL_OK;
}

cpl_status cpli_neighbour_read(const cpli_neighbour *neighbour, void *mine,
                               uint64_t address, size_t bytes)
{
    return copy(neighbour, process_vm_readv, mine, address, bytes);
}

cpl_status cpli_neighbour_write(const cpli_neighbour *neighbour,
                                const void *mine, uint64_t address,
                                size_t bytes)
{
    return copy(neighbour, process_vm_writev, (char *)(uintptr_t)mine, address,
                bytes);
}
