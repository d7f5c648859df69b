/*
 * gdn_state.c: the states that sequences enter with and leave, so that a
 * forward over tokens [0, n) equals one over [0, m) and one over [m, n).
 *
 * Of each sequence: the state of the delta rule, and the last conv - 1 rows
 * before the convolution (its tail). A span that begins its sequence enters
 * with that state; a row of a halo that lies before the sequence is a row of
 * the tail. What leaves is written by the rank that holds it and summed over
 * the group, where all others give 0, so that every rank has the states of all
 * sequences and heads, and the next part may run in any layout and mode. (Heads
 * are those of the slice that tensor parallelism gives the layer.) Rank 0
 * speaks for what no rank holds: the state of an empty sequence, the rows of
 * the old tail that are still in the new one.
 */
#include "gdn.h"

bool cpli_gdn_has_states(const gdn_layer *gdn)
{
    return gdn->in.state != NULL || gdn->out.state != NULL;
}

/* ---- what fits ---- */

static int64_t n_sequences(const gdn_layer *gdn)
{
    return cpl_stream_n_sequences(cpl_layout_stream(gdn->base.place->layout));
}

static int64_t tail_rows(const gdn_layer *gdn)
{
    return gdn->config.conv - 1;
}

static cpl_status check_tensor(const gdn_layer *gdn, const char *what,
                               const cpl_tensor *tensor, bool is_needed,
                               int64_t width)
{
    int64_t n = n_sequences(gdn);
    if (tensor == NULL && !is_needed)
        return CPL_OK;
    if (tensor != NULL && tensor->dtype == gdn->base.dtype &&
        cpl_tensor_n_rows(tensor) == n && cpl_tensor_width(tensor) == width)
        return CPL_OK;
    return cpli_fail(
        CPL_MISMATCH,
        "%s: %s must be %s of %lld sequences x %lld, got %s of "
        "%lld x %lld",
        gdn->base.name, what, cpl_dtype_name(gdn->base.dtype), (long long)n,
        (long long)width,
        tensor != NULL ? cpl_dtype_name(tensor->dtype) : "none",
        (long long)(tensor != NULL ? cpl_tensor_n_rows(tensor) : 0),
        (long long)(tensor != NULL ? cpl_tensor_width(tensor) : 0));
}

static cpl_status check_state(const gdn_layer *gdn, const char *what,
                              const cpl_gdn_state *state)
{
    int64_t width = gdn->v_width * gdn->config.key_dim;
    int64_t tail = tail_rows(gdn) * gdn->conv_width;
    if (state->state == NULL)
        return CPL_OK;
    CPL_TRY(check_tensor(gdn, what, state->state, true, width));
    CPL_TRY(check_tensor(gdn, what, state->tail, tail > 0, tail));
    CPL_TRY(check_tensor(gdn, what, state->d_state, false, width));
    return check_tensor(gdn, what, state->d_tail, false, tail);
}

cpl_status cpli_gdn_check_states(const gdn_layer *gdn)
{
    CPL_TRY(check_state(gdn, "the state that comes in", &gdn->in));
    return check_state(gdn, "the state that goes out", &gdn->out);
}

/* ---- where things are ---- */

/* The core's heads of a sequence in a state of all heads of the layer. */
static void *heads_of(const gdn_layer *gdn, const cpl_tensor *states,
                      int64_t sequence)
{
    int64_t size = (int64_t)gdn->config.key_dim * gdn->config.value_dim;
    int64_t first = gdn->core.first_value_head - gdn->first_value_head;
    return cpli_at(&gdn->base, states->data,
                   (sequence * gdn->value_heads + first) * size);
}

/* The same of a span in the core's own states. */
static void *span_state(const gdn_layer *gdn, const cpl_tensor *states,
                        int64_t span)
{
    int64_t size = gdn->core.v_width * gdn->config.key_dim;
    return cpli_at(&gdn->base, states->data, span * size);
}

static size_t state_bytes(const gdn_layer *gdn)
{
    return (size_t)(gdn->core.v_width * gdn->config.key_dim) *
           cpl_dtype_bytes(gdn->base.dtype);
}

static void *tail_row(const gdn_layer *gdn, const cpl_tensor *tails,
                      int64_t sequence, int64_t row)
{
    return cpli_at(&gdn->base, tails->data,
                   (sequence * tail_rows(gdn) + row) * gdn->conv_width);
}

static void *halo_row(const gdn_layer *gdn, const cpl_tensor *halo,
                      int64_t span, int64_t row)
{
    return cpli_at(&gdn->base, halo->data,
                   (span * tail_rows(gdn) + row) * gdn->core.conv_width);
}

