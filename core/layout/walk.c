/*
 * walk.c: the holdings of a layout one after the other, by slot or by
 * position. They are fetched some at a time; here the windows of tensor
 * parallelism are cut out of a CP rank's holdings, and shards become ranks.
 */
#include "layout.h"

/* ---- tables ---- */

static bool holds(const cpli_holding *holding, bool by_slot, int64_t key)
{
    int64_t start = by_slot ? holding->slot : holding->start;
    return key >= start && key < start + holding->length;
}

/* The holding among the sorted first .. end-1 whose keys hold `key`. */
static int64_t table_find(const cpli_holding *holdings, int64_t first,
                          int64_t end, bool by_slot, int64_t key,
                          cpli_cursor *at)
{
    int64_t low = first, high = end;
    for (int64_t i = at->index; i >= first && i < end && i <= at->index + 1;
         i++)
        if (holds(&holdings[i], by_slot, key))
            return at->index = i;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        int64_t start =
            by_slot ? holdings[middle].slot : holdings[middle].start;
        if (start <= key)
            low = middle;
        else
            high = middle;
    }
    return at->index = low;
}

static int table_list(const cpli_holding *holdings, int64_t first, int64_t end,
                      bool by_slot, int64_t key, cpli_cursor *at,
                      cpli_holding *out, int max)
{
    int64_t i = table_find(holdings, first, end, by_slot, key, at);
    int n = (int)cpli_min(max, end - i);
    memcpy(out, holdings + i, (size_t)n * sizeof *out);
    at->index = i + n - 1;
    return n;
}

/* ---- fetching ---- */

/* Cuts a CP rank's holding down to the window of its slot `slot`. */
static void clip(const cpl_layout *layout, int64_t slot, cpli_holding *holding)
{
    int tp_rank = (int)(slot / layout->window);
    int64_t first = tp_rank * layout->window;
    int64_t low = cpli_max(holding->slot, first);
    int64_t high =
        cpli_min(holding->slot + holding->length, first + layout->window);
    holding->rank = holding->rank * layout->tp + tp_rank;
    holding->start += low - holding->slot;
    holding->slot = low - first;
    holding->length = high - low;
}

int cpli_by_position(const cpl_layout *layout, int64_t position,
                     cpli_cursor *at, cpli_holding *out, int max)
{
    const cpli_table *table = layout->table;
    if (layout->positions != NULL)
        return cpli_columns_by_position(layout, position, at, out, max);
    if (table != NULL)
        return table_list(table->by_position, 0, table->n_holdings, false,
                          position, at, out, max);
    /* A window may end inside a holding, so with windows one at a time. */
    if (layout->tp > 1) {
        layout->kind->by_position(layout, position, at, out, 1);
        clip(layout, out->slot + position - out->start, out);
        out->rank = layout->order[out->rank];
        return 1;
    }
    int n = layout->kind->by_position(layout, position, at, out, max);
    for (int i = 0; i < n; i++)
        out[i].rank = layout->order[out[i].rank];
    return n;
}

int cpli_by_slot(const cpl_layout *layout, int rank, int64_t slot,
                 cpli_cursor *at, cpli_holding *out, int max)
{
    const cpli_table *table = layout->table;
    if (layout->positions != NULL)
        return cpli_columns_by_slot(layout, rank, slot, at, out, max);
    if (table != NULL)
        return table_list(table->by_slot, table->first[rank],
                          table->first[rank + 1], true, slot, at, out, max);
    int shard = layout->logical[rank] / layout->tp;
    int64_t first = layout->logical[rank] % layout->tp * layout->window;
    int n = layout->kind->by_slot(layout, shard, first + slot, at, out, max);
    int n_mine = 0;
    while (n_mine < n && out[n_mine].slot < first + layout->window) {
        cpli_holding *holding = &out[n_mine++];
        if (layout->tp > 1)
            clip(layout, cpli_max(holding->slot, first), holding);
        holding->rank = rank;
    }
    return n_mine;
}

void cpli_at_position(const cpl_layout *layout, int64_t position,
                      cpli_cursor *at, cpli_holding *out)
{
    cpli_by_position(layout, position, at, out, 1);
}

void cpli_at_slot(const cpl_layout *layout, int rank, int64_t slot,
                  cpli_cursor *at, cpli_holding *out)
{
    cpli_by_slot(layout, rank, slot, at, out, 1);
}

cpli_holding cpli_stretch(const cpl_layout *layout, int64_t position,
                          int64_t end, cpli_cursor *at)
{
    cpli_holding stretch, next;
    cpli_at_position(layout, position, at, &stretch);
    stretch.slot += position - stretch.start;
    stretch.length -= position - stretch.start;
    stretch.start = position;
    while (stretch.start + stretch.length < end) {
        int64_t next_start = stretch.start + stretch.length;
        cpli_at_position(layout, next_start, at, &next);
        int64_t next_slot = next.slot + next_start - next.start;
        if (next.rank != stretch.rank ||
            next_slot != stretch.slot + stretch.length)
            break;
        stretch.length += next.start + next.length - next_start;
    }
    stretch.length = cpli_min(stretch.length, end - position);
    return stretch;
}

int64_t cpli_n_local(const cpl_layout *layout, int rank)
{
    const cpli_table *table = layout->table;
    if (layout->positions != NULL)
        return layout->stream->n_sequences *
               cpli_n_local(layout->positions, rank);
    if (table == NULL)
        return layout->window;
    int64_t end = table->first[rank + 1];
    if (end == table->first[rank])
        return 0;
    return table->by_slot[end - 1].slot + table->by_slot[end - 1].length;
}

/* ---- walks ---- */

cpli_walk cpli_walk_begin(const cpl_layout *layout, int rank)
{
    cpli_walk walk; /* what has not been fetched needs no value */
    walk.layout = layout;
    walk.rank = rank;
    walk.n_local = cpli_n_local(layout, rank);
    walk.slot = 0;
    walk.at = (cpli_cursor){0};
    walk.next = walk.n = 0;
    return walk;
}

bool cpli_walk_fetch(cpli_walk *walk)
{
    if (walk->slot >= walk->n_local)
        return false;
    walk->n = cpli_by_slot(walk->layout, walk->rank, walk->slot, &walk->at,
                           walk->ahead, CPLI_AHEAD);
    walk->next = 0;
    const cpli_holding *last = &walk->ahead[walk->n - 1];
    walk->slot = last->slot + last->length;
    return true;
}

bool cpli_walk_next(cpli_walk *walk, cpli_holding *run)
{
    if (walk->next == walk->n && !cpli_walk_fetch(walk))
        return false;
    *run = walk->ahead[walk->next++];
    for (;;) {
        if (walk->next == walk->n && !cpli_walk_fetch(walk))
            return true;
        const cpli_holding *ahead = &walk->ahead[walk->next];
        if (ahead->start != run->start + run->length)
            return true;
        run->length += ahead->length;
        walk->next++;
    }
}

/* ---- lookups ---- */

const cpli_holding *cpli_lookup_fetch(cpli_lookup *lookup, int64_t position)
{
    /* Only a walk that goes on wants more than one. */
    int max = 1;
    if (lookup->n > 0) {
        const cpli_holding *last = &lookup->ahead[lookup->n - 1];
        if (position == last->start + last->length)
            max = CPLI_AHEAD;
    }
    lookup->n = cpli_by_position(lookup->layout, position, &lookup->at,
                                 lookup->ahead, max);
    lookup->next = 0;
    return lookup->ahead;
}
