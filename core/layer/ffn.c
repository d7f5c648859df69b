/* ffn.c: see ffn.h. */
#include "ffn.h"

enum { GATE_PROJ, UP_PROJ, DOWN_PROJ };

void cpli_ffn_params(cpl_layer *layer, cpli_ffn *ffn,
                     const char *const names[3], int64_t experts, int64_t width)
{
    int64_t hidden = layer->in_width;
    ffn->first_param = layer->n_params;
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
    const cpli_buffer buffers[] = {
        {&ffn->gate_up, n_rows, 2 * ffn->width, true},
        {&ffn->act, n_rows, ffn->width, true},
        {&ffn->d_gate_up, n_rows, 2 * ffn->width, false},
        {&ffn->d_act, n_rows, ffn->width, false},
    };
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

/* The slice of one of the matrices of an expert, which are stacked: of gate and
 * up some rows, of down some columns. */
static cpli_block block_of(const cpl_layer *layer, const cpli_ffn *ffn,
                           int which, int64_t expert)
{
    int64_t hidden = layer->in_width;
    int param = ffn->first_param + which;
    if (which == DOWN_PROJ)
        return (cpli_block){.param = param,
                            .row = expert * hidden,
                            .rows = hidden,
                            .column = ffn->first,
                            .columns = ffn->width};
    return (cpli_block){.param = param,
                        .row = expert * ffn->full_width + ffn->first,
                        .rows = ffn->width,
                        .columns = hidden};
}

void cpli_ffn_forward(const cpl_layer *layer, const cpli_ffn *ffn,
                      int64_t expert, int64_t first, int64_t n, const void *x,
                      void *y)
{
    int64_t hidden = layer->in_width;
    int64_t width = ffn->width;
    void *gate = cpli_at(layer, ffn->gate_up->data, first * 2 * width);
    void *up = cpli_at(layer, gate, width);
    void *act = cpli_at(layer, ffn->act->data, first * width);
    x = cpli_at(layer, x, first * hidden);
    cpli_project_block(layer, block_of(layer, ffn, GATE_PROJ, expert), n, x,
                       hidden, gate, 2 * width);
    cpli_project_block(layer, block_of(layer, ffn, UP_PROJ, expert), n, x,
                       hidden, up, 2 * width);
    layer->kernels->swiglu(&(cpl_swiglu){.gate = gate,
                                         .up = up,
                                         .y = act,
                                         .n_rows = n,
                                         .width = width,
                                         .stride = 2 * width});
    cpli_project_block(layer, block_of(layer, ffn, DOWN_PROJ, expert), n, act,
                       width, cpli_at(layer, y, first * hidden), hidden);
}

/* From dy to d_gate_up, and the gradient of down_proj. */
static void down_backward(const cpl_layer *layer, const cpli_ffn *ffn,
                          int64_t expert, int64_t first, int64_t n,
                          const void *dy)
{
    int64_t width = ffn->width;
    void *gate = cpli_at(layer, ffn->gate_up->data, first * 2 * width);
    void *dgate = cpli_at(layer, ffn->d_gate_up->data, first * 2 * width);
    void *act = cpli_at(layer, ffn->act->data, first * width);
    void *d_act = cpli_at(layer, ffn->d_act->data, first * width);
    cpli_project_block_backward(layer, block_of(layer, ffn, DOWN_PROJ, expert),
                                n, act, width, dy, layer->in_width, d_act,
                                width, false);
    layer->kernels->swiglu_backward(
        &(cpl_swiglu_backward){.gate = gate,
                               .up = cpli_at(layer, gate, width),
                               .dy = d_act,
                               .dgate = dgate,
                               .dup = cpli_at(layer, dgate, width),
                               .n_rows = n,
                               .width = width,
                               .stride = 2 * width});
}

void cpli_ffn_backward(const cpl_layer *layer, const cpli_ffn *ffn,
                       int64_t expert, int64_t first, int64_t n, const void *x,
                       const void *dy, void *dx, bool accumulate)
{
    int64_t hidden = layer->in_width;
    int64_t width = ffn->width;
    x = cpli_at(layer, x, first * hidden);
    dx = dx != NULL ? cpli_at(layer, dx, first * hidden) : NULL;
    down_backward(layer, ffn, expert, first, n,
                  cpli_at(layer, dy, first * hidden));
    for (int which = GATE_PROJ; which <= UP_PROJ; which++) {
        const void *d = cpli_at(layer, ffn->d_gate_up->data,
                                first * 2 * width + which * width);
        cpli_project_block_backward(layer, block_of(layer, ffn, which, expert),
                                    n, x, hidden, d, 2 * width, dx, hidden,
                                    accumulate || which == UP_PROJ);
    }
}
