/*
 * cplab.h: the one public header of cplab's C core.
 *
 * It holds every contract: types, ranges, ownership, and which statuses a
 * call may return. The FFI declarations that Lua sees are made from this file
 * and from kernels/kernels.h by the preprocessor (CPLAB_CDEF), so nothing is
 * typed twice.
 *
 * Words. A *position* is a global index into the padded stream; a *rank* is a
 * member of a group of cp * tp; a *slot* is a local row index on one rank; a
 * *run* is (start, length), consecutive positions in consecutive slots.
 * Ranks, positions, slots and sequences count from 0.
 *
 * Rules. A function returns a cpl_status unless it is a getter. Outputs come
 * last and are written only on success. A failing call leaves one sentence in
 * cpl_last_error() of its thread. *Local* calls concern one rank; *Collective*
 * calls must be made by every rank of the group in the same order, and all of
 * them fail or none does. "Borrows X" means: X must outlive the result;
 * destroying the result never touches X. Every destroy accepts NULL.
 */
#ifndef CPLAB_H
#define CPLAB_H

#ifdef CPLAB_CDEF
#define CPL_API
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define CPL_API __attribute__((visibility("default")))
#endif

/* ---- base ---- */

#define CPL_STATUS_LIST(X)                                             \
    X(OK, "success")                                                   \
    X(INVALID, "an argument breaks a rule")                            \
    X(MISMATCH, "two things that must agree do not")                   \
    X(MEMORY, "out of memory")                                         \
    X(UNSUPPORTED, "not supported by this device, transport or build") \
    X(DEADLINE, "a wait passed its deadline")                          \
    X(ABORTED, "another rank failed")                                  \
    X(SYSTEM, "the operating system refused")

typedef enum cpl_status {
#define X(name, text) CPL_##name,
    CPL_STATUS_LIST(X)
#undef X
        CPL_N_STATUSES
} cpl_status;

/* The version of the library, "0.1.0". */
CPL_API const char *cpl_version(void);

/* The name ("INVALID") and the meaning of a status. Never NULL. */
CPL_API const char *cpl_status_name(cpl_status status);
CPL_API const char *cpl_status_text(cpl_status status);

/* The sentence that the last failing call of this thread left. Never NULL. */
CPL_API const char *cpl_last_error(void);

/*
 * Storage types. I32 and I64 hold tokens and positions; BF16 is moved, never
 * computed with.
 */
typedef enum cpl_dtype {
    CPL_F64,
    CPL_F32,
    CPL_BF16,
    CPL_I64,
    CPL_I32,
    CPL_N_DTYPES
} cpl_dtype;

/* The name ("f64") and the bytes of one element. */
CPL_API const char *cpl_dtype_name(cpl_dtype dtype);
CPL_API size_t cpl_dtype_bytes(cpl_dtype dtype);

/*
 * Local. Reads or writes element `i` of an array of `dtype` as a double:
 * exact for every dtype but I64 beyond 2^53; bf16 rounds to nearest even; every
 * NaN is read as the same one.
 */
CPL_API double cpl_dtype_load(cpl_dtype dtype, const void *data, int64_t i);
CPL_API void cpl_dtype_store(cpl_dtype dtype, void *data, int64_t i, double x);

/* Seconds of a monotonic clock, and of the CPU time of this thread. */
CPL_API double cpl_clock(void);
CPL_API double cpl_thread_clock(void);

/*
 * Counter-based random numbers (SplitMix64 finaliser over key and index), so
 * that element `index` of the stream `key` is the same on any rank, in any
 * order. uniform is in (0, 1); normal is Box-Muller over two uniforms.
 */
CPL_API uint64_t cpl_random_key(uint64_t seed, const char *name);
CPL_API uint64_t cpl_random_bits(uint64_t key, uint64_t index);
CPL_API double cpl_random_uniform(uint64_t key, uint64_t index);
CPL_API double cpl_random_normal(uint64_t key, uint64_t index);

/* FNV-1a, 64 bits, over `bytes` bytes, continuing from `seed` (0: from the
 * standard offset). */
CPL_API uint64_t cpl_hash(uint64_t seed, const void *data, size_t bytes);

/*
 * Memory accounting of this process: live blocks and bytes that the library
 * holds, the peak of the bytes since the last reset, and how many blocks were
 * ever taken. fail_after >= 0 makes that many allocations succeed and every
 * later one fail, on the calling thread only; -1 turns it off. For tests.
 */
typedef struct cpl_memory_stats {
    int64_t live_blocks;
    int64_t live_bytes;
    int64_t peak_bytes;
    int64_t n_allocations;
} cpl_memory_stats;
CPL_API void cpl_memory(cpl_memory_stats *out);
/* Bytes that the machine can still give; INT64_MAX where it does not tell. */
CPL_API int64_t cpl_memory_available(void);
CPL_API void cpl_memory_reset_peak(void);
CPL_API void cpl_memory_fail_after(int64_t n);

/* ---- layout: streams, layouts, views, routes (integers only) ---- */

/* A stream: the global sequence of token positions of one microbatch. */
typedef struct cpl_stream cpl_stream;

/*
 * Local. A packed (thd) stream of n_sequences documents. cu_seqlens holds
 * n_sequences + 1 padded boundaries; cu_seqlens_real counts real tokens only
 * and may be NULL (every token is real). Both start at 0 and never decrease;
 * a real length is at most its padded one. Sequences may be empty. Copies.
 * Errors: INVALID.
 */
CPL_API cpl_status cpl_stream_thd(const int64_t *cu_seqlens,
                                  const int64_t *cu_seqlens_real,
                                  int64_t n_sequences, cpl_stream **out);

/* Local. An unpacked (sbhd) stream: one sequence length, `batch` columns. A
 * position counts once, not per column. Errors: INVALID (seqlen < 0,
 * batch < 1). */
CPL_API cpl_status cpl_stream_sbhd(int64_t seqlen, int64_t batch,
                                   cpl_stream **out);
/* Local. The columns of an sbhd stream as a stream of `batch` sequences, one
 * after the other, all real: column c of position p is its position
 * c * seqlen + p. Only cpl_layout_columns lays it out. Errors: INVALID. */
CPL_API cpl_status cpl_stream_columns(const cpl_stream *stream,
                                      cpl_stream **out);
CPL_API void cpl_stream_destroy(cpl_stream *stream);

typedef struct cpl_sequence {
    int64_t start;  /* first position */
    int64_t padded; /* positions it takes */
    int64_t real;   /* of these, the first `real` hold tokens */
} cpl_sequence;

CPL_API bool cpl_stream_is_sbhd(const cpl_stream *stream);
CPL_API int64_t cpl_stream_n_positions(const cpl_stream *stream);
CPL_API int64_t cpl_stream_n_sequences(const cpl_stream *stream);
CPL_API int64_t cpl_stream_batch(const cpl_stream *stream);
CPL_API uint64_t cpl_stream_digest(const cpl_stream *stream);
/* Sequence i, 0 <= i < n_sequences (asserted). */
CPL_API cpl_sequence cpl_stream_sequence(const cpl_stream *stream, int64_t i);
/* The non-empty sequence that holds `position`, or -1 when out of range. */
CPL_API int64_t cpl_stream_sequence_of(const cpl_stream *stream,
                                       int64_t position);
/* A line of text about it, valid as long as the stream. */
CPL_API const char *cpl_stream_describe(const cpl_stream *stream);

typedef struct cpl_run {
    int64_t start;  /* first position, or -1: fill (views only) */
    int64_t length; /* > 0 */
} cpl_run;

/* A layout: for every rank, the ordered runs that it holds. A partition. */
typedef struct cpl_layout cpl_layout;

