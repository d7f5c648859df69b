/*
 * gqa.c: gated GQA attention as in Qwen3-Next and Qwen3.5 (transformers,
 * modeling_qwen3_next.py): per head a query and an output gate, RMSNorm of q
 * and k before partial RoPE, causal softmax, o * sigmoid(gate), projection.
 *
 * cp_mode "gather": each rank brings exactly the keys and values that its
 * queries may see. Which those are, what each query sees, and the rotary
 * angles all follow from the spans, so it is right in any layout.
 */
#include <math.h>

#include "layer.h"

enum { Q_PROJ, K_PROJ, V_PROJ, O_PROJ, Q_NORM, K_NORM };

typedef struct gqa_layer {
    cpl_layer base;
    cpl_gqa_config config;
    int64_t q_width, kv_width; /* heads * D, kv_heads * D */

    const cpli_seen *seen; /* the keys that this rank's queries may see */
    cpl_plan *plan;
    int64_t n_keys;
    int64_t *rotary; /* positions inside the sequence, but for faults */
    cpl_attention_block *blocks;

    cpl_tensor *q_gate; /* [n, heads, 2, D]: query, gate */
    cpl_tensor *q;      /* [n, heads, D], normed and rotated */
    cpl_tensor *k_raw;  /* [n, kv_heads, D] before its norm */
    cpl_tensor *k;      /* [n, kv_heads, D] normed */
    cpl_tensor *kv;     /* [n, 2, kv_heads, D]: keys, values of own rows */
    cpl_tensor *keys;   /* [n_keys, 2, kv_heads, D]: those of the view */
    cpl_tensor *o, *gated, *lse;
    cpl_tensor *d_q_gate, *d_q, *d_k, *d_kv, *d_keys, *d_o, *d_gated;
    void *workspace;
} gqa_layer;

/* ---- prepare ---- */

/* Blocks, from the real spans: the view lists, per sequence in stream order,
 * the keys from its start to the last one needed. */
static cpl_status make_blocks(gqa_layer *gqa)
{
    const cpl_place *place = gqa->base.place;
    int64_t n_sequences =
        cpl_stream_n_sequences(cpl_layout_stream(place->layout));
    int64_t *first_key; /* of each sequence: keys needed, then first slot */
    CPL_TRY(CPL_ALLOC(place->n_spans, &gqa->blocks));
    CPL_TRY(CPL_ALLOC(n_sequences, &first_key));
    for (int64_t i = 0; i < place->n_spans; i++) {
        const cpl_span *span = &place->spans[i];
        int64_t *needed = &first_key[span->sequence];
        *needed = cpli_max(*needed, span->offset + span->length);
    }
    int64_t slot = 0;
    for (int64_t i = 0; i < n_sequences; i++) {
        int64_t needed = first_key[i];
        first_key[i] = slot;
        slot += needed;
    }
    CPL_ASSERT(slot == gqa->n_keys);
    for (int64_t i = 0; i < place->n_spans; i++)
        gqa->blocks[i] = (cpl_attention_block){
            .q_slot = place->spans[i].slot,
            .n_queries = place->spans[i].length,
            .kv_slot = first_key[place->spans[i].sequence],
            .n_keys = place->spans[i].offset + place->spans[i].length,
            .n_before = place->spans[i].offset};
    cpli_free(first_key);
    return CPL_OK;
}

static cpl_attention attention_of(const gqa_layer *gqa)
{
    const cpl_layer *layer = &gqa->base;
    return (cpl_attention){.q = gqa->q->data,
                           .k = gqa->keys->data,
                           .v = cpli_at(layer, gqa->keys->data, gqa->kv_width),
                           .o = gqa->o->data,
                           .lse = gqa->lse->data,
                           .blocks = gqa->blocks,
                           .n_blocks = layer->place->n_spans,
                           .n_queries = layer->n_rows,
                           .n_keys = gqa->n_keys,
                           .heads = gqa->config.heads,
                           .kv_heads = gqa->config.kv_heads,
                           .key_dim = gqa->config.head_dim,
                           .value_dim = gqa->config.head_dim,
                           .q_stride = gqa->q_width,
                           .k_stride = 2 * gqa->kv_width,
                           .v_stride = 2 * gqa->kv_width,
                           .scale = 1 / sqrt((double)gqa->config.head_dim),
                           .workspace = gqa->workspace};
}

static cpl_attention_backward attention_backward_of(const gqa_layer *gqa)
{
    const cpl_layer *layer = &gqa->base;
    void *d_keys = gqa->d_keys->data;
    return (cpl_attention_backward){.forward = attention_of(gqa),
                                    .d_o = gqa->d_o->data,
                                    .dq = gqa->d_q->data,
                                    .dk = d_keys,
                                    .dv = cpli_at(layer, d_keys, gqa->kv_width),
                                    .dq_stride = gqa->q_width,
                                    .dk_stride = 2 * gqa->kv_width,
                                    .dv_stride = 2 * gqa->kv_width,
                                    .workspace = gqa->workspace};
}

