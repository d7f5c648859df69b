/*
 * gdn.c: Gated DeltaNet as in Qwen3-Next and Qwen3.5 (transformers,
 * modeling_qwen3_next.py; Yang, Kautz, Hatamizadeh, arXiv 2412.06464):
 * projections to q, k, v, z, b, a; causal depthwise convolution and SiLU over
 * q, k, v; l2-normalised q and k; gates; the delta rule; gated RMSNorm per
 * head; projection.
 *
 * cp_mode "chunkwise": heads stay, the sequence is cut. The convolution reads
 * its halo through a view, the state walks along the chain of spans, so it is
 * right in any layout. Padding is outside the spans: it gives zeros.
 */
#include <math.h>

#include "chain.h"

enum { QKV_PROJ, Z_PROJ, B_PROJ, A_PROJ, CONV, A_LOG, DT_BIAS, NORM, OUT_PROJ };

typedef struct gdn_layer {
    cpl_layer base;
    cpl_gdn_config config;
    int64_t q_width, v_width, conv_width; /* Hk K, Hv V, 2 Hk K + Hv V */

    const cpli_seen *seen; /* conv - 1 positions before each span; or NULL */
    cpl_plan *plan;        /* NULL with conv 1 */
    cpli_chain chain;

    cpl_tensor *qkv;   /* [n, conv_width] before the convolution */
    cpl_tensor *halo;  /* [n_spans * (conv - 1), conv_width] */
    cpl_tensor *conv;  /* [n, conv_width] after convolution and SiLU */
    cpl_tensor *q, *k; /* [n, Hk, K] l2-normalised */
    cpl_tensor *z;     /* [n, Hv, V] */
    cpl_tensor *a, *b, *g, *beta; /* [n, Hv] */
    cpl_tensor *o, *normed;       /* [n, Hv, V] */
    cpl_tensor *d_qkv, *d_halo, *d_conv, *d_q, *d_k, *d_z;
    cpl_tensor *d_a, *d_b, *d_g, *d_beta, *d_o, *d_normed;
    void *workspace;
} gdn_layer;

/* ---- prepare ---- */

static cpl_gdn rule_of(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    const cpl_gdn_config *c = &gdn->config;
    cpl_gdn rule = {.spans = layer->place->spans,
                    .n_spans = layer->place->n_spans,
                    .n_rows = layer->n_rows,
                    .key_heads = c->key_heads,
                    .value_heads = c->value_heads,
                    .key_dim = c->key_dim,
                    .value_dim = c->value_dim,
                    .q_stride = gdn->q_width,
                    .k_stride = gdn->q_width,
                    .v_stride = gdn->conv_width,
                    .chunk = c->chunk,
                    .scale = 1 / sqrt((double)c->key_dim),
                    .workspace = gdn->workspace};
    if (gdn->o == NULL)
        return rule; /* only the sizes matter while buffers are prepared */
    rule.q = gdn->q->data;
    rule.k = gdn->k->data;
    rule.v = cpli_at(layer, gdn->conv->data, 2 * gdn->q_width);
    rule.g = gdn->g->data;
    rule.beta = gdn->beta->data;
    rule.state_in = gdn->chain.state_in->data;
    rule.o = gdn->o->data;
    return rule;
}