/* Options of a layout; a zeroed field means its default. */
typedef struct cpl_layout_options {
    int cp;                  /* >= 1; 0 means 1 */
    int tp;                  /* >= 1; 0 means 1 */
    const int *group_order;  /* logical rank -> group rank, cp * tp entries;
                                NULL: identity */
    const int *order;        /* shard (what the kind gives to a CP rank) -> CP
                                rank that holds it, cp entries; NULL: identity.
                                Not of tables (balanced, custom) */
    const cpl_layout *near;  /* instead of order: find the one under which the
                                fewest rows are on another rank than in it.
                                balanced: the layout to stay near to, with equal
                                rows on all ranks; NULL means contiguous */
    int node_size;           /* with near: ranks a node; a row that leaves its
                                node counts 8, another that moves 1; 0: none.
                                balanced: ranks a node; 0 means 8 */
    int64_t block;           /* striped: positions per block; 0 means 1.
                                balanced: rows that a swap moves a multiple of;
                                0 means 64 */
    const cpl_run *runs;     /* custom: the runs of all group ranks in turn */
    const int64_t *n_runs;   /* custom: how many of them each rank has */
    const double *tolerance; /* balanced: max/mean work <= 1 + this; >= 0;
                                NULL means 0.03 */
    const char *placement;   /* balanced: how ranks lie on nodes: "plain"
                                (NULL; node_size in a row) or "striped" (dealt
                                round robin) */
    const char *method;      /* balanced: "priced" (NULL) or "plain" (fewest
                                rows moved; blind to keys and nodes) */
} cpl_layout_options;

/*
 * Local. The layout `kind` of `stream`. Kinds: "contiguous" (a flat interval
 * of the padded stream), "zigzag" (per sequence, chunks r and 2*cp-1-r of
 * 2*cp), "mirror" (per sequence, blocks 2r and 2*cp-1-2r, in that order),
 * "snake" (chunks r and 2*cp-1-r of the whole padded stream), "striped" (blocks
 * of the padded stream dealt round robin), "balanced" (as many rows as `near`
 * on every rank, and equal causal work within the tolerance, or as near to that
 * as swaps of rows get), "custom" (runs as given; any order, counts may differ,
 * each position exactly once). Borrows the stream, copies the rest. Of the
 * orders that are equally near the lexicographically lowest is taken, the
 * identity if it is one of them. Errors: INVALID (an unknown kind or name, a
 * number out of range, a length that does not divide, a position missing or
 * held twice, causal work of 2^59 or more in balanced), MISMATCH (near is of
 * another stream or group).
 */
CPL_API cpl_status cpl_layout_create(const char *kind, const cpl_stream *stream,
                                     const cpl_layout_options *options,
                                     cpl_layout **out);
/*
 * Local. The layout of the columns of an sbhd stream in which every rank holds,
 * column after column, its rows of `layout` in their order; of the same kind
 * and group. `columns` is what cpl_stream_columns made of that stream. Borrows
 * both. Errors: MISMATCH.
 */
CPL_API cpl_status cpl_layout_columns(const cpl_layout *layout,
                                      const cpl_stream *columns,
                                      cpl_layout **out);
CPL_API void cpl_layout_destroy(cpl_layout *layout);
/* The names of all kinds, separated by spaces. */
CPL_API const char *cpl_layout_kinds(void);

CPL_API const char *cpl_layout_kind(const cpl_layout *layout);
CPL_API const cpl_stream *cpl_layout_stream(const cpl_layout *layout);
CPL_API int cpl_layout_cp(const cpl_layout *layout);
CPL_API int cpl_layout_tp(const cpl_layout *layout);
CPL_API int cpl_layout_n_ranks(const cpl_layout *layout);
/* Which CP rank holds each shard; cp entries, valid as long as the layout. */
CPL_API const int *cpl_layout_order(const cpl_layout *layout);
/* A digest of stream, group and every run, whatever kind they were made by:
 * equal layouts have equal digests. */
CPL_API uint64_t cpl_layout_digest(const cpl_layout *layout);
CPL_API bool cpl_layout_equal(const cpl_layout *a, const cpl_layout *b);
/* "zigzag, cp 4, thd of 3 sequences, 64 positions"; valid as long as the
 * layout. */
CPL_API const char *cpl_layout_describe(const cpl_layout *layout);

/* Rank arguments outside 0 .. n_ranks-1 are INVALID. */
CPL_API cpl_status cpl_layout_n_local(const cpl_layout *layout, int rank,
                                      int64_t *out);
CPL_API cpl_status cpl_layout_n_runs(const cpl_layout *layout, int rank,
                                     int64_t *out);
/* Writes the rank's maximal runs in slot order into `out` (n_runs entries). */
CPL_API cpl_status cpl_layout_runs(const cpl_layout *layout, int rank,
                                   cpl_run *out);
/* Writes the position of every slot of the rank into `out` (n_local entries).
 */
CPL_API cpl_status cpl_layout_positions(const cpl_layout *layout, int rank,
                                        int64_t *out);
CPL_API cpl_status cpl_layout_position(const cpl_layout *layout, int rank,
                                       int64_t slot, int64_t *out);
CPL_API cpl_status cpl_layout_locate(const cpl_layout *layout, int64_t position,
                                     int *rank, int64_t *slot);
/* Writes causal work per CP rank (real queries x real visible keys), cp
 * entries. A query sees `window` keys at most, its own included; all of its
 * sequence up to its own with 0. Errors: INVALID (window < 0). */
CPL_API cpl_status cpl_layout_work(const cpl_layout *layout, int64_t window,
                                   int64_t *out);

/*
 * Local. Rows that must leave their CP rank to reach any layout with as many
 * rows on every rank and max/mean work <= 1 + tolerance, however it is found: a
 * certified lower bound, 0 or more, that need not be whole. Every rank must
 * hold equally many rows. Errors: INVALID (they do not; tolerance < 0; causal
 * work of 2^59 or more), MEMORY.
 */
CPL_API cpl_status cpl_layout_moved_bound(const cpl_layout *layout,
                                          double tolerance, double *out);

/*
 * Local. The linear assignment problem: writes a permutation that minimises the
 * sum of cost[i * n + out[i]] over i; the lexicographically lowest of those.
 * 0 <= n <= 2048; |cost| <= 2^57 / n. O(n^3) at worst. Errors: INVALID, MEMORY.
 */
CPL_API cpl_status cpl_assign(int n, const int64_t *cost, int *out);

/*
 * A span: consecutive rows of one rank that hold consecutive tokens of one
 * sequence. A run cut at sequence boundaries gives its spans.
 */
typedef struct cpl_span {
    int64_t sequence; /* which sequence */
    int64_t offset;   /* of the first row inside its sequence */
    int64_t slot;     /* of the first row */
    int64_t length;   /* > 0 */
} cpl_span;

/* Local. The spans of a rank in slot order; with real_only they are clipped to
 * the real tokens. The array is the caller's, freed with cpl_free. */
CPL_API cpl_status cpl_layout_spans(const cpl_layout *layout, int rank,
                                    bool real_only, cpl_span **out,
                                    int64_t *n_out);
CPL_API void cpl_free(void *memory);

/* ---- layout: counts over all ranks, for prices ---- */

/*
 * Local. rows[i * n_b + j]: how many rows rank i of `a` and rank j of `b` both
 * hold, for layouts of one stream with n_a and n_b ranks: what a conversion
 * moves between each pair. segments[i]: in how many pieces rank i of `a` gives
 * them away, its own included. Linear in the holdings of both. Errors: MISMATCH
 * (nothing is written).
 */
CPL_API cpl_status cpl_layout_overlap(const cpl_layout *a, const cpl_layout *b,
                                      int64_t *rows, int64_t *segments);

