/*
 * cuda_rank.h: one rank's CUDA device, as the files of the plug-in share it:
 * the transports (cuda.c, nccl.c), their tables (cuda_table.c), and the memory
 * behind tensors (tensor/cuda.c).
 *
 * A rank has one stream, and all of its work is in the order of that stream.
 * Only the rank's thread puts work there.
 */
#ifndef CPLI_CUDA_RANK_H
#define CPLI_CUDA_RANK_H

#include <cuda_runtime_api.h>

#include "comm.h"
#include "cuda.h"

enum { CPLI_CUDA_NAMES = 8 };

/* Memory of the device; CUDA does not tell its size. */
typedef struct cpli_cuda_block {
    void *memory;
    size_t bytes;
    bool is_given_up; /* while a capture was made, in which nothing may wait */
    struct cpli_mould *mould; /* that it goes back to; or NULL */
} cpli_cuda_block;

/* Moulds (cuda_mould.c). */
typedef struct cpli_mould cpli_mould;
typedef struct cpli_mould_block {
    void *memory;
    size_t bytes;
    bool is_out; /* somebody has it */
} cpli_mould_block;

/* A rank's cuBLAS (cublas.c). */
typedef struct cpli_cublas cpli_cublas;

typedef struct cpli_cuda {
    int number; /* of the device */
    cudaStream_t stream;
    cpli_cublas *cublas; /* NULL: there is none */
    /* The kernels launched since the last wait, each once: CUDA tells of an
     * error in one of them when it is too late to know which. */
    const char *kernels[CPLI_CUDA_NAMES];
    int n_kernels;
    cpli_cuda_block *blocks;
    int64_t n_blocks, room;
    /* Why a kernel of a table was not launched: tables cannot fail, so the next
     * call that can says it. */
    bool is_capturing;  /* nothing may wait, or take memory */
    bool is_rehearsing; /* nothing is enqueued: see cpli_cuda_notes */
    uint64_t digest;
    cpli_mould *mould; /* where memory comes from; NULL: from CUDA */
    cpl_status unsaid;
    char why[256];
    struct cpli_traces *traces; /* what cuda_trace.c keeps; NULL: nothing */
    struct cpli_pinned *pinned; /* likewise cuda_send.c */
    struct cpli_envelope *envelopes;
    /* Where the stream may wait for ranks that never come: asked while the host
     * waits for it. Not OK: they do not come, and what waits for them has been
     * given up. */
    cpl_status (*watch)(cpl_comm *comm, double waited_s, const char *doing);
    cpl_comm *comm; /* of watch */
} cpli_cuda;

static inline cpli_cuda *cpli_cuda_of(const cpl_comm *comm)
{
    return comm->device;
}

/* ---- a rank's device (cuda_rank.c) ---- */

/* How many devices there are. UNSUPPORTED: none, and why. */
cpl_status cpli_cuda_count(int *out);
/* Makes `number` this thread's device, with a stream. */
cpl_status cpli_cuda_open(cpli_cuda *device, int number);
void cpli_cuda_close(cpli_cuda *device);

/* OK; or what CUDA says, of what was being done ("a copy"), and which kernels
 * it may be about. */
cpl_status cpli_cuda_check(cpli_cuda *device, cudaError_t error,
                           const char *doing);
/* The same after a launch of the kernel `name`. */
cpl_status cpli_cuda_launched(cpli_cuda *device, int error, const char *name);
/* The same for kernels of a table: remembered until the next check. */
void cpli_cuda_ran(int error, const char *name);
/* What went wrong with the work of a table otherwise, or OK: likewise. */
void cpli_cuda_keep(cpli_cuda *device, cpl_status status);
/* The device of this thread's rank, and its stream. */
cpli_cuda *cpli_cuda_here(void);
cpl_cuda_stream cpli_cuda_stream_here(void);
/* The table of a dtype (cuda_kernels.c), of the best kernels or the naive. */
const cpl_kernels *cpli_cuda_kernels(cpl_dtype dtype, bool naive);
/* Waits for the stream; counts a host_sync. ABORTED, DEADLINE: other ranks do
 * not come. */
