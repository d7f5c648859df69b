/*
 * balanced.c: equal rows and equal causal work on every rank, near a layout
 * that is given (the flat contiguous one by default). Where it comes from is in
 * balanced.h; here are its options, and how CP ranks become group ranks.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "balanced.h"

enum { BLOCK = 64, NODE_SIZE = 8 };

static const char WHO[] = "layout.balanced";
static const double TOLERANCE = 0.03;

/* ---- options ---- */

static cpl_status check_block(const cpl_stream *stream, int64_t block)
{
    if (block < 1)
        return cpli_fail(CPL_INVALID,
                         "%s: block must be >= 1 (got %" PRId64 ")", WHO,
                         block);
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        int64_t length = stream->cu[i + 1] - stream->cu[i];
        if (length % block != 0)
            return cpli_fail(CPL_INVALID,
                             "%s: sequence %" PRId64 " has %" PRId64
                             " tokens, not a multiple of block = %" PRId64,
                             WHO, i, length, block);
    }
    return CPL_OK;
}

static cpl_status check_rows(const cpl_stream *stream, int cp, int tp)
{
    int64_t n = cpl_stream_n_positions(stream);
    if (n % cp != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: the stream has %" PRId64
                         " positions, not a multiple of cp = %d",
                         WHO, n, cp);
    if (n / cp % tp != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: a CP rank has %" PRId64
                         " rows, not a multiple of tp = %d",
                         WHO, n / cp, tp);
    return CPL_OK;
}

static cpl_status check_near(const cpl_layout *near, const cpl_layout *layout)
{
    if (near->stream->digest != layout->stream->digest)
        return cpli_fail(CPL_MISMATCH,
                         "%s: near lays out another stream, %s, not %s", WHO,
                         near->stream->text, layout->stream->text);
    if (near->cp != layout->cp || near->tp != layout->tp)
        return cpli_fail(CPL_MISMATCH,
                         "%s: near has cp %d and tp %d, not cp %d and tp %d",
                         WHO, near->cp, near->tp, layout->cp, layout->tp);
    return CPL_OK;
}

/* Whether a name is the second of two; NULL is the first. */
static cpl_status choose(const char *what, const char *name, const char *first,
                         const char *second, bool *is_second)
{
    if (name != NULL && strcmp(name, first) != 0 && strcmp(name, second) != 0)
        return cpli_fail(CPL_INVALID, "%s: unknown %s \"%s\"; there are %s, %s",
                         WHO, what, name, first, second);
    *is_second = name != NULL && strcmp(name, second) == 0;
    return CPL_OK;
}

/* Everything but the nodes. */
static cpl_status read_options(const cpl_layout *layout,
                               const cpl_layout_options *given,
                               cpli_sweep_options *options, bool *is_striped)
{
    options->tolerance =
        given->tolerance != NULL ? *given->tolerance : TOLERANCE;
    options->block = given->block == 0 ? BLOCK : given->block;
    options->node_size = given->node_size == 0 ? NODE_SIZE : given->node_size;
    if (!(options->tolerance >= 0) || !isfinite(options->tolerance))
        return cpli_fail(CPL_INVALID,
                         "%s: tolerance must be a number >= 0 (got %g)", WHO,
                         options->tolerance);
    if (options->node_size < 1)
        return cpli_fail(CPL_INVALID, "%s: node_size must be >= 1 (got %d)",
                         WHO, options->node_size);
    CPL_TRY(
        choose("placement", given->placement, "plain", "striped", is_striped));
    CPL_TRY(
        choose("method", given->method, "priced", "plain", &options->is_plain));
    CPL_TRY(check_block(layout->stream, options->block));
    CPL_TRY(check_rows(layout->stream, layout->cp, layout->tp));
    return given->near != NULL ? check_near(given->near, layout) : CPL_OK;
}

/* The node of each CP rank: consecutive group ranks share one, or they are
 * dealt over the nodes round robin, the tp ranks of a CP rank together. */
static cpl_status find_nodes(const cpl_layout *layout, int node_size,
                             bool is_striped, int **out)
{
    int n_ranks = cpl_layout_n_ranks(layout);
    int n_nodes = (int)cpli_ceil_div(n_ranks, node_size);
    int *node;
    CPL_TRY(CPL_ALLOC(layout->cp, &node));
    for (int c = 0; c < layout->cp; c++) {
        int rank = layout->order[c * layout->tp];
        node[c] = is_striped ? rank / layout->tp % n_nodes : rank / node_size;
    }
    *out = node;
    return CPL_OK;
}

/* ---- the table ---- */

typedef struct holdings {
    cpli_holding *items;
    int64_t n;
    int64_t capacity;
} holdings;

