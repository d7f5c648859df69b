/* ffn.c: see ffn.h. */
#include "ffn.h"

enum { GATE_PROJ, UP_PROJ, DOWN_PROJ };

typedef cpli_columns rows;

void cpli_ffn_params(cpl_layer *layer, cpli_ffn *ffn,
                     const char *const names[3], int64_t experts, int64_t width)
{
    int64_t hidden = layer->in_width;
    ffn->first_param = layer->n_params;
    ffn->experts = experts;
    ffn->full_width = width;
    cpli_layer_param(layer, names[GATE_PROJ], CPLI_DRAW_NORMAL, experts * width,
                     hidden);
    cpli_layer_param(layer, names[UP_PROJ], CPLI_DRAW_NORMAL, experts * width,
                     hidden);
    cpli_layer_param(layer, names[DOWN_PROJ], CPLI_DRAW_NORMAL,
                     experts * hidden, width);
}

cpl_status cpli_ffn_prepare(cpl_layer *layer, cpli_ffn *ffn, const char *what,
                            int64_t n_rows)
{
    cpli_share share = {0};
    CPL_TRY(cpli_layer_share(layer, what, ffn->full_width, &share));
    ffn->first = share.first;
    ffn->width = share.n;
    ffn->n_rows = n_rows;
    const cpli_buffer buffers[] = {
        {&ffn->gate_up, n_rows, 2 * ffn->width, CPLI_KEPT},
        {&ffn->act, n_rows, ffn->width, CPLI_KEPT},
        {&ffn->d_gate_up, n_rows, 2 * ffn->width, CPLI_SCRATCH},
        {&ffn->d_act, n_rows, ffn->width, CPLI_SCRATCH},
    };
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

/* The slice of one of the matrices of the first expert, which are stacked: of
 * gate and up some rows, of down some columns. */
static cpli_block block_of(const cpl_layer *layer, const cpli_ffn *ffn,
                           int which)
{
    int64_t hidden = layer->in_width;
    int param = ffn->first_param + which;
    if (which == DOWN_PROJ)
        return (cpli_block){.param = param,
                            .rows = hidden,
                            .column = ffn->first,
                            .columns = ffn->width};
    return (cpli_block){.param = param,
                        .row = ffn->first,
                        .rows = ffn->width,
                        .columns = hidden};
}

/* The same slice of all experts, for the rows that are theirs. */
static cpl_grouped_matmul groups_of(const cpl_layer *layer, const cpli_ffn *ffn,
                                    const cpli_block *block,
                                    const int64_t *offsets)
{
    const cpl_param_info *info = &layer->params[block->param];
    return (cpl_grouped_matmul){
        .w = cpli_at(layer, cpli_weight(layer, block->param),
                     cpli_block_offset(layer, block)),
        .offsets = offsets,
        .groups = ffn->experts,
        .max_rows = ffn->n_rows,
        .in = block->columns,
        .out = block->rows,
        .w_stride = info->shape[1],
        .w_step = info->shape[0] / ffn->experts * info->shape[1]};
}

/* y = x W'. */
static void project(const cpl_layer *layer, const cpli_ffn *ffn, int which,
                    const int64_t *offsets, rows x, rows y)
{
    cpli_block block = block_of(layer, ffn, which);
    if (offsets == NULL) {
        cpli_project_block(layer, block, ffn->n_rows, x.data, x.stride, y.data,
                           y.stride);
        return;
    }
    cpl_grouped_matmul p = groups_of(layer, ffn, &block, offsets);
    p.x = x.data;
    p.x_stride = x.stride;
    p.y = y.data;
    p.y_stride = y.stride;
    layer->kernels->grouped_matmul(&p);
}

/* See cpli_project_block_backward. */
static void project_backward(const cpl_layer *layer, const cpli_ffn *ffn,
                             int which, const int64_t *offsets, rows x, rows dy,
                             rows dx, bool accumulate)
{
    cpli_block block = block_of(layer, ffn, which);
    if (offsets == NULL) {
        cpli_project_block_backward(layer, block, ffn->n_rows, x.data, x.stride,
                                    dy.data, dy.stride, dx.data, dx.stride,
                                    accumulate);
        return;
    }
    cpl_grouped_matmul_backward p = {
        .forward = groups_of(layer, ffn, &block, offsets),
        .dy = dy.data,
        .dx = dx.data,
        .grad_w = cpli_at_wide(layer, cpli_grad(layer, block.param),
                               cpli_block_offset(layer, &block)),
        .dy_stride = dy.stride,
        .dx_stride = dx.stride,
        .accumulate = accumulate};
    p.forward.x = x.data;
    p.forward.x_stride = x.stride;
    layer->kernels->grouped_matmul_backward(&p);
}

/* Rows as wide as those of the layer. */
static rows outer(const cpl_layer *layer, const void *data)
{
    return (rows){cpli_at(layer, data, 0), layer->in_width};
}

void cpli_ffn_forward(const cpl_layer *layer, const cpli_ffn *ffn,
                      const int64_t *offsets, const void *x, void *y)
{
    rows gate = cpli_columns_of(ffn->gate_up, 0, 0);
    rows up = cpli_columns_of(ffn->gate_up, 0, ffn->width);
    rows act = cpli_columns_of(ffn->act, 0, 0);
    project(layer, ffn, GATE_PROJ, offsets, outer(layer, x), gate);
    project(layer, ffn, UP_PROJ, offsets, outer(layer, x), up);
    layer->kernels->swiglu(&(cpl_swiglu){.gate = gate.data,
                                         .up = up.data,
                                         .y = act.data,
                                         .n_rows = ffn->n_rows,
                                         .width = ffn->width,
                                         .stride = gate.stride});
    project(layer, ffn, DOWN_PROJ, offsets, act, outer(layer, y));
}

void cpli_ffn_backward(const cpl_layer *layer, const cpli_ffn *ffn,
                       const int64_t *offsets, const void *x, const void *dy,
                       void *dx, bool accumulate)
{
    rows gate = cpli_columns_of(ffn->gate_up, 0, 0);
    rows up = cpli_columns_of(ffn->gate_up, 0, ffn->width);
    rows d_gate = cpli_columns_of(ffn->d_gate_up, 0, 0);
    rows d_up = cpli_columns_of(ffn->d_gate_up, 0, ffn->width);
    rows d_act = cpli_columns_of(ffn->d_act, 0, 0);
    project_backward(layer, ffn, DOWN_PROJ, offsets,
                     cpli_columns_of(ffn->act, 0, 0), outer(layer, dy), d_act,
                     false);
    layer->kernels->swiglu_backward(
        &(cpl_swiglu_backward){.gate = gate.data,
                               .up = up.data,
                               .dy = d_act.data,
                               .dgate = d_gate.data,
                               .dup = d_up.data,
                               .n_rows = ffn->n_rows,
                               .width = ffn->width,
                               .stride = gate.stride});
    project_backward(layer, ffn, GATE_PROJ, offsets, outer(layer, x), d_gate,
                     outer(layer, dx), accumulate);
    project_backward(layer, ffn, UP_PROJ, offsets, outer(layer, x), d_up,
                     outer(layer, dx), true);
}