static cpl_status prepare_buffers(gdn_layer *gdn, int64_t n_halo)
{
    cpl_layer *layer = &gdn->base;
    int64_t n = layer->n_rows;
    int64_t heads = gdn->config.value_heads;
    int64_t q = gdn->q_width;
    int64_t v = gdn->v_width;
    int64_t conv = gdn->conv_width;
    const cpli_buffer buffers[] = {
        {&gdn->qkv, n, conv, true},     {&gdn->halo, n_halo, conv, true},
        {&gdn->conv, n, conv, true},    {&gdn->q, n, q, true},
        {&gdn->k, n, q, true},          {&gdn->z, n, v, true},
        {&gdn->a, n, heads, true},      {&gdn->b, n, heads, true},
        {&gdn->g, n, heads, true},      {&gdn->beta, n, heads, true},
        {&gdn->o, n, v, true},          {&gdn->normed, n, v, true},
        {&gdn->d_qkv, n, conv, false},  {&gdn->d_halo, n_halo, conv, false},
        {&gdn->d_conv, n, conv, false}, {&gdn->d_q, n, q, false},
        {&gdn->d_k, n, q, false},       {&gdn->d_z, n, v, false},
        {&gdn->d_a, n, heads, false},   {&gdn->d_b, n, heads, false},
        {&gdn->d_g, n, heads, false},   {&gdn->d_beta, n, heads, false},
        {&gdn->d_o, n, v, false},       {&gdn->d_normed, n, v, false},
    };
    CPL_TRY(
        cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers));
    cpl_gdn rule = rule_of(gdn);
    cpl_gdn_backward backward = {.forward = rule};
    size_t bytes = layer->kernels->gdn_workspace(&rule);
    size_t more = layer->kernels->gdn_backward_workspace(&backward);
    return cpli_place_scratch(layer->place, bytes > more ? bytes : more,
                              &gdn->workspace);
}

static cpl_status prepare_halo(gdn_layer *gdn, int64_t *n_halo)
{
    cpl_layer *layer = &gdn->base;
    cpl_place *place = layer->place;
    *n_halo = 0;
    if (gdn->config.conv == 1)
        return CPL_OK;
    CPL_TRY(cpli_place_halo(place, gdn->config.conv - 1, &gdn->seen));
    CPL_TRY(cpl_plan_create(gdn->seen->route, place->comm, layer->dtype,
                            gdn->conv_width, NULL, &gdn->plan));
    return cpl_view_n_local(gdn->seen->view, place->rank, n_halo);
}

static cpl_status prepare(cpl_layer *layer)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    int64_t n_halo;
    gdn->o = NULL;
    CPL_TRY(prepare_halo(gdn, &n_halo));
    cpl_gdn sizes = rule_of(gdn);
    CPL_TRY(cpli_chain_prepare(&gdn->chain, layer, &sizes));
    return prepare_buffers(gdn, n_halo);
}

static void release(cpl_layer *layer)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    cpli_chain_release(&gdn->chain);
    cpl_plan_destroy(gdn->plan);
    gdn->plan = NULL;
}

/* ---- forward ---- */

static cpl_conv1d conv_of(const gdn_layer *gdn)
{
    return (cpl_conv1d){.x = gdn->qkv->data,
                        .weight = cpli_weight(&gdn->base, CONV),
                        .halo = gdn->halo->data,
                        .y = gdn->conv->data,
                        .spans = gdn->base.place->spans,
                        .n_spans = gdn->base.place->n_spans,
                        .n_rows = gdn->base.n_rows,
                        .channels = gdn->conv_width,
                        .width = gdn->config.conv,
                        .x_stride = gdn->conv_width,
                        .silu = true};
}

/* The halo travels while z, b and a are projected. */
static cpl_status project_and_fetch_halo(gdn_layer *gdn, const cpl_tensor *x)
{
    cpl_layer *layer = &gdn->base;
    int64_t hidden = layer->in_width;
    int64_t heads = gdn->config.value_heads;
    cpli_project(layer, QKV_PROJ, x->data, hidden, gdn->qkv->data,
                 gdn->conv_width);
    CPL_TRY(cpl_tensor_mark_like(gdn->qkv, x));
    if (gdn->plan != NULL)
        CPL_TRY(cpl_plan_start(gdn->plan, gdn->qkv, gdn->halo));
    cpli_project(layer, Z_PROJ, x->data, hidden, gdn->z->data, gdn->v_width);
    cpli_project(layer, B_PROJ, x->data, hidden, gdn->b->data, heads);
    cpli_project(layer, A_PROJ, x->data, hidden, gdn->a->data, heads);
    if (gdn->plan == NULL)
        return CPL_OK;
    CPL_TRY(cpl_plan_finish(gdn->plan));
    return cpli_check_view(layer, gdn->halo, gdn->seen->view);
}

