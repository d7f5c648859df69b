/*
 * gqa_past.c: attention of sequences that go on. Keys stay where they are, on
 * the ranks that made them, and the new queries, which are few, go to all of
 * them: each rank attends to the keys that it holds (those of the new tokens
 * among them), and what it made of a query goes home, with its log-sum-exp,
 * where the parts are merged in rank order. A rank without keys of a sequence
 * gives nothing, lse = -inf. Which keys a query sees follows from positions
 * inside the sequence alone, so any layout of any earlier part is as good as
 * any other, and windows hold.
 */
#include "gqa.h"

enum { MAX_BLOCKS = 64 }; /* in one call of the kernel */

/* The real rows of all ranks, one rank's behind the other's. */
typedef struct all_rows {
    cpl_span *spans; /* slot: among all of them */
    int64_t *slots;  /* of each span, on its rank */
    int64_t n_spans, n_rows;
    int64_t *first;     /* ranks + 1: which spans are a rank's, */
    int64_t *first_row; /* and which rows */
    cpl_run *runs;      /* one a span: their positions in the stream */
} all_rows;

typedef struct gqa_past {
    all_rows all;
    cpl_segment *segments;
    cpli_carrier queries; /* from the rank's rows to all of them */
    cpli_carrier o, lse;  /* from all of them to what each rank made of ours */
    cpli_core inner;      /* all rows, the keys of this rank */
    int64_t n_own;        /* real rows here */
    cpl_tensor *o_parts;  /* [ranks * n_own, heads * V], those of rank r from */
    cpl_tensor *lse_parts; /* [ranks * n_own, heads],     row r * n_own on */
    int64_t *home;         /* the slots of our real rows, for kernels */
    cpl_attention_block *blocks, *sent_blocks; /* MAX_BLOCKS */
    void *workspace;
} gqa_past;

/* ---- prepare ---- */

static int n_ranks_of(const cpl_place *place)
{
    return cpl_comm_size(place->comm);
}

static cpl_status collect_rank(const cpl_place *place, int rank, all_rows *all)
{
    cpl_span *spans;
    int64_t n;
    CPL_TRY(cpl_layout_spans(place->layout, rank, true, &spans, &n));
    size_t total = (size_t)(all->n_spans + n);
    cpl_status status;
    CPL_TRY_GO(cpli_realloc((void **)&all->spans, total, sizeof *all->spans),
               end);
    CPL_TRY_GO(cpli_realloc((void **)&all->slots, total, sizeof *all->slots),
               end);
    for (int64_t i = 0; i < n; i++) {
        cpl_span *span = &all->spans[all->n_spans];
        *span = spans[i];
        span->slot = all->n_rows;
        all->slots[all->n_spans++] = spans[i].slot;
        all->n_rows += spans[i].length;
    }
    all->first[rank + 1] = all->n_spans;
    all->first_row[rank + 1] = all->n_rows;
end:
    cpl_free(spans);
    return status;
}

static cpl_status collect(const cpl_place *place, all_rows *all)
{
    const cpl_stream *stream = cpl_layout_stream(place->layout);
    int size = n_ranks_of(place);
    CPL_TRY(CPL_ALLOC(size + 1, &all->first));
    CPL_TRY(CPL_ALLOC(size + 1, &all->first_row));
    for (int rank = 0; rank < size; rank++)
        CPL_TRY(collect_rank(place, rank, all));
    CPL_TRY(CPL_ALLOC(all->n_spans, &all->runs));
    for (int64_t i = 0; i < all->n_spans; i++) {
        const cpl_span *span = &all->spans[i];
        all->runs[i] = (cpl_run){
            cpl_stream_sequence(stream, span->sequence).start + span->offset,
            span->length};
    }
    return CPL_OK;
}

static int64_t n_real(const all_rows *all, int rank)
{
    return all->first_row[rank + 1] - all->first_row[rank];
}

