/*
 * layout.h: what the files of this folder share. Integers only.
 *
 * The one idea: a *holding* is a stretch of consecutive positions in
 * consecutive slots of one rank. Every kind of layout answers two questions, in
 * closed form or by binary search: which holding holds this position, and which
 * holding holds this slot of this rank. Runs, spans, routes, views and chains
 * are walks over holdings; nothing else knows how a kind places its tokens.
 */
#ifndef CPLI_LAYOUT_H
#define CPLI_LAYOUT_H

#include "base.h"

/* Positions stay exact in a double, and no product of this folder overflows. */
#define CPLI_MAX_POSITIONS ((int64_t)1 << 53)

/* ---- stream ---- */

struct cpl_stream {
    bool is_sbhd;
    bool is_columns; /* of an sbhd stream, as sequences */
    int64_t batch;
    int64_t n_sequences;
    int64_t *cu;   /* n_sequences + 1 padded boundaries */
    int64_t *real; /* real length of each sequence */
    uint64_t digest;
    char *text;
};

/*
 * Where a walk is, so that its next step needs no search: all zero at first,
 * and of one walk over one layout or stream.
 */
typedef struct cpli_cursor {
    int64_t index; /* of the last sequence, or of the last holding of a table */
    /* paired.c: 1 + the sequence that the others are of; 0: of none */
    int64_t known;
    int64_t end;
    int64_t block_length;
    int64_t first_slot;
} cpli_cursor;

/* A stream of n columns, `length` positions each. */
cpl_status cpli_stream_create_columns(int64_t length, int64_t n,
                                      cpl_stream **out);

/* The non-empty sequence that holds `position` (in range, asserted). */
int64_t cpli_stream_find(const cpl_stream *stream, int64_t position,
                         cpli_cursor *at);

/* ---- holdings and the table of runs ---- */

/* Consecutive positions and where they are: on which rank, from which slot. */
typedef struct cpli_holding {
    int rank;
    int64_t start;
    int64_t slot;
    int64_t length;
} cpli_holding;

/* Sorts by position. */
void cpli_sort_holdings(cpli_holding *holdings, int64_t n);

/*
 * A layout that has no closed form: its holdings twice, by (rank, slot)
 * and by position. Ranks are group ranks.
 */
typedef struct cpli_table {
    int64_t n_holdings;
    cpli_holding *by_slot;
    cpli_holding *by_position;
    int64_t *first; /* rank -> its first holding in by_slot; n_ranks + 1 */
} cpli_table;

/*
 * Copies the runs of n_ranks ranks, n_runs[rank] each, and checks that they
 * hold every position of 0 .. n_positions-1 exactly once; `who` stands in the
 * messages. Errors: INVALID, MEMORY.
 */
cpl_status cpli_table_create(const char *who, int64_t n_positions, int n_ranks,
                             const cpl_run *runs, const int64_t *n_runs,
                             cpli_table **out);
void cpli_table_destroy(cpli_table *table);

/* ---- kinds and layouts ---- */

/*
 * One kind of layout. A kind in closed form gives check, by_position and
 * by_slot, in terms of CP ranks that all hold n_positions / cp rows; windows
 * of tensor parallelism and the order are added by layout.c. A kind without
 * closed form gives only `tabulate`, in terms of group ranks; stream, group and
 * order of the layout are set by then.
 *
 * The two list the holding that holds a position, or a slot of a CP rank, and
 * as many of those that follow in that order as are cheap to give: 1 .. max
 * in all, which they return.
 */
typedef struct cpli_kind {
    const char *name;
    /* Whether the stream divides; INVALID names sequence and numbers. Reads
     * stream, cp and block alone. */
    cpl_status (*check)(const cpl_layout *layout);
    /* Of kinds with a block: the one under which `guess` might hold the runs
     * of `layout`; no other can. */
    void (*fit)(cpl_layout *guess, const cpl_layout *layout);
    int (*by_position)(const cpl_layout *layout, int64_t position,
                       cpli_cursor *at, cpli_holding *out, int max);
    int (*by_slot)(const cpl_layout *layout, int cp_rank, int64_t slot,
                   cpli_cursor *at, cpli_holding *out, int max);
    cpl_status (*tabulate)(const cpl_layout *layout,
                           const cpl_layout_options *options, cpli_table **out);
} cpli_kind;

