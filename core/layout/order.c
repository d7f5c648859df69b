/*
 * order.c: which rank holds which shard of a layout in closed form. A *shard*
 * is what the kind gives to one CP rank; `order` says which CP rank holds it,
 * `group_order` which group rank a logical rank is. An order may be given, or
 * be found: the one under which the fewest rows are on another rank than in
 * the layout `near`.
 */
#include <inttypes.h>

#include "layout.h"

/*
 * What a row costs that is on another rank than in `near`. Inside its node it
 * costs less: about as much less as the links inside a node are faster than
 * those between nodes (NVLink 4 carries 360 to 400 GB/s, 400 Gb/s InfiniBand
 * 46). Without nodes every such row costs the same.
 */
enum { COST_IN_NODE = 1, COST_ACROSS = 8 };

/* ---- permutations ---- */

/* How messages speak of a permutation. */
typedef struct wording {
    const char *name;  /* the option */
    const char *which; /* what it is of */
    const char *both;  /* two of those are both ... */
} wording;

static const wording of_group = {"group_order", "logical rank", "group rank"};
static const wording of_shards = {"order", "shard", "on CP rank"};

/* Copies a permutation of 0 .. n-1; NULL is the identity. */
static cpl_status permute(const char *kind, const wording *words,
                          const int *given, int n, int *out)
{
    int *owner; /* 1 + the index of each value; 0: none yet */
    cpl_status status = CPL_ALLOC(n, &owner);
    if (status != CPL_OK)
        return status;
    for (int i = 0; i < n && status == CPL_OK; i++) {
        int rank = given != NULL ? given[i] : i;
        if (rank < 0 || rank >= n)
            status = cpli_fail(CPL_INVALID,
                               "layout.%s: %s of %s %d is %d, not in 0 .. %d",
                               kind, words->name, words->which, i, rank, n - 1);
        else if (owner[rank] > 0)
            status = cpli_fail(CPL_INVALID,
                               "layout.%s: %s must be a permutation, but %ss "
                               "%d and %d are both %s %d",
                               kind, words->name, words->which, owner[rank] - 1,
                               i, words->both, rank);
        else
            owner[out[i] = rank] = i + 1;
    }
    cpli_free(owner);
    return status;
}

/* ---- the cost of giving a shard to a rank ---- */

typedef struct overlaps {
    const cpl_layout *layout; /* its order: shards in their own ranks */
    const cpl_layout *near;
    const int *group;   /* logical rank -> group rank */
    const int *logical; /* and back */
    int node_size;      /* 0: there are no nodes */
    int64_t *saved;     /* [shard * cp + CP rank], against all rows crossing */
    int64_t *in_node;   /* [(shard * tp + window) * n_nodes + node], rows */
} overlaps;

static int n_nodes(const overlaps *o)
{
    int n = cpl_layout_n_ranks(o->layout);
    return o->node_size == 0 ? 0 : (int)cpli_ceil_div(n, o->node_size);
}

/* Notes that a row count of window `index` lies on group rank `rank`. */
static void note(overlaps *o, int index, int rank, int64_t rows)
{
    int cp = o->layout->cp, tp = o->layout->tp;
    int cost = o->node_size > 0 ? COST_IN_NODE : COST_ACROSS;
    if (o->logical[rank] % tp == index % tp)
        o->saved[(int64_t)(index / tp) * cp + o->logical[rank] / tp] +=
            cost * rows;
    if (o->node_size > 0)
        o->in_node[(int64_t)index * n_nodes(o) + rank / o->node_size] += rows;
}

/* Cuts the runs of every window into what each rank of `near` holds. */
static void note_all(overlaps *o)
{
    for (int index = 0; index < cpl_layout_n_ranks(o->layout); index++) {
        cpli_walk walk = cpli_walk_begin(o->layout, index);
        cpli_lookup lookup = {.layout = o->near};
        cpli_holding run;
        while (cpli_walk_next(&walk, &run)) {
            int64_t end = run.start + run.length;
            for (int64_t p = run.start; p < end;) {
                const cpli_holding *there = cpli_lookup_find(&lookup, p);
                int64_t stop = cpli_min(end, there->start + there->length);
                note(o, index, there->rank, stop - p);
                p = stop;
            }
        }
    }
}