static void normalise(const gdn_layer *gdn, int64_t column, void *y)
{
    const cpl_layer *layer = &gdn->base;
    layer->kernels->l2norm(
        &(cpl_l2norm){.x = cpli_at(layer, gdn->conv->data, column),
                      .y = y,
                      .n_rows = layer->n_rows,
                      .heads = gdn->config.key_heads,
                      .width = gdn->config.key_dim,
                      .x_stride = gdn->conv_width,
                      .y_stride = gdn->q_width,
                      .eps = 1e-6});
}

static void make_gates(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    int64_t heads = gdn->config.value_heads;
    layer->kernels->gates(&(cpl_gates){.a = gdn->a->data,
                                       .b = gdn->b->data,
                                       .a_log = cpli_weight(layer, A_LOG),
                                       .dt_bias = cpli_weight(layer, DT_BIAS),
                                       .g = gdn->g->data,
                                       .beta = gdn->beta->data,
                                       .n_rows = layer->n_rows,
                                       .heads = heads,
                                       .a_stride = heads,
                                       .b_stride = heads});
}

static void norm_and_project(const gdn_layer *gdn, void *y)
{
    const cpl_layer *layer = &gdn->base;
    int64_t heads = gdn->config.value_heads;
    layer->kernels->gated_rms_norm(
        &(cpl_gated_rms_norm){.x = gdn->o->data,
                              .z = gdn->z->data,
                              .weight = cpli_weight(layer, NORM),
                              .y = gdn->normed->data,
                              .n_rows = layer->n_rows * heads,
                              .width = gdn->config.value_dim,
                              .heads = heads,
                              .z_stride = gdn->v_width,
                              .eps = gdn->config.eps});
    cpli_project(layer, OUT_PROJ, gdn->normed->data, gdn->v_width, y,
                 layer->out_width);
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    CPL_TRY(project_and_fetch_halo(gdn, x));
    cpl_conv1d conv = conv_of(gdn);
    layer->kernels->conv1d(&conv);
    normalise(gdn, 0, gdn->q->data);
    normalise(gdn, gdn->q_width, gdn->k->data);
    make_gates(gdn);
    cpl_gdn rule = rule_of(gdn);
    CPL_TRY(cpli_chain_forward(&gdn->chain, &rule));
    layer->kernels->gdn(&rule);
    norm_and_project(gdn, y->data);
    return CPL_OK;
}

/* ---- backward ---- */

static void norm_backward(const gdn_layer *gdn, const void *dy)
{
    const cpl_layer *layer = &gdn->base;
    int64_t heads = gdn->config.value_heads;
    cpli_project_backward(layer, OUT_PROJ, gdn->normed->data, gdn->v_width, dy,
                          layer->out_width, gdn->d_normed->data, gdn->v_width,
                          false);
    layer->kernels->gated_rms_norm_backward(
        &(cpl_gated_rms_norm_backward){.x = gdn->o->data,
                                       .z = gdn->z->data,
                                       .weight = cpli_weight(layer, NORM),
                                       .dy = gdn->d_normed->data,
                                       .dx = gdn->d_o->data,
                                       .dz = gdn->d_z->data,
                                       .grad_weight = cpli_grad(layer, NORM),
                                       .n_rows = layer->n_rows * heads,
                                       .width = gdn->config.value_dim,
                                       .heads = heads,
                                       .z_stride = gdn->v_width,
                                       .eps = gdn->config.eps});
}