static cpl_status prepare_buffers(gqa_layer *gqa)
{
    cpl_layer *layer = &gqa->base;
    int64_t n = layer->n_rows;
    const cpli_buffer buffers[] = {
        {&gqa->q_gate, n, 2 * gqa->q_width, true},
        {&gqa->q, n, gqa->q_width, true},
        {&gqa->k_raw, n, gqa->kv_width, true},
        {&gqa->k, n, gqa->kv_width, false},
        {&gqa->kv, n, 2 * gqa->kv_width, false},
        {&gqa->keys, gqa->n_keys, 2 * gqa->kv_width, true},
        {&gqa->o, n, gqa->q_width, true},
        {&gqa->gated, n, gqa->q_width, true},
        {&gqa->lse, n, gqa->config.heads, true},
        {&gqa->d_q_gate, n, 2 * gqa->q_width, false},
        {&gqa->d_q, n, gqa->q_width, false},
        {&gqa->d_k, n, gqa->kv_width, false},
        {&gqa->d_kv, n, 2 * gqa->kv_width, false},
        {&gqa->d_keys, gqa->n_keys, 2 * gqa->kv_width, false},
        {&gqa->d_o, n, gqa->q_width, false},
        {&gqa->d_gated, n, gqa->q_width, false},
    };
    CPL_TRY(
        cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers));
    cpl_attention forward = attention_of(gqa);
    cpl_attention_backward backward = attention_backward_of(gqa);
    size_t bytes = layer->kernels->attention_workspace(&forward);
    size_t more = layer->kernels->attention_backward_workspace(&backward);
    return cpli_place_scratch(layer->place, bytes > more ? bytes : more,
                              &gqa->workspace);
}

static cpl_status prepare(cpl_layer *layer)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    cpl_place *place = layer->place;
    CPL_TRY(cpli_place_keys(place, 0, &gqa->seen));
    CPL_TRY(cpl_plan_create(gqa->seen->route, place->comm, layer->dtype,
                            2 * gqa->kv_width, NULL, &gqa->plan));
    CPL_TRY(cpl_view_n_local(gqa->seen->view, place->rank, &gqa->n_keys));
    CPL_TRY(CPL_ALLOC(layer->n_rows, &gqa->rotary));
    CPL_TRY(make_blocks(gqa));
    return prepare_buffers(gqa);
}

static void release(cpl_layer *layer)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    cpl_plan_destroy(gqa->plan);
    cpli_free(gqa->rotary);
    cpli_free(gqa->blocks);
    gqa->plan = NULL;
    gqa->rotary = NULL;
    gqa->blocks = NULL;
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
                                        .positions = gqa->rotary,
                                        .n_rows = gqa->base.n_rows,
                                        .heads = heads,
                                        .width = gqa->config.head_dim,
                                        .rotary_dim = gqa->config.rotary_dim,
                                        .x_stride = x_stride,
                                        .y_stride = y_stride,
                                        .theta = gqa->config.rope_theta,
                                        .inverse = inverse});
}