/* Counts of causal attention between CP ranks; the arrays are the caller's. */
typedef struct cpl_key_traffic {
    /* [cp * cp], at query rank * cp + key rank */
    int64_t *pairs;  /* real queries x real keys that they see */
    int64_t *blocks; /* spans of queries that see some key of that rank */
    int64_t *keys;   /* rows that some query sees: what exactly the needed keys
                        are; its own on the diagonal */
    /* [ceil(cp / node_size) * cp], at node * cp + key rank */
    int64_t *node_keys; /* rows that some query of the node's ranks sees */
} cpl_key_traffic;
/*
 * Local. Fills all four arrays. window as in cpl_view_keys; ranks n * node_size
 * .. (n + 1) * node_size - 1 are node n. Time: spans times ranks, with a window
 * times the spans that it reaches. Errors: INVALID (tp > 1, window < 0,
 * node_size < 1, causal work of 2^62 or more), MEMORY.
 */
CPL_API cpl_status cpl_layout_key_traffic(const cpl_layout *layout,
                                          int64_t window, int node_size,
                                          const cpl_key_traffic *out);

/* Real spans of a rank, their rows, the chunks that they are cut into, and the
 * sums of the squares and cubes of the chunks' rows. */
typedef struct cpl_chain_load {
    int64_t spans, rows, chunks, squares, cubes;
} cpl_chain_load;
/* All of a rank's real spans, those that only begin a chain of several, those
 * that take a state and hand one on, and those that take one. */
typedef struct cpl_chain_loads {
    cpl_chain_load all, heads, middles, followers;
} cpl_chain_loads;
/*
 * Local. loads: one entry a rank. halo[i * n_ranks + j]: rows of rank j among
 * the `width` before each span of rank i (as in cpl_view_halo of real spans,
 * without fill). Errors: INVALID (chunk < 1, width < 0, cubes of 2^63 or more),
 * MEMORY.
 */
CPL_API cpl_status cpl_layout_chain_loads(const cpl_layout *layout,
                                          int64_t chunk, int64_t width,
                                          cpl_chain_loads *loads,
                                          int64_t *halo);

/* States that one rank hands to another (perhaps itself) in one hop: from spans
 * of level `level` - 1 of cpl_layout_chain to spans of `level`. */
typedef struct cpl_hop {
    int64_t level; /* >= 1 */
    int from, to;
    int64_t states;
} cpl_hop;
/* Local. All hops by level, each pair of ranks once a level. The array is the
 * caller's, freed with cpl_free. Errors: MEMORY. */
CPL_API cpl_status cpl_layout_hops(const cpl_layout *layout, cpl_hop **out,
                                   int64_t *n_out);

/*
 * A view: what a consumer wants to see, per rank; positions may repeat, be
 * missing, or be fill. Borrows the layout.
 */
typedef struct cpl_view cpl_view;

/* Local. For every span of every rank (real_only as in cpl_layout_spans) the
 * `width` positions before it, in order; fill (first) where the sequence has
 * not begun. width >= 1. */
CPL_API cpl_status cpl_view_halo(const cpl_layout *layout, int64_t width,
                                 bool real_only, cpl_view **out);
/* Local. In each slot the position + k of the same sequence; fill where that
 * is not a real token, or where the slot's own is not. Any k. */
CPL_API cpl_status cpl_view_shift(const cpl_layout *layout, int64_t k,
                                  cpl_view **out);
/* Local. Per sequence of which the rank holds real tokens, in stream order,
 * exactly the keys that causal attention may see: those up to each of its real
 * tokens, with window > 0 the last `window` of them, the token's own included;
 * 0: no limit. */
CPL_API cpl_status cpl_view_keys(const cpl_layout *layout, int64_t window,
                                 cpl_view **out);
/* Local. Every position of the stream in order, on every rank. With `sliced`
 * each rank sees its own slice of the row (heads, for a headwise layer): the
 * source of the exchange is then packed, n_ranks * n_local rows of a slice
 * each, first all slices for rank 0, then all for rank 1, ... */
CPL_API cpl_status cpl_view_whole(const cpl_layout *layout, bool sliced,
                                  cpl_view **out);
/*
 * Local. The rows of `layout` in the slots of `target`, a layout of as many
 * ranks whose stream has the same sequences with other lengths: in each slot
 * the token at the same offset of the same sequence; fill where that sequence
 * is shorter in `layout`. Borrows both. Errors: MISMATCH.
 */
CPL_API cpl_status cpl_view_onto(const cpl_layout *layout,
                                 const cpl_layout *target, cpl_view **out);
/*
 * Local. What a layer sees that tensor parallelism splits by heads or width:
 * every group rank the rows that its CP rank holds in `target`, a layout of the
 * same stream over the CP ranks alone (as many, tp 1), in that layout's slots.
 * A route to it is the gather of the windows of each CP rank and the conversion
 * to `target` in one exchange; its adjoint is the sum over the tp ranks, in
 * rank order, scattered to the windows. Borrows both. Errors: MISMATCH, MEMORY.
 */
CPL_API cpl_status cpl_view_shard(const cpl_layout *layout,
                                  const cpl_layout *target, cpl_view **out);
CPL_API void cpl_view_destroy(cpl_view *view);

CPL_API cpl_status cpl_view_n_local(const cpl_view *view, int rank,
                                    int64_t *out);
CPL_API cpl_status cpl_view_n_runs(const cpl_view *view, int rank,
                                   int64_t *out);
CPL_API cpl_status cpl_view_runs(const cpl_view *view, int rank, cpl_run *out);
CPL_API uint64_t cpl_view_digest(const cpl_view *view);
CPL_API const char *cpl_view_describe(const cpl_view *view);

/* A piece of a route, seen from one rank. Maximal in position and both slots.
 */
typedef struct cpl_segment {
    int peer;          /* the other rank; may be the rank itself */
    int64_t position;  /* of the first row */
    int64_t slot;      /* first row on this rank */
    int64_t peer_slot; /* first row on the peer */
    int64_t length;    /* rows */
} cpl_segment;

/* One rank's part of a route: in peer order, then position order (then target
 * slot, where a view repeats a position). */
typedef struct cpl_route_part {
    const cpl_segment *sends;
    const cpl_segment *receives;
    int64_t n_sends;
    int64_t n_receives;
    int64_t n_source_rows; /* rows that the rank holds in the source */
    int64_t n_target_rows; /* rows that it has in the target, fill included */
    int64_t n_fill_rows;   /* target rows without a source */
} cpl_route_part;

typedef struct cpl_route_stats {
    int64_t moved_tokens;   /* rows that change rank */
    int64_t messages;       /* ordered pairs of different ranks with rows */
    int64_t busiest_tokens; /* the largest of out or in over ranks, no self */
    int64_t segments;       /* self included */
} cpl_route_stats;

/*
 * A route: the exact moves from a partition to a partition or to a view. The
 * parts of single ranks are built when first asked for. Not shared between
 * threads. Borrows source and target.
 */
typedef struct cpl_route cpl_route;

/* Local. Errors: MISMATCH (streams or groups differ; the text names both). */
CPL_API cpl_status cpl_route_create(const cpl_layout *from,
                                    const cpl_layout *to, cpl_route **out);
/* Local. From the view's own layout to the view. */
CPL_API cpl_status cpl_route_to_view(const cpl_view *view, cpl_route **out);
/* Local. The opposite direction; not defined for views (UNSUPPORTED). */
CPL_API cpl_status cpl_route_inverse(const cpl_route *route, cpl_route **out);
CPL_API void cpl_route_destroy(cpl_route *route);

CPL_API int cpl_route_n_ranks(const cpl_route *route);
/* Whether every row stays in its slot; never said of a view. */
CPL_API bool cpl_route_is_identity(const cpl_route *route);
/* Digests of stream + layout on either side; of a view onto a layout, that
 * layout's: what arrives is its rows. */
CPL_API uint64_t cpl_route_source_digest(const cpl_route *route);
CPL_API uint64_t cpl_route_target_digest(const cpl_route *route);
/* "zigzag, cp 4, ... -> contiguous, cp 4, ..."; valid as long as the route. */
CPL_API const char *cpl_route_describe(const cpl_route *route);
/* Local. The part of one rank; owned by the route. */
CPL_API cpl_status cpl_route_rank(cpl_route *route, int rank,
                                  cpl_route_part *out);
