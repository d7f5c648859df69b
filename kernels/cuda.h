/*
 * cuda.h: the kernels of exchanges on a CUDA device, as one parameter struct
 * and one launcher per op. Kernels that compute have tables (kernels.h); these
 * move rows, and the transports call them.
 *
 * Contracts. A launcher enqueues on `stream` and returns at once: it allocates
 * nothing, waits for nothing, and may be captured into a graph. It returns a
 * cudaError_t as an int: 0, or why nothing was enqueued. A struct is copied
 * when it is launched (a captured graph keeps the copy); what its pointers
 * point at is read when the kernel runs. So the lists and their counts, which
 * lie in device memory, may change between two replays of one graph, up to the
 * capacity that the struct names. Offsets and sizes are bytes, 64 bits wide;
 * pieces may be empty. Sizes and bounds are the caller's duty, but for
 * arguments that no launch could honour (cudaErrorInvalidValue). Results are
 * the CPU's, bit for bit (a NaN that a sum meets stays a NaN, of any bits).
 *
 * Nothing of the toolkit is included, so that C11 and Lua can read this.
 */
#ifndef CPLAB_CUDA_H
#define CPLAB_CUDA_H

#include "cplab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cudaStream_t; NULL: the default stream. */
typedef struct CUstream_st *cpl_cuda_stream;

/* A warp moves so many bytes of one piece at a time: 8 of 16 in every lane. */
enum { CPL_CUDA_TILE = 4096 };
/* The bases that fit into a launch; more go into device memory. */
enum { CPL_CUDA_BASES = 16 };

/* Where the memory of peers lies: entry p is peer p's base address, the own one
 * too. Of a carry within a rank a "peer" is whatever the caller numbers. */
typedef struct cpl_cuda_bases {
    void *const *table; /* device memory; NULL: `few` has them */
    void *few[CPL_CUDA_BASES];
} cpl_cuda_bases;

/* ---- pieces: copy and swap ---- */

typedef struct cpl_cuda_piece {
    int64_t from;  /* PULL: in the peer's memory; PUT: in mine */
    int64_t to;    /* PULL: in mine; PUT: in the peer's */
    int64_t bytes; /* >= 0 */
    int32_t peer;
    int32_t zero; /* padding */
} cpl_cuda_piece;

typedef enum cpl_cuda_way {
    CPL_CUDA_PULL, /* theirs -> mine */
    CPL_CUDA_PUT   /* mine -> theirs */
} cpl_cuda_way;

/*
 * Copies pieces, or lets both ends of each change places (then the way only
 * says which end is whose). Pieces are carried out in any order: no byte may be
 * written by two of them, or written by one and read by another.
 *
 * `unit` promises that all offsets and sizes are multiples of it (1, 2, 4, 8 or
 * 16), and addresses in a table of bases too. With 16 the kernel knows nothing
 * but 128-bit accesses; below, or where a base that the host sees is no
 * multiple of 16, it decides for each piece, and moves 128 bits at a time
 * wherever both ends are equally far from a multiple of 16 bytes.
 */
typedef struct cpl_cuda_move {
    cpl_cuda_bases theirs;
    void *mine;
    const cpl_cuda_piece *pieces; /* device; at least *n_pieces */
    /* device: entry i is the number of tiles of pieces 0 .. i, where a piece
     * has its bytes / CPL_CUDA_TILE, rounded up (cpl_cuda_tiles). */
    const int64_t *tile_ends;
    const int64_t *n_pieces; /* device: how many there are now, or 0 */
    int64_t max_tiles; /* about how many tiles there will be: sizes the grid;
                          more are carried out all the same */
    int32_t way;       /* cpl_cuda_way */
    int32_t unit;
} cpl_cuda_move;
CPL_API int cpl_cuda_copy(const cpl_cuda_move *move, cpl_cuda_stream stream);
/* Both ranks of a pair would do the same work: each piece is listed by one. */
CPL_API int cpl_cuda_swap(const cpl_cuda_move *move, cpl_cuda_stream stream);

/* Fills the `to` ends: byte j of a piece becomes byte j % 8 of `pattern` (the
 * lowest is byte 0), so any element of up to 8 bytes can be repeated. */
CPL_API int cpl_cuda_fill(const cpl_cuda_move *move, uint64_t pattern,
                          cpl_cuda_stream stream);