/* A segment for each span of `rank`, between its rows among all of them, and
 * the same rows elsewhere: where the rank has them (there < 0), or one behind
 * the other from row `there` on. */
static cpl_segment *add(const all_rows *all, int rank, int peer, bool is_all,
                        int64_t there, cpl_segment *out)
{
    for (int64_t i = all->first[rank]; i < all->first[rank + 1]; i++) {
        int64_t slot = all->spans[i].slot;
        int64_t other =
            there < 0 ? all->slots[i] : there + slot - all->first_row[rank];
        *out++ = (cpl_segment){.peer = peer,
                               .position = all->runs[i].start,
                               .slot = is_all ? slot : other,
                               .peer_slot = is_all ? other : slot,
                               .length = all->spans[i].length};
    }
    return out;
}

/* Queries go out, and what each rank made of them comes home. */
static cpl_status make_carriers(cpli_core *core, gqa_past *past)
{
    const cpl_place *place = core->layer->place;
    const all_rows *all = &past->all;
    int size = n_ranks_of(place);
    int64_t own = all->first[place->rank + 1] - all->first[place->rank];
    CPL_TRY(CPL_ALLOC(2 * (size * own + all->n_spans), &past->segments));
    cpl_segment *out = past->segments, *in = out + size * own;
    cpl_segment *back = in + all->n_spans, *home = back + all->n_spans;
    const cpl_route_part to_all = {.sends = out,
                                   .receives = in,
                                   .n_sends = size * own,
                                   .n_receives = all->n_spans,
                                   .n_source_rows = place->n_rows,
                                   .n_target_rows = all->n_rows};
    const cpl_route_part to_home = {.sends = back,
                                    .receives = home,
                                    .n_sends = all->n_spans,
                                    .n_receives = size * own,
                                    .n_source_rows = all->n_rows,
                                    .n_target_rows = size * past->n_own};
    for (int r = 0; r < size; r++) {
        out = add(all, place->rank, r, false, -1, out);
        in = add(all, r, r, true, -1, in);
        back = add(all, r, r, true, place->rank * n_real(all, r), back);
        home = add(all, place->rank, r, false, r * past->n_own, home);
    }
    cpl_layer *layer = core->layer;
    int64_t width = core->heads * core->key_dim;
    CPL_TRY(cpli_carrier_create(layer, &to_all, layer->dtype, width,
                                &past->queries));
    width = core->heads * core->value_dim;
    CPL_TRY(
        cpli_carrier_create(layer, &to_home, layer->dtype, width, &past->o));
    return cpli_carrier_create(layer, &to_home, layer->wide, core->heads,
                               &past->lse);
}

/* The slots of our rows, and room for the blocks of a call. */
static cpl_status make_lists(cpli_core *core, gqa_past *past)
{
    const cpl_place *place = core->layer->place;
    cpli_lists *lists = &core->layer->lists;
    int64_t *slots;
    int64_t n = 0;
    CPL_TRY(CPLI_LIST_MAKE(lists, past->n_own, &slots));
    for (int64_t i = 0; i < place->n_spans; i++)
        for (int64_t j = 0; j < place->spans[i].length; j++)
            slots[n++] = place->spans[i].slot + j;
    CPL_TRY(CPLI_LIST_SEND(lists, slots, n, &past->home));
    CPL_TRY(CPLI_LIST_MAKE(lists, MAX_BLOCKS, &past->blocks));
    return CPLI_LIST_ROOM(lists, past->blocks, MAX_BLOCKS, &past->sent_blocks);
}