static void make_qkv(gqa_layer *gqa, const void *x)
{
    const cpl_layer *layer = &gqa->base;
    int64_t hidden = layer->in_width;
    int64_t head_dim = gqa->config.head_dim;
    void *v = cpli_at(layer, gqa->kv->data, gqa->kv_width);
    for (int64_t i = 0; i < layer->n_rows; i++)
        gqa->rotary[i] =
            layer->place->positions[i] + cpl_faults_here()->rope_shift;
    cpli_project(layer, Q_PROJ, x, hidden, gqa->q_gate->data, 2 * gqa->q_width);
    cpli_project(layer, K_PROJ, x, hidden, gqa->k_raw->data, gqa->kv_width);
    cpli_project(layer, V_PROJ, x, hidden, v, 2 * gqa->kv_width);
    norm_heads(gqa, Q_NORM, gqa->q_gate->data, 2 * head_dim, gqa->q->data,
               gqa->config.heads);
    norm_heads(gqa, K_NORM, gqa->k_raw->data, head_dim, gqa->k->data,
               gqa->config.kv_heads);
    rotate(gqa, gqa->config.heads, gqa->q->data, gqa->q_width, gqa->q->data,
           gqa->q_width, false);
    rotate(gqa, gqa->config.kv_heads, gqa->k->data, gqa->kv_width,
           gqa->kv->data, 2 * gqa->kv_width, false);
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    int64_t head_dim = gqa->config.head_dim;
    make_qkv(gqa, x->data);
    CPL_TRY(cpl_tensor_mark_like(gqa->kv, x));
    CPL_TRY(cpl_plan_start(gqa->plan, gqa->kv, gqa->keys));
    CPL_TRY(cpl_plan_finish(gqa->plan));
    CPL_TRY(cpli_check_view(layer, gqa->keys, gqa->seen->view));
    cpl_attention attention = attention_of(gqa);
    layer->kernels->attention(&attention);
    layer->kernels->sigmoid_gate(
        &(cpl_sigmoid_gate){.x = gqa->o->data,
                            .gate = cpli_at(layer, gqa->q_gate->data, head_dim),
                            .y = gqa->gated->data,
                            .n_rows = layer->n_rows,
                            .heads = gqa->config.heads,
                            .width = head_dim,
                            .gate_stride = 2 * gqa->q_width,
                            .gate_head_stride = 2 * head_dim});
    cpli_project(layer, O_PROJ, gqa->gated->data, gqa->q_width, y->data,
                 layer->out_width);
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
    int64_t hidden = layer->in_width;
    int64_t head_dim = gqa->config.head_dim;
    const void *x = layer->x->data;
    rotate(gqa, gqa->config.heads, gqa->d_q->data, gqa->q_width, gqa->d_q->data,
           gqa->q_width, true);
    rotate(gqa, gqa->config.kv_heads, gqa->d_kv->data, 2 * gqa->kv_width,
           gqa->d_k->data, gqa->kv_width, true);
    norm_heads_backward(gqa, Q_NORM, gqa->q_gate->data, gqa->d_q->data,
                        gqa->d_q_gate->data, 2 * head_dim, gqa->config.heads);
    norm_heads_backward(gqa, K_NORM, gqa->k_raw->data, gqa->d_k->data,
                        gqa->d_k->data, head_dim, gqa->config.kv_heads);
    cpli_project_backward(layer, Q_PROJ, x, hidden, gqa->d_q_gate->data,
                          2 * gqa->q_width, dx, hidden, false);
    cpli_project_backward(layer, K_PROJ, x, hidden, gqa->d_k->data,
                          gqa->kv_width, dx, hidden, true);
    cpli_project_backward(layer, V_PROJ, x, hidden,
                          cpli_at(layer, gqa->d_kv->data, gqa->kv_width),
                          2 * gqa->kv_width, dx, hidden, true);
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    gqa_layer *gqa = (gqa_layer *)layer;
    int64_t head_dim = gqa->config.head_dim;
    cpli_project_backward(layer, O_PROJ, gqa->gated->data, gqa->q_width,
                          dy->data, layer->out_width, gqa->d_gated->data,
                          gqa->q_width, false);
    layer->kernels->sigmoid_gate_backward(&(cpl_sigmoid_gate_backward){
        .x = gqa->o->data,
        .gate = cpli_at(layer, gqa->q_gate->data, head_dim),
        .dy = gqa->d_gated->data,
        .dx = gqa->d_o->data,
        .dgate = cpli_at(layer, gqa->d_q_gate->data, head_dim),
        .n_rows = layer->n_rows,
        .heads = gqa->config.heads,
        .width = head_dim,
        .gate_stride = 2 * gqa->q_width,
        .gate_head_stride = 2 * head_dim});
    cpl_attention_backward attention = attention_backward_of(gqa);
    layer->kernels->attention_backward(&attention);
    CPL_TRY(cpl_plan_start_adjoint(gqa->plan, gqa->d_keys, gqa->d_kv, false));
    CPL_TRY(cpl_plan_finish(gqa->plan));
    qkv_backward(gqa, dx != NULL ? dx->data : NULL);
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "gqa",
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
    return CPL_OK;
}

cpl_status cpl_layer_gqa(const cpl_gqa_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    cpl_layer *layer;
    CPL_TRY(check_config(config));
    CPL_TRY(cpli_layer_create(&ops, sizeof(gqa_layer), dtype, &layer));
    gqa_layer *gqa = (gqa_layer *)layer;
    int64_t hidden = config->hidden;
    gqa->config = *config;
    gqa->q_width = (int64_t)config->heads * config->head_dim;
    gqa->kv_width = (int64_t)config->kv_heads * config->head_dim;
    layer->in_width = layer->out_width = hidden;
    cpli_layer_param(layer, "q_proj", CPLI_DRAW_NORMAL, 2 * gqa->q_width,
                     hidden);
    cpli_layer_param(layer, "k_proj", CPLI_DRAW_NORMAL, gqa->kv_width, hidden);
    cpli_layer_param(layer, "v_proj", CPLI_DRAW_NORMAL, gqa->kv_width, hidden);
    cpli_layer_param(layer, "o_proj", CPLI_DRAW_NORMAL, hidden, gqa->q_width);
    cpli_layer_param(layer, "q_norm", CPLI_DRAW_ZERO, config->head_dim, 0);
    cpli_layer_param(layer, "k_norm", CPLI_DRAW_ZERO, config->head_dim, 0);
    *out = layer;
    return CPL_OK;
}