/* Local. Sums over all ranks (builds every part). */
CPL_API cpl_status cpl_route_measure(cpl_route *route, cpl_route_stats *out);

/*
 * The chain of a rank: who hands the recurrent state of each of its real spans
 * on, and to whom. The spans of one sequence, ordered by offset over all
 * ranks, are its chain; `level` is the place in it, from 0.
 */
typedef struct cpl_link {
    int64_t level;
    int prev_rank;     /* -1: the sequence starts here */
    int next_rank;     /* -1: the chain ends here */
    int64_t prev_span; /* index of that span on prev_rank */
    int64_t next_span;
} cpl_link;

/* Local. One link per real span of the rank, in the order of
 * cpl_layout_spans(layout, rank, true). Freed with cpl_free. */
CPL_API cpl_status cpl_layout_chain(const cpl_layout *layout, int rank,
                                    cpl_link **out, int64_t *n_out);

/* ---- trace: counters, faults ---- */

/*
 * What this thread (a rank) did since the last reset. Bytes and messages count
 * only what goes to another rank.
 */
typedef struct cpl_counters {
    int64_t exchanges;  /* plans executed */
    int64_t sent_bytes; /* all exchanges */
    int64_t sent_messages;
    int64_t state_bytes;  /* of these: recurrent states handed over */
    int64_t host_syncs;   /* of the host with a device */
    int64_t trace_checks; /* traced tensors compared with their runs */
    int64_t wrong_rows;   /* rows whose traced position was not the expected */
    double comm_seconds;  /* inside exchanges and collectives */
} cpl_counters;
CPL_API cpl_counters *cpl_counters_here(void);
CPL_API void cpl_counters_reset(void);
/* About the first wrong row of this rank since the reset. */
typedef struct cpl_first_wrong {
    int64_t check;      /* which of trace_checks saw it, from 1; 0: none */
    char sentence[512]; /* "" where there was none */
} cpl_first_wrong;
CPL_API void cpl_trace_first_wrong(cpl_first_wrong *out);

/*
 * Faults that specs plant on the calling rank to prove that the checks catch
 * them. All zero in every real run.
 */
typedef struct cpl_faults {
    int drop_handoff;   /* GDN: forget the state that comes in */
    int cross_columns;  /* GDN: of the spans of a rank that go on, each takes
                           the state of the next */
    int tile_heads;     /* headwise GDN: rank j gets key head j mod Hk instead
                           of the one that its value heads use */
    int first_slice;    /* headwise GDN: convolve with rank 0's weight */
    int64_t rope_shift; /* GQA: add this to the rotary positions */
    int drop_merge;     /* p2p: forget what earlier steps saw */
    int reverse_ring;   /* p2p: take the shards for those of the other way */
    int kv_head_shift;  /* a2a: give each rank this many kv heads further on */
    int route_padding;  /* MoE: padding chooses experts too */
    int forget_offset;  /* with a past: rotary positions begin at 0 again */
    int cache_padding;  /* keep a row of padding behind each sequence's last */
    int drop_partial;   /* with a past: rank 0's keys are not attended to */
    int poison_scratch; /* fill scratch with NaN before each forward and each
                           backward of a layer; a real run does not notice */
} cpl_faults;
CPL_API cpl_faults *cpl_faults_here(void);

/* ---- comm: ranks and bytes ---- */

typedef struct cpl_world cpl_world; /* ranks that are threads of a process */
typedef struct cpl_comm cpl_comm;   /* one rank's handle on its group */

/* Local. n ranks, 1..1024; every wait ends after deadline_s > 0 seconds. */
CPL_API cpl_status cpl_world_create(int n, double deadline_s, cpl_world **out);
/* Local, when no rank runs any more. Its comms die with it. */
CPL_API void cpl_world_destroy(cpl_world *world);
/* The handle of `rank`; to be used by one thread at a time. */
CPL_API cpl_comm *cpl_world_comm(cpl_world *world, int rank);
/* Local. Declares that `rank` failed; every wait of the others ends with
 * ABORTED. The first message wins. */
CPL_API void cpl_world_abort(cpl_world *world, int rank, const char *message);
/* Local. Declares that `rank` returned; a wait for it then fails at once. */
CPL_API void cpl_world_leave(cpl_world *world, int rank);
/* The rank that aborted first, or -1, and its message (""). */
CPL_API int cpl_world_aborted(const cpl_world *world);
CPL_API const char *cpl_world_message(const cpl_world *world);

/* What a machine has for a plug-in of devices, "cuda" or "cuda-emulated". */
enum { CPL_MAX_DEVICES = 64 };
typedef struct cpl_devices_found {
    int n_devices; /* 0: none, or no driver */
    int driver;    /* the version of CUDA that it serves, 13000 for 13.0; 0: no
                      driver */
    int runtime;   /* of the plug-in */
    int nccl;      /* 22809 for 2.28.9; 0: no NCCL that serves */
    int cublas;    /* 130100 for 13.1.0; 0: none, our own kernel multiplies */
    char names[CPL_MAX_DEVICES][64];
    char problem[512];      /* why there are no devices; "" */
    char nccl_problem[512]; /* why there is no NCCL; "" */
    char cublas_problem[512];
} cpl_devices_found;

/* The group of one rank, with no world. It has no state and lives for ever. */
CPL_API cpl_comm *cpl_comm_self(void);

/*
 * Local. The ranks `ranks` (increasing, this rank among them) of `of` as a
 * group of their own, in which each counts from 0 in that order. Collectives
 * are of its members; bytes and memory are carried by `of`, which must outlive
 * it. No all-to-all. Errors: INVALID, MEMORY.
 */
CPL_API cpl_status cpl_comm_part(cpl_comm *of, const int *ranks, int n,
                                 cpl_comm **out);
CPL_API void cpl_comm_part_destroy(cpl_comm *part);

CPL_API int cpl_comm_rank(const cpl_comm *comm);
CPL_API int cpl_comm_size(const cpl_comm *comm);
/* "self", "local" (threads of this process), "mpi"; of ranks whose rows are on
 * devices "cuda" or "cuda-emulated" (threads that reach each other's memory) or
 * "nccl". */
CPL_API const char *cpl_comm_transport(const cpl_comm *comm);
/* Collective. */
CPL_API cpl_status cpl_comm_barrier(cpl_comm *comm);
/* Collective. Sums n elements of every rank in rank order, in place: the same
 * bits on every rank and in every run. bf16 is added in f32 and rounded, each
 * time. */
CPL_API cpl_status cpl_comm_sum(cpl_comm *comm, void *data, int64_t n,
                                cpl_dtype dtype);
/* Collective. The elementwise maximum of n doubles; NaN wins. */
CPL_API cpl_status cpl_comm_max(cpl_comm *comm, double *data, int64_t n);
/* Collective. `bytes` bytes of every rank, in rank order, into `out`
 * (size * bytes). */
CPL_API cpl_status cpl_comm_gather(cpl_comm *comm, const void *data,
                                   size_t bytes, void *out);
/* Collective. `bytes` bytes of rank `root` into `data` of every rank; all give
 * the same bytes and root. Errors: INVALID (no such root). */
CPL_API cpl_status cpl_comm_broadcast(cpl_comm *comm, void *data, size_t bytes,
                                      int root);
/* Collective. The worst status over ranks; OK only if all gave OK. */
CPL_API cpl_status cpl_comm_agree(cpl_comm *comm, cpl_status mine);

/*
 * Collective. What a user would write by hand, to compare with in benches: one
 * MPI_Isend of to[rank] bytes to and one MPI_Irecv of from[rank] bytes from
 * each rank that has any, out of and into buffers that hold the ranks' bytes
 * one behind the other, then MPI_Waitall. 0 for this rank itself. Errors:
 * UNSUPPORTED (not the mpi transport; a count of 2^31 or more).
 */
