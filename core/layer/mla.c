/*
 * mla.c: multi-latent attention as in DeepSeek-V2 and V3 (arXiv 2405.04434,
 * section 2.1; transformers, modeling_deepseek_v3.py). Queries come through a
 * low rank; keys and values of all heads come from one latent c of kv_rank
 * numbers a token, and a rotary part of the key that the heads share:
 *
 *   q_h = [q_nope | RoPE(q_rope)],  k_h = [U_h c | RoPE(k_rope)],  v_h = V_h c
 *
 * It runs in the absorbed form: q_nope' (U_h c) = (U_h' q_nope)' c, and a sum
 * of weighted v_h is V_h applied to that sum of c. So all heads see the same
 * key [c | k_rope] and the same value c, which is a part of it: attention with
 * one kv head, on the core of gqa.h. What the modes move is therefore the
 * latent: kv_rank + rope_dim numbers a token instead of heads * (nope_dim +
 * rope_dim + value_dim), 576 instead of 40,960 in DeepSeek-V3. The price is
 * more work a pair of query and key, 2 kv_rank + rope_dim products a head
 * instead of nope_dim + rope_dim + value_dim (1,088 instead of 320), and with
 * a2a wider queries and results.
 *
 * Without a q_rank queries come straight from the rows, and with a rope_theta
 * of 0 nothing is rotated: both as in Kimi-Linear (arXiv 2510.26692).
 *
 * Tensor parallelism splits the heads; every rank makes the latents of all, and
 * gets the part of their gradients that its heads give.
 *
 * RoPE pairs i with i + rope_dim / 2, as everywhere here.
 */
#include <math.h>

#include "gqa.h"

/* The last two are there with a q_rank only. */
enum { Q_UP, KV_DOWN, KV_NORM, KV_UP, O_PROJ, Q_DOWN, Q_NORM };

typedef struct mla_layer {
    cpl_layer base;
    cpl_mla_config config;
    const gqa_mode *mode;
    int64_t q_dim;     /* nope_dim + rope_dim: a head's query */
    int64_t up_dim;    /* nope_dim + value_dim: a head's rows of KV_UP */
    int64_t key_dim;   /* kv_rank + rope_dim */
    cpli_share heads;  /* that this rank computes */
    int64_t q_width;   /* of these: heads * q_dim */
    int64_t out_width; /* heads * value_dim */

    cpli_core core; /* one kv head; values are the first kv_rank of the keys */
    cpl_tensor *q_down, *q_normed; /* [n, q_rank] */
    cpl_tensor *q_up;              /* [n, heads, q_dim] */
    cpl_tensor *kv_down;           /* [n, key_dim]: c before its norm, k_rope */
    cpl_tensor *out;               /* [n, heads, value_dim] */
    cpl_tensor *d_q_down, *d_q_normed, *d_q_up, *d_kv_down, *d_out;
} mla_layer;

/* ---- prepare ---- */

