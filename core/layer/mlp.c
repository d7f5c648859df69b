/* mlp.c: the SwiGLU block over all rows of a place. */
#include "ffn.h"

typedef struct mlp_layer {
    cpl_layer base;
    cpli_ffn ffn;
} mlp_layer;

static cpl_status prepare(cpl_layer *layer)
{
    return cpli_ffn_prepare(layer, &((mlp_layer *)layer)->ffn, "width",
                            layer->n_rows);
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    cpli_ffn_forward(layer, &((mlp_layer *)layer)->ffn, NULL, x->data, y->data);
    return CPL_OK;
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    cpli_ffn_backward(layer, &((mlp_layer *)layer)->ffn, NULL, layer->x->data,
                      dy->data, dx != NULL ? dx->data : NULL, false);
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "mlp",
    .splits = true,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};

cpl_status cpl_layer_mlp(const cpl_mlp_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    cpl_layer *layer;
    if (config->hidden < 1 || config->width < 1)
        return cpli_fail(CPL_INVALID,
                         "mlp: hidden and width must be positive (got %d, %d)",
                         config->hidden, config->width);
    CPL_TRY(cpli_layer_create(&ops, sizeof(mlp_layer), dtype, &layer));
    layer->in_width = layer->out_width = config->hidden;
    cpli_ffn_params(layer, &((mlp_layer *)layer)->ffn, names, 1, config->width);
    *out = layer;
    return CPL_OK;
}