CPL_API cpl_status cpl_comm_plain_exchange(cpl_comm *comm, const void *src,
                                           const size_t *to, void *dst,
                                           const size_t *from);

/* ---- tensor ---- */

enum { CPL_MAX_DIMS = 6 };

/*
 * Rows first, row-major, dense. Read-only from outside but for `data`'s
 * contents. An activation may carry a trace (the global position of each row)
 * and the mark of the layout whose rows it holds: its digest (0: unknown) and,
 * for messages, its kind.
 */
typedef struct cpl_tensor {
    void *data;
    int64_t *trace; /* one position a row, -1: none; NULL: not traced */
    uint64_t layout;
    const char *layout_kind; /* NULL: unknown, or a view's */
    int64_t shape[CPL_MAX_DIMS];
    int n_dims;
    cpl_dtype dtype;
    cpl_comm *comm; /* whose memory it is; NULL: the heap's */
    void *block;    /* what to give back; NULL: not owned */
    int64_t *spare; /* on a device: room for a trace while there is none */
} cpl_tensor;

/* Local. Zeroed memory of `comm` (NULL: the heap). 1..CPL_MAX_DIMS dims, each
 * >= 0. Of a comm on a device, `data` and `trace` are there and not for the
 * host to follow: cpl_tensor_upload and the like reach them. Borrows the comm.
 * Errors: INVALID, MEMORY, SYSTEM (what the device says). */
CPL_API cpl_status cpl_tensor_create(cpl_dtype dtype, int n_dims,
                                     const int64_t *shape, cpl_comm *comm,
                                     cpl_tensor **out);
/* Local. A tensor over memory of somebody else, who must outlive it. */
CPL_API cpl_status cpl_tensor_wrap(void *data, cpl_dtype dtype, int n_dims,
                                   const int64_t *shape, cpl_tensor **out);
/* Local. A tensor over elements of another one, from `first` on, wherever they
 * lie; `of` must outlive it. It has no trace and no mark. Errors: INVALID (they
 * are not all there), MEMORY. */
CPL_API cpl_status cpl_tensor_view(const cpl_tensor *of, int64_t first,
                                   int n_dims, const int64_t *shape,
                                   cpl_tensor **out);
CPL_API void cpl_tensor_destroy(cpl_tensor *tensor);

CPL_API int64_t cpl_tensor_n_rows(const cpl_tensor *tensor);
CPL_API int64_t cpl_tensor_n_elements(const cpl_tensor *tensor);
/* Elements of one row (the product of all dims but the first). */
CPL_API int64_t cpl_tensor_width(const cpl_tensor *tensor);
CPL_API size_t cpl_tensor_bytes(const cpl_tensor *tensor);

/* Local. Says that the rows are those of `rank` in `layout`; with `traced` it
 * also fills the trace. Errors: MISMATCH (row counts), MEMORY. */
CPL_API cpl_status cpl_tensor_mark(cpl_tensor *tensor, const cpl_layout *layout,
                                   int rank, bool traced);
/* Local. Takes the mark away: what the rows are is unknown until something
 * writes them that knows. The trace stays. */
CPL_API void cpl_tensor_unmark(cpl_tensor *tensor);
/* Local. Says that the rows are those of another layout, with the same
 * positions in the same slots; the trace stays. */
CPL_API void cpl_tensor_remark(cpl_tensor *tensor, const cpl_layout *layout);
/* Local. Copies mark and trace from a tensor with as many rows. */
CPL_API cpl_status cpl_tensor_mark_like(cpl_tensor *tensor,
                                        const cpl_tensor *other);
/* Local. Same dtype and shape. */
CPL_API cpl_status cpl_tensor_copy(cpl_tensor *dst, const cpl_tensor *src);
/* Local. Every element becomes `value`, rounded. Errors: SYSTEM (what a device
 * says; never in the host's memory). */
CPL_API cpl_status cpl_tensor_fill(cpl_tensor *tensor, double value);
/*
 * Local. cpl_tensor_bytes bytes of the host from or to the tensor, wherever it
 * lies; on a device they wait until its earlier work is done and count a
 * host_sync. The trace, likewise: n_rows positions; set makes one where there
 * is none. Errors: SYSTEM, MEMORY (set), INVALID (get of a tensor without one).
 * `send` is an upload for which nobody waits: what is done to the tensor later
 * sees it, and `data` may change at once. Errors: SYSTEM, MEMORY, UNSUPPORTED
 * (while a capture is made on a device).
 */
CPL_API cpl_status cpl_tensor_upload(cpl_tensor *tensor, const void *data);
CPL_API cpl_status cpl_tensor_send(cpl_tensor *tensor, const void *data);
CPL_API cpl_status cpl_tensor_download(const cpl_tensor *tensor, void *out);
CPL_API cpl_status cpl_tensor_get_trace(const cpl_tensor *tensor, int64_t *out);
CPL_API cpl_status cpl_tensor_set_trace(cpl_tensor *tensor,
                                        const int64_t *positions);
/* Where it lies: "cpu", "cuda 0" (a device and its number); until the next call
 * of this thread. */
CPL_API const char *cpl_tensor_device(const cpl_tensor *tensor);

/* Sums over rows: |x - r|^2 and |r|^2, and the largest row of either. */
typedef struct cpl_difference {
    double difference2;
    double reference2;
    double worst_row;   /* max over rows of |x - r| */
    double largest_row; /* max over rows of |r| */
} cpl_difference;
/* Local. Row i of x against row rows[i] of the reference (NULL: row i). A NaN
 * in either shows in the result. */
CPL_API cpl_status cpl_tensor_difference(const cpl_tensor *x,
                                         const cpl_tensor *reference,
                                         const int64_t *rows,
                                         cpl_difference *out);

/* Local. Compares a traced tensor with the rows that `layout` promises to
 * `rank`; counts wrong rows and keeps the first sentence ("<who>, rank 1, slot
 * 17: expected position 33, found 49"). An untraced tensor passes. Returns
 * MISMATCH only if the tensor is marked with another layout ("<who>: expected
 * rows of contiguous, cp 2, ..., got rows of zigzag"). On a device the
 * comparison takes its place in the rank's order of work, and nobody waits:
 * cpl_trace_settle counts what it found. Errors there: MEMORY, SYSTEM. */
CPL_API cpl_status cpl_trace_check(const cpl_tensor *tensor,
                                   const cpl_layout *layout, int rank,
                                   const char *who);
/* Local. After a step on a device: counts the wrong rows of its checks and
 * keeps the first sentence, as if they had been compared in the step. Waits for
 * the device where anything was ever compared; no host_sync of a step.
 * Elsewhere there is nothing to do. Errors: SYSTEM. */
CPL_API cpl_status cpl_trace_settle(cpl_comm *comm);
/* Local. The contract of a place that takes rows of `layout` and nothing else:
 * as cpl_trace_check, but rows that do not say whose they are are refused, too
 * (MISMATCH). Costs a comparison where nothing is traced. `layout` must come
 * from who decided it, never from the tensor. */
CPL_API cpl_status cpl_tensor_expect(const cpl_tensor *tensor,
                                     const cpl_layout *layout, int rank,
                                     const char *who);

/* ---- exchange ---- */

/* A plan: one rank's part of a route, bound to a group and a row size. */
typedef struct cpl_plan cpl_plan;