static cpl_status rule_backward(gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    cpl_gdn rule = rule_of(gdn);
    CPL_TRY(cpli_chain_backward(&gdn->chain, &rule, gdn->d_o->data));
    layer->kernels->gdn_backward(&(cpl_gdn_backward){
        .forward = rule,
        .d_o = gdn->d_o->data,
        .d_state_out = gdn->chain.d_state_out->data,
        .dq = gdn->d_q->data,
        .dk = gdn->d_k->data,
        .dv = cpli_at(layer, gdn->d_conv->data, 2 * gdn->q_width),
        .dg = gdn->d_g->data,
        .dbeta = gdn->d_beta->data,
        .dq_stride = gdn->q_width,
        .dk_stride = gdn->q_width,
        .dv_stride = gdn->conv_width,
        .workspace = gdn->workspace});
    return CPL_OK;
}

static void gates_backward(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    int64_t heads = gdn->config.value_heads;
    layer->kernels->gates_backward(
        &(cpl_gates_backward){.a = gdn->a->data,
                              .b = gdn->b->data,
                              .a_log = cpli_weight(layer, A_LOG),
                              .dt_bias = cpli_weight(layer, DT_BIAS),
                              .dg = gdn->d_g->data,
                              .dbeta = gdn->d_beta->data,
                              .da = gdn->d_a->data,
                              .db = gdn->d_b->data,
                              .grad_a_log = cpli_grad(layer, A_LOG),
                              .grad_dt_bias = cpli_grad(layer, DT_BIAS),
                              .n_rows = layer->n_rows,
                              .heads = heads,
                              .a_stride = heads,
                              .b_stride = heads,
                              .da_stride = heads,
                              .db_stride = heads});
}

static void normalise_backward(const gdn_layer *gdn, int64_t column,
                               const void *dy)
{
    const cpl_layer *layer = &gdn->base;
    layer->kernels->l2norm_backward(
        &(cpl_l2norm_backward){.x = cpli_at(layer, gdn->conv->data, column),
                               .dy = dy,
                               .dx = cpli_at(layer, gdn->d_conv->data, column),
                               .n_rows = layer->n_rows,
                               .heads = gdn->config.key_heads,
                               .width = gdn->config.key_dim,
                               .x_stride = gdn->conv_width,
                               .dy_stride = gdn->q_width,
                               .dx_stride = gdn->conv_width,
                               .eps = 1e-6});
}

static void conv_backward(const gdn_layer *gdn)
{
    const cpl_layer *layer = &gdn->base;
    cpl_conv1d conv = conv_of(gdn);
    layer->kernels->conv1d_backward(
        &(cpl_conv1d_backward){.x = conv.x,
                               .weight = conv.weight,
                               .halo = conv.halo,
                               .dy = gdn->d_conv->data,
                               .dx = gdn->d_qkv->data,
                               .dhalo = gdn->d_halo->data,
                               .grad_weight = cpli_grad(layer, CONV),
                               .spans = conv.spans,
                               .n_spans = conv.n_spans,
                               .n_rows = conv.n_rows,
                               .channels = conv.channels,
                               .width = conv.width,
                               .x_stride = conv.x_stride,
                               .dx_stride = gdn->conv_width,
                               .silu = true});
}

