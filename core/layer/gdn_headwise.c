/*
 * gdn_headwise.c: cp_mode "headwise": the sequence is whole, the heads are cut.
 * One exchange brings each rank q, k, v, b and a of its own heads at all
 * positions, another takes o home; in between nothing else is exchanged. The
 * gated norm acts on each token and head, so z does not travel. What arrives is
 * in the order of positions whatever the layout was. (Megatron-LM,
 * megatron/core/ssm/gated_delta_net, moves z too.)
 *
 * Value heads must divide by the ranks. Key heads must, too, or several ranks
 * share one: then each gets a copy, and the gradients of the copies are added.
 *
 * A slice is what one rank gets of a row: [q | k | v | b | a].
 */
#include "gdn.h"

/* ---- prepare ---- */

static int n_ranks(const gdn_layer *gdn)
{
    return cpl_comm_size(gdn->base.place->comm);
}

static cpl_status check_heads(const gdn_layer *gdn)
{
    int ranks = n_ranks(gdn);
    int key_heads = (int)gdn->key_heads;
    int value_heads = (int)gdn->value_heads;
    if (value_heads % ranks != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: headwise with %d value_heads, not a multiple of "
                         "%d ranks",
                         gdn->base.name, value_heads, ranks);
    if (key_heads % ranks != 0 && ranks % key_heads != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: headwise with %d key_heads, neither a multiple "
                         "nor a divisor of %d ranks",
                         gdn->base.name, key_heads, ranks);
    return CPL_OK;
}

/* The first key head that rank `rank` gets: the one that its first value head
 * uses. */
static int64_t key_head_of(const gdn_layer *gdn, int rank)
{
    int64_t key_heads = gdn->key_heads;
    if (cpl_faults_here()->tile_heads != 0)
        return rank % key_heads;
    return rank * key_heads / n_ranks(gdn);
}

/* The columns that rank `rank` gets. */
static void make_sections(const gdn_layer *gdn, int rank, gdn_section *out)
{
    const gdn_core *core = &gdn->core;
    int ranks = n_ranks(gdn);
    int64_t q = core->q_width;
    int64_t key_at = key_head_of(gdn, rank) * gdn->config.key_dim;
    int64_t value_at = rank * core->v_width;
    bool is_first =
        gdn->key_heads >= ranks || rank % (ranks / gdn->key_heads) == 0;
    out[0] = (gdn_section){0, key_at, q, is_first};
    out[1] = (gdn_section){q, gdn->q_width + key_at, q, is_first};
    out[2] =
        (gdn_section){2 * q, 2 * gdn->q_width + value_at, core->v_width, true};
}

static cpl_status make_spans(gdn_layer *gdn)
{
    const cpl_stream *stream = cpl_layout_stream(gdn->base.place->layout);
    cpli_lists *lists = &gdn->base.lists;
    int64_t n = cpl_stream_n_sequences(stream);
    cpl_span *spans, *sent;
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &spans));
    for (int64_t i = 0; i < n; i++) {
        cpl_sequence sequence = cpl_stream_sequence(stream, i);
        if (sequence.real > 0)
            spans[gdn->core.n_spans++] = (cpl_span){
                .sequence = i, .slot = sequence.start, .length = sequence.real};
    }
    const cpl_span beyond = {.slot = gdn->core.n_rows};
    int64_t room = cpli_room(lists->comm, gdn->core.n_spans);
    CPL_TRY(
        CPLI_LIST_PAD(lists, spans, gdn->core.n_spans, room, &beyond, &sent));
    gdn->core.n_kernel_spans = room;
    gdn->core.spans = spans;
    gdn->core.kernel_spans = sent;
    return CPL_OK;
}

/* All positions, own heads. */
static cpl_status take_core(gdn_layer *gdn)
{
    const cpl_place *place = gdn->base.place;
    int ranks = n_ranks(gdn);
    int64_t key_heads = cpli_max(gdn->key_heads / ranks, 1);
    int64_t value_heads = gdn->value_heads / ranks;
    int64_t q = key_heads * gdn->config.key_dim;
    int64_t v = value_heads * gdn->config.value_dim;
    int64_t conv = 2 * q + v;
    gdn->core = (gdn_core){
        .n_rows = cpl_stream_n_positions(cpl_layout_stream(place->layout)),
        .key_heads = key_heads,
        .value_heads = value_heads,
        .first_value_head = gdn->first_value_head + place->rank * value_heads,
        .q_width = q,
        .v_width = v,
        .conv_width = conv,
        .x_stride = conv + 2 * value_heads,
        .gate_stride = conv + 2 * value_heads};
    make_sections(gdn, place->rank, gdn->core.sections);
    return make_spans(gdn);
}

