/* norm.c: the block norm, RMSNorm with zero-centred weight (1 + w). */
#include "layer.h"

typedef struct norm_layer {
    cpl_layer base;
    double eps;
} norm_layer;

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    int64_t width = layer->in_width;
    layer->kernels->rms_norm(&(cpl_rms_norm){.x = x->data,
                                             .weight = cpli_weight(layer, 0),
                                             .y = y->data,
                                             .n_rows = layer->n_rows,
                                             .width = width,
                                             .x_stride = width,
                                             .y_stride = width,
                                             .eps = ((norm_layer *)layer)->eps,
                                             .weight_offset = 1});
    return CPL_OK;
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    int64_t width = layer->in_width;
    if (dx == NULL)
        return cpli_fail(CPL_INVALID, "%s: backward needs dx", layer->name);
    layer->kernels->rms_norm_backward(
        &(cpl_rms_norm_backward){.x = layer->x->data,
                                 .weight = cpli_weight(layer, 0),
                                 .dy = dy->data,
                                 .dx = dx->data,
                                 .grad_weight = cpli_grad(layer, 0),
                                 .n_rows = layer->n_rows,
                                 .width = width,
                                 .x_stride = width,
                                 .dy_stride = width,
                                 .dx_stride = width,
                                 .eps = ((norm_layer *)layer)->eps,
                                 .weight_offset = 1});
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "norm",
    .forward = forward,
    .backward = backward,
};

cpl_status cpl_layer_norm(const cpl_norm_config *config, cpl_dtype dtype,
                          cpl_layer **out)
{
    cpl_layer *layer;
    if (config->hidden < 1 || config->eps < 0)
        return cpli_fail(CPL_INVALID,
                         "norm: hidden %d must be positive and eps %g not "
                         "negative",
                         config->hidden, config->eps);
    CPL_TRY(cpli_layer_create(&ops, sizeof(norm_layer), dtype, &layer));
    ((norm_layer *)layer)->eps = config->eps;
    layer->in_width = layer->out_width = config->hidden;
    cpli_layer_param(layer, "weight", CPLI_DRAW_ZERO, config->hidden, 0);
    *out = layer;
    return CPL_OK;
}
