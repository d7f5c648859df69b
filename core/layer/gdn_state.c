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
                               int64_t width, cpl_dtype dtype)
{
    int64_t n = n_sequences(gdn);
    if (tensor == NULL && !is_needed)
        return CPL_OK;
    if (tensor != NULL && tensor->dtype == dtype &&
        cpl_tensor_n_rows(tensor) == n && cpl_tensor_width(tensor) == width)
        return CPL_OK;
    return cpli_fail(
        CPL_MISMATCH,
        "%s: %s must be %s of %lld sequences x %lld, got %s of "
        "%lld x %lld",
        gdn->base.name, what, cpl_dtype_name(dtype), (long long)n,
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
    cpl_dtype dtype = gdn->base.dtype;
    cpl_dtype wide = gdn->base.wide;
    if (state->state == NULL)
        return CPL_OK;
    CPL_TRY(check_tensor(gdn, what, state->state, true, width, wide));
    CPL_TRY(check_tensor(gdn, what, state->tail, tail > 0, tail, dtype));
    CPL_TRY(check_tensor(gdn, what, state->d_state, false, width, wide));
    return check_tensor(gdn, what, state->d_tail, false, tail, dtype);
}

cpl_status cpli_gdn_check_states(const gdn_layer *gdn)
{
    CPL_TRY(check_state(gdn, "the state that comes in", &gdn->in));
    return check_state(gdn, "the state that goes out", &gdn->out);
}

/* ---- prepare: which rows move ---- */

static int64_t real_length(const gdn_layer *gdn, int64_t sequence)
{
    return cpl_stream_sequence(cpl_layout_stream(gdn->base.place->layout),
                               sequence)
        .real;
}

static bool does_begin(const gdn_layer *gdn, const cpl_span *span)
{
    (void)gdn;
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

/* Takes the lists of a pairing of n rows; what fills them sends them. */
static cpl_status make_pairs(gdn_layer *gdn, int64_t n, gdn_pairs *out)
{
    cpli_lists *lists = &gdn->base.lists;
    out->n = n;
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &out->own));
    return CPLI_LIST_MAKE(lists, n, &out->all);
}

static cpl_status send_pairs(gdn_layer *gdn, gdn_pairs *pairs)
{
    cpli_lists *lists = &gdn->base.lists;
    CPL_TRY(CPLI_LIST_SEND(lists, pairs->own, pairs->n, &pairs->own));
    return CPLI_LIST_SEND(lists, pairs->all, pairs->n, &pairs->all);
}

/* Spans, and the sequences that they begin or end. */
static cpl_status
pair_states(gdn_layer *gdn, bool (*is_one)(const gdn_layer *, const cpl_span *),
            gdn_pairs *out)
{
    const gdn_core *core = &gdn->core;
    int64_t n = 0;
    for (int64_t i = 0; i < core->n_spans; i++)
        n += is_one(gdn, &core->spans[i]);
    CPL_TRY(make_pairs(gdn, n, out));
    n = 0;
    for (int64_t i = 0; i < core->n_spans; i++)
        if (is_one(gdn, &core->spans[i])) {
            out->own[n] = i;
            out->all[n++] = core->spans[i].sequence;
        }
    return send_pairs(gdn, out);
}

/* The first row of a sequence's tail that a span leaves, and how many. */
static int64_t tail_of(const gdn_layer *gdn, const cpl_span *span,
                       int64_t *first)
{
    int64_t begin = real_length(gdn, span->sequence) - tail_rows(gdn);
    int64_t at = cpli_max(begin, span->offset);
    *first = at - begin;
    return cpli_max(0, span->offset + span->length - at);
}

/* Rows before the convolution that spans leave in tails. */
static cpl_status pair_tails(gdn_layer *gdn, gdn_pairs *out)
{
    const gdn_core *core = &gdn->core;
    int64_t n = 0;
    int64_t first;
    for (int64_t i = 0; i < core->n_spans; i++)
        n += tail_of(gdn, &core->spans[i], &first);
    CPL_TRY(make_pairs(gdn, n, out));
    n = 0;
    for (int64_t i = 0; i < core->n_spans; i++) {
        const cpl_span *span = &core->spans[i];
        int64_t rows = tail_of(gdn, span, &first);
        for (int64_t j = 0; j < rows; j++) {
            out->own[n] = span->slot + span->length - rows + j;
            out->all[n++] = span->sequence * tail_rows(gdn) + first + j;
        }
    }
    return send_pairs(gdn, out);
}