static cpl_status make_buffers(cpli_core *core, gqa_past *past)
{
    cpli_core *inner = &past->inner;
    *inner = *core;
    inner->n_rows = past->all.n_rows;
    inner->state = NULL;
    int64_t n = inner->n_rows;
    int64_t parts = n_ranks_of(core->layer->place) * past->n_own;
    int64_t width = core->heads * core->value_dim;
    const cpli_buffer buffers[] = {
        {&inner->q, n, core->heads * core->key_dim, CPLI_SCRATCH},
        {&inner->o, n, width, CPLI_SCRATCH},
        {&inner->lse, n, core->heads, CPLI_SCRATCH | CPLI_WIDE},
        {&past->o_parts, parts, width, CPLI_SCRATCH},
        {&past->lse_parts, parts, core->heads, CPLI_SCRATCH | CPLI_WIDE},
    };
    CPL_TRY(cpli_layer_buffers(core->layer, buffers,
                               sizeof buffers / sizeof *buffers));
    return cpli_core_workspace(inner, MAX_BLOCKS,
                               cpl_tensor_n_rows(core->layer->cache->rows),
                               &past->workspace);
}

static cpl_status fill(cpli_core *core, gqa_past *past)
{
    const cpl_place *place = core->layer->place;
    CPL_TRY(collect(place, &past->all));
    past->n_own = n_real(&past->all, place->rank);
    CPL_TRY(make_carriers(core, past));
    CPL_TRY(make_lists(core, past));
    return make_buffers(core, past);
}

cpl_status cpli_past_create(cpli_core *core, gqa_past **out)
{
    gqa_past *past;
    CPL_TRY(CPL_ALLOC(1, &past));
    *out = past; /* half made, it is released with the layer */
    return fill(core, past);
}

void cpli_past_destroy(gqa_past *past)
{
    if (past == NULL)
        return;
    cpli_carrier_destroy(&past->queries);
    cpli_carrier_destroy(&past->o);
    cpli_carrier_destroy(&past->lse);
    cpli_free(past->segments);
    cpli_free(past->all.runs);
    cpli_free(past->all.first_row);
    cpli_free(past->all.first);
    cpli_free(past->all.slots);
    cpli_free(past->all.spans);
    cpli_free(past);
}

/* ---- forward ---- */

static cpl_status bring_queries(cpli_core *core, bool traced)
{
    gqa_past *past = core->past;
    cpl_tensor *queries = past->inner.q;
    const cpl_layer *layer = core->layer;
    if (traced)
        CPL_TRY(cpl_tensor_mark_like(core->q, core->kv));
    CPL_TRY(cpli_carrier_start(&past->queries, core->q, queries, traced));
    CPL_TRY(cpli_carrier_finish(&past->queries));
    if (traced && queries->trace != NULL)
        return cpli_trace_runs(queries, past->all.runs, past->all.n_spans,
                               layer->place->rank, layer->name);
    return CPL_OK;
}

/* Whether some of the queries, from position `at` on, see some of the keys. */
static bool sees_some(const cpli_core *core, int64_t at, int64_t n_queries,
                      const cpli_kv_run *keys)
{
    return keys->position < at + n_queries &&
           (core->window == 0 ||
            keys->position + keys->length + core->window > at + 1);
}

static cpl_status flush(const cpli_core *core, cpl_attention *attention)
{
    const cpl_layer *layer = core->layer;
    const gqa_past *past = core->past;
    CPL_TRY(CPLI_LIST_RESEND(&layer->lists, past->sent_blocks, past->blocks,
                             attention->n_blocks));
    layer->kernels->attention(attention);
    attention->n_blocks = 0;
    attention->accumulate = true;
    return CPL_OK;
}

/* Visits all runs of keys of every span of queries; blocks go on from each
 * other, in as many calls as it takes. */
static cpl_status attend(const cpli_core *core)
{
    const gqa_past *past = core->past;
    const cpl_kv_cache *cache = core->layer->cache;
    cpl_attention attention =
        cpli_core_attention(&past->inner, cache->rows, past->workspace);
    attention.blocks = past->sent_blocks;
    for (int64_t i = 0; i < past->all.n_spans; i++) {
        const cpl_span *span = &past->all.spans[i];
        const cpli_kv_run *runs = cpli_kv_runs(cache, span->sequence);
        int64_t at = cache->seen[span->sequence] + span->offset;
        for (int64_t j = 0; j < cache->n_runs[span->sequence]; j++) {
            if (!sees_some(core, at, span->length, &runs[j]))
                continue;
            if (attention.n_blocks == MAX_BLOCKS)
                CPL_TRY(flush(core, &attention));
            past->blocks[attention.n_blocks++] =
                (cpl_attention_block){.q_slot = span->slot,
                                      .n_queries = span->length,
                                      .kv_slot = runs[j].slot,
                                      .n_keys = runs[j].length,
                                      .n_before = at - runs[j].position};
        }
    }
    return flush(core, &attention);
}