static cpl_status prepare_buffers(mla_layer *mla)
{
    cpl_layer *layer = &mla->base;
    cpli_core *core = &mla->core;
    const cpl_mla_config *c = &mla->config;
    int64_t n = layer->n_rows;
    int64_t keys = mla->heads.n * mla->key_dim;
    int64_t values = mla->heads.n * c->kv_rank;
    const cpli_buffer buffers[] = {
        {&mla->q_down, n, c->q_rank, CPLI_KEPT},
        {&mla->q_normed, n, c->q_rank, CPLI_KEPT},
        {&mla->q_up, n, mla->q_width, CPLI_KEPT},
        {&mla->kv_down, n, mla->key_dim, CPLI_KEPT},
        {&mla->out, n, mla->out_width, CPLI_KEPT},
        {&core->q, n, keys, CPLI_KEPT},
        {&core->kv, n, mla->key_dim, CPLI_KEPT},
        {&core->o, n, values, CPLI_KEPT},
        {&core->lse, n, mla->heads.n, CPLI_KEPT | CPLI_WIDE},
        {&mla->d_q_down, n, c->q_rank, CPLI_SCRATCH},
        {&mla->d_q_normed, n, c->q_rank, CPLI_SCRATCH},
        {&mla->d_q_up, n, mla->q_width, CPLI_SCRATCH},
        {&mla->d_kv_down, n, mla->key_dim, CPLI_SCRATCH},
        {&mla->d_out, n, mla->out_width, CPLI_SCRATCH},
        {&core->d_q, n, keys, CPLI_SCRATCH},
        {&core->d_kv, n, mla->key_dim, CPLI_SCRATCH},
        {&core->d_o, n, values, CPLI_SCRATCH},
    };
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

static cpl_status prepare(cpl_layer *layer)
{
    mla_layer *mla = (mla_layer *)layer;
    const cpl_mla_config *c = &mla->config;
    CPL_TRY(cpli_layer_share(layer, "heads", c->heads, &mla->heads));
    mla->q_width = mla->heads.n * mla->q_dim;
    mla->out_width = mla->heads.n * c->value_dim;
    mla->core = (cpli_core){.layer = layer,
                            .heads = mla->heads.n,
                            .kv_heads = 1,
                            .key_dim = mla->key_dim,
                            .value_dim = c->kv_rank,
                            .values_in_keys = true,
                            .window = c->window,
                            .n_rows = layer->n_rows,
                            .scale = 1 / sqrt((double)mla->q_dim),
                            .a2a = c->a2a,
                            .mode = mla->mode};
    cpli_core_keeps_apart(&mla->core);
    CPL_TRY(cpli_core_prepare(&mla->core));
    return prepare_buffers(mla);
}

static void release(cpl_layer *layer)
{
    cpli_core_release(&((mla_layer *)layer)->core);
}

/* ---- parts of rows ---- */

/* The same columns of every row, a head's; the next head's are `step` on. */
typedef struct part {
    void *data; /* of the first row, and of the rank's first head */
    int64_t stride, step;
} part;

static part heads_of(const mla_layer *mla, const cpl_tensor *rows,
                     int64_t first, int64_t step)
{
    return (part){cpli_at(&mla->base, rows->data, first),
                  cpl_tensor_width(rows), step};
}

static part part_of(const mla_layer *mla, const cpl_tensor *rows, int64_t first)
{
    return heads_of(mla, rows, first, 0);
}

static part head_of(const mla_layer *mla, part heads, int64_t head)
{
    heads.data = cpli_at(&mla->base, heads.data, head * heads.step);
    return heads;
}

/* Of the rank's heads, rows of KV_UP: U_h [nope_dim, kv_rank], then V_h; or of
 * its gradient. */
static part up_of(const mla_layer *mla, bool is_grad, bool is_value)
{
    const cpl_layer *layer = &mla->base;
    int64_t kv_rank = mla->config.kv_rank;
    int64_t row =
        mla->heads.first * mla->up_dim + (is_value ? mla->config.nope_dim : 0);
    void *data =
        is_grad ? cpli_at_wide(layer, cpli_grad(layer, KV_UP), row * kv_rank)
                : cpli_at(layer, cpli_weight(layer, KV_UP), row * kv_rank);
    return (part){data, kv_rank, mla->up_dim * kv_rank};
}

/* Of each head, y [n, width] = x [n, depth] w, or x w' with w stored [width,
 * depth]. */
static void multiply(const mla_layer *mla, part x, int64_t depth, part w,
                     bool transposed, part y, int64_t width)
{
    mla->base.kernels->matmul(&(cpl_matmul){.a = x.data,
                                            .b = w.data,
                                            .c = y.data,
                                            .m = mla->base.n_rows,
                                            .n = width,
                                            .k = depth,
                                            .lda = x.stride,
                                            .ldb = w.stride,
                                            .ldc = y.stride,
                                            .transpose_b = transposed,
                                            .alpha = 1,
                                            .batch = mla->heads.n,
                                            .a_step = x.step,
                                            .b_step = w.step,
                                            .c_step = y.step});
}

/* Of each head, w [depth, width] += x' dy, a gradient. */
static void add_product(const mla_layer *mla, part x, int64_t depth, part dy,
                        int64_t width, part w)
{
    mla->base.kernels->matmul(&(cpl_matmul){.a = x.data,
                                            .b = dy.data,
                                            .c = w.data,
                                            .m = depth,
                                            .n = width,
                                            .k = mla->base.n_rows,
                                            .lda = x.stride,
                                            .ldb = dy.stride,
                                            .ldc = w.stride,
                                            .transpose_a = true,
                                            .wide_c = true,
                                            .alpha = 1,
                                            .beta = 1,
                                            .batch = mla->heads.n,
                                            .a_step = x.step,
                                            .b_step = dy.step,
                                            .c_step = w.step});
}

/* The rank's heads in Q_UP and in O_PROJ. */
static cpli_block query_block(const mla_layer *mla)
{
    cpli_block block = cpli_matrix(&mla->base, Q_UP);
    block.row = mla->heads.first * mla->q_dim;
    block.rows = mla->q_width;
    return block;
}

static cpli_block out_block(const mla_layer *mla)
{
    cpli_block block = cpli_matrix(&mla->base, O_PROJ);
    block.column = mla->heads.first * mla->config.value_dim;
    block.columns = mla->out_width;
    return block;
}

static void rotate(const mla_layer *mla, part x, part y, bool inverse)
{
    int64_t dim = mla->config.rope_dim;
    double theta = mla->config.rope_theta;
    if (dim == 0)
        return;
    mla->base.kernels->rope(&(cpl_rope){.x = x.data,
                                        .y = y.data,
                                        .positions = mla->core.positions,
                                        .n_rows = mla->base.n_rows,
                                        .heads = 1,
                                        .width = dim,
                                        .rotary_dim = theta > 0 ? dim : 0,
                                        .x_stride = x.stride,
                                        .y_stride = y.stride,
                                        .theta = theta,
                                        .inverse = inverse});
}

static void norm(const mla_layer *mla, int param, part x, part y, int64_t width)
{
    mla->base.kernels->rms_norm(
        &(cpl_rms_norm){.x = x.data,
                        .weight = cpli_weight(&mla->base, param),
                        .y = y.data,
                        .n_rows = mla->base.n_rows,
                        .width = width,
                        .x_stride = x.stride,
                        .y_stride = y.stride,
                        .eps = mla->config.eps});
}

static void norm_backward(const mla_layer *mla, int param, part x, part dy,
                          part dx, int64_t width)
{
    mla->base.kernels->rms_norm_backward(
        &(cpl_rms_norm_backward){.x = x.data,
                                 .weight = cpli_weight(&mla->base, param),
                                 .dy = dy.data,
                                 .dx = dx.data,
                                 .grad_weight = cpli_grad(&mla->base, param),
                                 .n_rows = mla->base.n_rows,
                                 .width = width,
                                 .x_stride = x.stride,
                                 .dy_stride = dy.stride,
                                 .dx_stride = dx.stride,
                                 .eps = mla->config.eps});
}

/* ---- forward ---- */

static void make_keys(const mla_layer *mla, const void *x)
{
    const cpl_layer *layer = &mla->base;
    int64_t rank = mla->config.kv_rank;
    cpli_project(layer, KV_DOWN, x, layer->in_width, mla->kv_down->data,
                 mla->key_dim);
    norm(mla, KV_NORM, part_of(mla, mla->kv_down, 0),
         part_of(mla, mla->core.kv, 0), rank);
    rotate(mla, part_of(mla, mla->kv_down, rank),
           part_of(mla, mla->core.kv, rank), false);
}

/* What Q_UP takes: latents, or the rows themselves. */
static part query_input(const mla_layer *mla, const void *x)
{
    if (mla->config.q_rank == 0)
        return (part){cpli_at(&mla->base, x, 0), mla->base.in_width, 0};
    return part_of(mla, mla->q_normed, 0);
}

static void make_query_latents(mla_layer *mla, const void *x)
{
    int64_t rank = mla->config.q_rank;
    if (rank == 0)
        return;
    cpli_project(&mla->base, Q_DOWN, x, mla->base.in_width, mla->q_down->data,
                 rank);
    norm(mla, Q_NORM, part_of(mla, mla->q_down, 0),
         part_of(mla, mla->q_normed, 0), rank);
}

static void make_queries(mla_layer *mla, const void *x)
{
    const cpl_layer *layer = &mla->base;
    const cpl_mla_config *c = &mla->config;
    part input = query_input(mla, x);
    part nope = heads_of(mla, mla->q_up, 0, mla->q_dim);
    part rope = heads_of(mla, mla->q_up, c->nope_dim, mla->q_dim);
    part latent = heads_of(mla, mla->core.q, 0, mla->key_dim);
    part rotated = heads_of(mla, mla->core.q, c->kv_rank, mla->key_dim);
    make_query_latents(mla, x);
    cpli_project_block(layer, query_block(mla), layer->n_rows, input.data,
                       input.stride, mla->q_up->data, mla->q_width);
    multiply(mla, nope, c->nope_dim, up_of(mla, false, false), false, latent,
             c->kv_rank);
    for (int64_t h = 0; h < mla->heads.n; h++)
        rotate(mla, head_of(mla, rope, h), head_of(mla, rotated, h), false);
}

static void expand_result(mla_layer *mla)
{
    const cpl_mla_config *c = &mla->config;
    multiply(mla, heads_of(mla, mla->core.o, 0, c->kv_rank), c->kv_rank,
             up_of(mla, false, true), true,
             heads_of(mla, mla->out, 0, c->value_dim), c->value_dim);
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    mla_layer *mla = (mla_layer *)layer;
    CPL_TRY(cpli_core_rotary(&mla->core));
    make_keys(mla, x->data);
    make_queries(mla, x->data);
    CPL_TRY(cpl_tensor_mark_like(mla->core.kv, x));
    CPL_TRY(cpli_core_forward(&mla->core));
    expand_result(mla);
    cpli_project_block(layer, out_block(mla), layer->n_rows, mla->out->data,
                       mla->out_width, y->data, layer->out_width);
    return CPL_OK;
}

/* ---- backward ---- */

static void result_backward(mla_layer *mla)
{
    const cpl_mla_config *c = &mla->config;
    part d_out = heads_of(mla, mla->d_out, 0, c->value_dim);
    multiply(mla, d_out, c->value_dim, up_of(mla, false, true), false,
             heads_of(mla, mla->core.d_o, 0, c->kv_rank), c->kv_rank);
    add_product(mla, d_out, c->value_dim,
                heads_of(mla, mla->core.o, 0, c->kv_rank), c->kv_rank,
                up_of(mla, true, true));
}

static void query_latents_backward(mla_layer *mla, void *dx)
{
    const cpl_layer *layer = &mla->base;
    int64_t rank = mla->config.q_rank;
    if (rank == 0)
        return;
    norm_backward(mla, Q_NORM, part_of(mla, mla->q_down, 0),
                  part_of(mla, mla->d_q_normed, 0),
                  part_of(mla, mla->d_q_down, 0), rank);
    cpli_project_backward(layer, Q_DOWN, layer->x->data, layer->in_width,
                          mla->d_q_down->data, rank, dx, layer->in_width,
                          false);
}

static void queries_backward(mla_layer *mla, void *dx)
{
    const cpl_layer *layer = &mla->base;
    const cpl_mla_config *c = &mla->config;
    part d_latent = heads_of(mla, mla->core.d_q, 0, mla->key_dim);
    part d_rotated = heads_of(mla, mla->core.d_q, c->kv_rank, mla->key_dim);
    part d_rope = heads_of(mla, mla->d_q_up, c->nope_dim, mla->q_dim);
    multiply(mla, d_latent, c->kv_rank, up_of(mla, false, false), true,
             heads_of(mla, mla->d_q_up, 0, mla->q_dim), c->nope_dim);
    add_product(mla, heads_of(mla, mla->q_up, 0, mla->q_dim), c->nope_dim,
                d_latent, c->kv_rank, up_of(mla, true, false));
    for (int64_t h = 0; h < mla->heads.n; h++)
        rotate(mla, head_of(mla, d_rotated, h), head_of(mla, d_rope, h), true);
    part input = query_input(mla, layer->x->data);
    void *d_input = c->q_rank > 0 ? mla->d_q_normed->data : dx;
    cpli_project_block_backward(layer, query_block(mla), layer->n_rows,
                                input.data, input.stride, mla->d_q_up->data,
                                mla->q_width, d_input, input.stride, false);
    query_latents_backward(mla, dx);
}

static void keys_backward(mla_layer *mla, void *dx)
{
    const cpl_layer *layer = &mla->base;
    int64_t rank = mla->config.kv_rank;
    norm_backward(mla, KV_NORM, part_of(mla, mla->kv_down, 0),
                  part_of(mla, mla->core.d_kv, 0),
                  part_of(mla, mla->d_kv_down, 0), rank);
    rotate(mla, part_of(mla, mla->core.d_kv, rank),
           part_of(mla, mla->d_kv_down, rank), true);
    cpli_project_backward(layer, KV_DOWN, layer->x->data, layer->in_width,
                          mla->d_kv_down->data, mla->key_dim, dx,
                          layer->in_width, true);
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    mla_layer *mla = (mla_layer *)layer;
    void *to = dx != NULL ? dx->data : NULL;
    cpli_project_block_backward(
        layer, out_block(mla), layer->n_rows, mla->out->data, mla->out_width,
        dy->data, layer->out_width, mla->d_out->data, mla->out_width, false);
    result_backward(mla);
    CPL_TRY(mla->mode->backward(&mla->core));
    queries_backward(mla, to);
    keys_backward(mla, to);
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "mla",
    .splits = true,
    .has_keys = true,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .release = release,
};

/* ---- making ---- */

static cpl_status check_config(const cpl_mla_config *c)
{
    if (c->hidden < 1 || c->heads < 1 || c->kv_rank < 1 || c->nope_dim < 1 ||
        c->value_dim < 1)
        return cpli_fail(CPL_INVALID,
                         "mla: hidden, heads, kv_rank, nope_dim and value_dim "
                         "must be positive (got %d, %d, %d, %d, %d)",
                         c->hidden, c->heads, c->kv_rank, c->nope_dim,
                         c->value_dim);
    if (c->q_rank < 0)
        return cpli_fail(CPL_INVALID, "mla: q_rank must be >= 0 (got %d)",
                         c->q_rank);
    if (!(c->rope_theta >= 0))
        return cpli_fail(CPL_INVALID, "mla: rope_theta must be >= 0 (got %g)",
                         c->rope_theta);
    if (c->rope_dim < 0 || c->rope_dim % 2 != 0)
        return cpli_fail(CPL_INVALID,
                         "mla: rope_dim %d must be even and not negative",
                         c->rope_dim);
    return cpli_gqa_check_mode("mla", c->window, c->a2a, c->cp_mode);
}

static void declare_params(mla_layer *mla)
{
    cpl_layer *layer = &mla->base;
    const cpl_mla_config *c = &mla->config;
    cpli_layer_param(layer, "q_up", CPLI_DRAW_NORMAL, c->heads * mla->q_dim,
                     c->q_rank > 0 ? c->q_rank : c->hidden);
    cpli_layer_param(layer, "kv_down", CPLI_DRAW_NORMAL, mla->key_dim,
                     c->hidden);
    cpli_layer_param(layer, "kv_norm", CPLI_DRAW_ONE, c->kv_rank, 0);
    cpli_layer_param(layer, "kv_up", CPLI_DRAW_NORMAL, c->heads * mla->up_dim,
                     c->kv_rank);
    cpli_layer_param(layer, "o_proj", CPLI_DRAW_NORMAL, c->hidden,
                     (int64_t)c->heads * c->value_dim);
    if (c->q_rank == 0)
        return;
    cpli_layer_param(layer, "q_down", CPLI_DRAW_NORMAL, c->q_rank, c->hidden);
    cpli_layer_param(layer, "q_norm", CPLI_DRAW_ONE, c->q_rank, 0);
}

cpl_status cpl_layer_mla(const cpl_mla_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    cpl_layer *layer;
    const gqa_mode *mode;
    CPL_TRY(check_config(config));
    CPL_TRY(cpli_gqa_find_mode("mla", config->cp_mode, &mode));
    CPL_TRY(cpli_layer_create(&ops, sizeof(mla_layer), dtype, &layer));
    mla_layer *mla = (mla_layer *)layer;
    mla->config = *config;
    mla->config.cp_mode = mode->name; /* not the caller's text */
    mla->mode = mode;
    mla->q_dim = config->nope_dim + config->rope_dim;
    mla->up_dim = config->nope_dim + config->value_dim;
    mla->key_dim = config->kv_rank + config->rope_dim;
    layer->in_width = layer->out_width = config->hidden;
    declare_params(mla);
    *out = layer;
    return CPL_OK;
}
