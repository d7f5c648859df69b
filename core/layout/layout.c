/*
 * layout.c: making a layout of a kind, and the questions that every layout
 * answers. A kind in closed form speaks of CP ranks; here each CP rank's rows
 * are cut into tp equal windows, and logical ranks become group ranks.
 */
#include <inttypes.h>
#include <stdio.h>

#include "layout.h"

enum { MAX_RANKS = 1 << 20 };

static const cpli_kind *const kinds[] = {
#define X(name) &cpli_##name,
    CPLI_KINDS(X)
#undef X
        NULL,
};

const cpli_kind *cpli_kind_at(int i)
{
    return kinds[i];
}

const char *cpl_layout_kinds(void)
{
#define X(name) " " #name
    return &(CPLI_KINDS(X))[1];
#undef X
}

/* ---- create ---- */

static const cpli_kind *find_kind(const char *name)
{
    for (int i = 0; kinds[i] != NULL; i++)
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i];
    return NULL;
}

static cpl_status check_group(const cpl_layout *layout)
{
    int cp = layout->cp, tp = layout->tp;
    if (cp < 1 || tp < 1 || (int64_t)cp * tp > MAX_RANKS)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: cp and tp must be >= 1 and cp*tp <= %d "
                         "(got cp = %d, tp = %d)",
                         layout->kind->name, MAX_RANKS, cp, tp);
    return CPL_OK;
}

static cpl_status set_windows(cpl_layout *layout)
{
    CPL_TRY(layout->kind->check(layout));
    layout->cp_local = cpl_stream_n_positions(layout->stream) / layout->cp;
    if (layout->cp_local % layout->tp != 0)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: a CP rank has %" PRId64
                         " rows, not a multiple of tp = %d",
                         layout->kind->name, layout->cp_local, layout->tp);
    layout->window = layout->cp_local / layout->tp;
    return CPL_OK;
}

static cpl_status describe(cpl_layout *layout)
{
    char tp[32] = "";
    if (layout->tp > 1)
        snprintf(tp, sizeof tp, ", tp %d", layout->tp);
    const char *reordered = "";
    for (int i = 0; i < layout->cp * layout->tp; i++)
        if (layout->order[i] != i)
            reordered = ", reordered";
    return cpli_text(&layout->text, "%s, cp %d%s%s, %s", layout->kind->name,
                     layout->cp, tp, reordered,
                     cpl_stream_describe(layout->stream));
}

static cpl_status fill(cpl_layout *layout, const cpl_layout_options *options)
{
    CPL_TRY(check_group(layout));
    if (layout->kind->tabulate == NULL)
        CPL_TRY(set_windows(layout));
    CPL_TRY(cpli_layout_set_order(layout, options));
    if (layout->kind->tabulate != NULL)
        CPL_TRY(layout->kind->tabulate(layout, options, &layout->table));
    CPL_TRY(describe(layout));
    return cpli_layout_identify(layout, &layout->digest);
}

cpl_status cpl_layout_create(const char *kind, const cpl_stream *stream,
                             const cpl_layout_options *options,
                             cpl_layout **out)
{
    static const cpl_layout_options defaults;
    const cpli_kind *found = find_kind(kind);
    cpl_layout *layout;
    if (found == NULL)
        return cpli_fail(CPL_INVALID,
                         "layout: unknown kind \"%s\"; the kinds are: %s", kind,
                         cpl_layout_kinds());
    if (stream->is_columns)
        return cpli_fail(CPL_INVALID,
                         "layout.%s: lay out the sbhd stream, and take the "
                         "columns of that, not %s",
                         kind, stream->text);
    if (options == NULL)
        options = &defaults;
    CPL_TRY(CPL_ALLOC(1, &layout));
    layout->kind = found;
    layout->stream = stream;
    layout->cp = options->cp == 0 ? 1 : options->cp;
    layout->tp = options->tp == 0 ? 1 : options->tp;
    layout->block = options->block == 0 ? 1 : options->block;
    cpl_status status = fill(layout, options);
    if (status != CPL_OK) {
        cpl_layout_destroy(layout);
        return status;
    }
    *out = layout;
    return CPL_OK;
}