/* Adds what rows save that stay in their node, then turns all into costs. */
static void price(overlaps *o)
{
    int cp = o->layout->cp, tp = o->layout->tp;
    for (int shard = 0; shard < cp; shard++)
        for (int rank = 0; rank < cp; rank++) {
            int64_t saved = o->saved[(int64_t)shard * cp + rank];
            for (int t = 0; t < tp && o->node_size > 0; t++) {
                int node = o->group[rank * tp + t] / o->node_size;
                saved +=
                    (COST_ACROSS - COST_IN_NODE) *
                    o->in_node[((int64_t)shard * tp + t) * n_nodes(o) + node];
            }
            o->saved[(int64_t)shard * cp + rank] =
                COST_ACROSS * o->layout->cp_local - saved;
        }
}

static cpl_status check_near(const cpl_layout *layout, const cpl_layout *near,
                             int node_size)
{
    const char *kind = layout->kind->name;
    if (layout->stream->digest != near->stream->digest)
        return cpli_fail(CPL_MISMATCH,
                         "layout.%s: near is %s, a layout of another stream "
                         "than %s",
                         kind, near->text, layout->stream->text);
    if (layout->cp != near->cp || layout->tp != near->tp)
        return cpli_fail(CPL_MISMATCH,
                         "layout.%s: near is %s, of another group than cp %d, "
                         "tp %d",
                         kind, near->text, layout->cp, layout->tp);
    if (node_size < 0)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: node_size must be >= 1 (got %d)", kind,
                         node_size);
    if (layout->cp > CPLI_MAX_ASSIGNED)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: an order is found for cp <= %d (got %d)",
                         kind, CPLI_MAX_ASSIGNED, layout->cp);
    return CPL_OK;
}

/* Writes the best cp_order; layout->logical is the inverse of group. */
static cpl_status find(cpl_layout *layout, const cpl_layout_options *options,
                       const int *group, int *logical)
{
    cpl_status status;
    int n = layout->cp * layout->tp;
    CPL_TRY(check_near(layout, options->near, options->node_size));
    overlaps o = {
        .layout = layout,
        .near = options->near,
        .group = group,
        .logical = logical,
        .node_size = options->node_size,
    };
    CPL_TRY_GO(CPL_ALLOC((int64_t)layout->cp * layout->cp, &o.saved), done);
    CPL_TRY_GO(CPL_ALLOC((int64_t)n * n_nodes(&o), &o.in_node), done);
    note_all(&o);
    price(&o);
    status = cpl_assign(layout->cp, o.saved, layout->cp_order);
done:
    cpli_free(o.in_node);
    cpli_free(o.saved);
    return status;
}

/* ---- the order of a layout ---- */

static void invert(const int *permutation, int n, int *out)
{
    for (int i = 0; i < n; i++)
        out[permutation[i]] = i;
}

/* Fills cp_order, by search while order and logical are the identity. */
static cpl_status set_cp_order(cpl_layout *layout,
                               const cpl_layout_options *options,
                               const int *group)
{
    int n = layout->cp * layout->tp;
    const char *kind = layout->kind->name;
    CPL_TRY(permute(kind, &of_shards, options->order, layout->cp,
                    layout->cp_order));
    if (layout->kind->tabulate != NULL || options->near == NULL)
        return CPL_OK;
    if (options->order != NULL)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: an order is either given or found near "
                         "another layout",
                         kind);
    int *logical;
    CPL_TRY(CPL_ALLOC(n, &logical));
    invert(group, n, logical);
    cpl_status status = find(layout, options, group, logical);
    cpli_free(logical);
    return status;
}

cpl_status cpli_layout_set_order(cpl_layout *layout,
                                 const cpl_layout_options *options)
{
    int cp = layout->cp, tp = layout->tp, n = cp * tp;
    const char *kind = layout->kind->name;
    if (layout->kind->tabulate != NULL && options->order != NULL)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: takes no order; its runs are those of "
                         "the ranks",
                         kind);
    int *group;
    CPL_TRY(CPL_ALLOC(n, &layout->order));
    CPL_TRY(CPL_ALLOC(n, &layout->logical));
    CPL_TRY(CPL_ALLOC(cp, &layout->cp_order));
    CPL_TRY(CPL_ALLOC(n, &group));
    cpl_status status =
        permute(kind, &of_group, options->group_order, n, group);
    if (status == CPL_OK) {
        for (int i = 0; i < n; i++)
            layout->order[i] = layout->logical[i] = i;
        status = set_cp_order(layout, options, group);
    }
    for (int i = 0; i < n && status == CPL_OK; i++)
        layout->order[i] = group[layout->cp_order[i / tp] * tp + i % tp];
    if (status == CPL_OK)
        invert(layout->order, n, layout->logical);
    cpli_free(group);
    return status;
}