cpl_status cpli_cuda_wait(cpli_cuda *device, const char *doing);
/* The same, not counted: for what looks at steps from outside. */
cpl_status cpli_cuda_await(cpli_cuda *device, const char *doing);
/* The same where nothing can be said: the stream is done. */
void cpli_cuda_settle(cpli_cuda *device);
/* The first words of every sentence: "cuda". */
extern const char cpli_cuda_name[];

/* Counted memory of the device, zeroed in the order of the stream. */
cpl_status cpli_cuda_alloc(cpl_comm *comm, size_t bytes, void **out);
/* Waits for all that others may still do with it. */
void cpli_cuda_free(cpl_comm *comm, void *memory);
/* The same, of a device that may have no group any more. */
cpl_status cpli_cuda_take(cpli_cuda *device, size_t bytes, void **out);
void cpli_cuda_give(cpli_cuda *device, void *memory);
cpl_status cpli_cuda_upload(cpl_comm *comm, void *to, const void *from,
                            size_t bytes);

/* From CUDA itself, whatever mould is open; zeroed. For what lives as long as
 * the device. */
cpl_status cpli_cuda_take_new(cpli_cuda *device, size_t bytes, void **out);
cpl_status cpli_cuda_zero(cpli_cuda *device, void *memory, size_t bytes);
/* To which mould memory goes back; NULL: to CUDA. */
void cpli_cuda_own(cpli_cuda *device, const void *memory, cpli_mould *mould);

/* ---- moulds and rehearsals (cuda_mould.c) ---- */

extern const cpli_mould_ops cpli_cuda_moulds;
/* The block of the mould's next turn, zeroed. */
cpl_status cpli_mould_take(cpli_mould *mould, size_t bytes, void **out);
/* Whether the mould takes it back. */
bool cpli_mould_give(cpli_mould *mould, const void *memory);
/* Whether what the device would be told now is only rehearsed: then it is part
 * of the digest, and whoever asks tells the device nothing. The words must not
 * have padding: see CPLI_CUDA_NOTES. */
bool cpli_cuda_notes(cpli_cuda *device, const char *what, const void *words,
                     size_t bytes);
/* The same of a variable, whose padding is cleared. */
#define CPLI_CUDA_NOTES(device, what, words) \
    (__builtin_clear_padding(&(words)),      \
     cpli_cuda_notes(device, what, &(words), sizeof(words)))

/* ---- lists on their way (cuda_send.c) ---- */

/* Memory of the host that the stream copies from and to, until the device is
 * closed. */
cpl_status cpli_cuda_pin(cpli_cuda *device, size_t bytes, void **out);
/* Gives back all that was pinned. */
void cpli_cuda_drop_pinned(cpli_cuda *device);
/* As cpli_device_ops has it. */
cpl_status cpli_cuda_send(cpl_comm *comm, void *to, const void *from,
                          size_t bytes);

/* ---- matrix products (cublas.c) ---- */

/* Opens cuBLAS for a device that has a stream; nothing where there is none.
 * Errors: SYSTEM, MEMORY. */
cpl_status cpli_cublas_open(cpli_cuda *device);
void cpli_cublas_close(cpli_cuda *device);
/* The version of the library, 0 where there is none; `why`: a sentence. */
int cpli_cublas_version(char *why, size_t room);
/* Entries of tables: by cuBLAS, or by our own kernel. */
void cpli_matmul_f64(const cpl_matmul *p);
void cpli_matmul_f32(const cpl_matmul *p);
void cpli_matmul_bf16(const cpl_matmul *p);

/* ---- positions (cuda_trace.c): the ops of cpli_device_ops ---- */

cpl_status cpli_cuda_write_runs(cpl_comm *comm, int64_t *trace, int64_t n_rows,
                                const cpl_run *runs, int64_t n_runs);
cpl_status cpli_cuda_compare(cpl_comm *comm, const cpli_comparison *what);
cpl_status cpli_cuda_found(cpl_comm *comm, cpli_wrong *out);
/* Gives all of it back. */
void cpli_cuda_drop_traces(cpli_cuda *device);

/* ---- marks (cuda_marks.c): likewise ---- */