/* Rows of halos, and of the tails that they are, of the spans at one offset in
 * their sequence. Spans at two offsets may see the same row of a tail. */
static cpl_status pair_halos(gdn_layer *gdn, int64_t offset, gdn_pairs *out)
{
    const gdn_core *core = &gdn->core;
    int64_t n = 0;
    for (int64_t i = 0; i < core->n_spans; i++)
        if (core->spans[i].offset == offset)
            n += rows_before(gdn, &core->spans[i]);
    CPL_TRY(make_pairs(gdn, n, out));
    n = 0;
    for (int64_t i = 0; i < core->n_spans; i++) {
        const cpl_span *span = &core->spans[i];
        if (span->offset != offset)
            continue;
        for (int64_t row = 0; row < rows_before(gdn, span); row++) {
            out->own[n] = i * tail_rows(gdn) + row;
            out->all[n++] = span->sequence * tail_rows(gdn) + row + offset;
        }
    }
    return send_pairs(gdn, out);
}

/* What passes through on rank 0: the states of empty sequences, and of a tail
 * the rows that the sequence was too short to replace, `real` rows further up;
 * backwards they move down. All else becomes 0 (-1). */
static cpl_status list_kept(gdn_layer *gdn, gdn_state_moves *moves)
{
    cpli_lists *lists = &gdn->base.lists;
    int64_t n = n_sequences(gdn);
    int64_t rows = tail_rows(gdn);
    bool is_first = gdn->base.place->rank == 0;
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &moves->kept));
    CPL_TRY(CPLI_LIST_MAKE(lists, n * rows, &moves->kept_up));
    CPL_TRY(CPLI_LIST_MAKE(lists, n * rows, &moves->kept_down));
    for (int64_t i = 0; i < n; i++) {
        int64_t real = real_length(gdn, i);
        moves->kept[i] = is_first && real == 0 ? i : -1;
        for (int64_t row = i * rows; row < (i + 1) * rows; row++) {
            bool goes_up = is_first && row + real < (i + 1) * rows;
            bool goes_down = is_first && row - real >= i * rows;
            moves->kept_up[row] = goes_up ? row + real : -1;
            moves->kept_down[row] = goes_down ? row - real : -1;
        }
    }
    CPL_TRY(CPLI_LIST_SEND(lists, moves->kept, n, &moves->kept));
    CPL_TRY(CPLI_LIST_SEND(lists, moves->kept_up, n * rows, &moves->kept_up));
    return CPLI_LIST_SEND(lists, moves->kept_down, n * rows, &moves->kept_down);
}

cpl_status cpli_gdn_list_states(gdn_layer *gdn)
{
    gdn_state_moves *moves = &gdn->moves;
    int64_t rows = tail_rows(gdn);
    const cpli_buffer kept = {&moves->kept_tail, n_sequences(gdn) * rows,
                              gdn->conv_width, CPLI_SCRATCH};
    *moves = (gdn_state_moves){0};
    if (!cpli_gdn_has_states(gdn))
        return CPL_OK;
    CPL_TRY(pair_states(gdn, does_begin, &moves->begins));
    CPL_TRY(pair_states(gdn, does_end, &moves->ends));
    CPL_TRY(pair_tails(gdn, &moves->tails));
    CPL_TRY(CPLI_LIST_MAKE(&gdn->base.lists, rows, &moves->halos));
    for (int64_t offset = 0; offset < rows; offset++)
        CPL_TRY(pair_halos(gdn, offset, &moves->halos[offset]));
    CPL_TRY(list_kept(gdn, moves));
    return cpli_layer_buffers(&gdn->base, &kept, 1);
}

