/* gqa_ring.c: see gqa_ring.h. */
#include "gqa_ring.h"

#include <stdlib.h>

/* Rows of one rank on their way into the shard of its group. */
typedef struct piece {
    cpl_span span; /* padding included */
    int member;
    int64_t slot; /* in the shard */
} piece;

/* The rows of one group. */
typedef struct group_rows {
    piece *pieces; /* in the order of the shard's slots */
    int64_t n_pieces;
    cpl_span *spans; /* real tokens, by sequence, then slot of the shard */
    int64_t n_spans;
    int64_t n_rows;
} group_rows;

/* ---- shards ---- */

static cpl_status collect(const cpl_place *place, int first_rank, int a2a,
                          group_rows *out)
{
    for (int i = 0; i < a2a; i++) {
        cpl_span *spans;
        int64_t n;
        CPL_TRY(
            cpl_layout_spans(place->layout, first_rank + i, false, &spans, &n));
        cpl_status status =
            cpli_realloc((void **)&out->pieces, (size_t)(out->n_pieces + n),
                         sizeof *out->pieces);
        for (int64_t j = 0; j < n && status == CPL_OK; j++) {
            out->pieces[out->n_pieces++] =
                (piece){.span = spans[j], .member = i, .slot = spans[j].slot};
            out->n_rows += spans[j].length;
        }
        cpl_free(spans);
        CPL_TRY(status);
    }
    return CPL_OK;
}

