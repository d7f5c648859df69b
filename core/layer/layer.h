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
    cpl_dtype dtype;
    cpl_dtype wide; /* of what kernels.h calls WIDE: gradients of parameters,
                       and more */
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
    const cpl_kernels *kernels;      /* that work in the place's memory */
    const cpl_kernels *wide_kernels; /* where all arrays are wide */
    cpli_lists lists;
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
/* The same for one that kernels take wide. */
void cpli_layer_wide_param(cpl_layer *layer, const char *name, cpli_draw draw,
                           int64_t rows, int64_t columns);
/* What a buffer is for; uses may be joined. */
enum {
    CPLI_SCRATCH, /* within one forward or one backward; all layers of the place
                     share it */
    CPLI_KEPT,    /* holds, from forward to backward, what backward reads. Where
                     the place shares what is kept, layers that are alike have
                     it in turn */
    CPLI_WIDE     /* of the wide dtype; else of the layer's */
};
/* A buffer [rows, width] in the transport's memory. */
typedef struct cpli_buffer {
    cpl_tensor **tensor;
    int64_t rows, width;
    int use;
} cpli_buffer;

/* Takes buffers for the place; they go with the layer or at the next prepare.
 */
cpl_status cpli_layer_buffers(cpl_layer *layer, const cpli_buffer *buffers,
                              size_t n);
/* The same with memory for `room` rows, if that is more than a buffer has:
 * exchanges see its rows, kernels that are told of as many as there is room for
 * (cpli_room) write all of it. */
cpl_status cpli_layer_roomy_buffers(cpl_layer *layer,
                                    const cpli_buffer *buffers, size_t n,
                                    int64_t room);
/* n zeros in the transport's memory, the layer's alone. */
cpl_status cpli_layer_numbers(cpl_layer *layer, cpl_dtype dtype, int64_t n,
                              cpl_tensor **out);

/* ---- rows ---- */

/* Columns of a matrix: where those of its first row lie. */
typedef struct cpli_columns {
    void *data;
    int64_t stride;
} cpli_columns;

/* From a column on, and from a row on. */
cpli_columns cpli_columns_of(const cpl_tensor *matrix, int64_t row,
                             int64_t column);
/* n rows of `width` elements of the layer's dtype: `to` becomes `from`, or with
 * `add` gets it added. */
void cpli_move_columns(const cpl_layer *layer, int64_t n, int64_t width,
                       cpli_columns from, cpli_columns to, bool add);
/* Row to[i] of y becomes row from[i] of x, dense rows of `width` wide elements;
 * a NULL list is i itself, a row from -1 zeros. */
void cpli_move_wide_rows(const cpl_layer *layer, int64_t n, int64_t width,
                         const void *x, const int64_t *from, void *y,
                         const int64_t *to);

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
/* Elements of the parameter, or of its gradient, before the block. */
int64_t cpli_block_offset(const cpl_layer *layer, const cpli_block *block);

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

/* The same for wide arrays. */
static inline void *cpli_at_wide(const cpl_layer *layer, const void *array,
                                 int64_t n)
{
    return (char *)array + (size_t)n * cpl_dtype_bytes(layer->wide);
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
