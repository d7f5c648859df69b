/*
 * gdn_chunkwise.c: cp_mode "chunkwise": heads stay, the sequence is cut. The
 * convolution reads its halo through a view, the state walks along the chain of
 * spans, so it is right in any layout. Padding is outside the spans: it gives
 * zeros.
 */
#include "gdn.h"

/* ---- prepare ---- */

static cpl_status take_halo(gdn_layer *gdn, int64_t rows)
{
    gdn_core *core = &gdn->core;
    int64_t room = core->n_kernel_spans * (gdn->config.conv - 1);
    const cpli_buffer buffers[] = {
        {&core->halo, rows, core->conv_width, CPLI_KEPT},
        {&core->d_halo, rows, core->conv_width, CPLI_SCRATCH},
    };
    return cpli_layer_roomy_buffers(&gdn->base, buffers,
                                    sizeof buffers / sizeof *buffers, room);
}

static cpl_status prepare_halo(gdn_layer *gdn)
{
    cpl_layer *layer = &gdn->base;
    cpl_place *place = layer->place;
    int64_t rows;
    if (gdn->config.conv == 1)
        return take_halo(gdn, 0);
    cpl_status status =
        cpli_place_halo(place, gdn->config.conv - 1, &gdn->seen);
    CPL_TRY(cpl_comm_agree(place->comm, status));
    CPL_TRY(cpl_plan_create(gdn->seen->route, place->comm, layer->dtype,
                            gdn->conv_width, NULL, &gdn->halo_plan));
    CPL_TRY(cpl_view_n_local(gdn->seen->view, place->rank, &rows));
    return take_halo(gdn, rows);
}

/* Own rows, all heads: the core's rows are the layer's. */
static void take_core(gdn_layer *gdn)
{
    const cpl_place *place = gdn->base.place;
    int64_t q = gdn->q_width;
    gdn->core = (gdn_core){.spans = place->spans,
                           .kernel_spans = place->kernel_spans,
                           .n_spans = place->n_spans,
                           .n_kernel_spans = place->n_kernel_spans,
                           .n_rows = place->n_rows,
                           .key_heads = gdn->key_heads,
                           .value_heads = gdn->value_heads,
                           .first_value_head = gdn->first_value_head,
                           .q_width = q,
                           .v_width = gdn->v_width,
                           .conv_width = gdn->conv_width,
                           .sections = {{0, 0, q, true},
                                        {q, q, q, true},
                                        {2 * q, 2 * q, gdn->v_width, true}},
                           .x_stride = gdn->conv_width,
                           .gate_stride = gdn->value_heads};
}

static void join_buffers(gdn_layer *gdn)
{
    gdn_core *core = &gdn->core;
    core->x = gdn->qkv->data;
    core->a = gdn->a->data;
    core->b = gdn->b->data;
    core->d_x = gdn->d_qkv->data;
    core->d_a = gdn->d_a->data;
    core->d_b = gdn->d_b->data;
    core->o = gdn->o;
    core->d_o = gdn->d_o;
    core->state_in = gdn->chain.state_in;
    core->state_out = gdn->chain.state_out;
    core->d_state_in = gdn->chain.d_state_in;
    core->d_state_out = gdn->chain.d_state_out;
}

/* A slice of the channels is not together in the parameter. */
static cpl_status prepare_weight(gdn_layer *gdn)
{
    int64_t rows = gdn->conv_width;
    int64_t width = gdn->config.conv;
    const cpli_buffer buffers[] = {
        {&gdn->core.weight, rows, width, CPLI_KEPT},
        {&gdn->core.d_weight, rows, width, CPLI_SCRATCH | CPLI_WIDE},
    };
    if (gdn->base.place->tp == 1)
        return CPL_OK;
    return cpli_layer_buffers(&gdn->base, buffers,
                              sizeof buffers / sizeof *buffers);
}

