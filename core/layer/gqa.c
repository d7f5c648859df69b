/*
 * gqa.c: gated GQA attention as in Qwen3-Next and Qwen3.5 (transformers,
 * modeling_qwen3_next.py): per head a query and an output gate, RMSNorm of q
 * and k before partial RoPE, causal softmax, o * sigmoid(gate), projection.
 * How queries meet the keys of other ranks is the mode's: see gqa.h. Tensor
 * parallelism gives a rank a slice of the heads; y is then a partial sum, and
 * so is the gradient of a kv head that several ranks have.
 */
#include "gqa.h"

#include <math.h>

enum { Q_PROJ, K_PROJ, V_PROJ, O_PROJ, Q_NORM, K_NORM };

typedef struct gqa_layer {
    cpl_layer base;
    cpl_gqa_config config;
    const gqa_mode *mode;
    cpli_share heads, kv_heads; /* that this rank computes */
    int64_t q_width, kv_width;  /* heads * D, kv_heads * D, of these */

    cpli_core core;     /* q normed and rotated; kv: keys, values of own rows */
    cpl_tensor *q_gate; /* [n, heads, 2, D]: query, gate */
    cpl_tensor *k_raw;  /* [n, kv_heads, D] before its norm */
    cpl_tensor *k;      /* [n, kv_heads, D] normed; backward: d_k_raw */
    cpl_tensor *gated;
    cpl_tensor *d_q_gate, *d_k, *d_gated;
} gqa_layer;

/* ---- prepare ---- */

static cpl_status prepare_buffers(gqa_layer *gqa)
{
    cpl_layer *layer = &gqa->base;
    cpli_core *core = &gqa->core;
    int64_t n = layer->n_rows;
    const cpli_buffer buffers[] = {
        {&gqa->q_gate, n, 2 * gqa->q_width, CPLI_KEPT},
        {&core->q, n, gqa->q_width, CPLI_KEPT},
        {&gqa->k_raw, n, gqa->kv_width, CPLI_KEPT},
        {&gqa->k, n, gqa->kv_width, CPLI_SCRATCH},
        {&core->kv, n, 2 * gqa->kv_width, CPLI_KEPT},
        {&core->o, n, gqa->q_width, CPLI_KEPT},
        {&gqa->gated, n, gqa->q_width, CPLI_KEPT},
        {&core->lse, n, gqa->heads.n, CPLI_KEPT | CPLI_WIDE},
        {&gqa->d_q_gate, n, 2 * gqa->q_width, CPLI_SCRATCH},
        {&core->d_q, n, gqa->q_width, CPLI_SCRATCH},
        {&gqa->d_k, n, gqa->kv_width, CPLI_SCRATCH},
        {&core->d_kv, n, 2 * gqa->kv_width, CPLI_SCRATCH},
        {&core->d_o, n, gqa->q_width, CPLI_SCRATCH},
        {&gqa->d_gated, n, gqa->q_width, CPLI_SCRATCH},
    };
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

static cpl_status take_heads(gqa_layer *gqa)
{
    const cpl_gqa_config *config = &gqa->config;
    CPL_TRY(cpli_layer_share(&gqa->base, "heads", config->heads, &gqa->heads));
    CPL_TRY(cpli_layer_share_used(&gqa->base, "kv_heads", config->kv_heads,
                                  &gqa->kv_heads));
    gqa->q_width = gqa->heads.n * config->head_dim;
    gqa->kv_width = gqa->kv_heads.n * config->head_dim;
    return CPL_OK;
}

static cpl_status prepare(cpl_layer *layer)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    const cpl_gqa_config *config = &gqa->config;
    CPL_TRY(take_heads(gqa));
    gqa->core = (cpli_core){.layer = layer,
                            .heads = gqa->heads.n,
                            .kv_heads = gqa->kv_heads.n,
                            .key_dim = config->head_dim,
                            .value_dim = config->head_dim,
                            .window = config->window,
                            .n_rows = layer->n_rows,
                            .scale = 1 / sqrt((double)config->head_dim),
                            .a2a = config->a2a,
                            .mode = gqa->mode};
    cpli_core_keeps_apart(&gqa->core);
    CPL_TRY(cpli_core_prepare(&gqa->core));
    return prepare_buffers(gqa);
}

static void release(cpl_layer *layer)
{
    cpli_core_release(&((gqa_layer *)layer)->core);
}

/* ---- projections of the rank's heads ---- */

static cpli_block rows_of(const gqa_layer *gqa, int param)
{
    cpli_block block = cpli_matrix(&gqa->base, param);
    cpli_share heads = param == Q_PROJ ? gqa->heads : gqa->kv_heads;
    int64_t size = (param == Q_PROJ ? 2 : 1) * (int64_t)gqa->config.head_dim;
    block.row = heads.first * size;
    block.rows = heads.n * size;
    return block;
}

static cpli_block out_block(const gqa_layer *gqa)
{
    cpli_block block = cpli_matrix(&gqa->base, O_PROJ);
    block.column = gqa->heads.first * gqa->config.head_dim;
    block.columns = gqa->q_width;
    return block;
}

