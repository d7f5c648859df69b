/*
 * hops.c: what the chains of a recurrent layer hand from rank to rank, hop by
 * hop, and how much each rank has to scan for it. Levels, heads and middles are
 * those of cpl_layout_chain; here they are counted for all ranks at once.
 */
#include "trail.h"

/* ---- loads ---- */

static void add_chunks(cpl_chain_load *load, int64_t n, int64_t rows)
{
    load->chunks += n;
    load->squares += n * rows * rows;
    load->cubes += n * rows * rows * rows;
}

static void add_span(cpl_chain_load *load, int64_t length, int64_t chunk)
{
    load->spans++;
    load->rows += length;
    if (length >= chunk)
        add_chunks(load, length / chunk, chunk);
    if (length % chunk > 0)
        add_chunks(load, 1, length % chunk);
}

static void add_loads(const cpli_trail *trail, int64_t chunk,
                      cpl_chain_loads *out)
{
    for (int64_t i = 0; i < trail->n; i++) {
        const cpli_holding *span = &trail->items[i];
        cpl_chain_loads *loads = &out[span->rank];
        bool is_last = i == trail->n - 1;
        add_span(&loads->all, span->length, chunk);
        if (i > 0)
            add_span(&loads->followers, span->length, chunk);
        if (i == 0 && !is_last)
            add_span(&loads->heads, span->length, chunk);
        if (i > 0 && !is_last)
            add_span(&loads->middles, span->length, chunk);
    }
}

/* Adds who holds the `width` rows before each span. */
static void add_halos(const cpli_trail *trail, int64_t width, int n_ranks,
                      int64_t *halo)
{
    for (int64_t i = 1; i < trail->n; i++) {
        int64_t *row = halo + (int64_t)trail->items[i].rank * n_ranks;
        int64_t left = width;
        for (int64_t j = i - 1; j >= 0 && left > 0; j--) {
            int64_t n = cpli_min(left, trail->items[j].length);
            row[trail->items[j].rank] += n;
            left -= n;
        }
    }
}

static cpl_status count_loads(const cpl_layout *layout, int64_t chunk,
                              int64_t width, cpl_chain_loads *loads,
                              int64_t *halo)
{
    cpl_status status = CPL_OK;
    cpli_trail trail = {.lookup = {.layout = layout}};
    for (int64_t i = 0; i < layout->stream->n_sequences; i++) {
        CPL_TRY_GO(cpli_trail_follow(&trail, i), done);
        add_loads(&trail, chunk, loads);
        add_halos(&trail, width, cpl_layout_n_ranks(layout), halo);
    }
done:
    cpli_trail_end(&trail);
    return status;
}

/* Were all chunks as long as the longest can be, their cubes must be numbers.
 */
static cpl_status check_loads(const cpl_layout *layout, int64_t chunk,
                              int64_t width)
{
    const cpl_stream *stream = layout->stream;
    int64_t rows = 0, longest = 0, cubes;
    if (chunk < 1 || width < 0)
        return cpli_fail(CPL_INVALID,
                         "layout.chain_loads: chunk %lld must be >= 1 and "
                         "width %lld >= 0",
                         (long long)chunk, (long long)width);
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        rows += stream->real[i];
        longest = cpli_max(longest, cpli_min(stream->real[i], chunk));
    }
    if (__builtin_mul_overflow(longest, longest, &cubes) ||
        __builtin_mul_overflow(cubes, rows, &cubes))
        return cpli_fail(CPL_INVALID,
                         "layout.chain_loads: the cubes of chunks of %lld rows "
                         "reach 2^63",
                         (long long)longest);
    return CPL_OK;
}

cpl_status cpl_layout_chain_loads(const cpl_layout *layout, int64_t chunk,
                                  int64_t width, cpl_chain_loads *loads,
                                  int64_t *halo)
{
    cpl_status status;
    int64_t n = cpl_layout_n_ranks(layout);
    cpl_chain_loads *my_loads = NULL;
    int64_t *my_halo = NULL;
    CPL_TRY(check_loads(layout, chunk, width));
    CPL_TRY_GO(CPL_ALLOC(n, &my_loads), done);
    CPL_TRY_GO(CPL_ALLOC(n * n, &my_halo), done);
    CPL_TRY_GO(count_loads(layout, chunk, width, my_loads, my_halo), done);
    memcpy(loads, my_loads, (size_t)n * sizeof *loads);
    memcpy(halo, my_halo, (size_t)(n * n) * sizeof *halo);
done:
    cpli_free(my_loads);
    cpli_free(my_halo);
    return status;
}

