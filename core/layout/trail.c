/* trail.c: see trail.h. */
#include "trail.h"

static bool continues(const cpli_trail *trail, int rank, int64_t slot)
{
    if (trail->n == 0)
        return false;
    const cpli_holding *last = &trail->items[trail->n - 1];
    return last->rank == rank && last->slot + last->length == slot;
}

/* Appends the part of a holding that begins at p and ends before `end`. */
static cpl_status append(cpli_trail *trail, const cpli_holding *found,
                         int64_t p, int64_t end)
{
    int64_t slot = found->slot + p - found->start;
    int64_t stop = cpli_min(end, found->start + found->length);
    if (continues(trail, found->rank, slot)) {
        trail->items[trail->n - 1].length += stop - p;
        return CPL_OK;
    }
    CPL_TRY(cpli_grow((void **)&trail->items, trail->n, &trail->capacity,
                      sizeof *trail->items));
    trail->items[trail->n++] = (cpli_holding){found->rank, p, slot, stop - p};
    return CPL_OK;
}

cpl_status cpli_trail_follow(cpli_trail *trail, int64_t sequence)
{
    const cpl_stream *stream = trail->lookup.layout->stream;
    int64_t start = stream->cu[sequence];
    int64_t end = start + stream->real[sequence];
    trail->n = 0;
    for (int64_t p = start; p < end;) {
        const cpli_holding *found = cpli_lookup_find(&trail->lookup, p);
        CPL_TRY(append(trail, found, p, end));
        p = trail->items[trail->n - 1].start +
            trail->items[trail->n - 1].length;
    }
    for (int64_t i = 0; i < trail->n; i++)
        trail->items[i].start -= start;
    return CPL_OK;
}

void cpli_trail_end(cpli_trail *trail)
{
    cpli_free(trail->items);
    *trail = (cpli_trail){0};
}

/* ---- patterns ---- */

/* A trail whose spans are no multiples of its first counts in rows. */
static int64_t unit_of(const cpli_trail *trail)
{
    int64_t unit = trail->items[0].length;
    for (int64_t i = 1; i < trail->n; i++)
        if (trail->items[i].length % unit != 0)
            return 1;
    return unit;
}

static void add_unit(cpli_pattern *pattern, int64_t unit)
{
    pattern->times++;
    pattern->sum += unit;
    pattern->sum2 += unit * unit;
}

bool cpli_pattern_add(cpli_pattern *pattern, const cpli_trail *trail)
{
    if (pattern->n != trail->n || trail->n == 0)
        return false;
    int64_t first = pattern->items[0].length;
    int64_t unit = trail->items[0].length / first;
    for (int64_t i = 0; i < trail->n; i++)
        if (trail->items[i].rank != pattern->items[i].rank ||
            trail->items[i].length != unit * pattern->items[i].length)
            return false;
    add_unit(pattern, unit);
    return true;
}

cpl_status cpli_pattern_begin(cpli_pattern *pattern, const cpli_trail *trail)
{
    pattern->times = pattern->sum = pattern->sum2 = 0;
    for (pattern->n = 0; pattern->n < trail->n; pattern->n++) {
        CPL_TRY(cpli_grow((void **)&pattern->items, pattern->n,
                          &pattern->capacity, sizeof *pattern->items));
        pattern->items[pattern->n] = trail->items[pattern->n];
    }
    int64_t unit = unit_of(trail);
    for (int64_t i = 0; i < pattern->n; i++)
        pattern->items[i].length /= unit;
    add_unit(pattern, unit);
    return CPL_OK;
}

void cpli_pattern_end(cpli_pattern *pattern)
{
    cpli_free(pattern->items);
    *pattern = (cpli_pattern){0};
}