void cpl_layout_destroy(cpl_layout *layout)
{
    if (layout == NULL)
        return;
    cpli_free(layout->text);
    cpli_free(layout->logical);
    cpli_free(layout->cp_order);
    cpli_free(layout->order);
    cpli_table_destroy(layout->table);
    cpli_free(layout);
}

/* ---- getters ---- */

const char *cpl_layout_kind(const cpl_layout *layout)
{
    return layout->kind->name;
}

const cpl_stream *cpl_layout_stream(const cpl_layout *layout)
{
    return layout->stream;
}

int cpl_layout_cp(const cpl_layout *layout)
{
    return layout->cp;
}

int cpl_layout_tp(const cpl_layout *layout)
{
    return layout->tp;
}

int cpl_layout_n_ranks(const cpl_layout *layout)
{
    return layout->cp * layout->tp;
}

const int *cpl_layout_order(const cpl_layout *layout)
{
    return layout->cp_order;
}

uint64_t cpl_layout_digest(const cpl_layout *layout)
{
    return layout->digest;
}

bool cpl_layout_equal(const cpl_layout *a, const cpl_layout *b)
{
    return a->digest == b->digest;
}

const char *cpl_layout_describe(const cpl_layout *layout)
{
    return layout->text;
}

/* ---- questions ---- */

cpl_status cpli_check_rank(const cpl_layout *layout, int rank, const char *who)
{
    int n = cpl_layout_n_ranks(layout);
    if (rank < 0 || rank >= n)
        return cpli_fail(CPL_INVALID, "%s: rank %d is not in 0 .. %d", who,
                         rank, n - 1);
    return CPL_OK;
}

cpl_status cpl_layout_n_local(const cpl_layout *layout, int rank, int64_t *out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.n_local"));
    *out = cpli_n_local(layout, rank);
    return CPL_OK;
}

cpl_status cpl_layout_n_runs(const cpl_layout *layout, int rank, int64_t *out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.n_runs"));
    cpli_walk walk = cpli_walk_begin(layout, rank);
    cpli_holding run;
    int64_t n = 0;
    while (cpli_walk_next(&walk, &run))
        n++;
    *out = n;
    return CPL_OK;
}

cpl_status cpl_layout_runs(const cpl_layout *layout, int rank, cpl_run *out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.runs"));
    cpli_walk walk = cpli_walk_begin(layout, rank);
    cpli_holding run;
    while (cpli_walk_next(&walk, &run))
        *out++ = (cpl_run){run.start, run.length};
    return CPL_OK;
}

cpl_status cpl_layout_positions(const cpl_layout *layout, int rank,
                                int64_t *out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.positions"));
    cpli_walk walk = cpli_walk_begin(layout, rank);
    cpli_holding run;
    while (cpli_walk_next(&walk, &run))
        for (int64_t i = 0; i < run.length; i++)
            *out++ = run.start + i;
    return CPL_OK;
}

cpl_status cpl_layout_position(const cpl_layout *layout, int rank, int64_t slot,
                               int64_t *out)
{
    CPL_TRY(cpli_check_rank(layout, rank, "layout.position"));
    int64_t n_local = cpli_n_local(layout, rank);
    if (slot < 0 || slot >= n_local)
        return cpli_fail(CPL_INVALID,
                         "layout.position: rank %d has no slot %" PRId64
                         ", it holds %" PRId64 " rows",
                         rank, slot, n_local);
    cpli_cursor at = {0};
    cpli_holding holding;
    cpli_at_slot(layout, rank, slot, &at, &holding);
    *out = holding.start + slot - holding.slot;
    return CPL_OK;
}

cpl_status cpl_layout_locate(const cpl_layout *layout, int64_t position,
                             int *rank, int64_t *slot)
{
    int64_t n = cpl_stream_n_positions(layout->stream);
    if (position < 0 || position >= n)
        return cpli_fail(CPL_INVALID,
                         "layout.locate: position %" PRId64
                         " is not in the stream of %" PRId64,
                         position, n);
    cpli_cursor at = {0};
    cpli_holding holding;
    cpli_at_position(layout, position, &at, &holding);
    *rank = holding.rank;
    *slot = holding.slot + position - holding.start;
    return CPL_OK;
}