/* The gradient of the halo goes home while z, b and a are done. */
static cpl_status project_backward(gdn_layer *gdn, void *dx)
{
    const cpl_layer *layer = &gdn->base;
    int64_t hidden = layer->in_width;
    int64_t heads = gdn->config.value_heads;
    const void *x = layer->x->data;
    if (gdn->plan != NULL)
        CPL_TRY(
            cpl_plan_start_adjoint(gdn->plan, gdn->d_halo, gdn->d_qkv, true));
    cpli_project_backward(layer, Z_PROJ, x, hidden, gdn->d_z->data,
                          gdn->v_width, dx, hidden, false);
    cpli_project_backward(layer, B_PROJ, x, hidden, gdn->d_b->data, heads, dx,
                          hidden, true);
    cpli_project_backward(layer, A_PROJ, x, hidden, gdn->d_a->data, heads, dx,
                          hidden, true);
    if (gdn->plan != NULL)
        CPL_TRY(cpl_plan_finish(gdn->plan));
    cpli_project_backward(layer, QKV_PROJ, x, hidden, gdn->d_qkv->data,
                          gdn->conv_width, dx, hidden, true);
    return CPL_OK;
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    norm_backward(gdn, dy->data);
    CPL_TRY(rule_backward(gdn));
    gates_backward(gdn);
    normalise_backward(gdn, 0, gdn->d_q->data);
    normalise_backward(gdn, gdn->q_width, gdn->d_k->data);
    conv_backward(gdn);
    return project_backward(gdn, dx != NULL ? dx->data : NULL);
}

static const cpli_layer_ops ops = {
    .kind = "gdn",
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .release = release,
};

static cpl_status check_config(const cpl_gdn_config *c)
{
    if (c->hidden < 1 || c->key_heads < 1 || c->value_heads < 1 ||
        c->key_dim < 1 || c->value_dim < 1 || c->conv < 1)
        return cpli_fail(CPL_INVALID,
                         "gdn: hidden, key_heads, value_heads, key_dim, "
                         "value_dim and conv must be positive (got %d, %d, %d, "
                         "%d, %d, %d)",
                         c->hidden, c->key_heads, c->value_heads, c->key_dim,
                         c->value_dim, c->conv);
    if (c->value_heads % c->key_heads != 0)
        return cpli_fail(CPL_INVALID,
                         "gdn: %d value_heads, not a multiple of key_heads = "
                         "%d",
                         c->value_heads, c->key_heads);
    if (c->chunk < 1 || c->chunk > 64)
        return cpli_fail(CPL_INVALID, "gdn: chunk %d is not in 1 to 64",
                         c->chunk);
    return CPL_OK;
}

static void declare_params(cpl_layer *layer, const gdn_layer *gdn)
{
    const cpl_gdn_config *c = &gdn->config;
    int64_t hidden = c->hidden;
    int64_t heads = c->value_heads;
    cpli_layer_param(layer, "qkv_proj", CPLI_DRAW_NORMAL, gdn->conv_width,
                     hidden);
    cpli_layer_param(layer, "z_proj", CPLI_DRAW_NORMAL, gdn->v_width, hidden);
    cpli_layer_param(layer, "b_proj", CPLI_DRAW_NORMAL, heads, hidden);
    cpli_layer_param(layer, "a_proj", CPLI_DRAW_NORMAL, heads, hidden);
    cpli_layer_param(layer, "conv", CPLI_DRAW_CONV, gdn->conv_width, c->conv);
    cpli_layer_param(layer, "A_log", CPLI_DRAW_DECAY, heads, 0);
    cpli_layer_param(layer, "dt_bias", CPLI_DRAW_ONE, heads, 0);
    cpli_layer_param(layer, "norm", CPLI_DRAW_ONE, c->value_dim, 0);
    cpli_layer_param(layer, "out_proj", CPLI_DRAW_NORMAL, hidden, gdn->v_width);
}

cpl_status cpl_layer_gdn(const cpl_gdn_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    cpl_layer *layer;
    CPL_TRY(check_config(config));
    CPL_TRY(cpli_layer_create(&ops, sizeof(gdn_layer), dtype, &layer));
    gdn_layer *gdn = (gdn_layer *)layer;
    gdn->config = *config;
    gdn->q_width = (int64_t)config->key_heads * config->key_dim;
    gdn->v_width = (int64_t)config->value_heads * config->value_dim;
    gdn->conv_width = 2 * gdn->q_width + gdn->v_width;
    layer->in_width = layer->out_width = config->hidden;
    declare_params(layer, gdn);
    *out = layer;
    return CPL_OK;
}