static void project(const gqa_layer *gqa, int param, const void *x, void *y,
                    int64_t ldy)
{
    const cpl_layer *layer = &gqa->base;
    cpli_project_block(layer, rows_of(gqa, param), layer->n_rows, x,
                       layer->in_width, y, ldy);
}

static void project_backward(const gqa_layer *gqa, int param, const void *dy,
                             int64_t lddy, void *dx, bool accumulate)
{
    const cpl_layer *layer = &gqa->base;
    cpli_project_block_backward(layer, rows_of(gqa, param), layer->n_rows,
                                layer->x->data, layer->in_width, dy, lddy, dx,
                                layer->in_width, accumulate);
}

/* ---- forward ---- */

static void norm_heads(const gqa_layer *gqa, int param, const void *x,
                       int64_t x_stride, void *y, int64_t heads)
{
    const cpl_layer *layer = &gqa->base;
    layer->kernels->rms_norm(
        &(cpl_rms_norm){.x = x,
                        .weight = cpli_weight(layer, param),
                        .y = y,
                        .n_rows = layer->n_rows * heads,
                        .width = gqa->config.head_dim,
                        .x_stride = x_stride,
                        .y_stride = gqa->config.head_dim,
                        .eps = gqa->config.eps,
                        .weight_offset = 1});
}

static void rotate(const gqa_layer *gqa, int64_t heads, const void *x,
                   int64_t x_stride, void *y, int64_t y_stride, bool inverse)
{
    gqa->base.kernels->rope(&(cpl_rope){.x = x,
                                        .y = y,
                                        .positions = gqa->core.positions,
                                        .n_rows = gqa->base.n_rows,
                                        .heads = heads,
                                        .width = gqa->config.head_dim,
                                        .rotary_dim = gqa->config.rotary_dim,
                                        .x_stride = x_stride,
                                        .y_stride = y_stride,
                                        .theta = gqa->config.rope_theta,
                                        .inverse = inverse});
}

static cpl_status make_qkv(gqa_layer *gqa, const void *x)
{
    const cpl_layer *layer = &gqa->base;
    int64_t head_dim = gqa->config.head_dim;
    void *v = cpli_at(layer, gqa->core.kv->data, gqa->kv_width);
    CPL_TRY(cpli_core_rotary(&gqa->core));
    project(gqa, Q_PROJ, x, gqa->q_gate->data, 2 * gqa->q_width);
    project(gqa, K_PROJ, x, gqa->k_raw->data, gqa->kv_width);
    project(gqa, V_PROJ, x, v, 2 * gqa->kv_width);
    norm_heads(gqa, Q_NORM, gqa->q_gate->data, 2 * head_dim, gqa->core.q->data,
               gqa->heads.n);
    norm_heads(gqa, K_NORM, gqa->k_raw->data, head_dim, gqa->k->data,
               gqa->kv_heads.n);
    rotate(gqa, gqa->heads.n, gqa->core.q->data, gqa->q_width,
           gqa->core.q->data, gqa->q_width, false);
    rotate(gqa, gqa->kv_heads.n, gqa->k->data, gqa->kv_width,
           gqa->core.kv->data, 2 * gqa->kv_width, false);
    return CPL_OK;
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    int64_t head_dim = gqa->config.head_dim;
    CPL_TRY(make_qkv(gqa, x->data));
    CPL_TRY(cpl_tensor_mark_like(gqa->core.kv, x));
    CPL_TRY(cpli_core_forward(&gqa->core));
    layer->kernels->sigmoid_gate(
        &(cpl_sigmoid_gate){.x = gqa->core.o->data,
                            .gate = cpli_at(layer, gqa->q_gate->data, head_dim),
                            .y = gqa->gated->data,
                            .n_rows = layer->n_rows,
                            .heads = gqa->heads.n,
                            .width = head_dim,
                            .gate_stride = 2 * gqa->q_width,
                            .gate_head_stride = 2 * head_dim});
    cpli_project_block(layer, out_block(gqa), layer->n_rows, gqa->gated->data,
                       gqa->q_width, y->data, layer->out_width);
    return CPL_OK;
}

/* ---- backward ---- */

static void norm_heads_backward(const gqa_layer *gqa, int param, const void *x,
                                const void *dy, void *dx, int64_t stride,
                                int64_t heads)
{
    const cpl_layer *layer = &gqa->base;
    layer->kernels->rms_norm_backward(
        &(cpl_rms_norm_backward){.x = x,
                                 .weight = cpli_weight(layer, param),
                                 .dy = dy,
                                 .dx = dx,
                                 .grad_weight = cpli_grad(layer, param),
                                 .n_rows = layer->n_rows * heads,
                                 .width = gqa->config.head_dim,
                                 .x_stride = stride,
                                 .dy_stride = gqa->config.head_dim,
                                 .dx_stride = stride,
                                 .eps = gqa->config.eps,
                                 .weight_offset = 1});
}

