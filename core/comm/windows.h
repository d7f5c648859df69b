/*
 * windows.h: memory of one process that others on the same machine reach. It
 * lies in segments, files without a name (memfd) that the others map through
 * /proc/PID/fd/N. That needs no connection between the two, unlike passing the
 * descriptor over a socket, and no more rights than reading each other's memory
 * (process_vm_readv), which is what serves for memory outside windows. A probe
 * at the start shows whether a machine allows both.
 */
#ifndef CPLI_WINDOWS_H
#define CPLI_WINDOWS_H

#include "base.h"

/* ---- my own ---- */

typedef struct cpli_segment cpli_segment;
typedef struct cpli_span cpli_span; /* a free part of a segment */

/* Blocks out of segments: first fit, neighbours join when they are free. */
typedef struct cpli_windows {
    cpli_segment *segments;
    cpli_span *free; /* by address */
    int64_t live_blocks;
    int64_t live_bytes;
} cpli_windows;

/* Zeroed, 64-byte aligned, counted as cpli_alloc's. Errors: MEMORY. */
cpl_status cpli_windows_alloc(cpli_windows *windows, size_t bytes, void **out);
void cpli_windows_free(cpli_windows *windows, void *memory);
/* With all blocks that are still there. */
void cpli_windows_destroy(cpli_windows *windows);

/* Where memory lies, for another process. */
typedef struct cpli_spot {
    uint64_t address;      /* in its owner */
    int64_t file;          /* -1: not in a window */
    int64_t offset;        /* in the segment */
    int64_t segment_bytes; /* of all of it */
} cpli_spot;

cpli_spot cpli_windows_spot(const cpli_windows *windows, const void *memory);

/* ---- another process's ---- */

enum { CPLI_MAPPINGS = 32 };

typedef struct cpli_mapping {
    void *base;
    int64_t file;
    size_t bytes;
} cpli_mapping;

typedef struct cpli_neighbour {
    int64_t pid;
    int n_mappings;
    cpli_mapping mappings[CPLI_MAPPINGS];
} cpli_neighbour;

/* Maps its segments on first use and keeps them. NULL: the spot is not in a
 * window, or can not be mapped. */
void *cpli_neighbour_map(cpli_neighbour *neighbour, const cpli_spot *spot);
void cpli_neighbour_unmap(cpli_neighbour *neighbour);

/* Copies between its memory at `address` and mine. Errors: SYSTEM. */
cpl_status cpli_neighbour_read(const cpli_neighbour *neighbour, void *mine,
                               uint64_t address, size_t bytes);
cpl_status cpli_neighbour_write(const cpli_neighbour *neighbour,
                                const void *mine, uint64_t address,
                                size_t bytes);

#endif