static int64_t real_length(const gdn_layer *gdn, int64_t sequence)
{
    return cpl_stream_sequence(cpl_layout_stream(gdn->base.place->layout),
                               sequence)
        .real;
}

static bool does_begin(const cpl_span *span)
{
    return span->offset == 0;
}

static bool does_end(const gdn_layer *gdn, const cpl_span *span)
{
    return span->offset + span->length == real_length(gdn, span->sequence);
}

/* The rows of a span's halo that lie before its sequence: the first few. */
static int64_t rows_before(const gdn_layer *gdn, const cpl_span *span)
{
    return cpli_max(0, tail_rows(gdn) - span->offset);
}

/* ---- rows between all channels and those of the core ---- */

enum direction { TO_OWN, TO_ALL };

/* The target becomes the source, or with `add` gets it added. With
 * `firsts_only` channels of which a lower rank has a copy are left out. */
static void move_row(const gdn_layer *gdn, enum direction direction, bool add,
                     bool firsts_only, void *own, void *all)
{
    const cpl_layer *layer = &gdn->base;
    for (int i = 0; i < GDN_N_SECTIONS; i++) {
        const gdn_section *s = &gdn->core.sections[i];
        void *mine = cpli_at(layer, own, s->own);
        void *whole = cpli_at(layer, all, s->all);
        if (firsts_only && !s->is_first)
            continue;
        layer->kernels->axpby(
            &(cpl_axpby){.x = direction == TO_OWN ? whole : mine,
                         .y = direction == TO_OWN ? mine : whole,
                         .n = s->width,
                         .alpha = 1,
                         .beta = add ? 1 : 0});
    }
}

/* Visits every row before the convolution that a span leaves in a tail: where
 * it lies among `rows` (x or its gradient), and where in the tail. */
typedef void (*visit_row)(const gdn_layer *gdn, void *x, void *tail);

static void each_tail_row(const gdn_layer *gdn, void *rows,
                          const cpl_tensor *tails, visit_row visit)
{
    const gdn_core *core = &gdn->core;
    int64_t n = tail_rows(gdn);
    for (int64_t i = 0; i < core->n_spans; i++) {
        const cpl_span *span = &core->spans[i];
        int64_t first = real_length(gdn, span->sequence) - n;
        int64_t end = span->offset + span->length;
        for (int64_t at = cpli_max(first, span->offset); at < end; at++)
            visit(gdn,
                  cpli_at(&gdn->base, rows,
                          (span->slot + at - span->offset) * core->x_stride),
                  tail_row(gdn, tails, span->sequence, at - first));
    }
}

/* ---- forward ---- */

static void load_tails(const gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    for (int64_t i = 0; i < core->n_spans; i++)
        for (int64_t row = 0; row < rows_before(gdn, &core->spans[i]); row++)
            move_row(gdn, TO_OWN, false, false,
                     halo_row(gdn, core->halo, i, row),
                     tail_row(gdn, gdn->in.tail, core->spans[i].sequence,
                              row + core->spans[i].offset));
}

void cpli_gdn_load_states(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    if (gdn->in.state == NULL)
        return; /* what was zero stays zero */
    for (int64_t i = 0; i < core->n_spans; i++)
        if (does_begin(&core->spans[i]))
            memcpy(span_state(gdn, core->state_in, i),
                   heads_of(gdn, gdn->in.state, core->spans[i].sequence),
                   state_bytes(gdn));
    if (tail_rows(gdn) > 0)
        load_tails(gdn);
}

/* Row `to` of `target` becomes row `from` of `source`, or 0 without one: on
 * rank 0, where `is_kept`; elsewhere it becomes 0. They may be one tensor. */
static void keep_row(const gdn_layer *gdn, bool is_kept,
                     const cpl_tensor *source, int64_t from, cpl_tensor *target,
                     int64_t to, int64_t width)
{
    const cpl_layer *layer = &gdn->base;
    size_t bytes = (size_t)width * cpl_dtype_bytes(layer->dtype);
    void *y = cpli_at(layer, target->data, to * width);
    if (is_kept && source != NULL && layer->place->rank == 0)
        memmove(y, cpli_at(layer, source->data, from * width), bytes);
    else
        memset(y, 0, bytes);
}

/* What passes through: the states of empty sequences, and of a tail the rows
 * that the sequence was too short to replace, each `real` rows further up. */
static void keep_states(const gdn_layer *gdn, const cpl_gdn_state *in,
                        const cpl_gdn_state *out)
{
    int64_t n = tail_rows(gdn);
    int64_t width = gdn->v_width * gdn->config.key_dim;
    for (int64_t i = 0; i < n_sequences(gdn); i++) {
        int64_t real = real_length(gdn, i);
        keep_row(gdn, real == 0, in->state, i, out->state, i, width);
        for (int64_t row = 0; row < n; row++)
            keep_row(gdn, row + real < n, in->tail, i * n + row + real,
                     out->tail, i * n + row, gdn->conv_width);
    }
}