cpl_status cpli_gdn_prepare_sums(gdn_layer *gdn)
{
    cpl_comm *comm = gdn->base.place->comm;
    int64_t n = n_sequences(gdn);
    int64_t tail = n * tail_rows(gdn) * gdn->conv_width;
    int64_t state = n * gdn->v_width * gdn->config.key_dim;
    if (!cpli_gdn_has_states(gdn))
        return CPL_OK;
    CPL_TRY(cpl_sum_create(comm, gdn->base.wide, state, &gdn->moves.state_sum));
    if (tail_rows(gdn) == 0)
        return CPL_OK;
    return cpl_sum_create(comm, gdn->base.dtype, tail, &gdn->moves.tail_sum);
}

void cpli_gdn_release_states(gdn_layer *gdn)
{
    cpl_sum_destroy(gdn->moves.state_sum);
    cpl_sum_destroy(gdn->moves.tail_sum);
    gdn->moves = (gdn_state_moves){0};
}

/* ---- moving ---- */

enum direction { TO_OWN, TO_ALL };

/* States of the core's spans, and its heads' in those of sequences, which have
 * all heads of the layer. */
static void move_states(const gdn_layer *gdn, enum direction direction,
                        const gdn_pairs *pairs, const cpl_tensor *own,
                        const cpl_tensor *all)
{
    const cpl_layer *layer = &gdn->base;
    int64_t size = (int64_t)gdn->config.key_dim * gdn->config.value_dim;
    int64_t first = gdn->core.first_value_head - gdn->first_value_head;
    void *heads = cpli_at_wide(layer, all->data, first * size);
    bool is_own = direction == TO_OWN;
    cpl_move_rows p = {.n = pairs->n, .width = gdn->core.value_heads * size};
    p.x = is_own ? heads : own->data;
    p.y = is_own ? own->data : heads;
    p.from = is_own ? pairs->all : pairs->own;
    p.to = is_own ? pairs->own : pairs->all;
    p.x_stride = is_own ? gdn->value_heads * size : p.width;
    p.y_stride = is_own ? p.width : gdn->value_heads * size;
    layer->wide_kernels->move_rows(&p);
}

/* Rows of the core's channels, and of all channels, in tails. The target
 * becomes the source, or with `add` gets it added; with `firsts_only` channels
 * of which a lower rank has a copy are left out. */
static void move_channels(const gdn_layer *gdn, enum direction direction,
                          bool add, bool firsts_only, const gdn_pairs *pairs,
                          cpli_columns own, const cpl_tensor *tails)
{
    const cpl_layer *layer = &gdn->base;
    bool is_own = direction == TO_OWN;
    for (int i = 0; i < GDN_N_SECTIONS; i++) {
        const gdn_section *s = &gdn->core.sections[i];
        void *mine = cpli_at(layer, own.data, s->own);
        void *whole = cpli_at(layer, tails->data, s->all);
        if (firsts_only && !s->is_first)
            continue;
        layer->kernels->move_rows(
            &(cpl_move_rows){.x = is_own ? whole : mine,
                             .y = is_own ? mine : whole,
                             .from = is_own ? pairs->all : pairs->own,
                             .to = is_own ? pairs->own : pairs->all,
                             .n = pairs->n,
                             .width = s->width,
                             .x_stride = is_own ? gdn->conv_width : own.stride,
                             .y_stride = is_own ? own.stride : gdn->conv_width,
                             .add = add});
    }
}

static void move_halos(const gdn_layer *gdn, enum direction direction, bool add,
                       const cpl_tensor *halo, const cpl_tensor *tails)
{
    cpli_columns own = cpli_columns_of(halo, 0, 0);
    for (int64_t offset = 0; offset < tail_rows(gdn); offset++)
        move_channels(gdn, direction, add, false, &gdn->moves.halos[offset],
                      own, tails);
}

/* The states that pass through; without a source they are 0. */
static cpl_status keep_states(const gdn_layer *gdn, const cpl_tensor *source,
                              cpl_tensor *target)
{
    int64_t width = gdn->v_width * gdn->config.key_dim;
    if (source == NULL)
        return cpl_tensor_fill(target, 0);
    cpli_move_wide_rows(&gdn->base, n_sequences(gdn), width, source->data,
                        gdn->moves.kept, target->data, NULL);
    return CPL_OK;
}

