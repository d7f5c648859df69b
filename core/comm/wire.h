/*
 * wire.h: what the transport of processes asks of a message library. mpi.c is
 * the one that answers; everything else of the plug-in is written against this
 * and never sees MPI. Nothing here waits but where it says so.
 */
#ifndef CPLI_WIRE_H
#define CPLI_WIRE_H

#include "base.h"

/* The largest message; what is longer goes in parts. */
#define CPLI_PART_BYTES ((size_t)1 << 30)

enum { CPLI_ANYBODY = -1 };

/* A set of ranks whose messages meet no other channel's; all zero: none. */
typedef struct cpli_channel {
    void *handle;
    int rank;
    int size;
} cpli_channel;

/* A message under way. */
typedef struct cpli_request {
    void *handle;
} cpli_request;

typedef struct cpli_arrival {
    int from;
    size_t bytes;
} cpli_arrival;

/* One block to and one from each rank, in bytes. The four arrays hold `size`
 * numbers each, and `ints` room for four times as many; all of them stay until
 * the request is done. */
typedef struct cpli_blocks {
    const void *src;
    void *dst;
    const int64_t *to, *to_offsets;
    const int64_t *from, *from_offsets;
    int *ints;
} cpli_blocks;

/* Starts the library; `out` is a channel of all processes. Errors: SYSTEM. */
cpl_status cpli_wire_open(cpli_channel *out);
/* Ends it; all processes have come. */
void cpli_wire_close(void);
/* Ends all processes; does not return. */
void cpli_wire_abort(int status);

/* Waits. A channel of the first n ranks of `channel`, who all call. */
cpl_status cpli_wire_first(const cpli_channel *channel, int n,
                           cpli_channel *out);
/* Waits. A channel of the same ranks, who all call. */
cpl_status cpli_wire_copy(const cpli_channel *channel, cpli_channel *out);
/* Nothing may be under way on it that anybody waits for. */
void cpli_wire_free(cpli_channel *channel);
/* Waits. `bytes` bytes of every rank into out. */
cpl_status cpli_wire_gather(const cpli_channel *channel, const void *data,
                            int bytes, void *out);
/* Starts a barrier. */
cpl_status cpli_wire_barrier(const cpli_channel *channel, cpli_request *out);

/* At most CPLI_PART_BYTES; the memory stays until the request is done. */
cpl_status cpli_wire_send(const cpli_channel *channel, int to, int tag,
                          const void *data, size_t bytes, cpli_request *out);
/* From CPLI_ANYBODY too. */
cpl_status cpli_wire_receive(const cpli_channel *channel, int from, int tag,
                             void *data, size_t bytes, cpli_request *out);
/* Looks. `arrival` is written when a receive is done. Errors: MISMATCH (more
 * came than there is room), SYSTEM; then the request is done, too. */
cpl_status cpli_wire_test(cpli_request *request, bool *done,
                          cpli_arrival *arrival);
/* A receive that nothing has matched yet will be done soon, without bytes. */
void cpli_wire_cancel(cpli_request *request);

/* Starts an all-to-all. Errors: UNSUPPORTED (sizes or offsets of 2^31 or more
 * units of their greatest common divisor), SYSTEM. */
cpl_status cpli_wire_all_to_all(const cpli_channel *channel,
                                const cpli_blocks *blocks, cpli_request *out);

/* Waits. See cpl_comm_plain_exchange; there is room for 2 * size requests. */
cpl_status cpli_wire_plain(const cpli_channel *channel, int tag,
                           const void *src, const size_t *to, void *dst,
                           const size_t *from, cpli_request *room);

#endif