static cpl_status make_plans(gdn_layer *gdn)
{
    cpl_place *place = gdn->base.place;
    CPL_TRY(cpl_plan_create(gdn->whole->route, place->comm, gdn->base.dtype,
                            gdn->core.x_stride, NULL, &gdn->in_plan));
    return cpl_plan_create(gdn->whole->route, place->comm, gdn->base.dtype,
                           gdn->core.v_width, NULL, &gdn->out_plan);
}

static void join_buffers(gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    gdn_core *core = &gdn->core;
    int64_t b = core->conv_width;
    int64_t a = b + core->value_heads;
    core->x = gdn->inputs->data;
    core->b = cpli_at(layer, core->x, b);
    core->a = cpli_at(layer, core->x, a);
    core->d_x = gdn->d_inputs->data;
    core->d_b = cpli_at(layer, core->d_x, b);
    core->d_a = cpli_at(layer, core->d_x, a);
}

static cpl_status prepare_states(gdn_layer *gdn)
{
    gdn_core *core = &gdn->core;
    int64_t n = core->n_kernel_spans;
    int64_t n_halo = n * (gdn->config.conv - 1);
    int64_t state = core->v_width * gdn->config.key_dim;
    const cpli_buffer buffers[] = {
        {&core->halo, n_halo, core->conv_width, CPLI_KEPT},
        {&core->d_halo, n_halo, core->conv_width, CPLI_SCRATCH},
        {&core->state_in, n, state, CPLI_KEPT | CPLI_WIDE},
        {&core->state_out, n, state, CPLI_SCRATCH | CPLI_WIDE},
        {&core->d_state_in, n, state, CPLI_SCRATCH | CPLI_WIDE},
        {&core->d_state_out, n, state, CPLI_SCRATCH | CPLI_WIDE},
    };
    if (!cpli_gdn_has_states(gdn))
        return CPL_OK;
    return cpli_layer_buffers(&gdn->base, buffers,
                              sizeof buffers / sizeof *buffers);
}

static cpl_status prepare_buffers(gdn_layer *gdn)
{
    cpl_layer *layer = &gdn->base;
    gdn_core *core = &gdn->core;
    int64_t n = layer->n_rows;
    int64_t n_slices = n * n_ranks(gdn);
    int64_t heads = gdn->value_heads;
    int64_t slice = core->x_stride;
    int64_t width = gdn->config.conv;
    const cpli_buffer buffers[] = {
        {&gdn->qkv, n, gdn->conv_width, CPLI_SCRATCH},
        {&gdn->a, n, heads, CPLI_SCRATCH},
        {&gdn->b, n, heads, CPLI_SCRATCH},
        {&gdn->o, n, gdn->v_width, CPLI_KEPT},
        {&gdn->slices, n_slices, slice, CPLI_SCRATCH},
        {&gdn->o_slices, n_slices, core->v_width, CPLI_SCRATCH},
        {&gdn->inputs, core->n_rows, slice, CPLI_KEPT},
        {&gdn->d_inputs, core->n_rows, slice, CPLI_SCRATCH},
        {&core->o, core->n_rows, core->v_width, CPLI_SCRATCH},
        {&core->d_o, core->n_rows, core->v_width, CPLI_SCRATCH},
        {&core->weight, core->conv_width, width, CPLI_KEPT},
        {&core->d_weight, core->conv_width, width, CPLI_SCRATCH | CPLI_WIDE},
        {&gdn->d_qkv, n, gdn->conv_width, CPLI_SCRATCH},
        {&gdn->d_a, n, heads, CPLI_SCRATCH},
        {&gdn->d_b, n, heads, CPLI_SCRATCH},
        {&gdn->d_o, n, gdn->v_width, CPLI_SCRATCH},
    };
    CPL_TRY(
        cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers));
    CPL_TRY(prepare_states(gdn));
    join_buffers(gdn);
    return CPL_OK;
}