/*
 * Collective (all ranks agree or all fail). Prepares moving rows of `width`
 * elements of `dtype` along `route`. Borrows comm and route. All memory that
 * execution needs is taken here. Methods, which all give the same bits:
 * "copy" (rows are copied once, straight from the peer's memory), "direct" (a
 * message a run, no packing), "packed" (rows for a peer are packed into one
 * message), "alltoallv" (packed, and one all-to-all of the group), "composed"
 * (between partitions with tp > 1: gather the windows of a CP rank, convert
 * between CP ranks, keep the own window; to compare with the one exchange of
 * the others), NULL or "auto" (the cheapest of the first four by a table of
 * measured costs).
 * Errors: MISMATCH (ranks of route and group), INVALID, UNSUPPORTED (a method
 * that the transport or the route does not allow), MEMORY, and those of route
 * building.
 */
CPL_API cpl_status cpl_plan_create(cpl_route *route, cpl_comm *comm,
                                   cpl_dtype dtype, int64_t width,
                                   const char *method, cpl_plan **out);
/* Not between start and finish: other ranks still read what it holds. */
CPL_API void cpl_plan_destroy(cpl_plan *plan);
/* The name of the method; of "auto", that of the one it chose. */
CPL_API const char *cpl_plan_method(const cpl_plan *plan);
CPL_API const char *cpl_plan_methods(void); /* names, separated by spaces */
/* Seconds that one execution takes the busiest rank, by the table of costs:
 * what "auto" compares. */
CPL_API double cpl_plan_estimate(const cpl_plan *plan);
/* Bytes that this rank sends to others in one execution, and how many ranks get
 * some (composed: the sum over its two steps). */
CPL_API int64_t cpl_plan_sent_bytes(const cpl_plan *plan);
CPL_API int64_t cpl_plan_sent_messages(const cpl_plan *plan);
/* Whether src and dst of an execution may be the same tensor: the route is
 * between partitions with equal row counts on this rank. */
CPL_API bool cpl_plan_in_place(const cpl_plan *plan);
/* Whether an execution in place only swaps rows between pairs of ranks, on
 * every rank: the same answer on all of them, and no buffer in between. Only
 * the method "copy" swaps. */
CPL_API bool cpl_plan_swaps(const cpl_plan *plan);

/*
 * Collective. Moves rows from src to dst (fill rows become 0); start and
 * finish may be apart, and neither tensor may be touched in between. dst may
 * be src where cpl_plan_in_place says so; rows that stay are then not touched.
 * Traces travel along when src has one; dst is marked with the target's
 * digest. Allocates nothing (but the first trace).
 * Errors: MISMATCH (rows, width, dtype, or a src marked with another layout:
 * the text names both), DEADLINE, ABORTED.
 */
CPL_API cpl_status cpl_plan_start(cpl_plan *plan, const cpl_tensor *src,
                                  cpl_tensor *dst);
CPL_API cpl_status cpl_plan_finish(cpl_plan *plan);
/*
 * Collective. The adjoint: gradients of dst's rows travel back and are summed
 * into d_src in rank order, starting from 0 (rows that nobody saw become 0),
 * or added to what d_src holds with `accumulate`. May be in place as above
 * (then without accumulate). Without accumulate traces travel back between
 * partitions, and from shards, where the copies of a row must be of the same
 * position (else it becomes -1). Finished by cpl_plan_finish.
 */
CPL_API cpl_status cpl_plan_start_adjoint(cpl_plan *plan,
                                          const cpl_tensor *d_dst,
                                          cpl_tensor *d_src, bool accumulate);

/* The sum of a tensor over a group, where it lies. */
typedef struct cpl_sum cpl_sum;
/* Collective. Makes ready sums of n elements in the memory
 * of the group. Borrows comm. Errors: INVALID, UNSUPPORTED (dtype), MEMORY,
 * SYSTEM. */
CPL_API cpl_status cpl_sum_create(cpl_comm *comm, cpl_dtype dtype, int64_t n,
                                  cpl_sum **out);
CPL_API void cpl_sum_destroy(cpl_sum *sum);
/* Collective. In place, in rank order: the same bits on every rank. On a device
 * nothing waits for it. Errors: MISMATCH (another dtype or count), those of
 * cpl_plan_start. */
CPL_API cpl_status cpl_sum_execute(cpl_sum *sum, cpl_tensor *tensor);

/*
 * A graph: exchanges from one tensor to another, captured on a device. Where
 * ranks reach each other's memory (direct) it is captured once, and plans of
 * any route go through it: their lists take the place of the old ones in the
 * device's memory, up to `room`. NCCL keeps counts in a capture: there the
 * first replay of a route captures it, and later ones find it by its digest.
 */
typedef struct cpl_graph cpl_graph;
/*
 * Collective. For plans of the group, row and row counts of `plan`; by "copy"
 * where it is direct, and there in place (dst is src) only where all rows that
 * move are swapped (cpl_plan_swaps). `room`: pieces of rows that a rank may
 * receive along a route (direct), or routes that are kept (NCCL); >= 1. Borrows
 * the tensors, which lie on the device, and the comm. Errors: INVALID, MISMATCH
 * (tensors that do not fit, as cpl_plan_start), UNSUPPORTED (no device),
 * MEMORY, SYSTEM.
 */
CPL_API cpl_status cpl_graph_create(cpl_plan *plan, const cpl_tensor *src,
                                    cpl_tensor *dst, int64_t room,
                                    cpl_graph **out);
/* The same for adjoints, which do not accumulate; direct ones of partitions
 * alone, since rows that repeat are added. `room` then counts pieces that a
 * rank sends along the route. */
CPL_API cpl_status cpl_graph_create_adjoint(cpl_plan *plan,
                                            const cpl_tensor *d_dst,
                                            cpl_tensor *d_src, int64_t room,
                                            cpl_graph **out);
CPL_API void cpl_graph_destroy(cpl_graph *graph);
/* Collective. Moves the rows along the plan's route, or back, as cpl_plan_start
 * (or start_adjoint) and cpl_plan_finish do. Errors: MISMATCH (another group,
 * row, row count or method than the graph's, more pieces or routes than it has
 * room for), and those of cpl_plan_start. */
CPL_API cpl_status cpl_graph_replay(cpl_graph *graph, cpl_plan *plan);
/* How many captures it holds. */
CPL_API int64_t cpl_graph_captures(const cpl_graph *graph);

/*
 * A capture: what all ranks of a group do on their devices between its begin
 * and its end, a whole step say, kept as a graph and done by each replay with
 * what its tensors hold then. While it is made nothing is done, and nothing may
 * wait for a device or take its memory (UNSUPPORTED): run the step once before.
 * A plan's lists are part of it: other routes are another capture.
 */
typedef struct cpl_capture cpl_capture;
/* Collective. Errors: UNSUPPORTED (no device; another capture is being made),
 * MEMORY, SYSTEM. */
CPL_API cpl_status cpl_capture_begin(cpl_comm *comm, cpl_capture **out);
/* Collective. Errors: SYSTEM (something that cannot be captured). */
CPL_API cpl_status cpl_capture_end(cpl_capture *capture);
/* Collective. Counts what the captured work counted. Errors: INVALID (not ended
 * well), SYSTEM. */
CPL_API cpl_status cpl_capture_replay(cpl_capture *capture);
/* Collective with cpl_capture_end. Ends a capture in which this rank failed,
 * and says why; it is good for nothing. A rank that waits for this one in it
 * fails with that sentence; where all have come to the end they may go on.
 * Errors: ABORTED. */
CPL_API cpl_status cpl_capture_fail(cpl_capture *capture, const char *why);
/* Local; of a capture that was not ended, collective. */
CPL_API void cpl_capture_destroy(cpl_capture *capture);

/*
 * A rehearsal: what all ranks of a group do between its begin and its end is
 * walked through, and no device is told of it. It says whether a capture serves
 * it: `digest` is that of all launches of this rank, what they point at and
 * how many they count, but not of what lies there; `counted` is what it
 * counted. Memory may be taken in it; waiting is refused as in a capture.
 */
