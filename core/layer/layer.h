/*
 * layer.h: what the files of the layers share. A layer is a small object with
 * a table of functions; its own struct begins with `cpl_layer`. All memory of
 * a prepared layer hangs on the layer, so forward and backward allocate
 * nothing (but traces, once).
 */
#ifndef CPLI_LAYER_H
#define CPLI_LAYER_H

#include "base.h"
#include "kernels.h"
#include "place.h"
#include "tensor/tensor.h"

enum { CPLI_MAX_PARAMS = 10 };

/* How a parameter is drawn. Sources: Qwen3-Next (transformers) for all but the
 * decay, which specs and experiments want slow enough to matter (DESIGN). */
typedef enum cpli_draw {
    CPLI_DRAW_ZERO,
    CPLI_DRAW_ONE,
    CPLI_DRAW_NORMAL, /* mean 0, deviation 0.02 */
    CPLI_DRAW_CONV,   /* uniform in +-1/sqrt(width of the kernel) */
    CPLI_DRAW_DECAY   /* log A, A log-uniform in [1e-3, 16] */
} cpli_draw;

typedef struct cpli_layer_ops {
    const char *kind;
    bool splits;   /* by tensor parallelism: see cpl_place_split */
    bool has_keys; /* that a cache may keep: see cpl_layer_kv_cache */
    /* May be NULL. Ranks that fail leave it alike: what one alone can fail at
     * is agreed on before anything collective. */
    cpl_status (*prepare)(cpl_layer *layer);
    cpl_status (*forward)(cpl_layer *layer, const cpl_tensor *x, cpl_tensor *y);
    cpl_status (*backward)(cpl_layer *layer, const cpl_tensor *dy,
                           cpl_tensor *dx);
    void (*release)(cpl_layer *layer); /* plans; may be NULL */
} cpli_layer_ops;

struct cpl_layer {
    const cpli_layer_ops *ops;
    cpli_alike alike;
    const cpl_kernels *kernels;
    cpl_dtype dtype;
    int64_t in_width, out_width;
    bool takes_tokens; /* x holds I32 tokens, one a row */

    int n_params;
    cpl_param_info params[CPLI_MAX_PARAMS];
    cpli_draw draws[CPLI_MAX_PARAMS];
    cpl_tensor *weights[CPLI_MAX_PARAMS];
    cpl_tensor *grads[CPLI_MAX_PARAMS];

    /* Since prepare. */
    char *name;
    cpl_place *place;
    int64_t n_rows;       /* of the place */
    cpl_tensor **tensors; /* owned buffers */
    int64_t n_tensors;

    cpl_kv_cache *bound_cache; /* from the next prepare on, */
    cpl_kv_cache *cache;       /* and now; or NULL */

    const cpl_tensor *x; /* of the last forward */
};

/* Takes a layer of `bytes` bytes (its own struct) with its table. */
cpl_status cpli_layer_create(const cpli_layer_ops *ops, size_t bytes,
                             cpl_dtype dtype, cpl_layer **out);
/* Declares the next parameter, 1 or 2 dims (columns 0: one dim). */
void cpli_layer_param(cpl_layer *layer, const char *name, cpli_draw draw,
                      int64_t rows, int64_t columns);
/* A buffer of the layer's dtype, [rows, width], in the transport's memory. One
 * that is kept holds, from forward to backward, what backward reads; the others
 * are scratch, shared by all layers of the place. Where the place shares what
 * is kept, layers that are alike have it in turn. */
typedef struct cpli_buffer {
    cpl_tensor **tensor;
    int64_t rows, width;
    bool is_kept;
} cpli_buffer;

/* Takes buffers for the place; they go with the layer or at the next prepare.
 */
cpl_status cpli_layer_buffers(cpl_layer *layer, const cpli_buffer *buffers,
                              size_t n);

/* ---- slices ---- */

/* What this rank has of n alike things: all of them, but for tensor
 * parallelism. */
typedef struct cpli_share {
    int64_t first, n;
} cpli_share;

/* Errors: INVALID (tp does not divide n; `what` names them). */
cpl_status cpli_layer_share(const cpl_layer *layer, const char *what, int64_t n,
                            cpli_share *out);
/* The same for things of which several ranks may have the same one: those that
 * the share of `users` things uses, evenly. Errors: INVALID (neither a multiple
 * nor a divisor of tp). */
cpl_status cpli_layer_share_used(const cpl_layer *layer, const char *what,
                                 int64_t n, cpli_share *out);

/* ---- projections ---- */

/* Some rows and columns of a matrix parameter. */
typedef struct cpli_block {
    int param;
    int64_t row, rows, column, columns;
} cpli_block;

/* All of them. */
cpli_block cpli_matrix(const cpl_layer *layer, int param);

/* n rows: y (stride ldy) = x (stride ldx) W', W = the block, [out, in]. */
void cpli_project_block(const cpl_layer *layer, cpli_block block, int64_t n,
                        const void *x, int64_t ldx, void *y, int64_t ldy);
/* Of that: the gradient of W is added to, and dx = dy W, or with `accumulate`
 * dx += dy W. dx may be NULL. */
void cpli_project_block_backward(const cpl_layer *layer, cpli_block block,
                                 int64_t n, const void *x, int64_t ldx,
                                 const void *dy, int64_t lddy, void *dx,
                                 int64_t lddx, bool accumulate);

/* The same for all rows of the place and the whole of parameter i. */
void cpli_project(const cpl_layer *layer, int i, const void *x, int64_t ldx,
                  void *y, int64_t ldy);
void cpli_project_backward(const cpl_layer *layer, int i, const void *x,
                           int64_t ldx, const void *dy, int64_t lddy, void *dx,
                           int64_t lddx, bool accumulate);

/* Compares the trace of what a view brought with the view's runs. */
cpl_status cpli_check_view(const cpl_layer *layer, const cpl_tensor *tensor,
                           const cpl_view *view);

/* `array + n elements` for untyped arrays of the layer's dtype. */
static inline void *cpli_at(const cpl_layer *layer, const void *array,
                            int64_t n)
{
    return (char *)array + (size_t)n * cpl_dtype_bytes(layer->dtype);
}

static inline void *cpli_grad(const cpl_layer *layer, int i)
{
    return layer->grads[i]->data;
}

static inline const void *cpli_weight(const cpl_layer *layer, int i)
{
    return layer->weights[i]->data;
}

#endif
