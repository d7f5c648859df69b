/* ffn.c: see ffn.h. */
#include "ffn.h"

enum { GATE_PROJ, UP_PROJ, DOWN_PROJ };

void cpli_ffn_params(cpl_layer *layer, cpli_ffn *ffn,
                     const char *const names[3], int64_t experts, int64_t width)
{
    int64_t hidden = layer->in_width;
    ffn->first_param = layer->n_params;
    ffn->width = width;
    cpli_layer_param(layer, names[GATE_PROJ], CPLI_DRAW_NORMAL, experts * width,
                     hidden);
    cpli_layer_param(layer, names[UP_PROJ], CPLI_DRAW_NORMAL, experts * width,
                     hidden);
    cpli_layer_param(layer, names[DOWN_PROJ], CPLI_DRAW_NORMAL,
                     experts * hidden, width);
}

cpl_status cpli_ffn_buffers(cpl_layer *layer, cpli_ffn *ffn, int64_t n_rows)
{
    const cpli_buffer buffers[] = {
        {&ffn->gate_up, n_rows, 2 * ffn->width, true},
        {&ffn->act, n_rows, ffn->width, true},
        {&ffn->d_gate_up, n_rows, 2 * ffn->width, false},
        {&ffn->d_act, n_rows, ffn->width, false},
    };
    return cpli_layer_buffers(layer, buffers, sizeof buffers / sizeof *buffers);
}

/* One of the matrices of an expert: [out, in], where it begins in the stacked
 * parameter, counted in elements. */
typedef struct projection {
    int param;
    int64_t out, in, offset;
} projection;

static projection projection_of(const cpl_layer *layer, const cpli_ffn *ffn,
                                int which, int64_t expert)
{
    bool down = which == DOWN_PROJ;
    projection p = {.param = ffn->first_param + which,
                    .out = down ? layer->in_width : ffn->width,
                    .in = down ? ffn->width : layer->in_width};
    p.offset = expert * p.out * p.in;
    return p;
}

/* y = x W' */
static void project(const cpl_layer *layer, projection p, int64_t n,
                    const void *x, int64_t ldx, void *y, int64_t ldy)
{
    layer->kernels->matmul(&(cpl_matmul){
        .a = x,
        .b = cpli_at(layer, cpli_weight(layer, p.param), p.offset),
        .c = y,
        .m = n,
        .n = p.out,
        .k = p.in,
        .lda = ldx,
        .ldb = p.in,
        .ldc = ldy,
        .transpose_b = true,
        .alpha = 1});
}

/* The gradient of W gets dy' x. */
static void project_backward_weight(const cpl_layer *layer, projection p,
                                    int64_t n, const void *x, int64_t ldx,
                                    const void *dy, int64_t lddy)
{
    layer->kernels->matmul(
        &(cpl_matmul){.a = dy,
                      .b = x,
                      .c = cpli_at(layer, cpli_grad(layer, p.param), p.offset),
                      .m = p.out,
                      .n = p.in,
                      .k = n,
                      .lda = lddy,
                      .ldb = ldx,
                      .ldc = p.in,
                      .transpose_a = true,
                      .alpha = 1,
                      .beta = 1});
}

/* dx = dy W, or dx += dy W. */
static void project_backward(const cpl_layer *layer, projection p, int64_t n,
                             const void *dy, int64_t lddy, void *dx,
                             int64_t lddx, bool accumulate)
{
    layer->kernels->matmul(&(cpl_matmul){
        .a = dy,
        .b = cpli_at(layer, cpli_weight(layer, p.param), p.offset),
        .c = dx,
        .m = n,
        .n = p.in,
        .k = p.out,
        .lda = lddy,
        .ldb = p.in,
        .ldc = lddx,
        .alpha = 1,
        .beta = accumulate ? 1 : 0});
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
    project(layer, projection_of(layer, ffn, GATE_PROJ, expert), n, x, hidden,
            gate, 2 * width);
    project(layer, projection_of(layer, ffn, UP_PROJ, expert), n, x, hidden, up,
            2 * width);
    layer->kernels->swiglu(&(cpl_swiglu){.gate = gate,
                                         .up = up,
                                         .y = act,
                                         .n_rows = n,
                                         .width = width,
                                         .stride = 2 * width});
    project(layer, projection_of(layer, ffn, DOWN_PROJ, expert), n, act, width,
            cpli_at(layer, y, first * hidden), hidden);
}

/* From dy to d_gate_up, and the gradient of down_proj. */
static void down_backward(const cpl_layer *layer, const cpli_ffn *ffn,
                          int64_t expert, int64_t first, int64_t n,
                          const void *dy)
{
    int64_t width = ffn->width;
    projection down = projection_of(layer, ffn, DOWN_PROJ, expert);
    void *gate = cpli_at(layer, ffn->gate_up->data, first * 2 * width);
    void *dgate = cpli_at(layer, ffn->d_gate_up->data, first * 2 * width);
    void *act = cpli_at(layer, ffn->act->data, first * width);
    void *d_act = cpli_at(layer, ffn->d_act->data, first * width);
    project_backward_weight(layer, down, n, act, width, dy, down.out);
    project_backward(layer, down, n, dy, down.out, d_act, width, false);
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
    down_backward(layer, ffn, expert, first, n,
                  cpli_at(layer, dy, first * hidden));
    for (int which = GATE_PROJ; which <= UP_PROJ; which++) {
        projection p = projection_of(layer, ffn, which, expert);
        void *d = cpli_at(layer, ffn->d_gate_up->data,
                          first * 2 * width + which * width);
        project_backward_weight(layer, p, n, x, hidden, d, 2 * width);
        if (dx != NULL)
            project_backward(layer, p, n, d, 2 * width,
                             cpli_at(layer, dx, first * hidden), hidden,
                             accumulate || which == UP_PROJ);
    }
}
