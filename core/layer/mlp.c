/* mlp.c: the SwiGLU block, y = (silu(x Wg') * x Wu') Wd'. */
#include "layer.h"

enum { GATE_PROJ, UP_PROJ, DOWN_PROJ };

typedef struct mlp_layer {
    cpl_layer base;
    int64_t width;
    cpl_tensor *gate_up; /* [n, 2F]: gate, up */
    cpl_tensor *act;     /* [n, F] */
    cpl_tensor *d_gate_up;
    cpl_tensor *d_act;
} mlp_layer;

static cpl_status prepare(cpl_layer *layer)
{
    mlp_layer *mlp = (mlp_layer *)layer;
    int64_t n = layer->n_rows;
    const cpli_buffer buffers[] = {
        {&mlp->gate_up, n, 2 * mlp->width, true},
        {&mlp->act, n, mlp->width, true},
        {&mlp->d_gate_up, n, 2 * mlp->width, false},
        {&mlp->d_act, n, mlp->width, false},
    };
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

static cpl_status forward(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y)
{
    mlp_layer *mlp = (mlp_layer *)layer;
    int64_t hidden = layer->in_width;
    int64_t width = mlp->width;
    void *gate = mlp->gate_up->data;
    void *up = cpli_at(layer, gate, width);
    cpli_project(layer, GATE_PROJ, x->data, hidden, gate, 2 * width);
    cpli_project(layer, UP_PROJ, x->data, hidden, up, 2 * width);
    layer->kernels->swiglu(&(cpl_swiglu){.gate = gate,
                                         .up = up,
                                         .y = mlp->act->data,
                                         .n_rows = layer->n_rows,
                                         .width = width,
                                         .stride = 2 * width});
    cpli_project(layer, DOWN_PROJ, mlp->act->data, width, y->data, hidden);
    return CPL_OK;
}

static cpl_status backward(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx)
{
    mlp_layer *mlp = (mlp_layer *)layer;
    int64_t hidden = layer->in_width;
    int64_t width = mlp->width;
    void *gate = mlp->gate_up->data;
    void *dgate = mlp->d_gate_up->data;
    void *dup = cpli_at(layer, dgate, width);
    void *dx_data = dx != NULL ? dx->data : NULL;
    cpli_project_backward(layer, DOWN_PROJ, mlp->act->data, width, dy->data,
                          hidden, mlp->d_act->data, width, false);
    layer->kernels->swiglu_backward(
        &(cpl_swiglu_backward){.gate = gate,
                               .up = cpli_at(layer, gate, width),
                               .dy = mlp->d_act->data,
                               .dgate = dgate,
                               .dup = dup,
                               .n_rows = layer->n_rows,
                               .width = width,
                               .stride = 2 * width});
    cpli_project_backward(layer, GATE_PROJ, layer->x->data, hidden, dgate,
                          2 * width, dx_data, hidden, false);
    cpli_project_backward(layer, UP_PROJ, layer->x->data, hidden, dup,
                          2 * width, dx_data, hidden, true);
    return CPL_OK;
}

static const cpli_layer_ops ops = {
    .kind = "mlp",
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};

cpl_status cpl_layer_mlp(const cpl_mlp_config *config, cpl_dtype dtype,
                         cpl_layer **out)
{
    cpl_layer *layer;
    if (config->hidden < 1 || config->width < 1)
        return cpli_fail(CPL_INVALID,
                         "mlp: hidden and width must be positive (got %d, %d)",
                         config->hidden, config->width);
    CPL_TRY(cpli_layer_create(&ops, sizeof(mlp_layer), dtype, &layer));
    ((mlp_layer *)layer)->width = config->width;
    layer->in_width = layer->out_width = config->hidden;
    cpli_layer_param(layer, "gate_proj", CPLI_DRAW_NORMAL, config->width,
                     config->hidden);
    cpli_layer_param(layer, "up_proj", CPLI_DRAW_NORMAL, config->width,
                     config->hidden);
    cpli_layer_param(layer, "down_proj", CPLI_DRAW_NORMAL, config->hidden,
                     config->width);
    *out = layer;
    return CPL_OK;
}