static cpl_status prepare(gdn_layer *gdn)
{
    cpl_place *place = gdn->base.place;
    CPL_TRY(check_heads(gdn));
    cpl_status status = take_core(gdn);
    if (status == CPL_OK)
        status = cpli_gdn_check_sizes(gdn);
    if (status == CPL_OK)
        status = cpli_place_whole(place, &gdn->whole);
    CPL_TRY(cpl_comm_agree(place->comm, status));
    CPL_TRY(make_plans(gdn));
    CPL_TRY(cpli_gdn_core_buffers(gdn));
    return prepare_buffers(gdn);
}

static void release(gdn_layer *gdn)
{
    cpl_plan_destroy(gdn->in_plan);
    cpl_plan_destroy(gdn->out_plan);
    gdn->in_plan = gdn->out_plan = NULL;
}

/* ---- slices ---- */

static void move(const gdn_layer *gdn, int64_t width, cpli_columns from,
                 cpli_columns to, bool add)
{
    cpli_move_columns(&gdn->base, gdn->base.n_rows, width, from, to, add);
}

/* Own rows of all heads to slices, one for each rank, or back. Where two ranks
 * got copies of a key head, their gradients are added. */
static void move_slices(const gdn_layer *gdn, bool back, const cpl_tensor *qkv,
                        const cpl_tensor *b, const cpl_tensor *a)
{
    int64_t n = gdn->base.n_rows;
    int64_t heads = gdn->core.value_heads;
    int64_t gates = gdn->core.conv_width;
    for (int rank = 0; rank < n_ranks(gdn); rank++) {
        gdn_section sections[GDN_N_SECTIONS + 2];
        make_sections(gdn, rank, sections);
        sections[3] = (gdn_section){gates, rank * heads, heads, true};
        sections[4] = (gdn_section){gates + heads, rank * heads, heads, true};
        for (int i = 0; i < GDN_N_SECTIONS + 2; i++) {
            const cpl_tensor *all = i < GDN_N_SECTIONS ? qkv : i == 3 ? b : a;
            const gdn_section *s = &sections[i];
            cpli_columns own = cpli_columns_of(gdn->slices, rank * n, s->own);
            cpli_columns home = cpli_columns_of(all, 0, s->all);
            if (back)
                move(gdn, s->width, own, home, !s->is_first);
            else
                move(gdn, s->width, home, own, false);
        }
    }
}

/* The same for o. */
static void move_o_slices(const gdn_layer *gdn, bool back, const cpl_tensor *o)
{
    int64_t n = gdn->base.n_rows;
    int64_t width = gdn->core.v_width;
    for (int rank = 0; rank < n_ranks(gdn); rank++) {
        cpli_columns own = cpli_columns_of(gdn->o_slices, rank * n, 0);
        cpli_columns home = cpli_columns_of(o, 0, rank * width);
        if (back)
            move(gdn, width, own, home, false);
        else
            move(gdn, width, home, own, false);
    }
}

/* Slices hold the rows of x, once for each rank. */
static cpl_status mark_slices(const gdn_layer *gdn, cpl_tensor *slices)
{
    const cpl_tensor *x = gdn->base.x;
    slices->layout = x->layout;
    slices->layout_kind = x->layout_kind;
    return cpli_repeat_trace(slices, x);
}

/* Whether the rows that came back are those that went. */
static cpl_status check_slices(const gdn_layer *gdn, const cpl_tensor *slices)
{
    const cpl_place *place = gdn->base.place;
    int64_t n_runs;
    cpl_run *runs;
    if (slices->trace == NULL)
        return CPL_OK;
    CPL_TRY(cpl_layout_n_runs(place->layout, place->rank, &n_runs));
    CPL_TRY(CPL_ALLOC(n_runs * n_ranks(gdn), &runs));
    cpl_status status = CPL_OK;
    for (int rank = 0; status == CPL_OK && rank < n_ranks(gdn); rank++)
        status =
            cpl_layout_runs(place->layout, place->rank, runs + rank * n_runs);
    if (status == CPL_OK)
        status = cpli_trace_runs(slices, runs, n_runs * n_ranks(gdn),
                                 place->rank, gdn->base.name);
    cpli_free(runs);
    return status;
}