typedef struct cpl_rehearsal {
    uint64_t digest;
    cpl_counters counted;
} cpl_rehearsal;
/* Local, and its end, too; what is rehearsed may be collective. Errors:
 * UNSUPPORTED (no device; by NCCL, whose calls hold counts; in a capture). */
CPL_API cpl_status cpl_rehearsal_begin(cpl_comm *comm, cpl_rehearsal *out);
CPL_API cpl_status cpl_rehearsal_end(cpl_comm *comm, cpl_rehearsal *rehearsal);
/* Collective. A replay that stands for what was rehearsed, with the digest of
 * what was captured: it counts what that counted. Errors: as
 * cpl_capture_replay. */
CPL_API cpl_status cpl_capture_replay_as(cpl_capture *capture,
                                         const cpl_rehearsal *rehearsal);

/*
 * A mould: memory on the rank's device for what is made again and again for
 * other sequences, so that one capture serves them all. While it is open the
 * k-th block that is taken is the one that was the k-th before, if that was
 * given back and is large enough; lists that kernels read get room for more
 * entries, and launches do not depend on how many there are. So of two stacks
 * for as many rows, one made when the other was gone, the launches are alike,
 * but where the second needs more room than any before: see cpl_rehearsal.
 */
typedef struct cpl_mould cpl_mould;
/* Local. Errors: UNSUPPORTED (as cpl_rehearsal_begin), MEMORY. */
CPL_API cpl_status cpl_mould_create(cpl_comm *comm, cpl_mould **out);
/* Local. Opens it, with `anew` for the first block again; what is open now is
 * closed. */
CPL_API void cpl_mould_open(cpl_mould *mould, bool anew);
CPL_API void cpl_mould_close(cpl_mould *mould);
/* Local. Memory that is still in use stays with its users. */
CPL_API void cpl_mould_destroy(cpl_mould *mould);

/* ---- marks: the clock of a device ---- */

/*
 * Marks in a rank's order of work on a device: each holds the device's time at
 * which all that was put there before it was done. They are made before the
 * work that they time, and read after it.
 */
typedef struct cpl_marks cpl_marks;
/* Collective. n >= 1 marks of each rank, numbered from 0. Borrows the comm.
 * Errors: UNSUPPORTED (rows on the CPU), INVALID, MEMORY, SYSTEM. */
CPL_API cpl_status cpl_marks_create(cpl_comm *comm, int64_t n, cpl_marks **out);
/* Local; when no rank asks for its times any more. */
CPL_API void cpl_marks_destroy(cpl_marks *marks);
/* Local. Sets mark i, again if it was set, behind the work that was put there
 * so far. Takes no memory, waits for nothing. Errors: INVALID, SYSTEM. */
CPL_API cpl_status cpl_marks_set(cpl_marks *marks, int64_t i);
/* Local. Waits until all of the rank's work is done; counts a host_sync. */
CPL_API cpl_status cpl_marks_wait(cpl_marks *marks);
/* The first rank whose device, in this process, is that of this rank. */
CPL_API int cpl_marks_first(const cpl_marks *marks);
/* Local. Seconds from mark `from` of `rank`, which shares this rank's device,
 * to this rank's mark `to`, which comes later; both ranks have waited since.
 * Errors: INVALID, SYSTEM. */
CPL_API cpl_status cpl_marks_seconds(const cpl_marks *marks, int rank,
                                     int64_t from, int64_t to, double *out);

/* ---- layer ---- */

/*
 * A place: one rank's part of a layout made ready for layers, with the routes
 * that they need there (key views, halos), built once and shared by all layers
 * of the layout. To be used by one thread.
 */
typedef struct cpl_place cpl_place;

/* Local. Borrows comm and layout. Errors: MISMATCH (ranks), MEMORY. */
CPL_API cpl_status cpl_place_create(cpl_comm *comm, const cpl_layout *layout,
                                    cpl_place **out);
CPL_API void cpl_place_destroy(cpl_place *place);
/*
 * Local. Tensor parallelism: layers prepared from now on are the tp_rank-th of
 * tp that split their heads or their width among them. Each holds all of its
 * parameters, computes with its slice of them, and adds the gradients of its
 * slice; y and dx are then one of tp partial sums (cpl_view_shard brings them
 * together), and gradients of parameters are whole after a sum over all ranks.
 * Of kv heads, or key heads, that are fewer than tp, several hold the same one.
 * Errors: INVALID. Prepare refuses sizes that tp does not divide (INVALID) and
 * layers that do not split (UNSUPPORTED).
 */
CPL_API cpl_status cpl_place_split(cpl_place *place, int tp_rank, int tp);
/* Layers of one kind that are prepared from now on share what they keep from
 * forward to backward: a layer's backward must follow its own forward, with no
 * forward of another of the kind in between. For recomputation. */
CPL_API void cpl_place_share_kept(cpl_place *place);
/* From now on layers of the place refuse rows without a mark, in forward and
 * backward (cpl_tensor_expect): for places where all rows come from layers and
 * exchanges, which leave one. Otherwise rows of an unknown layout are taken for
 * those of the place; rows that are marked with another one never are. */
CPL_API void cpl_place_demand_marks(cpl_place *place);
/* How many route objects it has built so far. */
CPL_API int64_t cpl_place_routes_built(const cpl_place *place);

/* A layer: a step of the model with parameters. Says which layouts it accepts;
 * never converts. */
typedef struct cpl_layer cpl_layer;

typedef struct cpl_gqa_config {
    int hidden, heads, kv_heads, head_dim, rotary_dim;
    double rope_theta, eps;
    int window;          /* keys that a query sees, its own included; 0: all of
                            its sequence up to its own */
    const char *cp_mode; /* how queries meet the keys of other ranks: "gather"
                            (NULL), "p2p", "a2a", "a2a+p2p" */
    int a2a;             /* a2a+p2p: consecutive ranks that spread heads; must
                            divide the ranks, but for one rank alone; else 0.
                            Where heads are spread, the ranks of it must divide
                            heads, and divide kv_heads or be a multiple of them
                            (prepare: INVALID) */
} cpl_gqa_config;
typedef struct cpl_mla_config {
    int hidden, heads;
    int q_rank;  /* of the latents of queries; 0: none, queries come straight
                    from the rows */
    int kv_rank; /* of the latents of keys and values */
    int nope_dim, rope_dim; /* of a head's key: from the latent; the same in all
                               heads, rotated */
    int value_dim;
    double rope_theta; /* 0: nothing is rotated */
    double eps;
    int window; /* these three as in cpl_gqa_config */
    const char *cp_mode;
    int a2a;
} cpl_mla_config;
typedef struct cpl_gdn_config {
    int hidden, key_heads, value_heads, key_dim, value_dim, conv, chunk;
    double eps;
    const char *cp_mode; /* how it is cut; of no effect on one rank.
                            "chunkwise" (NULL): heads stay, halos and states go
                            from run to run. "headwise": an exchange gives each
                            rank all positions of its own heads; the ranks must
                            divide the value heads, and divide the key heads or
                            be a multiple of them (prepare: INVALID) */
} cpl_gdn_config;
typedef struct cpl_mlp_config {
    int hidden, width;
} cpl_mlp_config;
typedef struct cpl_moe_config {
    int hidden, experts, top_k, width;
    int shared_width;       /* 0: no shared expert */
    bool renormalise;       /* a token's weights sum to 1 */
    double aux_coefficient; /* of the loss that balances the load; 0: none */
} cpl_moe_config;
typedef struct cpl_norm_config {
    int hidden;
    double eps;
} cpl_norm_config;
typedef struct cpl_linear_config {
    int in, out;
} cpl_linear_config;

/* Local. F64, F32, or BF16, which devices alone compute in. Sizes are checked
 * (INVALID names the rule and the numbers). */
CPL_API cpl_status cpl_layer_gqa(const cpl_gqa_config *config, cpl_dtype dtype,
                                 cpl_layer **out);
