/*
 * gdn_core.c: what looks back along a sequence: causal depthwise convolution
 * and SiLU over q, k, v; l2norm of q and k; gates; the delta rule. It works on
 * the rows and heads of `core`, wherever they came from.
 */
#include <math.h>

#include "gdn.h"

/* ---- prepare ---- */

cpl_gdn cpli_gdn_rule(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    const gdn_core *core = &gdn->core;
    cpl_gdn rule = {.spans = core->kernel_spans,
                    .n_spans = core->n_kernel_spans,
                    .n_rows = core->n_rows,
                    .key_heads = core->key_heads,
                    .value_heads = core->value_heads,
                    .key_dim = gdn->config.key_dim,
                    .value_dim = gdn->config.value_dim,
                    .q_stride = core->q_width,
                    .k_stride = core->q_width,
                    .v_stride = core->conv_width,
                    .chunk = gdn->config.chunk,
                    .scale = 1 / sqrt((double)gdn->config.key_dim),
                    .workspace = core->workspace};
    if (core->q == NULL)
        return rule; /* only the sizes matter while buffers are prepared */
    rule.q = core->q->data;
    rule.k = core->k->data;
    rule.v = cpli_at(layer, core->conv->data, 2 * core->q_width);
    rule.g = core->g->data;
    rule.beta = core->beta->data;
    rule.o = core->o->data;
    rule.state_in = core->state_in != NULL ? core->state_in->data : NULL;
    rule.state_out = gdn->out.state != NULL ? core->state_out->data : NULL;
    return rule;
}

cpl_status cpli_gdn_check_sizes(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    cpl_gdn sizes = cpli_gdn_rule(gdn);
    const char *why = layer->kernels->gdn_refusal != NULL
                          ? layer->kernels->gdn_refusal(&sizes)
                          : NULL;
    if (why == NULL)
        return CPL_OK;
    return cpli_fail(CPL_UNSUPPORTED, "%s: %s", layer->name, why);
}