/* The table of kinds: a new one is a row here and a file (or a section of
 * one). Where two kinds hold the same runs, digest.c names them by the first.
 */
#define CPLI_KINDS(X) \
    X(contiguous)     \
    X(zigzag)         \
    X(mirror)         \
    X(snake)          \
    X(striped)        \
    X(balanced)       \
    X(custom)

#define X(name) extern const cpli_kind cpli_##name;
CPLI_KINDS(X)
#undef X

struct cpl_layout {
    const cpli_kind *kind;
    const cpl_stream *stream;
    int cp;
    int tp;
    int64_t block;               /* striped: positions a block */
    int *cp_order;               /* shard -> the CP rank that holds it */
    int *order;                  /* shard * tp + window -> group rank */
    int *logical;                /* and back */
    int64_t cp_local;            /* rows of a CP rank; closed forms only */
    int64_t window;              /* rows of a rank; closed forms only */
    cpli_table *table;           /* NULL for closed forms */
    const cpl_layout *positions; /* of columns: where each column is; or NULL */
    uint64_t digest;
    char *text;
};

/* The kinds in the order of the table, NULL at its end. */
const cpli_kind *cpli_kind_at(int i);

/* The digest of a finished layout: see cpl_layout_digest. */
cpl_status cpli_layout_identify(const cpl_layout *layout, uint64_t *out);

/* Fills cp_order, order and logical of a layout that has all else. */
cpl_status cpli_layout_set_order(cpl_layout *layout,
                                 const cpl_layout_options *options);

/* Ranks whose assignment is solved: beyond this it would take minutes. */
enum { CPLI_MAX_ASSIGNED = 2048 };

/* INVALID, in the name of `who`, unless the layout has that rank. */
cpl_status cpli_check_rank(const cpl_layout *layout, int rank, const char *who);

int64_t cpli_n_local(const cpl_layout *layout, int rank);

/* To which CP rank a group rank belongs. */
static inline int cpli_layout_cp_rank(const cpl_layout *layout, int rank)
{
    return layout->cp_order[layout->logical[rank] / layout->tp];
}

/* The holding that holds a position, or a slot of a rank, and as many of those
 * that follow as are cheap to give: 1 .. max in all, which they return. As in
 * cpli_kind, but in terms of group ranks. */
int cpli_by_position(const cpl_layout *layout, int64_t position,
                     cpli_cursor *at, cpli_holding *out, int max);
int cpli_by_slot(const cpl_layout *layout, int rank, int64_t slot,
                 cpli_cursor *at, cpli_holding *out, int max);

/* The same of a layout of columns. */
int cpli_columns_by_position(const cpl_layout *layout, int64_t position,
                             cpli_cursor *at, cpli_holding *out, int max);
int cpli_columns_by_slot(const cpl_layout *layout, int rank, int64_t slot,
                         cpli_cursor *at, cpli_holding *out, int max);

/* The holding, not always maximal, that holds a position or a slot; both in
 * range. Ranks are group ranks. */
void cpli_at_position(const cpl_layout *layout, int64_t position,
                      cpli_cursor *at, cpli_holding *out);
void cpli_at_slot(const cpl_layout *layout, int rank, int64_t slot,
                  cpli_cursor *at, cpli_holding *out);

/* The longest stretch from `position` up to `end` that lies in consecutive
 * slots of one rank. */
cpli_holding cpli_stretch(const cpl_layout *layout, int64_t position,
                          int64_t end, cpli_cursor *at);

enum { CPLI_AHEAD = 32 }; /* holdings that a walk fetches at once */

/* A walk over the maximal runs of a rank, in slot order. */
typedef struct cpli_walk {
    const cpl_layout *layout;
    int rank;
    int64_t n_local;
    int64_t slot; /* of the first holding not yet fetched */
    cpli_cursor at;
    int next, n; /* of those fetched */
    cpli_holding ahead[CPLI_AHEAD];
} cpli_walk;