static cpl_status prepare(gdn_layer *gdn)
{
    cpl_layer *layer = &gdn->base;
    int64_t n = layer->n_rows;
    int64_t heads = gdn->value_heads;
    int64_t conv = gdn->conv_width;
    int64_t v = gdn->v_width;
    take_core(gdn);
    CPL_TRY(cpli_gdn_check_sizes(gdn));
    CPL_TRY(prepare_halo(gdn));
    cpl_gdn sizes = cpli_gdn_rule(gdn);
    CPL_TRY(cpli_chain_prepare(&gdn->chain, layer, &sizes));
    const cpli_buffer buffers[] = {
        {&gdn->qkv, n, conv, CPLI_KEPT},
        {&gdn->a, n, heads, CPLI_KEPT},
        {&gdn->b, n, heads, CPLI_KEPT},
        {&gdn->o, n, v, CPLI_KEPT},
        {&gdn->d_qkv, n, conv, CPLI_SCRATCH},
        {&gdn->d_a, n, heads, CPLI_SCRATCH},
        {&gdn->d_b, n, heads, CPLI_SCRATCH},
        {&gdn->d_o, n, v, CPLI_SCRATCH},
    };
    CPL_TRY(
        cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers));
    CPL_TRY(prepare_weight(gdn));
    CPL_TRY(cpli_gdn_core_buffers(gdn));
    join_buffers(gdn);
    return CPL_OK;
}

static void release(gdn_layer *gdn)
{
    cpli_chain_release(&gdn->chain);
    cpl_plan_destroy(gdn->halo_plan);
    gdn->halo_plan = NULL;
}

/* ---- forward ---- */

/* The halo travels while z, b and a are projected. */
static cpl_status bring(gdn_layer *gdn, const cpl_tensor *x)
{
    cpl_plan *plan = gdn->halo_plan;
    cpli_gdn_project(gdn, GDN_QKV_PROJ, x->data, gdn->qkv->data);
    CPL_TRY(cpl_tensor_mark_like(gdn->qkv, x));
    if (plan != NULL)
        CPL_TRY(cpl_plan_start(plan, gdn->qkv, gdn->core.halo));
    cpli_gdn_project(gdn, GDN_Z_PROJ, x->data, gdn->z->data);
    cpli_gdn_project(gdn, GDN_B_PROJ, x->data, gdn->b->data);
    cpli_gdn_project(gdn, GDN_A_PROJ, x->data, gdn->a->data);
    cpli_gdn_take_weight(gdn, gdn->core.sections);
    if (plan == NULL)
        return CPL_OK;
    CPL_TRY(cpl_plan_finish(plan));
    return cpli_check_view(&gdn->base, gdn->core.halo, gdn->seen->view);
}

static cpl_status enter(gdn_layer *gdn, const cpl_gdn *rule)
{
    return cpli_chain_forward(&gdn->chain, rule);
}

/* o is where the core wrote it. */
static cpl_status give(gdn_layer *gdn)
{
    (void)gdn;
    return CPL_OK;
}

/* ---- backward ---- */

/* So is d_o. */
static cpl_status give_back(gdn_layer *gdn)
{
    if (gdn->core.d_weight == NULL)
        return CPL_OK;
    return cpl_tensor_fill(gdn->core.d_weight, 0);
}

static cpl_status enter_back(gdn_layer *gdn, const cpl_gdn *rule)
{
    return cpli_chain_backward(&gdn->chain, rule, gdn->d_o->data);
}

/* The gradient of the halo goes home while z, b and a are done. */
static cpl_status bring_back(gdn_layer *gdn, void *dx)
{
    cpl_plan *plan = gdn->halo_plan;
    if (plan != NULL)
        CPL_TRY(
            cpl_plan_start_adjoint(plan, gdn->core.d_halo, gdn->d_qkv, true));
    cpli_gdn_project_backward(gdn, GDN_Z_PROJ, gdn->d_z->data, dx, false);
    cpli_gdn_project_backward(gdn, GDN_B_PROJ, gdn->d_b->data, dx, true);
    cpli_gdn_project_backward(gdn, GDN_A_PROJ, gdn->d_a->data, dx, true);
    cpli_gdn_give_weight(gdn, gdn->core.sections);
    if (plan != NULL)
        CPL_TRY(cpl_plan_finish(plan));
    cpli_gdn_project_backward(gdn, GDN_QKV_PROJ, gdn->d_qkv->data, dx, true);
    return CPL_OK;
}

const gdn_mode cpli_gdn_chunkwise = {
    .name = "chunkwise",
    .prepare = prepare,
    .release = release,
    .bring = bring,
    .enter = enter,
    .give = give,
    .give_back = give_back,
    .enter_back = enter_back,
    .bring_back = bring_back,
};