/* What came home must be of our rows, rank by rank. */
static cpl_status check_home(const cpli_core *core)
{
    const cpl_place *place = core->layer->place;
    const gqa_past *past = core->past;
    int64_t first = past->all.first[place->rank];
    int64_t n = past->all.first[place->rank + 1] - first;
    cpl_tensor part = *past->o_parts;
    if (part.trace == NULL)
        return CPL_OK;
    part.shape[0] = past->n_own;
    for (int r = 0; r < n_ranks_of(place); r++) {
        part.trace = past->o_parts->trace + r * past->n_own;
        CPL_TRY(cpli_trace_runs(&part, past->all.runs + first, n, place->rank,
                                core->layer->name));
    }
    return CPL_OK;
}

static cpl_status bring_home(const cpli_core *core, bool traced)
{
    gqa_past *past = core->past;
    if (traced && past->inner.q->trace != NULL)
        CPL_TRY(cpl_tensor_mark_like(past->inner.o, past->inner.q));
    CPL_TRY(cpli_carrier_start(&past->o, past->inner.o, past->o_parts, traced));
    CPL_TRY(cpli_carrier_finish(&past->o));
    CPL_TRY(cpli_carrier_start(&past->lse, past->inner.lse, past->lse_parts,
                               false));
    CPL_TRY(cpli_carrier_finish(&past->lse));
    return traced ? check_home(core) : CPL_OK;
}

/* What rank `from` made of our rows joins what rank `to` made of them. */
static void merge_part(const cpli_core *core, int from, int to)
{
    const cpl_layer *layer = core->layer;
    const gqa_past *past = core->past;
    int64_t heads = past->n_own * core->heads;
    const void *o = past->o_parts->data;
    const void *lse = past->lse_parts->data;
    layer->kernels->merge(
        &(cpl_merge){.o = cpli_at(layer, o, to * heads * core->value_dim),
                     .lse = cpli_at_wide(layer, lse, to * heads),
                     .o_b = cpli_at(layer, o, from * heads * core->value_dim),
                     .lse_b = cpli_at_wide(layer, lse, from * heads),
                     .n_rows = past->n_own,
                     .heads = core->heads,
                     .width = core->value_dim});
}

/* In rank order. */
static cpl_status merge_parts(const cpli_core *core)
{
    const cpl_layer *layer = core->layer;
    const gqa_past *past = core->past;
    int size = n_ranks_of(layer->place);
    int first = cpl_faults_here()->drop_partial != 0 && size > 1 ? 1 : 0;
    int64_t width = core->heads * core->value_dim;
    for (int rank = first + 1; rank < size; rank++)
        merge_part(core, rank, first);
    CPL_TRY(cpl_tensor_fill(core->o, 0)); /* rows of padding */
    layer->kernels->move_rows(&(cpl_move_rows){
        .x = cpli_at(layer, past->o_parts->data, first * past->n_own * width),
        .y = core->o->data,
        .to = past->home,
        .n = past->n_own,
        .width = width,
        .x_stride = width,
        .y_stride = width});
    return CPL_OK;
}

cpl_status cpli_past_forward(cpli_core *core)
{
    bool traced = core->kv->trace != NULL;
    CPL_TRY(bring_queries(core, traced));
    CPL_TRY(attend(core));
    CPL_TRY(bring_home(core, traced));
    return merge_parts(core);
}
