/* linear.c: y = x W', and its transpose twin, the rows of a table by token. */
#include "layer.h"

static cpl_status check_config(const char *who, const cpl_linear_config *config)
{
    if (config->in >= 1 && config->out >= 1)
        return CPL_OK;
    return cpli_fail(CPL_INVALID, "%s: sizes must be positive (got %d, %d)",
                     who, config->in, config->out);
}

static cpl_status linear_forward(cpl_layer *layer, const cpl_tensor *x,
                                 cpl_tensor *y)
{
    cpli_project(layer, 0, x->data, layer->in_width, y->data, layer->out_width);
    return CPL_OK;
}

static cpl_status linear_backward(cpl_layer *layer, const cpl_tensor *dy,
                                  cpl_tensor *dx)
{
    cpli_project_backward(layer, 0, layer->x->data, layer->in_width, dy->data,
                          layer->out_width, dx != NULL ? dx->data : NULL,
                          layer->in_width, false);
    return CPL_OK;
}

static const cpli_layer_ops linear_ops = {
    .kind = "linear",
    .forward = linear_forward,
    .backward = linear_backward,
};

cpl_status cpl_layer_linear(const cpl_linear_config *config, cpl_dtype dtype,
                            cpl_layer **out)
{
    cpl_layer *layer;
    CPL_TRY(check_config("linear", config));
    CPL_TRY(cpli_layer_create(&linear_ops, sizeof *layer, dtype, &layer));
    layer->in_width = config->in;
    layer->out_width = config->out;
    cpli_layer_param(layer, "weight", CPLI_DRAW_NORMAL, config->out,
                     config->in);
    *out = layer;
    return CPL_OK;
}

static int64_t vocabulary_of(const cpl_layer *layer)
{
    return layer->params[0].shape[0];
}

/* Tokens on a device are not to be read here; there a token that is not in the
 * vocabulary gives NaN. */
static cpl_status check_tokens(const cpl_layer *layer, const int32_t *tokens)
{
    int64_t vocabulary = vocabulary_of(layer);
    if (cpli_device_of(layer->place->comm) != NULL)
        return CPL_OK;
    for (int64_t i = 0; i < layer->n_rows; i++)
        if (tokens[i] >= vocabulary)
            return cpli_fail(
                CPL_INVALID, "%s: token %d in slot %lld, vocabulary of %lld",
                layer->name, tokens[i], (long long)i, (long long)vocabulary);
    return CPL_OK;
}

static cpl_status embedding_forward(cpl_layer *layer, const cpl_tensor *x,
                                    cpl_tensor *y)
{
    CPL_TRY(check_tokens(layer, x->data));
    layer->kernels->embedding(
        &(cpl_embedding){.table = cpli_weight(layer, 0),
                         .tokens = x->data,
                         .y = y->data,
                         .n_rows = layer->n_rows,
                         .width = layer->out_width,
                         .vocabulary = vocabulary_of(layer)});
    return CPL_OK;
}

static cpl_status embedding_backward(cpl_layer *layer, const cpl_tensor *dy,
                                     cpl_tensor *dx)
{
    if (dx != NULL)
        return cpli_fail(CPL_INVALID, "%s: tokens have no gradient",
                         layer->name);
    layer->kernels->embedding_backward(
        &(cpl_embedding_backward){.tokens = layer->x->data,
                                  .dy = dy->data,
                                  .grad_table = cpli_grad(layer, 0),
                                  .n_rows = layer->n_rows,
                                  .width = layer->out_width,
                                  .vocabulary = vocabulary_of(layer)});
    return CPL_OK;
}

static const cpli_layer_ops embedding_ops = {
    .kind = "embedding",
    .forward = embedding_forward,
    .backward = embedding_backward,
};

cpl_status cpl_layer_embedding(const cpl_linear_config *config, cpl_dtype dtype,
                               cpl_layer **out)
{
    cpl_layer *layer;
    CPL_TRY(check_config("embedding", config));
    CPL_TRY(cpli_layer_create(&embedding_ops, sizeof *layer, dtype, &layer));
    layer->takes_tokens = true;
    layer->in_width = 1;
    layer->out_width = config->out;
    cpli_layer_param(layer, "weight", CPLI_DRAW_NORMAL, config->in,
                     config->out);
    *out = layer;
    return CPL_OK;
}