cpli_walk cpli_walk_begin(const cpl_layout *layout, int rank);
/* False at the end. */
bool cpli_walk_fetch(cpli_walk *walk);
bool cpli_walk_next(cpli_walk *walk, cpli_holding *run);

/* The same walk, holding by holding, for those who merge what comes of them;
 * NULL at the end. Inline, like the next one: routes live in these two. */
static inline const cpli_holding *cpli_walk_holding(cpli_walk *walk)
{
    if (walk->next == walk->n && !cpli_walk_fetch(walk))
        return NULL;
    return &walk->ahead[walk->next++];
}

/* Finds holdings by position; all zero but the layout at first. Positions that
 * follow each other are cheap. */
typedef struct cpli_lookup {
    const cpl_layout *layout;
    cpli_cursor at;
    int next, n;
    cpli_holding ahead[CPLI_AHEAD];
} cpli_lookup;

const cpli_holding *cpli_lookup_fetch(cpli_lookup *lookup, int64_t position);

/* The holding of a position, valid until the next call. */
static inline const cpli_holding *cpli_lookup_find(cpli_lookup *lookup,
                                                   int64_t position)
{
    for (int i = lookup->next; i < lookup->n && i <= lookup->next + 1; i++) {
        const cpli_holding *holding = &lookup->ahead[i];
        if (position >= holding->start &&
            position < holding->start + holding->length) {
            lookup->next = i;
            return holding;
        }
    }
    return cpli_lookup_fetch(lookup, position);
}

/* ---- lists that grow ---- */

/* Makes room for one more item after the first n. */
cpl_status cpli_grow(void **items, int64_t n, int64_t *capacity, size_t size);

typedef struct cpli_runs {
    cpl_run *items;
    int64_t n;
    int64_t capacity;
} cpli_runs;

/* Appends a run (start -1: fill); an empty one is nothing, an adjoining one
 * becomes part of the last. */
cpl_status cpli_runs_push(cpli_runs *runs, int64_t start, int64_t length);

/* ---- views ---- */

typedef struct cpli_view_kind cpli_view_kind;

struct cpl_view {
    const cpli_view_kind *kind;
    const cpl_layout *layout; /* of which it shows rows */
    const cpl_layout
        *onto;    /* onto, shard: whose slots the rows take; or NULL */
    int *viewers; /* shard: CP rank * tp + window -> who sees its rows; or NULL;
                     owned */
    int64_t size; /* halo: width; shift: k; keys: window, 0 for no limit */
    bool real_only; /* halo: only before spans of real tokens */
    bool is_sliced; /* whole: each rank sees its own slice of every row */
    uint64_t digest;
    char *text;
};

/* How many ranks see each position, if that is the same for all; else 0. Of no
 * view 0. */
int64_t cpli_view_copies(const cpl_view *view);

/* The view's runs of one rank; the list is the caller's even on failure. */
cpl_status cpli_view_list(const cpl_view *view, int rank, cpli_runs *out);

/* A set of ranks. */
typedef struct cpli_marks {
    bool *of;
    int n_unmarked;
} cpli_marks;

/* Marks the ranks whose view may hold a position of [start, start + length):
 * all that do, and perhaps more. Not for views onto other layouts. */
void cpli_view_reach(const cpl_view *view, int64_t start, int64_t length,
                     cpli_marks *marks);

/* ---- segments of one rank ---- */

/* The two ends of a route; with a view, `to` is NULL. */
typedef struct cpli_ends {
    const cpl_layout *from;
    const cpl_layout *to;
    const cpl_view *view;
} cpli_ends;

/* Borrowed from the route. */
const cpli_ends *cpli_route_ends(const cpl_route *route);

/* One block: routes come and go with microbatches, and the allocator keeps one
 * large block at hand where it would give two back to the system. */
typedef struct cpli_segments {
    cpl_segment *items; /* the sends, then the receives */
    int64_t n_sends;
    int64_t n_receives;
} cpli_segments;

/* What the rank sends and receives, maximal and in the order of
 * cpl_route_part; without sends receives alone. The list is the caller's. */
cpl_status cpli_segments_collect(const cpli_ends *ends, int rank,
                                 bool with_sends, cpli_segments *out);

#endif
