/*
 * moe.c: a mixture of experts (transformers modeling_qwen3_next.py): a softmax
 * router, top-k with the chosen weights renormalised, SwiGLU experts, and a
 * shared expert behind a sigmoid gate. Experts are on every rank and tokens
 * stay on theirs, so context parallelism needs nothing here but, where the
 * load is balanced by a loss, the counts of the group. Rows are grouped by
 * expert, so each expert is three products over rows that stand together.
 * Padding is never routed and never counted; its rows give and get 0.
 *
 * Tensor parallelism splits the width of every expert. All else acts on y by
 * products with what experts give, so a slice of it gives a partial sum, and a
 * slice's part of every gradient, the router's too.
 */
#include "ffn.h"

typedef struct moe_layer {
    cpl_layer base;
    cpl_moe_config config;
    cpli_ffn experts, shared;
    int router, shared_gate_proj; /* parameters */
    cpl_tensor *probs;            /* [n, E] */
    cpl_tensor *weights;          /* [n, k] */
    cpl_tensor *grouped, *out;    /* [n k, hidden]: what experts see and make */
    cpl_tensor *shared_out;       /* [n, hidden] */
    cpl_tensor *shared_gate;      /* [n, 1] */
    cpl_tensor *logits;           /* [n, E], and their gradient */
    cpl_tensor *d_weights, *d_out, *d_shared, *d_shared_gate;
    /* What kernels make, and the host looks at for a report alone. */
    cpl_tensor *chosen, *places;    /* [n, k] */
    cpl_tensor *offsets;            /* [E + 1] */
    cpl_tensor *margin;             /* [1] */
    cpl_tensor *load;               /* [2 E]: see cpl_moe_load */
    cpl_tensor *d_probs, *aux_loss; /* [E], [1]: of the balance */
    cpl_sum *sum;                   /* of the load over the group */
    cpl_span *all;                  /* all rows, for a fault */
    int64_t *reported;              /* offsets, for the caller of a report */
} moe_layer;

static bool has_shared(const moe_layer *moe)
{
    return moe->config.shared_width > 0;
}

static cpl_status take_numbers(moe_layer *moe)
{
    cpl_layer *layer = &moe->base;
    int64_t choices = layer->n_rows * moe->config.top_k;
    int64_t experts = moe->config.experts;
    CPL_TRY(cpli_layer_numbers(layer, CPL_I32, choices, &moe->chosen));
    CPL_TRY(cpli_layer_numbers(layer, CPL_I64, choices, &moe->places));
    CPL_TRY(cpli_layer_numbers(layer, CPL_I64, experts + 1, &moe->offsets));
    CPL_TRY(cpli_layer_numbers(layer, CPL_F64, 1, &moe->margin));
    CPL_TRY(cpli_layer_numbers(layer, CPL_F64, 2 * experts, &moe->load));
    CPL_TRY(cpli_layer_numbers(layer, CPL_F64, experts, &moe->d_probs));
    CPL_TRY(cpli_layer_numbers(layer, CPL_F64, 1, &moe->aux_loss));
    CPL_TRY(CPLI_LIST_MAKE(&layer->lists, experts + 1, &moe->reported));
    cpl_span *all;
    CPL_TRY(CPLI_LIST_MAKE(&layer->lists, 1, &all));
    all->length = layer->n_rows;
    return CPLI_LIST_SEND(&layer->lists, all, 1, &moe->all);
}