cpl_status cpli_cuda_make_marks(cpl_comm *comm, int64_t n, void **out);
void cpli_cuda_drop_marks(cpl_comm *comm, void *handle);
cpl_status cpli_cuda_mark(cpl_comm *comm, void *handle, int64_t i);
cpl_status cpli_cuda_seconds(cpl_comm *comm, const void *from_marks,
                             int64_t from, const void *to_marks, int64_t to,
                             double *out);

/* ---- tables (cuda_table.c) ---- */

/*
 * A list of pieces in the device's memory, cut into launches of at most
 * CPL_CUDA_BASES bases. Where pieces come from may be learnt late: then the
 * table is sent to the device when it is used.
 */
typedef struct cpli_table cpli_table;

/* Bytes from one place to the only target. */
typedef struct cpli_end {
    int64_t from, to, bytes;
    int place; /* the number of the base of `from`; they never fall, or are
                  all below CPL_CUDA_BASES */
} cpli_end;

/* Copies the n ends, which are of the first n_places places. NULL where nothing
 * is to be moved, but for lists with room (like->row_bytes), whose launches do
 * not depend on the ends. `late`: what they come from may still change (COPY
 * only). Errors: MEMORY, SYSTEM. */
cpl_status cpli_table_create(cpl_comm *comm, const cpli_end *ends, int64_t n,
                             int n_places, const cpli_carries *like, bool late,
                             cpli_table **out);
void cpli_table_destroy(cpl_comm *comm, cpli_table *table);
/* Of a late one: end i comes from there. */
void cpli_table_set_from(cpli_table *table, int64_t i, int64_t from);
/* Enqueues the moves; bases by place. */
cpl_status cpli_table_launch(cpl_comm *comm, cpli_table *table,
                             void *const *bases, void *target);
/* ---- graphs (cuda_graph.c) ---- */

/* OK; or UNSUPPORTED while a capture is made, for what it cannot hold. */
cpl_status cpli_cuda_refuse_capture(const cpli_cuda *device, const char *doing);
cpl_status cpli_cuda_begin_capture(cpl_comm *comm);
/* Gives back what was given up while a capture was made that has ended. */
void cpli_cuda_give_rest(cpli_cuda *device);
cpl_status cpli_cuda_end_capture(cpl_comm *comm, void **graph);
cpl_status cpli_cuda_launch(cpl_comm *comm, void *graph);
void cpli_cuda_drop(cpl_comm *comm, void *graph);

/* Launches of cpl_cuda_copy or cpl_cuda_swap over lists that can be exchanged.
 */
cpl_status cpli_graph_make(cpl_comm *comm, const cpli_wish *wish, void **out);
void cpli_graph_drop(cpl_comm *comm, void *graph);
/* Enqueues the moves of a transfer; bases by rank are to be the captured ones
 * where it has pieces. */
cpl_status cpli_graph_replay(cpl_comm *comm, const cpli_transfer *transfer,
                             void *const *bases);
/* Copies a table's list of CPL_CUDA_BASES places to where a graph reads it; an
 * empty one where it has none. */
cpl_status cpli_table_copy_list(cpl_comm *comm, const cpli_table *table,
                                int first_place, void *count, void *pieces,
                                void *tile_ends);

/* A table for a transfer's receives: a base a rank. */
cpl_status cpli_table_of_transfer(cpl_comm *comm, cpli_transfer *transfer);

/* ---- the two transports, and what tensors ask (tensor/cuda.c) ---- */

/* Collective over rank threads: they reach each other's memory. */
cpl_status cpli_direct_join(cpl_comm *host, const cpli_device_ops *ops,
                            cpl_comm **out);
void cpli_direct_leave(cpl_comm *comm);
void cpli_direct_part(cpl_comm *comm);
bool cpli_is_direct(const cpl_comm *comm);
/* Collective: a device for each rank. */
cpl_status cpli_nccl_join(cpl_comm *host, const cpli_device_ops *ops,
                          cpl_comm **out);
void cpli_nccl_leave(cpl_comm *comm, bool failed);
void cpli_nccl_part(cpl_comm *comm);
/* The version of the library, 0 where there is none; `why`: a sentence. */
int cpli_nccl_version(char *why, size_t room);

#endif