/* ---- the convolution's weight ---- */

static void weight_sections(const gdn_layer *gdn, gdn_section *out)
{
    bool is_first = cpl_faults_here()->first_slice != 0;
    make_sections(gdn, is_first ? 0 : gdn->base.place->rank, out);
}

/* ---- forward ---- */

/* The slices travel while z is projected. */
static cpl_status bring(gdn_layer *gdn, const cpl_tensor *x)
{
    gdn_section sections[GDN_N_SECTIONS];
    weight_sections(gdn, sections);
    cpli_gdn_project(gdn, GDN_QKV_PROJ, x->data, gdn->qkv->data);
    cpli_gdn_project(gdn, GDN_B_PROJ, x->data, gdn->b->data);
    cpli_gdn_project(gdn, GDN_A_PROJ, x->data, gdn->a->data);
    move_slices(gdn, false, gdn->qkv, gdn->b, gdn->a);
    CPL_TRY(mark_slices(gdn, gdn->slices));
    CPL_TRY(cpl_plan_start(gdn->in_plan, gdn->slices, gdn->inputs));
    cpli_gdn_project(gdn, GDN_Z_PROJ, x->data, gdn->z->data);
    cpli_gdn_take_weight(gdn, sections);
    CPL_TRY(cpl_plan_finish(gdn->in_plan));
    return cpli_check_view(&gdn->base, gdn->inputs, gdn->whole->view);
}

/* Every sequence is here from its first token on. */
static cpl_status enter(gdn_layer *gdn, const cpl_gdn *rule)
{
    (void)gdn;
    (void)rule;
    return CPL_OK;
}

static cpl_status give(gdn_layer *gdn)
{
    CPL_TRY(cpl_tensor_mark_like(gdn->core.o, gdn->inputs));
    CPL_TRY(cpl_plan_start_adjoint(gdn->out_plan, gdn->core.o, gdn->o_slices,
                                   false));
    CPL_TRY(cpl_plan_finish(gdn->out_plan));
    CPL_TRY(check_slices(gdn, gdn->o_slices));
    move_o_slices(gdn, true, gdn->o);
    return CPL_OK;
}

/* ---- backward ---- */

static cpl_status give_back(gdn_layer *gdn)
{
    move_o_slices(gdn, false, gdn->d_o);
    CPL_TRY(mark_slices(gdn, gdn->o_slices));
    CPL_TRY(cpl_plan_start(gdn->out_plan, gdn->o_slices, gdn->core.d_o));
    CPL_TRY(cpl_tensor_fill(gdn->core.d_weight, 0));
    CPL_TRY(cpl_plan_finish(gdn->out_plan));
    return cpli_check_view(&gdn->base, gdn->core.d_o, gdn->whole->view);
}

/* The gradients of the slices go home while z is done. */
static cpl_status bring_back(gdn_layer *gdn, void *dx)
{
    gdn_section sections[GDN_N_SECTIONS];
    weight_sections(gdn, sections);
    CPL_TRY(cpl_tensor_mark_like(gdn->d_inputs, gdn->inputs));
    CPL_TRY(cpl_plan_start_adjoint(gdn->in_plan, gdn->d_inputs, gdn->slices,
                                   false));
    cpli_gdn_project_backward(gdn, GDN_Z_PROJ, gdn->d_z->data, dx, false);
    cpli_gdn_give_weight(gdn, sections);
    CPL_TRY(cpl_plan_finish(gdn->in_plan));
    CPL_TRY(check_slices(gdn, gdn->slices));
    move_slices(gdn, true, gdn->d_qkv, gdn->d_b, gdn->d_a);
    cpli_gdn_project_backward(gdn, GDN_B_PROJ, gdn->d_b->data, dx, true);
    cpli_gdn_project_backward(gdn, GDN_A_PROJ, gdn->d_a->data, dx, true);
    cpli_gdn_project_backward(gdn, GDN_QKV_PROJ, gdn->d_qkv->data, dx, true);
    return CPL_OK;
}

const gdn_mode cpli_gdn_headwise = {
    .name = "headwise",
    .prepare = prepare,
    .release = release,
    .bring = bring,
    .enter = enter,
    .give = give,
    .give_back = give_back,
    .enter_back = enter,
    .bring_back = bring_back,
};