static cpl_status take_shared(moe_layer *moe)
{
    cpl_layer *layer = &moe->base;
    int64_t n = layer->n_rows;
    const cpli_buffer buffers[] = {
        {&moe->shared_out, n, layer->in_width, CPLI_KEPT},
        {&moe->shared_gate, n, 1, CPLI_KEPT},
        {&moe->d_shared, n, layer->in_width, CPLI_SCRATCH},
        {&moe->d_shared_gate, n, 1, CPLI_SCRATCH},
    };
    CPL_TRY(cpli_ffn_prepare(layer, &moe->shared, "shared_width", n));
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

static cpl_status prepare(cpl_layer *layer)
{
    moe_layer *moe = (moe_layer *)layer;
    int64_t n = layer->n_rows;
    int64_t slots = n * moe->config.top_k;
    const cpli_buffer buffers[] = {
        {&moe->probs, n, moe->config.experts, CPLI_KEPT | CPLI_WIDE},
        {&moe->weights, n, moe->config.top_k, CPLI_KEPT | CPLI_WIDE},
        {&moe->grouped, slots, layer->in_width, CPLI_KEPT},
        {&moe->out, slots, layer->in_width, CPLI_KEPT},
        {&moe->logits, n, moe->config.experts, CPLI_SCRATCH},
        {&moe->d_weights, n, moe->config.top_k, CPLI_SCRATCH | CPLI_WIDE},
        {&moe->d_out, slots, layer->in_width, CPLI_SCRATCH},
    };
    if (moe->config.aux_coefficient > 0)
        CPL_TRY(cpl_sum_create(layer->place->comm, CPL_F64,
                               2 * moe->config.experts, &moe->sum));
    CPL_TRY(take_numbers(moe));
    CPL_TRY(cpli_ffn_prepare(layer, &moe->experts, "width", slots));
    if (has_shared(moe))
        CPL_TRY(take_shared(moe));
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

static void release(cpl_layer *layer)
{
    moe_layer *moe = (moe_layer *)layer;
    cpl_sum_destroy(moe->sum);
    moe->sum = NULL;
}

/* Who goes to whom, and the rows in the order of their experts. */
static void dispatch(moe_layer *moe, const cpl_tensor *x)
{
    cpl_layer *layer = &moe->base;
    const cpl_moe_config *c = &moe->config;
    const cpl_place *place = layer->place;
    bool all_rows = cpl_faults_here()->route_padding != 0;
    cpli_project(layer, moe->router, x->data, layer->in_width,
                 moe->logits->data, c->experts);
    layer->kernels->moe_route(
        &(cpl_moe_route){.logits = moe->logits->data,
                         .probs = moe->probs->data,
                         .weights = moe->weights->data,
                         .chosen = moe->chosen->data,
                         .margin = moe->margin->data,
                         .spans = all_rows ? moe->all : place->kernel_spans,
                         .n_spans = all_rows ? 1 : place->n_kernel_spans,
                         .n_rows = layer->n_rows,
                         .experts = c->experts,
                         .top_k = c->top_k,
                         .renormalise = c->renormalise});
    layer->kernels->moe_group(&(cpl_moe_group){.chosen = moe->chosen->data,
                                               .places = moe->places->data,
                                               .offsets = moe->offsets->data,
                                               .n_rows = layer->n_rows,
                                               .experts = c->experts,
                                               .top_k = c->top_k});
    layer->kernels->moe_dispatch(
        &(cpl_moe_dispatch){.x = x->data,
                            .places = moe->places->data,
                            .y = moe->grouped->data,
                            .n_rows = layer->n_rows,
                            .top_k = c->top_k,
                            .width = layer->in_width});
}

/* The loss that balances the load of the group, and what it gives back. */
static cpl_status balance(moe_layer *moe)
{
    const cpl_layer *layer = &moe->base;
    const cpl_moe_config *c = &moe->config;
    layer->kernels->moe_load(&(cpl_moe_load){.probs = moe->probs->data,
                                             .offsets = moe->offsets->data,
                                             .load = moe->load->data,
                                             .n_rows = layer->n_rows,
                                             .experts = c->experts});
    CPL_TRY(cpl_sum_execute(moe->sum, moe->load));
    layer->kernels->moe_balance(
        &(cpl_moe_balance){.load = moe->load->data,
                           .loss = moe->aux_loss->data,
                           .dprobs = moe->d_probs->data,
                           .experts = c->experts,
                           .top_k = c->top_k,
                           .coefficient = c->aux_coefficient});
    return CPL_OK;
}

static cpl_moe_combine combination(const moe_layer *moe)
{
    cpl_moe_combine p = {.h = moe->out->data,
                         .weights = moe->weights->data,
                         .places = moe->places->data,
                         .n_rows = moe->base.n_rows,
                         .top_k = moe->config.top_k,
                         .width = moe->base.in_width};
    if (has_shared(moe)) {
        p.shared = moe->shared_out->data;
        p.shared_gate = moe->shared_gate->data;
    }
    return p;
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    moe_layer *moe = (moe_layer *)layer;
    dispatch(moe, x);
    cpli_ffn_forward(layer, &moe->experts, moe->offsets->data,
                     moe->grouped->data, moe->out->data);
    if (has_shared(moe)) {
        cpli_ffn_forward(layer, &moe->shared, NULL, x->data,
                         moe->shared_out->data);
        cpli_project(layer, moe->shared_gate_proj, x->data, layer->in_width,
                     moe->shared_gate->data, 1);
    }
    cpl_moe_combine p = combination(moe);
    p.y = y->data;
    layer->kernels->moe_combine(&p);
    return moe->config.aux_coefficient > 0 ? balance(moe) : CPL_OK;
}

/* dx of the routed rows, from the gradients of the slots. */
static void experts_backward(moe_layer *moe, cpl_tensor *dx)
{
    cpl_layer *layer = &moe->base;
    void *d = moe->d_out->data; /* in place: of the results, then of the rows */
    cpli_ffn_backward(layer, &moe->experts, moe->offsets->data,
                      moe->grouped->data, d, d, false);
    layer->kernels->moe_combine(&(cpl_moe_combine){.h = d,
                                                   .places = moe->places->data,
                                                   .y = dx->data,
                                                   .n_rows = layer->n_rows,
                                                   .top_k = moe->config.top_k,
                                                   .width = layer->in_width});
}

/* dx of the router is added. */
static void router_backward(moe_layer *moe, cpl_tensor *dx)
{
    cpl_layer *layer = &moe->base;
    const cpl_moe_config *c = &moe->config;
    /* Of the balance the first of those who split the layer speaks for all. */
    bool has_balance = c->aux_coefficient > 0 && layer->place->tp_rank == 0;
    layer->kernels->moe_route_backward(&(cpl_moe_route_backward){
        .probs = moe->probs->data,
        .dweights = moe->d_weights->data,
        .dprobs = has_balance ? moe->d_probs->data : NULL,
        .chosen = moe->chosen->data,
        .dlogits = moe->logits->data,
        .n_rows = layer->n_rows,
        .experts = c->experts,
        .top_k = c->top_k,
        .renormalise = c->renormalise});
    cpli_project_backward(layer, moe->router, layer->x->data, layer->in_width,
                          moe->logits->data, c->experts, dx->data,
                          layer->in_width, true);
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    moe_layer *moe = (moe_layer *)layer;
    if (dx == NULL)
        return cpli_fail(CPL_INVALID, "%s: backward needs dx", layer->name);
    cpl_moe_combine_backward p = {.forward = combination(moe),
                                  .dy = dy->data,
                                  .dh = moe->d_out->data,
                                  .dweights = moe->d_weights->data};
    if (has_shared(moe)) {
        p.dshared = moe->d_shared->data;
        p.dshared_gate = moe->d_shared_gate->data;
    }
    layer->kernels->moe_combine_backward(&p);
    experts_backward(moe, dx);
    router_backward(moe, dx);
    if (!has_shared(moe))
        return CPL_OK;
    cpli_ffn_backward(layer, &moe->shared, NULL, layer->x->data,
                      moe->d_shared->data, dx->data, true);
    cpli_project_backward(layer, moe->shared_gate_proj, layer->x->data,
                          layer->in_width, moe->d_shared_gate->data, 1,
                          dx->data, layer->in_width, true);
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "moe",
    .splits = true,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .release = release,
};

static cpl_status check_config(const cpl_moe_config *c)
{
    if (c->hidden < 1 || c->experts < 1 || c->width < 1)
        return cpli_fail(CPL_INVALID,
                         "moe: hidden, experts and width must be positive (got "
                         "%d, %d, %d)",
                         c->hidden, c->experts, c->width);
    if (c->top_k < 1 || c->top_k > c->experts)
        return cpli_fail(CPL_INVALID, "moe: top_k %d is not in 1 to %d experts",
                         c->top_k, c->experts);
    if (c->shared_width < 0 || !(c->aux_coefficient >= 0))
        return cpli_fail(CPL_INVALID,
                         "moe: shared_width %d and aux_coefficient %g must not "
                         "be negative",
                         c->shared_width, c->aux_coefficient);
    return CPL_OK;
}

cpl_status cpl_layer_moe(const cpl_moe_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    static const char *const names[] = {"expert_gate_proj", "expert_up_proj",
                                        "expert_down_proj"};
    static const char *const shared_names[] = {
        "shared_gate_proj", "shared_up_proj", "shared_down_proj"};
    cpl_layer *layer;
    CPL_TRY(check_config(config));
    CPL_TRY(cpli_layer_create(&ops, sizeof(moe_layer), dtype, &layer));
    moe_layer *moe = (moe_layer *)layer;
    moe->config = *config;
    layer->in_width = layer->out_width = config->hidden;
    moe->router = layer->n_params;
    cpli_layer_param(layer, "router", CPLI_DRAW_NORMAL, config->experts,
                     config->hidden);
    cpli_ffn_params(layer, &moe->experts, names, config->experts,
                    config->width);
    if (has_shared(moe)) {
        cpli_ffn_params(layer, &moe->shared, shared_names, 1,
                        config->shared_width);
        moe->shared_gate_proj = layer->n_params;
        cpli_layer_param(layer, "shared_expert_gate", CPLI_DRAW_NORMAL, 1,
                         config->hidden);
    }
    *out = layer;
    return CPL_OK;
}

cpl_status cpl_layer_moe_report(const cpl_layer *layer, cpl_moe_report *out)
{
    moe_layer *moe = (moe_layer *)layer;
    if (layer->ops != &ops || layer->x == NULL)
        return cpli_fail(CPL_INVALID,
                         "%s: only a mixture of experts that ran forward "
                         "has routed tokens",
                         layer->ops->kind);
    *out = (cpl_moe_report){.experts = moe->config.experts,
                            .offsets = moe->reported};
    CPL_TRY(cpl_tensor_download(moe->offsets, moe->reported));
    CPL_TRY(cpl_tensor_download(moe->margin, &out->margin));
    return cpl_tensor_download(moe->aux_loss, &out->aux_loss);
}