/* Local, on the host. Fills tile_ends of n pieces (host memory) and returns
 * their last entry, or 0. */
CPL_API int64_t cpl_cuda_tiles(const cpl_cuda_piece *pieces, int64_t n,
                               int64_t *tile_ends);

/* ---- sums: the adjoint of a view ---- */

/* Bytes to .. to + bytes - 1 of the target, and what is added to them. */
typedef struct cpl_cuda_sum {
    int64_t to, bytes;
    int64_t first, n; /* sources, in the order in which they are added */
} cpl_cuda_sum;
typedef struct cpl_cuda_source {
    int64_t from; /* in the peer's memory, of the sum's bytes */
    int32_t peer;
    int32_t zero; /* padding */
} cpl_cuda_source;

/*
 * Adds to each sum's elements its sources' elements, one source after the
 * other: the bits of a CPU that adds piece by piece. Sums do not overlap.
 * Integers wrap around; bf16 is added in f32 and rounded, each time. `unit` as
 * above, at least the element's size; below 16 elements are added one by one.
 */
typedef struct cpl_cuda_add {
    cpl_cuda_bases theirs;
    void *mine;
    const cpl_cuda_sum *sums;       /* device */
    const cpl_cuda_source *sources; /* device */
    const int64_t *tile_ends;       /* device, of the sums */
    const int64_t *n_sums;          /* device */
    int64_t max_tiles;
    int32_t dtype; /* cpl_dtype */
    int32_t unit;
} cpl_cuda_add;
CPL_API int cpl_cuda_add_up(const cpl_cuda_add *add, cpl_cuda_stream stream);

/* ---- rows by lists of indices ---- */

/* dst[to[i]] = src[from[i]] for i < *n; no row of dst is named twice. */
typedef struct cpl_cuda_rows {
    const void *src;
    void *dst;
    const int64_t *from; /* device; NULL: i itself */
    const int64_t *to;   /* device; NULL: i itself */
    const int64_t *n;    /* device */
    int64_t max_rows;    /* sizes the grid */
    int64_t row_bytes;
} cpl_cuda_rows;
CPL_API int cpl_cuda_permute(const cpl_cuda_rows *rows, cpl_cuda_stream stream);

/* ---- positions that travel with rows ---- */

/* What was found wrong since the caller set it to CPL_CUDA_NONE_WRONG; device
 * memory, 8-byte aligned. Of all checks the first one that met a wrong row, and
 * of its rows the lowest, is kept. */
typedef struct cpl_cuda_wrong {
    int64_t rows;  /* wrong rows of all checks */
    int64_t check; /* the number that the caller gave the kept one, or -1 */
    int64_t slot, expected, found;
    int64_t lowest; /* the kernels' own */
} cpl_cuda_wrong;
#define CPL_CUDA_NONE_WRONG       \
    {                             \
        0, -1, 0, 0, 0, INT64_MAX \
    }

/* Compares the positions of `n_rows` rows with runs: row `slot` of a run that
 * begins at slot s is expected to hold start + (slot - s), or -1 where start is
 * negative. Rows beyond the last run are not looked at. */
typedef struct cpl_cuda_check {
    const int64_t *trace; /* device: positions */
    int64_t n_rows;
    const cpl_run *runs;     /* device */
    const int64_t *run_ends; /* device: sums of the lengths */
    int64_t n_runs;
    int64_t check; /* >= 0 */
    cpl_cuda_wrong *wrong;
} cpl_cuda_check;
CPL_API int cpl_cuda_trace_check(const cpl_cuda_check *check,
                                 cpl_cuda_stream stream);

/* Writes what a check expects into n_rows rows; -1 beyond the last run. */
typedef struct cpl_cuda_positions {
    int64_t *trace; /* device */
    int64_t n_rows;
    const cpl_run *runs;     /* device */
    const int64_t *run_ends; /* device */
    int64_t n_runs;
} cpl_cuda_positions;
CPL_API int cpl_cuda_trace_write(const cpl_cuda_positions *positions,
                                 cpl_cuda_stream stream);

/* Of sums of `copies` positions: each is divided, or becomes -1 where it is no
 * multiple, as those are where the copies were not of one position. */
CPL_API int cpl_cuda_trace_divide(int64_t *trace, int64_t n_rows,
                                  int64_t copies, cpl_cuda_stream stream);

#ifdef __cplusplus
}
#endif

#endif