static int compare_pieces(const void *a, const void *b)
{
    const cpl_span *x = &((const piece *)a)->span;
    const cpl_span *y = &((const piece *)b)->span;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void sort_by_position(group_rows *shard)
{
    qsort(shard->pieces, (size_t)shard->n_pieces, sizeof *shard->pieces,
          compare_pieces);
    int64_t slot = 0;
    for (int64_t i = 0; i < shard->n_pieces; i++) {
        shard->pieces[i].slot = slot;
        slot += shard->pieces[i].span.length;
    }
}

static bool follows(const cpl_span *a, const cpl_span *b)
{
    return a->sequence == b->sequence && a->offset + a->length == b->offset &&
           a->slot + a->length == b->slot;
}

static int compare_spans(const void *a, const void *b)
{
    const cpl_span *x = a;
    const cpl_span *y = b;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static cpl_status make_spans(const cpl_stream *stream, group_rows *shard)
{
    CPL_TRY(CPL_ALLOC(shard->n_pieces, &shard->spans));
    for (int64_t i = 0; i < shard->n_pieces; i++) {
        cpl_span span = shard->pieces[i].span;
        int64_t real = cpl_stream_sequence(stream, span.sequence).real;
        span.slot = shard->pieces[i].slot;
        span.length = cpli_min(span.length, real - span.offset);
        int64_t n = shard->n_spans;
        if (span.length <= 0)
            continue;
        if (n > 0 && follows(&shard->spans[n - 1], &span))
            shard->spans[n - 1].length += span.length;
        else
            shard->spans[shard->n_spans++] = span;
    }
    qsort(shard->spans, (size_t)shard->n_spans, sizeof *shard->spans,
          compare_spans);
    return CPL_OK;
}

static cpl_status make_shard(const cpl_place *place, int group, int a2a,
                             group_rows *out)
{
    CPL_TRY(collect(place, group * a2a, a2a, out));
    if (a2a > 1)
        sort_by_position(out);
    return make_spans(cpl_layout_stream(place->layout), out);
}

static void destroy_shards(group_rows *shards, int n)
{
    for (int i = 0; shards != NULL && i < n; i++) {
        cpli_free(shards[i].pieces);
        cpli_free(shards[i].spans);
    }
    cpli_free(shards);
}

/* The positions of a shard's slots; further rows of a tensor hold none. */
static void fill_runs(const cpl_stream *stream, const group_rows *shard,
                      int64_t n_rows, cpl_run *runs)
{
    for (int64_t i = 0; i < shard->n_pieces; i++) {
        const cpl_span *span = &shard->pieces[i].span;
        runs[i].start =
            cpl_stream_sequence(stream, span->sequence).start + span->offset;
        runs[i].length = span->length;
    }
    runs[shard->n_pieces] =
        (cpl_run){.start = -1, .length = n_rows - shard->n_rows};
}

cpl_status cpli_ring_check(const cpl_layer *layer, const cpli_ring *ring,
                           int group, const cpl_tensor *tensor)
{
    const cpl_place *place = layer->place;
    cpl_run *runs = NULL;
    cpl_status status;
    group_rows *shard;
    CPL_TRY(CPL_ALLOC(1, &shard));
    CPL_TRY_GO(collect(place, group * ring->a2a, ring->a2a, shard), end);
    if (ring->a2a > 1)
        sort_by_position(shard);
    CPL_TRY_GO(CPL_ALLOC(shard->n_pieces + 1, &runs), end);
    fill_runs(cpl_layout_stream(place->layout), shard,
              cpl_tensor_n_rows(tensor), runs);
    status = cpli_trace_runs(tensor, runs, shard->n_pieces + 1, place->rank,
                             layer->name);
end:
    cpli_free(runs);
    destroy_shards(shard, 1);
    return status;
}

/* ---- who sees what ---- */

/* Whether some query of `q` sees some key of `k`, a span of its sequence. */
static bool sees_some(const cpl_span *q, const cpl_span *k, int64_t window)
{
    return k->offset < q->offset + q->length &&
           (window == 0 || k->offset + k->length + window > q->offset + 1);
}

static bool sees_all(const cpl_span *q, const cpl_span *k, int64_t window)
{
    return k->offset + k->length <= q->offset + 1 &&
           (window == 0 || k->offset + window >= q->offset + q->length);
}

/* Calls visit for every span of queries and each span of keys that one of them
 * sees; stops when it says so. */
typedef bool (*visit_pair)(void *context, const cpl_span *q, const cpl_span *k);

static void each_pair(const group_rows *queries, const group_rows *keys,
                      int64_t window, visit_pair visit, void *context)
{
    int64_t first = 0; /* key span that may be of the sequence */
    for (int64_t i = 0; i < queries->n_spans; i++) {
        const cpl_span *q = &queries->spans[i];
        while (first < keys->n_spans &&
               keys->spans[first].sequence < q->sequence)
            first++;
        for (int64_t j = first;
             j < keys->n_spans && keys->spans[j].sequence == q->sequence; j++)
            if (sees_some(q, &keys->spans[j], window) &&
                !visit(context, q, &keys->spans[j]))
                return;
    }
}

static bool note(void *context, const cpl_span *q, const cpl_span *k)
{
    (void)q;
    (void)k;
    *(bool *)context = true;
    return false;
}

static bool sees(const group_rows *queries, const group_rows *keys,
                 int64_t window)
{
    bool found = false;
    each_pair(queries, keys, window, note, &found);
    return found;
}

static void find_reach(cpli_ring *ring, const group_rows *shards)
{
    for (int group = 0; group < ring->n_groups; group++)
        for (int step = 1; step < ring->n_groups; step++) {
            const group_rows *queries =
                &shards[(group + step) % ring->n_groups];
            if (!sees(queries, &shards[group], ring->window))
                continue;
            ring->last[group] = step;
            if (ring->first[group] == 0)
                ring->first[group] = step;
        }
}

/* ---- blocks ---- */

typedef struct block_list {
    cpl_attention_block *items; /* NULL: only counted */
    int64_t n;
    int64_t window;
    /* The last block, if its queries see all of its keys: a further span of
     * such keys behind them makes it longer. */
    cpl_attention_block last;
    bool is_whole;
} block_list;

static bool add_pair(void *context, const cpl_span *q, const cpl_span *k)
{
    block_list *list = context;
    cpl_attention_block *last = &list->last;
    bool is_whole = sees_all(q, k, list->window);
    if (is_whole && list->is_whole && last->q_slot == q->slot &&
        last->kv_slot + last->n_keys == k->slot) {
        last->n_keys += k->length;
    } else {
        *last = (cpl_attention_block){.q_slot = q->slot,
                                      .n_queries = q->length,
                                      .kv_slot = k->slot,
                                      .n_keys = k->length,
                                      .n_before = q->offset - k->offset};
        list->n++;
    }
    /* All keys lie in the window of all queries, so this hides none of them. */
    if (is_whole)
        last->n_before = last->n_keys - 1;
    list->is_whole = is_whole;
    if (list->items != NULL)
        list->items[list->n - 1] = *last;
    return true;
}

static int64_t list_blocks(const cpli_ring *ring, const group_rows *shards,
                           int step, cpl_attention_block *items)
{
    block_list list = {.items = items, .window = ring->window};
    int origin = cpli_ring_origin(ring, ring->group, step);
    each_pair(&shards[ring->group], &shards[origin], ring->window, add_pair,
              &list);
    return list.n;
}

/* With room every step has as many blocks, the last ones without rows. */
static void count_blocks(cpli_ring *ring, const group_rows *shards)
{
    for (int step = 0; step < ring->n_groups; step++) {
        ring->turns[step].n_blocks = list_blocks(ring, shards, step, NULL);
        ring->max_blocks =
            cpli_max(ring->max_blocks, ring->turns[step].n_blocks);
    }
    ring->max_blocks = cpli_room(ring->lists.comm, ring->max_blocks);
    if (!cpli_has_room(ring->lists.comm))
        return;
    for (int step = 0; step < ring->n_groups; step++)
        ring->turns[step].n_blocks = ring->max_blocks;
}

static cpl_status make_turns(cpli_ring *ring, const group_rows *shards)
{
    int64_t n = 0;
    count_blocks(ring, shards);
    for (int step = 0; step < ring->n_groups; step++)
        n += ring->turns[step].n_blocks;
    cpl_attention_block *blocks, *sent;
    CPL_TRY(CPLI_LIST_MAKE(&ring->lists, n, &blocks));
    n = 0;
    for (int step = 0; step < ring->n_groups; step++) {
        list_blocks(ring, shards, step, blocks + n);
        n += ring->turns[step].n_blocks;
    }
    CPL_TRY(CPLI_LIST_SEND(&ring->lists, blocks, n, &sent));
    for (int step = 0; step < ring->n_groups; step++) {
        ring->turns[step].blocks = sent;
        sent += ring->turns[step].n_blocks;
    }
    return CPL_OK;
}

/* ---- heads inside the group ---- */

static bool adjoin(const cpl_segment *a, const cpl_segment *b)
{
    return a->peer == b->peer && a->slot + a->length == b->slot &&
           a->peer_slot + a->length == b->peer_slot;
}

static void append(cpl_segment *segments, int64_t *n, cpl_segment segment)
{
    if (*n > 0 && adjoin(&segments[*n - 1], &segment))
        segments[*n - 1].length += segment.length;
    else
        segments[(*n)++] = segment;
}

/* Each member sends its rows to all, slice by slice, in the order of their
 * positions. */
static cpl_status make_spread(const cpl_place *place, cpli_ring *ring,
                              const group_rows *own)
{
    int first_rank = ring->group * ring->a2a;
    int member = place->rank - first_rank;
    CPL_TRY(CPL_ALLOC((ring->a2a + 1) * own->n_pieces, &ring->spread));
    cpl_segment *sends = ring->spread;
    int64_t n_sends = 0;
    for (int i = 0; i < ring->a2a; i++)
        for (int64_t j = 0; j < own->n_pieces; j++) {
            const piece *p = &own->pieces[j];
            if (p->member == member)
                append(sends, &n_sends,
                       (cpl_segment){.peer = first_rank + i,
                                     .slot = i * place->n_rows + p->span.slot,
                                     .peer_slot = p->slot,
                                     .length = p->span.length});
        }
    cpl_segment *receives = sends + n_sends;
    int64_t n_receives = 0;
    for (int i = 0; i < ring->a2a; i++) {
        int64_t n_theirs;
        CPL_TRY(cpl_layout_n_local(place->layout, first_rank + i, &n_theirs));
        for (int64_t j = 0; j < own->n_pieces; j++) {
            const piece *p = &own->pieces[j];
            if (p->member == i)
                append(
                    receives, &n_receives,
                    (cpl_segment){.peer = first_rank + i,
                                  .slot = p->slot,
                                  .peer_slot = member * n_theirs + p->span.slot,
                                  .length = p->span.length});
        }
    }
    ring->part = (cpl_route_part){.sends = sends,
                                  .receives = receives,
                                  .n_sends = n_sends,
                                  .n_receives = n_receives,
                                  .n_source_rows = ring->a2a * place->n_rows,
                                  .n_target_rows = own->n_rows};
    return CPL_OK;
}

/* ---- rings ---- */

static cpl_status fill(const cpl_place *place, cpli_ring *ring)
{
    group_rows *shards;
    cpl_status status;
    CPL_TRY(CPL_ALLOC(ring->n_groups, &ring->n_rows_of));
    CPL_TRY(CPL_ALLOC(ring->n_groups, &ring->turns));
    CPL_TRY(CPL_ALLOC(ring->n_groups, &ring->first));
    CPL_TRY(CPL_ALLOC(ring->n_groups, &ring->last));
    CPL_TRY(CPL_ALLOC(ring->n_groups, &shards));
    for (int i = 0; i < ring->n_groups; i++) {
        CPL_TRY_GO(make_shard(place, i, ring->a2a, &shards[i]), end);
        ring->n_rows_of[i] = shards[i].n_rows;
        ring->max_rows = cpli_max(ring->max_rows, shards[i].n_rows);
    }
    ring->n_rows = shards[ring->group].n_rows;
    find_reach(ring, shards);
    CPL_TRY_GO(make_turns(ring, shards), end);
    CPL_TRY_GO(make_spread(place, ring, &shards[ring->group]), end);
end:
    destroy_shards(shards, ring->n_groups);
    return status;
}

static void destroy(cpli_ring *ring)
{
    cpli_free(ring->n_rows_of);
    cpli_lists_free(&ring->lists);
    cpli_free(ring->turns);
    cpli_free(ring->first);
    cpli_free(ring->last);
    cpli_free(ring->spread);
    cpli_free(ring);
}

void cpli_rings_destroy(cpli_ring *ring)
{
    while (ring != NULL) {
        cpli_ring *next = ring->next;
        destroy(ring);
        ring = next;
    }
}

static cpl_status create(const cpl_place *place, int a2a, int64_t window,
                         cpli_ring **out)
{
    int n_ranks = cpl_layout_n_ranks(place->layout);
    if (a2a < 1 || n_ranks % a2a != 0)
        return cpli_fail(CPL_INVALID,
                         "gqa: %d ranks, not a multiple of a2a = %d", n_ranks,
                         a2a);
    cpli_ring *ring;
    CPL_TRY(CPL_ALLOC(1, &ring));
    ring->a2a = a2a;
    ring->n_groups = n_ranks / a2a;
    ring->group = place->rank / a2a;
    ring->lists.comm = place->memory;
    ring->window = window;
    cpl_status status = fill(place, ring);
    if (status != CPL_OK) {
        destroy(ring);
        return status;
    }
    *out = ring;
    return CPL_OK;
}

cpl_status cpli_place_ring(cpl_place *place, int a2a, int64_t window,
                           const cpli_ring **out)
{
    for (cpli_ring *ring = place->rings; ring != NULL; ring = ring->next)
        if (ring->a2a == a2a && ring->window == window) {
            *out = ring;
            return CPL_OK;
        }
    cpli_ring *ring = NULL;
    CPL_TRY(create(place, a2a, window, &ring));
    ring->next = place->rings;
    place->rings = ring;
    *out = ring;
    return CPL_OK;
}