static void qkv_backward(gqa_layer *gqa, void *dx)
{
    const cpl_layer *layer = &gqa->base;
    int64_t head_dim = gqa->config.head_dim;
    rotate(gqa, gqa->heads.n, gqa->core.d_q->data, gqa->q_width,
           gqa->core.d_q->data, gqa->q_width, true);
    rotate(gqa, gqa->kv_heads.n, gqa->core.d_kv->data, 2 * gqa->kv_width,
           gqa->d_k->data, gqa->kv_width, true);
    norm_heads_backward(gqa, Q_NORM, gqa->q_gate->data, gqa->core.d_q->data,
                        gqa->d_q_gate->data, 2 * head_dim, gqa->heads.n);
    norm_heads_backward(gqa, K_NORM, gqa->k_raw->data, gqa->d_k->data,
                        gqa->k->data, head_dim, gqa->kv_heads.n);
    project_backward(gqa, Q_PROJ, gqa->d_q_gate->data, 2 * gqa->q_width, dx,
                     false);
    project_backward(gqa, K_PROJ, gqa->k->data, gqa->kv_width, dx, true);
    project_backward(gqa, V_PROJ,
                     cpli_at(layer, gqa->core.d_kv->data, gqa->kv_width),
                     2 * gqa->kv_width, dx, true);
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    int64_t head_dim = gqa->config.head_dim;
    cpli_project_block_backward(
        layer, out_block(gqa), layer->n_rows, gqa->gated->data, gqa->q_width,
        dy->data, layer->out_width, gqa->d_gated->data, gqa->q_width, false);
    layer->kernels->sigmoid_gate_backward(&(cpl_sigmoid_gate_backward){
        .x = gqa->core.o->data,
        .gate = cpli_at(layer, gqa->q_gate->data, head_dim),
        .dy = gqa->d_gated->data,
        .dx = gqa->core.d_o->data,
        .dgate = cpli_at(layer, gqa->d_q_gate->data, head_dim),
        .n_rows = layer->n_rows,
        .heads = gqa->heads.n,
        .width = head_dim,
        .gate_stride = 2 * gqa->q_width,
        .gate_head_stride = 2 * head_dim});
    CPL_TRY(gqa->mode->backward(&gqa->core));
    qkv_backward(gqa, dx != NULL ? dx->data : NULL);
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "gqa",
    .splits = true,
    .has_keys = true,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .release = release,
};

static cpl_status check_config(const cpl_gqa_config *c)
{
    if (c->hidden < 1 || c->heads < 1 || c->kv_heads < 1 || c->head_dim < 1)
        return cpli_fail(CPL_INVALID,
                         "gqa: hidden, heads, kv_heads and head_dim must be "
                         "positive (got %d, %d, %d, %d)",
                         c->hidden, c->heads, c->kv_heads, c->head_dim);
    if (c->heads % c->kv_heads != 0)
        return cpli_fail(CPL_INVALID,
                         "gqa: %d heads, not a multiple of kv_heads = %d",
                         c->heads, c->kv_heads);
    if (c->rotary_dim < 0 || c->rotary_dim % 2 != 0 ||
        c->rotary_dim > c->head_dim)
        return cpli_fail(CPL_INVALID,
                         "gqa: rotary_dim %d must be even and at most head_dim "
                         "= %d",
                         c->rotary_dim, c->head_dim);
    return cpli_gqa_check_mode("gqa", c->window, c->a2a, c->cp_mode);
}

cpl_status cpl_layer_gqa(const cpl_gqa_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    cpl_layer *layer;
    const gqa_mode *mode;
    CPL_TRY(check_config(config));
    CPL_TRY(cpli_gqa_find_mode("gqa", config->cp_mode, &mode));
    CPL_TRY(cpli_layer_create(&ops, sizeof(gqa_layer), dtype, &layer));
    gqa_layer *gqa = (gqa_layer *)layer;
    int64_t hidden = config->hidden;
    gqa->config = *config;
    gqa->config.cp_mode = mode->name; /* not the caller's text */
    gqa->mode = mode;
    int64_t q_width = (int64_t)config->heads * config->head_dim;
    int64_t kv_width = (int64_t)config->kv_heads * config->head_dim;
    layer->in_width = layer->out_width = hidden;
    cpli_layer_param(layer, "q_proj", CPLI_DRAW_NORMAL, 2 * q_width, hidden);
    cpli_layer_param(layer, "k_proj", CPLI_DRAW_NORMAL, kv_width, hidden);
    cpli_layer_param(layer, "v_proj", CPLI_DRAW_NORMAL, kv_width, hidden);
    cpli_layer_param(layer, "o_proj", CPLI_DRAW_NORMAL, hidden, q_width);
    cpli_layer_param(layer, "q_norm", CPLI_DRAW_ZERO, config->head_dim, 0);
    cpli_layer_param(layer, "k_norm", CPLI_DRAW_ZERO, config->head_dim, 0);
    *out = layer;
    return CPL_OK;
}