/* Adds rows of a CP rank as those of its group ranks. */
static cpl_status add(const cpl_layout *layout, int64_t window,
                      cpli_holding held, holdings *list)
{
    while (held.length > 0) {
        int t = (int)(held.slot / window);
        cpli_holding part = held;
        part.rank = layout->order[held.rank * layout->tp + t];
        part.slot = held.slot - t * window;
        part.length = cpli_min(held.length, window - part.slot);
        CPL_TRY(cpli_grow((void **)&list->items, list->n, &list->capacity,
                          sizeof *list->items));
        list->items[list->n++] = part;
        held.start += part.length;
        held.slot += part.length;
        held.length -= part.length;
    }
    return CPL_OK;
}

static cpl_status add_all(const cpl_layout *layout, const cpli_shares *shares,
                          holdings *list)
{
    int64_t window = shares->home->n_local / layout->tp;
    for (int c = 0; c < layout->cp; c++)
        for (int64_t i = 0; i < shares->items[c].n; i++) {
            const cpli_piece *piece = &shares->items[c].pieces[i];
            CPL_TRY(add(
                layout, window,
                (cpli_holding){c, piece->position, piece->slot, piece->length},
                list));
        }
    for (int64_t i = 0; i < shares->n_gains; i++)
        CPL_TRY(add(layout, window, shares->gains[i].held, list));
    return CPL_OK;
}

static int compare_slots(const void *a, const void *b)
{
    const cpli_holding *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

/* Sorts by rank and slot, and makes one of those that go on. */
static void merge(holdings *list)
{
    int64_t n = 0;
    if (list->n > 0)
        qsort(list->items, (size_t)list->n, sizeof *list->items, compare_slots);
    for (int64_t i = 0; i < list->n; i++) {
        const cpli_holding *next = &list->items[i];
        cpli_holding *last = n > 0 ? &list->items[n - 1] : NULL;
        if (last != NULL && last->rank == next->rank &&
            last->start + last->length == next->start)
            last->length += next->length;
        else
            list->items[n++] = *next;
    }
    list->n = n;
}

static cpl_status tabulate_holdings(const cpl_layout *layout,
                                    const holdings *list, cpli_table **out)
{
    cpl_status status;
    int n_ranks = cpl_layout_n_ranks(layout);
    cpl_run *runs = NULL;
    int64_t *n_runs = NULL;
    CPL_TRY_GO(CPL_ALLOC(list->n, &runs), done);
    CPL_TRY_GO(CPL_ALLOC(n_ranks, &n_runs), done);
    for (int64_t i = 0; i < list->n; i++) {
        runs[i] = (cpl_run){list->items[i].start, list->items[i].length};
        n_runs[list->items[i].rank]++;
    }
    status = cpli_table_create(WHO, cpl_stream_n_positions(layout->stream),
                               n_ranks, runs, n_runs, out);
done:
    cpli_free(n_runs);
    cpli_free(runs);
    return status;
}

static cpl_status make_table(const cpl_layout *layout,
                             const cpli_shares *shares, cpli_table **out)
{
    holdings list = {0};
    cpl_status status = add_all(layout, shares, &list);
    if (status == CPL_OK) {
        merge(&list);
        status = tabulate_holdings(layout, &list, out);
    }
    cpli_free(list.items);
    return status;
}

/* ---- making one ---- */

static cpl_status solve(const cpl_layout *layout, const cpl_layout *near,
                        const cpli_sweep_options *options, cpli_table **out)
{
    cpl_status status;
    cpli_home *home = NULL;
    cpli_shares *shares = NULL;
    CPL_TRY_GO(cpli_home_create(WHO, near, layout->order, &home), done);
    CPL_TRY_GO(cpli_shares_create(home, &shares), done);
    CPL_TRY_GO(cpli_sweep(shares, options), done);
    CPL_TRY_GO(make_table(layout, shares, out), done);
done:
    cpli_shares_destroy(shares);
    cpli_home_destroy(home);
    return status;
}

static cpl_status tabulate(const cpl_layout *layout,
                           const cpl_layout_options *given, cpli_table **out)
{
    cpl_status status;
    cpli_sweep_options options;
    cpl_layout *flat = NULL;
    int *node = NULL;
    bool is_striped = false;
    CPL_TRY(read_options(layout, given, &options, &is_striped));
    CPL_TRY(find_nodes(layout, options.node_size, is_striped, &node));
    options.node = node;
    if (given->near == NULL)
        CPL_TRY_GO(
            cpl_layout_create("contiguous", layout->stream, given, &flat),
            done);
    status = solve(layout, flat != NULL ? flat : given->near, &options, out);
done:
    cpl_layout_destroy(flat);
    cpli_free(node);
    return status;
}

const cpli_kind cpli_balanced = {
    .name = "balanced",
    .tabulate = tabulate,
};