/* ---- hops ---- */

typedef struct hops {
    cpl_hop *items;
    int64_t n;
    int64_t capacity;
    int64_t last; /* the highest level */
} hops;

static cpl_status add_hops(const cpli_pattern *chain, hops *list)
{
    for (int64_t i = 1; i < chain->n; i++) {
        CPL_TRY(cpli_grow((void **)&list->items, list->n, &list->capacity,
                          sizeof *list->items));
        list->items[list->n++] = (cpl_hop){.level = i,
                                           .from = chain->items[i - 1].rank,
                                           .to = chain->items[i].rank,
                                           .states = chain->times};
        list->last = cpli_max(list->last, i);
    }
    return CPL_OK;
}

static cpl_status list_hops(const cpl_layout *layout, hops *list)
{
    cpl_status status;
    cpli_trail trail = {.lookup = {.layout = layout}};
    cpli_pattern pattern = {0};
    for (int64_t i = 0; i < layout->stream->n_sequences; i++) {
        CPL_TRY_GO(cpli_trail_follow(&trail, i), done);
        if (trail.n < 2 || cpli_pattern_add(&pattern, &trail))
            continue;
        CPL_TRY_GO(add_hops(&pattern, list), done);
        CPL_TRY_GO(cpli_pattern_begin(&pattern, &trail), done);
    }
    CPL_TRY_GO(add_hops(&pattern, list), done);
done:
    cpli_trail_end(&trail);
    cpli_pattern_end(&pattern);
    return status;
}

/* A counting sort by level. */
static cpl_status sort_hops(const hops *list, cpl_hop **out, int64_t **first)
{
    cpl_status status;
    *out = NULL;
    CPL_TRY_GO(CPL_ALLOC(list->last + 2, first), fail);
    CPL_TRY_GO(CPL_ALLOC(list->n, out), fail);
    for (int64_t i = 0; i < list->n; i++)
        (*first)[list->items[i].level + 1]++;
    for (int64_t level = 0; level <= list->last; level++)
        (*first)[level + 1] += (*first)[level];
    for (int64_t i = 0; i < list->n; i++)
        (*out)[(*first)[list->items[i].level]++] = list->items[i];
fail:
    return status;
}

/* Adds up hops of one level between the same ranks; at[from * n_ranks + to] is
 * 1 + where they are. Returns how many are left. */
static int64_t merge_hops(cpl_hop *items, int64_t n, int n_ranks, int64_t *at)
{
    int64_t n_merged = 0, begin = 0;
    for (int64_t i = 0; i < n; i++) {
        cpl_hop hop = items[i];
        int64_t *place = &at[(int64_t)hop.from * n_ranks + hop.to];
        if (i > 0 && hop.level != items[n_merged - 1].level)
            begin = n_merged;
        if (*place > begin) {
            items[*place - 1].states += hop.states;
        } else {
            items[n_merged++] = hop;
            *place = n_merged;
        }
    }
    return n_merged;
}

cpl_status cpl_layout_hops(const cpl_layout *layout, cpl_hop **out,
                           int64_t *n_out)
{
    cpl_status status;
    hops list = {0};
    cpl_hop *sorted = NULL;
    int64_t *first = NULL, *at = NULL;
    int n_ranks = cpl_layout_n_ranks(layout);
    CPL_TRY_GO(list_hops(layout, &list), done);
    CPL_TRY_GO(CPL_ALLOC((int64_t)n_ranks * n_ranks, &at), done);
    CPL_TRY_GO(sort_hops(&list, &sorted, &first), done);
    *n_out = merge_hops(sorted, list.n, n_ranks, at);
    *out = sorted;
    sorted = NULL;
done:
    cpli_free(sorted);
    cpli_free(first);
    cpli_free(at);
    cpli_free(list.items);
    return status;
}