cpl_status cpli_gdn_core_buffers(gdn_layer *gdn)
{
    cpl_layer *layer = &gdn->base;
    gdn_core *core = &gdn->core;
    int64_t n = core->n_rows;
    int64_t heads = core->value_heads;
    int64_t q = core->q_width;
    int64_t conv = core->conv_width;
    const cpli_buffer buffers[] = {
        {&core->conv, n, conv, CPLI_KEPT},
        {&core->q, n, q, CPLI_KEPT},
        {&core->k, n, q, CPLI_KEPT},
        {&core->g, n, heads, CPLI_KEPT | CPLI_WIDE},
        {&core->beta, n, heads, CPLI_KEPT | CPLI_WIDE},
        {&core->d_conv, n, conv, CPLI_SCRATCH},
        {&core->d_q, n, q, CPLI_SCRATCH},
        {&core->d_k, n, q, CPLI_SCRATCH},
        {&core->d_g, n, heads, CPLI_SCRATCH | CPLI_WIDE},
        {&core->d_beta, n, heads, CPLI_SCRATCH | CPLI_WIDE},
    };
    cpl_gdn rule = cpli_gdn_rule(gdn);
    cpl_gdn_backward backward = {.forward = rule};
    size_t bytes = layer->kernels->gdn_workspace(&rule);
    size_t more = layer->kernels->gdn_backward_workspace(&backward);
    CPL_TRY(cpli_place_scratch(layer->place, bytes > more ? bytes : more,
                               &core->workspace));
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

/* ---- forward ---- */

static void *data_of(const cpl_tensor *tensor)
{
    return tensor != NULL ? tensor->data : NULL;
}

static const void *conv_weight(const gdn_layer *gdn)
{
    const cpl_tensor *own = gdn->core.weight;
    return own != NULL ? own->data : cpli_weight(&gdn->base, GDN_CONV);
}

static void *conv_grad(const gdn_layer *gdn)
{
    const cpl_tensor *own = gdn->core.d_weight;
    return own != NULL ? own->data : cpli_grad(&gdn->base, GDN_CONV);
}

/* Of a section of the core, where its rows begin in a parameter of one row a
 * channel: a section lies within the layer's q, k or v. */
static int64_t channel_of(const gdn_layer *gdn, int i, const gdn_section *core)
{
    return core->all - gdn->slice[i].own + gdn->slice[i].all;
}

void cpli_gdn_take_weight(const gdn_layer *gdn, const gdn_section *sections)
{
    const cpl_layer *layer = &gdn->base;
    int64_t conv = gdn->config.conv;
    for (int i = 0; gdn->core.weight != NULL && i < GDN_N_SECTIONS; i++) {
        const gdn_section *s = &sections[i];
        cpli_move_columns(
            layer, s->width, conv,
            cpli_columns_of(layer->weights[GDN_CONV], channel_of(gdn, i, s), 0),
            cpli_columns_of(gdn->core.weight, s->own, 0), false);
    }
}

void cpli_gdn_give_weight(const gdn_layer *gdn, const gdn_section *sections)
{
    const cpl_layer *layer = &gdn->base;
    int64_t conv = gdn->config.conv;
    for (int i = 0; gdn->core.weight != NULL && i < GDN_N_SECTIONS; i++) {
        const gdn_section *s = &sections[i];
        layer->wide_kernels->axpby(&(cpl_axpby){
            .x = cpli_at_wide(layer, gdn->core.d_weight->data, s->own * conv),
            .y = cpli_at_wide(layer, cpli_grad(layer, GDN_CONV),
                              channel_of(gdn, i, s) * conv),
            .n = s->width * conv,
            .alpha = 1,
            .beta = 1});
    }
}

/* A parameter of one number a value head, or its gradient; both are wide. */
static void *own_heads(const gdn_layer *gdn, const void *all)
{
    return cpli_at_wide(&gdn->base, all, gdn->core.first_value_head);
}

static void convolve(const gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    gdn->base.kernels->conv1d(&(cpl_conv1d){.x = core->x,
                                            .weight = conv_weight(gdn),
                                            .halo = data_of(core->halo),
                                            .y = core->conv->data,
                                            .spans = core->kernel_spans,
                                            .n_spans = core->n_kernel_spans,
                                            .n_rows = core->n_rows,
                                            .channels = core->conv_width,
                                            .width = gdn->config.conv,
                                            .x_stride = core->x_stride,
                                            .silu = true});
}

static void normalise(const gdn_layer *gdn, int64_t column, void *y)
{
    const cpl_layer *layer = &gdn->base;
    const gdn_core *core = &gdn->core;
    layer->kernels->l2norm(
        &(cpl_l2norm){.x = cpli_at(layer, core->conv->data, column),
                      .y = y,
                      .n_rows = core->n_rows,
                      .heads = core->key_heads,
                      .width = gdn->config.key_dim,
                      .x_stride = core->conv_width,
                      .y_stride = core->q_width,
                      .eps = 1e-6});
}

static void make_gates(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    const gdn_core *core = &gdn->core;
    layer->kernels->gates(
        &(cpl_gates){.a = core->a,
                     .b = core->b,
                     .a_log = own_heads(gdn, cpli_weight(layer, GDN_A_LOG)),
                     .dt_bias = own_heads(gdn, cpli_weight(layer, GDN_DT_BIAS)),
                     .g = core->g->data,
                     .beta = core->beta->data,
                     .n_rows = core->n_rows,
                     .heads = core->value_heads,
                     .a_stride = core->gate_stride,
                     .b_stride = core->gate_stride});
}

cpl_status cpli_gdn_core_forward(gdn_layer *gdn)
{
    convolve(gdn);
    normalise(gdn, 0, gdn->core.q->data);
    normalise(gdn, gdn->core.q_width, gdn->core.k->data);
    make_gates(gdn);
    cpl_gdn rule = cpli_gdn_rule(gdn);
    CPL_TRY(gdn->mode->enter(gdn, &rule));
    gdn->base.kernels->gdn(&rule);
    return CPL_OK;
}

/* ---- backward ---- */

static cpl_status rule_backward(gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    const gdn_core *core = &gdn->core;
    cpl_gdn rule = cpli_gdn_rule(gdn);
    CPL_TRY(gdn->mode->enter_back(gdn, &rule));
    layer->kernels->gdn_backward(&(cpl_gdn_backward){
        .forward = rule,
        .d_o = core->d_o->data,
        .d_state_out = data_of(core->d_state_out),
        .dq = core->d_q->data,
        .dk = core->d_k->data,
        .dv = cpli_at(layer, core->d_conv->data, 2 * core->q_width),
        .dg = core->d_g->data,
        .dbeta = core->d_beta->data,
        .d_state_in = gdn->in.d_state != NULL ? core->d_state_in->data : NULL,
        .dq_stride = core->q_width,
        .dk_stride = core->q_width,
        .dv_stride = core->conv_width,
        .workspace = core->workspace});
    return CPL_OK;
}

static void gates_backward(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    const gdn_core *core = &gdn->core;
    layer->kernels->gates_backward(&(cpl_gates_backward){
        .a = core->a,
        .b = core->b,
        .a_log = own_heads(gdn, cpli_weight(layer, GDN_A_LOG)),
        .dt_bias = own_heads(gdn, cpli_weight(layer, GDN_DT_BIAS)),
        .dg = core->d_g->data,
        .dbeta = core->d_beta->data,
        .da = core->d_a,
        .db = core->d_b,
        .grad_a_log = own_heads(gdn, cpli_grad(layer, GDN_A_LOG)),
        .grad_dt_bias = own_heads(gdn, cpli_grad(layer, GDN_DT_BIAS)),
        .n_rows = core->n_rows,
        .heads = core->value_heads,
        .a_stride = core->gate_stride,
        .b_stride = core->gate_stride,
        .da_stride = core->gate_stride,
        .db_stride = core->gate_stride});
}

static void normalise_backward(const gdn_layer *gdn, int64_t column,
                               const void *dy)
{
    const cpl_layer *layer = &gdn->base;
    const gdn_core *core = &gdn->core;
    layer->kernels->l2norm_backward(
        &(cpl_l2norm_backward){.x = cpli_at(layer, core->conv->data, column),
                               .dy = dy,
                               .dx = cpli_at(layer, core->d_conv->data, column),
                               .n_rows = core->n_rows,
                               .heads = core->key_heads,
                               .width = gdn->config.key_dim,
                               .x_stride = core->conv_width,
                               .dy_stride = core->q_width,
                               .dx_stride = core->conv_width,
                               .eps = 1e-6});
}

static void convolve_backward(const gdn_layer *gdn)
{
    const gdn_core *core = &gdn->core;
    gdn->base.kernels->conv1d_backward(
        &(cpl_conv1d_backward){.x = core->x,
                               .weight = conv_weight(gdn),
                               .halo = data_of(core->halo),
                               .dy = core->d_conv->data,
                               .dx = core->d_x,
                               .dhalo = data_of(core->d_halo),
                               .grad_weight = conv_grad(gdn),
                               .spans = core->kernel_spans,
                               .n_spans = core->n_kernel_spans,
                               .n_rows = core->n_rows,
                               .channels = core->conv_width,
                               .width = gdn->config.conv,
                               .x_stride = core->x_stride,
                               .dx_stride = core->x_stride,
                               .silu = true});
}

cpl_status cpli_gdn_core_backward(gdn_layer *gdn)
{
    CPL_TRY(rule_backward(gdn));
    gates_backward(gdn);
    normalise_backward(gdn, 0, gdn->core.d_q->data);
    normalise_backward(gdn, gdn->core.q_width, gdn->core.d_k->data);
    convolve_backward(gdn);
    return CPL_OK;
}
