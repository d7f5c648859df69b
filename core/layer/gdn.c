/*
 * gdn.c: Gated DeltaNet as in Qwen3-Next and Qwen3.5 (transformers,
 * modeling_qwen3_next.py; Yang, Kautz, Hatamizadeh, arXiv 2412.06464):
 * projections to q, k, v, z, b, a; causal depthwise convolution and SiLU over
 * q, k, v; l2-normalised q and k; gates; the delta rule; gated RMSNorm per
 * head; projection. See gdn.h for who does what.
 */
#include "gdn.h"

/* ---- prepare ---- */

/* NULL: the first. */
static cpl_status find_mode(const char *name, const gdn_mode **out)
{
    static const gdn_mode *const modes[] = {&cpli_gdn_chunkwise,
                                            &cpli_gdn_headwise};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (name == NULL || strcmp(name, modes[i]->name) == 0) {
            *out = modes[i];
            return CPL_OK;
        }
    return cpli_fail(CPL_INVALID,
                     "gdn: unknown cp_mode \"%s\"; there are chunkwise, "
                     "headwise",
                     name);
}

/* On one rank there is nothing to exchange, whatever the mode. */
static const gdn_mode *mode_of(const gdn_layer *gdn)
{
    bool is_alone = cpl_comm_size(gdn->base.place->comm) == 1;
    return is_alone ? &cpli_gdn_chunkwise : gdn->asked_mode;
}

/* Which heads are this rank's. */
static cpl_status take_slice(gdn_layer *gdn)
{
    const cpl_gdn_config *c = &gdn->config;
    cpli_share keys = {0}, values = {0};
    CPL_TRY(
        cpli_layer_share(&gdn->base, "value_heads", c->value_heads, &values));
    CPL_TRY(
        cpli_layer_share_used(&gdn->base, "key_heads", c->key_heads, &keys));
    int64_t q = keys.n * c->key_dim;
    int64_t v = values.n * c->value_dim;
    int64_t q_at = keys.first * c->key_dim;
    int64_t v_at = values.first * c->value_dim;
    int64_t all = (int64_t)c->key_heads * c->key_dim;
    gdn->key_heads = keys.n;
    gdn->value_heads = values.n;
    gdn->first_value_head = values.first;
    gdn->q_width = q;
    gdn->v_width = v;
    gdn->conv_width = 2 * q + v;
    gdn->slice[0] = (gdn_section){0, q_at, q, true};
    gdn->slice[1] = (gdn_section){q, all + q_at, q, true};
    gdn->slice[2] = (gdn_section){2 * q, 2 * all + v_at, v, true};
    return CPL_OK;
}

static cpl_status prepare(cpl_layer *layer)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    int64_t n = layer->n_rows;
    CPL_TRY(take_slice(gdn));
    int64_t v = gdn->v_width;
    const cpli_buffer buffers[] = {
        {&gdn->z, n, v, CPLI_KEPT},
        {&gdn->normed, n, v, CPLI_KEPT},
        {&gdn->d_z, n, v, CPLI_SCRATCH},
        {&gdn->d_normed, n, v, CPLI_SCRATCH},
    };
    gdn->in = gdn->bound_in;
    gdn->out = gdn->bound_out;
    gdn->mode = mode_of(gdn);
    layer->alike.mode = gdn->mode;
    cpl_status status = cpli_gdn_check_states(gdn);
    CPL_TRY(cpl_comm_agree(layer->place->comm, status));
    status = gdn->mode->prepare(gdn);
    if (status == CPL_OK)
        status = cpli_gdn_list_states(gdn);
    /* Sums are collective: nobody makes one that another has given up. */
    if (cpli_gdn_has_states(gdn))
        status = cpl_comm_agree(layer->place->comm, status);
    CPL_TRY(status);
    CPL_TRY(cpli_gdn_prepare_sums(gdn));
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

static void release(cpl_layer *layer)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    if (gdn->mode != NULL)
        gdn->mode->release(gdn);
    gdn->mode = NULL;
    cpli_gdn_release_states(gdn);
}

/* ---- projections of the rank's heads ---- */

static bool is_split(const gdn_layer *gdn)
{
    return gdn->base.place->tp > 1;
}

/* A slice of q, k, v is three blocks, all else is one. */
static int n_blocks(const gdn_layer *gdn, int which)
{
    return which == GDN_QKV_PROJ && is_split(gdn) ? GDN_N_SECTIONS : 1;
}

/* Block i of a projection, and at which column of its rows it stands. */
static cpli_block block_of(const gdn_layer *gdn, int which, int i,
                           int64_t *column)
{
    cpli_block block = cpli_matrix(&gdn->base, which);
    *column = 0;
    if (!is_split(gdn))
        return block;
    if (which == GDN_QKV_PROJ) {
        block.row = gdn->slice[i].all;
        block.rows = gdn->slice[i].width;
        *column = gdn->slice[i].own;
        return block;
    }
    int64_t size = which == GDN_Z_PROJ ? gdn->config.value_dim : 1;
    block.row = gdn->first_value_head * size;
    block.rows = gdn->value_heads * size;
    return block;
}

static int64_t width_of(const gdn_layer *gdn, int which)
{
    if (which == GDN_QKV_PROJ)
        return gdn->conv_width;
    return which == GDN_Z_PROJ ? gdn->v_width : gdn->value_heads;
}

void cpli_gdn_project(const gdn_layer *gdn, int which, const void *x, void *y)
{
    const cpl_layer *layer = &gdn->base;
    for (int i = 0; i < n_blocks(gdn, which); i++) {
        int64_t column;
        cpli_block block = block_of(gdn, which, i, &column);
        cpli_project_block(layer, block, layer->n_rows, x, layer->in_width,
                           cpli_at(layer, y, column), width_of(gdn, which));
    }
}

