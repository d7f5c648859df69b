/*
 * The checker of emulated kernels: judges every memory access by CUDA's rules.
 *
 * Kernels (and the host C that drives them) are compiled with
 * -fsanitize=thread, but libtsan is not linked: checker.cpp supplies the
 * __tsan_* callbacks itself. What only the emulator knows (memory, launches,
 * barriers, the order of streams) it tells through the functions below.
 *
 * Two files implement this header: checker.cpp, and checker_off.cpp, in which
 * every function does nothing. The emulator is compiled once and linked with
 * either; it asks nothing but cpli_check_guard().
 *
 * What orders two accesses: within a block __syncthreads and, for the lanes of
 * its mask, __syncwarp (shuffles, votes and matrix instructions order no
 * memory); two blocks of one launch are never ordered, not even by atomics and
 * fences (a lock of one's own is reported: end the kernel instead); two
 * operations of streams by their stream, by events and by what the host waited
 * for.
 */
#ifndef CPLI_CHECKER_H
#define CPLI_CHECKER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a report is called, in this order in the table of checker.cpp. */
typedef enum cpli_check_kind {
    CPLI_CHECK_OUT_OF_BOUNDS,
    CPLI_CHECK_BLOCK_BARRIER, /* missing between two warps of a block */
    CPLI_CHECK_WARP_BARRIER,  /* missing between two lanes of a warp */
    CPLI_CHECK_TWO_BLOCKS,
    CPLI_CHECK_UNINITIALISED,
    CPLI_CHECK_MISALIGNED,
    CPLI_CHECK_WRONG_WAIT,   /* cp.async not waited for; a host buffer in use */
    CPLI_CHECK_NO_EVENT,     /* two streams touch the same bytes unordered */
    CPLI_CHECK_HOST_POINTER, /* a kernel dereferences host memory */
    CPLI_CHECK_DEVICE_POINTER, /* the host dereferences device memory */
    CPLI_CHECK_DIVERGENT,      /* a barrier that not all threads reach */
    CPLI_CHECK_N_KINDS
} cpli_check_kind;

/* An operation of a stream: a launch, a copy, a memset. 0 is the host. */
typedef uint32_t cpli_check_op;

/* A CUDA thread, as long as it runs. Ranges are [from, to). */
typedef struct cpli_check_thread {
    int64_t block;          /* linear, x fastest */
    int32_t thread;         /* linear in its block, x fastest */
    const void *stack_from; /* of the fiber: not judged */
    const void *stack_to;
    const void *own_from; /* the emulator's records that kernels read, such */
    const void *own_to;   /* as threadIdx: not judged */
} cpli_check_thread;

/* ---- memory ---- */

/* Bytes that must stay free on both sides of every allocation and of every
 * shared variable, so that an index past the end meets nobody's memory.
 * 0 when the checker is off. */
size_t cpli_check_guard(void);

/* Device memory at `at`: uninitialised from here on. A `device` of -1 means
 * host memory that kernels may use (pinned and mapped): initialised. */
void cpli_check_alloc(const void *at, size_t bytes, int device);
void cpli_check_free(const void *at);

/* ---- order of streams: called by the host when it enqueues, also for every
 * operation of a graph when the graph is launched (not when captured) ---- */

/* A new operation at the end of `stream`. `what` is copied. */
cpli_check_op cpli_check_enqueue(const void *stream, const char *what);
void cpli_check_event_record(const void *event, const void *stream);
/* Binds to the last record before it, as in CUDA. */
void cpli_check_event_wait(const void *stream, const void *event);
/* The host has waited: cudaStreamSynchronize (stream), cudaEventSynchronize
 * (event), cudaDeviceSynchronize and what implies it (both NULL). A query
 * that answered "done" counts as well. */
void cpli_check_host_waited(const void *stream, const void *event);
/* The legacy default stream: everything enqueued before comes first. */
void cpli_check_stream_waits_all(const void *stream);
void cpli_check_stream_destroy(const void *stream);
void cpli_check_event_destroy(const void *event);

/* ---- operations other than kernels: called where the bytes are touched ----
 * Every part of the emulator that touches device memory says so: copies,
 * memsets, the NCCL double. Host memory is passed over. Reading what was never
 * written is reported for reads that leave the device only (`leaves`). */
void cpli_check_write(cpli_check_op op, const void *at, size_t bytes);
void cpli_check_read(cpli_check_op op, const void *at, size_t bytes,
                     int leaves);
/* Called by the host right after enqueuing: until the host has waited for
 * `op`, host memory at `at` belongs to it (writes: nobody may read or write
 * it; else nobody may write it). */
void cpli_check_host_buffer(cpli_check_op op, const void *at, size_t bytes,
                            int writes);

/* ---- kernels: called by the thread that runs the kernel. Kernels run one at
 * a time, begin to end (begin takes a lock that end gives back), and blocks
 * one after another ---- */

void cpli_check_kernel_begin(cpli_check_op op, const char *name,
                             const uint32_t grid[3], const uint32_t block[3]);
void cpli_check_kernel_end(void);
/* Shared memory starts afresh: nothing is known, nothing initialised. */
void cpli_check_block_begin(int64_t block);
/* A shared variable of this block, once per block, before its first use. The
 * dynamic array is called "dynamic". `name` must outlive the kernel. */
void cpli_check_shared(const char *name, const void *at, size_t bytes);
/* This CUDA thread runs from here on (copied); NULL: the emulator does. */
void cpli_check_run(const cpli_check_thread *thread);
/* All threads of the block that are still alive have met, once per barrier. */
void cpli_check_block_barrier(void);
/* The lanes of `mask` of warp `warp` have met in __syncwarp, once. */
void cpli_check_warp_barrier(int warp, uint32_t mask);

/* An access by the running thread that the compiler did not instrument
 * (ldmatrix and other emulated instructions). `pc`: where, as
 * __builtin_return_address(0) gives it. */
typedef enum cpli_check_access_kind {
    CPLI_CHECK_READ,
    CPLI_CHECK_WRITE,
    CPLI_CHECK_ATOMIC, /* reads and writes */
} cpli_check_access_kind;
void cpli_check_access(const void *at, size_t bytes,
                       cpli_check_access_kind kind, const void *pc);

/* cp.async of the running thread: issued, its group closed, and all groups
 * but the last `left` waited for. */
void cpli_check_async_copy(const void *to, const void *from, size_t bytes,
                           const void *pc);
void cpli_check_async_commit(void);
void cpli_check_async_wait(int left);

/* ---- reports ---- */

/* Something that the emulator saw itself (CPLI_CHECK_DIVERGENT above all).
 * `sentence` says what: block, threads, file:line; the kernel's name is added
 * by the checker, and the emulator gives the launch up. */
void cpli_check_report(cpli_check_kind kind, const char *sentence);
/* How many different reports there are since the last reset. */
int cpli_check_n_reports(void);
/* Report `i` from 0: one sentence without a newline, "" past the end.
 * "missing block barrier: kernel NAME, block 0: thread 33 reads ... at
 * FILE:LINE; thread 2 wrote them at FILE:LINE, ...". Valid for ever:
 * any thread may hold it. */
const char *cpli_check_sentence(int i);
void cpli_check_reset(void);

#ifdef __cplusplus
}
#endif

#endif
