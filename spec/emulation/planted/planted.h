/*
 * planted.h: what a case is, and where they stand.
 */
#ifndef CPLI_PLANTED_H
#define CPLI_PLANTED_H

#include "emulation/cuda_on_host.h"

enum { N = 256 }; /* integers in each buffer */

struct bench { /* what a case works on */
    cudaStream_t stream, other;
    cudaEvent_t event;
    int *in, *out; /* device memory; `in` holds 0, 1, 2, ... */
    int *host;     /* pinned */
};

struct planted_case {
    const char *name; /* NULL: the end of the list */
    void (*run)(const bench &b, bool right);
    bool has_bug; /* unless it is called with `right` */
};

extern const planted_case bugs_of_blocks[];
extern const planted_case bugs_of_streams[];
extern const planted_case correct_ones[];

#endif