void cpli_gdn_project_backward(const gdn_layer *gdn, int which, const void *dy,
                               void *dx, bool accumulate)
{
    const cpl_layer *layer = &gdn->base;
    for (int i = 0; i < n_blocks(gdn, which); i++) {
        int64_t column;
        cpli_block block = block_of(gdn, which, i, &column);
        cpli_project_block_backward(layer, block, layer->n_rows, layer->x->data,
                                    layer->in_width, cpli_at(layer, dy, column),
                                    width_of(gdn, which), dx, layer->in_width,
                                    accumulate || i > 0);
    }
}

/* What projects the rank's heads to the output: some columns. */
static cpli_block out_block(const gdn_layer *gdn)
{
    cpli_block block = cpli_matrix(&gdn->base, GDN_OUT_PROJ);
    block.column = gdn->first_value_head * gdn->config.value_dim;
    block.columns = gdn->v_width;
    return block;
}

/* ---- forward ---- */

static void norm_and_project(const gdn_layer *gdn, void *y)
{
    const cpl_layer *layer = &gdn->base;
    int64_t heads = gdn->value_heads;
    layer->kernels->gated_rms_norm(
        &(cpl_gated_rms_norm){.x = gdn->o->data,
                              .z = gdn->z->data,
                              .weight = cpli_weight(layer, GDN_NORM),
                              .y = gdn->normed->data,
                              .n_rows = layer->n_rows * heads,
                              .width = gdn->config.value_dim,
                              .heads = heads,
                              .z_stride = gdn->v_width,
                              .eps = gdn->config.eps});
    cpli_project_block(layer, out_block(gdn), layer->n_rows, gdn->normed->data,
                       gdn->v_width, y, layer->out_width);
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    CPL_TRY(gdn->mode->bring(gdn, x));
    cpli_gdn_load_states(gdn);
    CPL_TRY(cpli_gdn_core_forward(gdn));
    CPL_TRY(cpli_gdn_store_states(gdn));
    CPL_TRY(gdn->mode->give(gdn));
    norm_and_project(gdn, y->data);
    return CPL_OK;
}

/* ---- backward ---- */

static void norm_backward(const gdn_layer *gdn, const void *dy)
{
    const cpl_layer *layer = &gdn->base;
    int64_t heads = gdn->value_heads;
    cpli_project_block_backward(
        layer, out_block(gdn), layer->n_rows, gdn->normed->data, gdn->v_width,
        dy, layer->out_width, gdn->d_normed->data, gdn->v_width, false);
    layer->kernels->gated_rms_norm_backward(&(cpl_gated_rms_norm_backward){
        .x = gdn->o->data,
        .z = gdn->z->data,
        .weight = cpli_weight(layer, GDN_NORM),
        .dy = gdn->d_normed->data,
        .dx = gdn->d_o->data,
        .dz = gdn->d_z->data,
        .grad_weight = cpli_grad(layer, GDN_NORM),
        .n_rows = layer->n_rows * heads,
        .width = gdn->config.value_dim,
        .heads = heads,
        .z_stride = gdn->v_width,
        .eps = gdn->config.eps});
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    gdn_layer *gdn = (gdn_layer *)layer;
    norm_backward(gdn, dy->data);
    CPL_TRY(gdn->mode->give_back(gdn));
    CPL_TRY(cpli_gdn_load_state_gradients(gdn));
    CPL_TRY(cpli_gdn_core_backward(gdn));
    CPL_TRY(cpli_gdn_store_state_gradients(gdn));
    return gdn->mode->bring_back(gdn, dx != NULL ? dx->data : NULL);
}

static const cpli_layer_ops ops = {
    .kind = "gdn",
    .splits = true,
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

static void declare_params(cpl_layer *layer, const cpl_gdn_config *c)
{
    int64_t hidden = c->hidden;
    int64_t heads = c->value_heads;
    int64_t values = heads * c->value_dim;
    int64_t channels = 2 * (int64_t)c->key_heads * c->key_dim + values;
    cpli_layer_param(layer, "qkv_proj", CPLI_DRAW_NORMAL, channels, hidden);
    cpli_layer_param(layer, "z_proj", CPLI_DRAW_NORMAL, values, hidden);
    cpli_layer_param(layer, "b_proj", CPLI_DRAW_NORMAL, heads, hidden);
    cpli_layer_param(layer, "a_proj", CPLI_DRAW_NORMAL, heads, hidden);
    cpli_layer_param(layer, "conv", CPLI_DRAW_CONV, channels, c->conv);
    cpli_layer_wide_param(layer, "A_log", CPLI_DRAW_DECAY, heads, 0);
    cpli_layer_wide_param(layer, "dt_bias", CPLI_DRAW_ONE, heads, 0);
    cpli_layer_param(layer, "norm", CPLI_DRAW_ONE, c->value_dim, 0);
    cpli_layer_param(layer, "out_proj", CPLI_DRAW_NORMAL, hidden, values);
}

cpl_status cpl_layer_gdn(const cpl_gdn_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    cpl_layer *layer;
    const gdn_mode *mode = NULL;
    CPL_TRY(check_config(config));
    CPL_TRY(find_mode(config->cp_mode, &mode));
    CPL_TRY(cpli_layer_create(&ops, sizeof(gdn_layer), dtype, &layer));
    gdn_layer *gdn = (gdn_layer *)layer;
    gdn->config = *config;
    gdn->config.cp_mode = mode->name; /* not the caller's text */
    gdn->asked_mode = mode;
    layer->in_width = layer->out_width = config->hidden;
    declare_params(layer, config);
    *out = layer;
    return CPL_OK;
}