CPL_API cpl_status cpl_layer_mla(const cpl_mla_config *config, cpl_dtype dtype,
                                 cpl_layer **out);
CPL_API cpl_status cpl_layer_gdn(const cpl_gdn_config *config, cpl_dtype dtype,
                                 cpl_layer **out);
CPL_API cpl_status cpl_layer_mlp(const cpl_mlp_config *config, cpl_dtype dtype,
                                 cpl_layer **out);
CPL_API cpl_status cpl_layer_moe(const cpl_moe_config *config, cpl_dtype dtype,
                                 cpl_layer **out);
CPL_API cpl_status cpl_layer_norm(const cpl_norm_config *config,
                                  cpl_dtype dtype, cpl_layer **out);
/* Rows of a table [in, out] by tokens (I32, one a row; < 0: a zero row).
 * Forward refuses a token beyond the table (INVALID); on a device, where nobody
 * looks at tokens, it gives a row of NaN. */
CPL_API cpl_status cpl_layer_embedding(const cpl_linear_config *config,
                                       cpl_dtype dtype, cpl_layer **out);
CPL_API cpl_status cpl_layer_linear(const cpl_linear_config *config,
                                    cpl_dtype dtype, cpl_layer **out);
CPL_API void cpl_layer_destroy(cpl_layer *layer);

/* How a parameter is drawn; see cpl_layer_init. */
typedef struct cpl_param_info {
    const char *name; /* within the layer: "qkv_proj" */
    cpl_dtype dtype;  /* the layer's; of a bf16 layer f32 for what decays (A_log
                         and dt_bias of gdn) */
    int n_dims;
    int64_t shape[CPL_MAX_DIMS];
} cpl_param_info;

CPL_API const char *cpl_layer_kind(const cpl_layer *layer);
/* Elements of one output row. */
CPL_API int64_t cpl_layer_out_width(const cpl_layer *layer);
CPL_API int cpl_layer_n_params(const cpl_layer *layer);
CPL_API const cpl_param_info *cpl_layer_param(const cpl_layer *layer, int i);
/* Local. Draws parameter i from the stream (seed, `name`, element). */
CPL_API cpl_status cpl_layer_init(const cpl_layer *layer, int i, uint64_t seed,
                                  const char *name, cpl_tensor *param);
/* Local. Borrows n_params parameters and their gradients (which backward adds
 * to; of a bf16 layer they are f32, all of them). */
CPL_API cpl_status cpl_layer_bind(cpl_layer *layer, cpl_tensor *const *params,
                                  cpl_tensor *const *grads);
/*
 * What a GDN layer knows of the past of each sequence, for chunked prefill and
 * decoding: a forward over tokens [0, n) equals one over [0, m) and one over
 * [m, n) that starts from the state that the first one left, in any layout and
 * cp_mode. Every CP rank has the states of all sequences and heads; under
 * tensor parallelism, of the heads of its slice, and value_heads, Hk and Hv
 * below count those. The tail is what the convolution still sees: the last
 * conv - 1 rows of q, k, v before it.
 */
typedef struct cpl_gdn_state {
    cpl_tensor *state; /* [n_sequences, value_heads, key_dim, value_dim] */
    cpl_tensor *tail;  /* [n_sequences, conv - 1, 2 Hk K + Hv V]; NULL with
                          conv 1 */
    cpl_tensor *d_state, *d_tail; /* their gradients, or NULL */
} cpl_gdn_state;
/*
 * Local. From the next prepare on, every forward starts from `in` (NULL: from
 * zeros) and writes `out` (NULL: nowhere); an empty sequence passes its state
 * on. The two may be the same tensors. Every backward reads the gradients of
 * `out` and writes those of `in`. Borrows the tensors, copies the structs.
 * Errors: INVALID (not a GDN layer); prepare refuses tensors that do not fit
 * (MISMATCH).
 */
CPL_API cpl_status cpl_layer_gdn_state(cpl_layer *layer,
                                       const cpl_gdn_state *in,
                                       const cpl_gdn_state *out);
/*
 * What an attention layer (GQA, MLA) knows of the past of each sequence, for
 * chunked prefill and decoding: a forward over tokens [0, n) equals one over
 * [0, m) and one over [m, n) with the same cache, each in any layout and
 * cp_mode. The keys and values (MLA: latents) of real tokens stay on the rank
 * that made them, in the memory of its group. To be used by one thread.
 */
typedef struct cpl_kv_cache cpl_kv_cache;
/* Local. Room for capacity[i] >= 0 rows of sequence i on this rank; the memory
 * for them is taken when the first layer that has the cache is prepared, and it
 * is that layer's from then on. Errors: INVALID, MEMORY. */
CPL_API cpl_status cpl_kv_cache_create(int64_t n_sequences,
                                       const int64_t *capacity,
                                       cpl_kv_cache **out);
/* Not before the layers that have it. */
CPL_API void cpl_kv_cache_destroy(cpl_kv_cache *cache);
/* Local. Forgets all tokens. */
CPL_API void cpl_kv_cache_clear(cpl_kv_cache *cache);
/* How many tokens of a sequence (asserted to be one) all ranks have seen. */
CPL_API int64_t cpl_kv_cache_seen(const cpl_kv_cache *cache, int64_t sequence);
/* Bytes of the rows that this rank holds. */
CPL_API int64_t cpl_kv_cache_bytes(const cpl_kv_cache *cache);
/*
 * Local. From the next prepare on the rows of each forward follow, sequence by
 * sequence, what the cache has seen, rotary positions included, and are kept in
 * it (NULL: no cache, no past). Where no sequence has a past, queries meet keys
 * by the cp_mode; otherwise the queries, which are few, go to all ranks, each
 * attends to the keys that it holds, and the results go home, where they are
 * merged in rank order. A layer that shall meet a past is prepared while there
 * is one (forward: INVALID). Forward also refuses rows that do not fit
 * (INVALID, on that rank) and captures (UNSUPPORTED: where rows go is another
 * place in each step), backward everything (UNSUPPORTED). On a device no
 * forward waits. Borrows the cache. Errors: INVALID (not an attention layer);
 * prepare: MISMATCH (the cache of another layer or group, or of other sizes).
 */
CPL_API cpl_status cpl_layer_kv_cache(cpl_layer *layer, cpl_kv_cache *cache);
/*
 * Collective. Makes plans and buffers for the rows of a place; `name` stands in
 * its messages. The layer runs where the memory of the place's group is, and
 * its parameters and rows must be there too. Borrows the place. Errors: those
 * of the layer, UNSUPPORTED (no kernels for the dtype there, or none for these
 * sizes: the text says what they take).
 */
CPL_API cpl_status cpl_layer_prepare(cpl_layer *layer, const char *name,
                                     cpl_place *place);
/* Collective. y = layer(x). x and y stay unchanged until backward. */
CPL_API cpl_status cpl_layer_forward(cpl_layer *layer, const cpl_tensor *x,
                                     cpl_tensor *y);
/* Collective. dx from dy of the last forward; adds to the parameters'
 * gradients. dx may be NULL (embedding: must be). */
CPL_API cpl_status cpl_layer_backward(cpl_layer *layer, const cpl_tensor *dy,
                                      cpl_tensor *dx);

/* What a mixture of experts did in its last forward, on this rank. */
typedef struct cpl_moe_report {
    int64_t experts;
    const int64_t *offsets; /* [experts + 1]: expert e got offsets[e + 1] -
                               offsets[e] tokens; until the next forward */
    double margin;   /* the least gap between the last logit that a token chose
                        and the next one: below rounding, layouts may differ */
    double aux_loss; /* of the group */
} cpl_moe_report;
/* Local. On a device it waits for the layer and counts host_syncs. Errors:
 * INVALID (another kind of layer, or no forward yet), SYSTEM. */
CPL_API cpl_status cpl_layer_moe_report(const cpl_layer *layer,
                                        cpl_moe_report *out);

#endif