/* The same of tails, which may be one tensor: rows of it move. */
static cpl_status keep_tails(const gdn_layer *gdn, const cpl_tensor *source,
                             const int64_t *from, cpl_tensor *target)
{
    const cpl_layer *layer = &gdn->base;
    const cpl_tensor *kept = gdn->moves.kept_tail;
    if (source == NULL)
        return cpl_tensor_fill(target, 0);
    layer->kernels->move_rows(&(cpl_move_rows){.x = source->data,
                                               .y = kept->data,
                                               .from = from,
                                               .n = cpl_tensor_n_rows(kept),
                                               .width = gdn->conv_width,
                                               .x_stride = gdn->conv_width,
                                               .y_stride = gdn->conv_width});
    layer->kernels->axpby(&(cpl_axpby){.x = kept->data,
                                       .y = target->data,
                                       .n = cpl_tensor_n_elements(kept),
                                       .alpha = 1});
    return CPL_OK;
}

/* ---- forward ---- */

void cpli_gdn_load_states(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    if (gdn->in.state == NULL)
        return; /* what was zero stays zero */
    move_states(gdn, TO_OWN, &gdn->moves.begins, core->state_in, gdn->in.state);
    if (tail_rows(gdn) > 0)
        move_halos(gdn, TO_OWN, false, core->halo, gdn->in.tail);
}

static cpl_status store_tails(const gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    if (tail_rows(gdn) == 0)
        return CPL_OK;
    CPL_TRY(keep_tails(gdn, gdn->in.tail, gdn->moves.kept_up, gdn->out.tail));
    move_channels(gdn, TO_ALL, false, true, &gdn->moves.tails,
                  (cpli_columns){core->x, core->x_stride}, gdn->out.tail);
    return cpl_sum_execute(gdn->moves.tail_sum, gdn->out.tail);
}

cpl_status cpli_gdn_store_states(gdn_layer *gdn)
{
    if (gdn->out.state == NULL)
        return CPL_OK;
    CPL_TRY(keep_states(gdn, gdn->in.state, gdn->out.state));
    move_states(gdn, TO_ALL, &gdn->moves.ends, gdn->core.state_out,
                gdn->out.state);
    CPL_TRY(cpl_sum_execute(gdn->moves.state_sum, gdn->out.state));
    return store_tails(gdn);
}

/* ---- backward ---- */

cpl_status cpli_gdn_load_state_gradients(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    if (core->d_state_out == NULL)
        return CPL_OK;
    CPL_TRY(cpl_tensor_fill(core->d_state_out, 0));
    if (gdn->out.state != NULL && gdn->out.d_state != NULL)
        move_states(gdn, TO_OWN, &gdn->moves.ends, core->d_state_out,
                    gdn->out.d_state);
    return CPL_OK;
}

static cpl_status store_tail_gradients(const gdn_layer *gdn)
{
    cpl_tensor *d_tail = gdn->in.d_tail;
    if (d_tail == NULL)
        return CPL_OK;
    CPL_TRY(keep_tails(gdn, gdn->out.d_tail, gdn->moves.kept_down, d_tail));
    move_halos(gdn, TO_ALL, true, gdn->core.d_halo, d_tail);
    return cpl_sum_execute(gdn->moves.tail_sum, d_tail);
}

cpl_status cpli_gdn_store_state_gradients(gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    cpl_tensor *d_state = gdn->in.d_state;
    if (gdn->out.state != NULL && gdn->out.d_tail != NULL)
        move_channels(gdn, TO_OWN, true, true, &gdn->moves.tails,
                      (cpli_columns){core->d_x, core->x_stride},
                      gdn->out.d_tail);
    if (d_state != NULL) {
        CPL_TRY(keep_states(gdn, gdn->out.d_state, d_state));
        move_states(gdn, TO_ALL, &gdn->moves.begins, core->d_state_in, d_state);
        CPL_TRY(cpl_sum_execute(gdn->moves.state_sum, d_state));
    }
    return store_tail_gradients(gdn);
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
