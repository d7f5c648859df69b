/*
 * gqa_gather.c: cp_mode "gather". Each rank brings exactly the keys and values
 * that its queries may see, once, and attends to them in one call.
 */
#include "gqa.h"

typedef struct gather_state {
    const cpli_seen *seen; /* the keys that this rank's queries may see */
    cpl_plan *plan;
    cpl_attention_block *blocks, *kernel_blocks; /* one a span; without rows
                                                    where there is room */
    cpl_tensor *keys, *d_keys; /* rows like kv, those of the view, */
    int64_t n_keys;            /* and with room */
    void *workspace;
} gather_state;

/* A search for positions in the runs of a view, which stand in order; those
 * that follow each other are cheap. */
typedef struct finder {
    const cpl_run *runs;
    int64_t n;
    int64_t at, slot; /* the last run, and its first slot */
} finder;

/* The slot at which the view shows a position. */
static int64_t slot_of(finder *f, int64_t position)
{
    if (f->at == f->n || position < f->runs[f->at].start)
        f->at = f->slot = 0;
    while (f->at < f->n &&
           position >= f->runs[f->at].start + f->runs[f->at].length)
        f->slot += f->runs[f->at++].length;
    CPL_ASSERT(f->at < f->n && position >= f->runs[f->at].start);
    return f->slot + position - f->runs[f->at].start;
}

/* A span's queries see their sequence from its start, or as far as the window
 * of the first reaches, to the span's end; the view shows that without gaps. */
static void fill_blocks(const cpli_core *core, finder *keys)
{
    const cpl_place *place = core->layer->place;
    const cpl_stream *stream = cpl_layout_stream(place->layout);
    gather_state *state = core->state;
    for (int64_t i = 0; i < place->n_spans; i++) {
        const cpl_span *span = &place->spans[i];
        int64_t before = span->offset;
        if (core->window > 0)
            before = cpli_min(before, core->window - 1);
        int64_t first = cpl_stream_sequence(stream, span->sequence).start +
                        span->offset - before;
        state->blocks[i] =
            (cpl_attention_block){.q_slot = span->slot,
                                  .n_queries = span->length,
                                  .kv_slot = slot_of(keys, first),
                                  .n_keys = before + span->length,
                                  .n_before = before};
    }
}

static cpl_status make_blocks(const cpli_core *core)
{
    const cpl_place *place = core->layer->place;
    gather_state *state = core->state;
    const cpl_view *view = state->seen->view;
    int64_t n;
    cpl_run *runs;
    CPL_TRY(CPLI_LIST_MAKE(&core->layer->lists, place->n_kernel_spans,
                           &state->blocks));
    CPL_TRY(cpl_view_n_runs(view, place->rank, &n));
    CPL_TRY(CPL_ALLOC(n, &runs));
    cpl_status status = cpl_view_runs(view, place->rank, runs);
    if (status == CPL_OK)
        fill_blocks(core, &(finder){.runs = runs, .n = n});
    cpli_free(runs);
    return status;
}

/* What may fail on one rank before all make the plan. */
static cpl_status begin(cpli_core *core)
{
    gather_state *state;
    CPL_TRY(CPL_ALLOC(1, &state));
    core->state = state;
    return cpli_place_keys(core->layer->place, core->window, &state->seen);
}

static cpl_status prepare(cpli_core *core)
{
    cpl_layer *layer = core->layer;
    cpl_place *place = layer->place;
    int64_t n_keys;
    CPL_TRY(cpl_comm_agree(place->comm, begin(core)));
    gather_state *state = core->state;
    CPL_TRY(cpl_plan_create(state->seen->route, place->comm, layer->dtype,
                            cpli_core_kv_width(core), NULL, &state->plan));
    CPL_TRY(cpl_view_n_local(state->seen->view, place->rank, &n_keys));
    CPL_TRY(make_blocks(core));
    CPL_TRY(CPLI_LIST_SEND(&layer->lists, state->blocks, place->n_kernel_spans,
                           &state->kernel_blocks));
    int64_t width = cpli_core_kv_width(core);
    int64_t room = state->n_keys = cpli_room(place->memory, n_keys);
    const cpli_buffer buffers[] = {
        {&state->keys, n_keys, width, CPLI_KEPT},
        {&state->d_keys, n_keys, width, CPLI_SCRATCH},
    };
    CPL_TRY(cpli_layer_roomy_buffers(layer, buffers,
                                     sizeof buffers / sizeof *buffers, room));
    return cpli_core_workspace(core, place->n_kernel_spans, room,
                               &state->workspace);
}

static void take_blocks(const cpli_core *core, cpl_attention *attention)
{
    const gather_state *state = core->state;
    attention->blocks = state->kernel_blocks;
    attention->n_blocks = core->layer->place->n_kernel_spans;
    attention->n_keys = state->n_keys;
}

static cpl_status forward(cpli_core *core)
{
    gather_state *state = core->state;
    CPL_TRY(cpl_plan_start(state->plan, core->kv, state->keys));
    CPL_TRY(cpl_plan_finish(state->plan));
    CPL_TRY(cpli_check_view(core->layer, state->keys, state->seen->view));
    cpl_attention attention =
        cpli_core_attention(core, state->keys, state->workspace);
    take_blocks(core, &attention);
    core->layer->kernels->attention(&attention);
    return CPL_OK;
}

static cpl_status backward(cpli_core *core)
{
    gather_state *state = core->state;
    cpl_attention_backward attention =
        cpli_core_backward(core, state->keys, state->d_keys, state->workspace);
    take_blocks(core, &attention.forward);
    core->layer->kernels->attention_backward(&attention);
    CPL_TRY(
        cpl_plan_start_adjoint(state->plan, state->d_keys, core->d_kv, false));
    return cpl_plan_finish(state->plan);
}

static void release(cpli_core *core)
{
    gather_state *state = core->state;
    if (state == NULL)
        return;
    cpl_plan_destroy(state->plan);
    cpli_free(state);
}

const gqa_mode cpli_gqa_gather = {
    .name = "gather",
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .release = release,
};