static void store_tail_row(const gdn_layer *gdn, void *x, void *tail)
{
    move_row(gdn, TO_ALL, false, true, x, tail);
}

static cpl_status sum(const gdn_layer *gdn, const cpl_tensor *tensor)
{
    if (tensor == NULL)
        return CPL_OK;
    return cpl_comm_sum(gdn->base.place->comm, tensor->data,
                        cpl_tensor_n_elements(tensor), tensor->dtype);
}

cpl_status cpli_gdn_store_states(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    if (gdn->out.state == NULL)
        return CPL_OK;
    keep_states(gdn, &gdn->in, &gdn->out);
    for (int64_t i = 0; i < core->n_spans; i++)
        if (does_end(gdn, &core->spans[i]))
            memcpy(heads_of(gdn, gdn->out.state, core->spans[i].sequence),
                   span_state(gdn, core->state_out, i), state_bytes(gdn));
    if (tail_rows(gdn) > 0)
        each_tail_row(gdn, core->x, gdn->out.tail, store_tail_row);
    CPL_TRY(sum(gdn, gdn->out.state));
    return sum(gdn, gdn->out.tail);
}

/* ---- backward ---- */

void cpli_gdn_load_state_gradients(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    if (core->d_state_out == NULL)
        return;
    cpl_tensor_fill(core->d_state_out, 0);
    if (gdn->out.state == NULL || gdn->out.d_state == NULL)
        return;
    for (int64_t i = 0; i < core->n_spans; i++)
        if (does_end(gdn, &core->spans[i]))
            memcpy(span_state(gdn, core->d_state_out, i),
                   heads_of(gdn, gdn->out.d_state, core->spans[i].sequence),
                   state_bytes(gdn));
}

static void load_tail_gradient(const gdn_layer *gdn, void *d_x, void *d_tail)
{
    move_row(gdn, TO_OWN, true, true, d_x, d_tail);
}

/* Backwards, what passes through moves `real` rows down. */
static void keep_gradients(const gdn_layer *gdn, const cpl_gdn_state *in,
                           const cpl_gdn_state *out)
{
    int64_t n = tail_rows(gdn);
    int64_t width = gdn->v_width * gdn->config.key_dim;
    for (int64_t i = 0; i < n_sequences(gdn); i++) {
        int64_t real = real_length(gdn, i);
        if (in->d_state != NULL)
            keep_row(gdn, real == 0, out->d_state, i, in->d_state, i, width);
        for (int64_t row = 0; in->d_tail != NULL && row < n; row++)
            keep_row(gdn, row >= real, out->d_tail, i * n + row - real,
                     in->d_tail, i * n + row, gdn->conv_width);
    }
}

static void store_halo_gradients(const gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    for (int64_t i = 0; i < core->n_spans; i++)
        for (int64_t row = 0; row < rows_before(gdn, &core->spans[i]); row++)
            move_row(gdn, TO_ALL, true, false,
                     halo_row(gdn, core->d_halo, i, row),
                     tail_row(gdn, gdn->in.d_tail, core->spans[i].sequence,
                              row + core->spans[i].offset));
}

cpl_status cpli_gdn_store_state_gradients(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    const cpl_tensor *d_state = gdn->in.d_state;
    if (gdn->out.state != NULL && gdn->out.d_tail != NULL)
        each_tail_row(gdn, core->d_x, gdn->out.d_tail, load_tail_gradient);
    keep_gradients(gdn, &gdn->in, &gdn->out);
    for (int64_t i = 0; d_state != NULL && i < core->n_spans; i++)
        if (does_begin(&core->spans[i]))
            memcpy(heads_of(gdn, d_state, core->spans[i].sequence),
                   span_state(gdn, core->d_state_in, i), state_bytes(gdn));
    if (gdn->in.d_tail != NULL)
        store_halo_gradients(gdn);
    CPL_TRY(sum(gdn, d_state));
    return sum(gdn, gdn->in.d_tail);
}

/* ---- the public face ---- */

cpl_status cpl_layer_gdn_state(cpl_layer *layer, const cpl_gdn_state *in,
                               const cpl_gdn_state *out)
{
    if (strcmp(cpl_layer_kind(layer), "gdn") != 0)
        return cpli_fail(CPL_INVALID, "%s: only gdn layers have a state",
                         cpl_layer_kind(layer));
    gdn_layer *gdn = (gdn_layer *)layer;
    gdn->bound_in = in != NULL ? *in : (cpl_gdn_state){0};
    gdn->bound_out = out != NULL ? *out : (cpl_gdn_state){0};
    return CPL_OK;
}
