/*
 * layer.c: what all layers do alike: parameters, buffers, and the checks
 * around forward and backward.
 */
#include "layer.h"

#include <math.h>

#include "trace/trace.h"

cpl_status cpli_layer_create(const cpli_layer_ops *ops, size_t bytes,
                             cpl_dtype dtype, cpl_layer **out)
{
    cpl_layer *layer;
    if (dtype != CPL_F64 && dtype != CPL_F32 && dtype != CPL_BF16)
        return cpli_fail(CPL_UNSUPPORTED,
                         "%s: layers compute in f64, f32 or bf16, not in %s",
                         ops->kind, cpl_dtype_name(dtype));
    CPL_TRY(cpli_alloc(1, bytes, (void **)&layer));
    layer->ops = ops;
    layer->alike.kind = ops;
    layer->dtype = dtype;
    layer->wide = dtype == CPL_BF16 ? CPL_F32 : dtype;
    *out = layer;
    return CPL_OK;
}

void cpli_layer_param(cpl_layer *layer, const char *name, cpli_draw draw,
                      int64_t rows, int64_t columns)
{
    CPL_ASSERT(layer->n_params < CPLI_MAX_PARAMS);
    cpl_param_info *info = &layer->params[layer->n_params];
    layer->draws[layer->n_params++] = draw;
    info->name = name;
    info->dtype = layer->dtype;
    info->n_dims = columns > 0 ? 2 : 1;
    info->shape[0] = rows;
    info->shape[1] = columns;
}

void cpli_layer_wide_param(cpl_layer *layer, const char *name, cpli_draw draw,
                           int64_t rows, int64_t columns)
{
    cpli_layer_param(layer, name, draw, rows, columns);
    layer->params[layer->n_params - 1].dtype = layer->wide;
}

/* With n rows, whatever the buffer has. */
static cpl_status make_buffer(cpl_layer *layer, const cpli_buffer *buffer,
                              int64_t n, cpl_tensor **out)
{
    cpl_place *place = layer->place;
    int64_t shape[] = {n, buffer->width};
    cpl_dtype dtype =
        (buffer->use & CPLI_WIDE) != 0 ? layer->wide : layer->dtype;
    bool is_kept = (buffer->use & CPLI_KEPT) != 0;
    if (is_kept && !place->shares_kept)
        return cpl_tensor_create(dtype, 2, shape, place->comm, out);
    cpli_alike owner = is_kept ? layer->alike : (cpli_alike){0};
    void *data;
    size_t bytes = (size_t)(n * buffer->width) * cpl_dtype_bytes(dtype);
    CPL_TRY(cpli_place_kept(place, owner, bytes, &data));
    return cpli_tensor_over(data, dtype, 2, shape, place->memory, out);
}

static cpl_status make_room(cpl_layer *layer, size_t n)
{
    return cpli_realloc((void **)&layer->tensors, (size_t)layer->n_tensors + n,
                        sizeof *layer->tensors);
}

cpl_status cpli_layer_buffers(cpl_layer *layer, const cpli_buffer *buffers,
                              size_t n)
{
    return cpli_layer_roomy_buffers(layer, buffers, n, 0);
}

cpl_status cpli_layer_roomy_buffers(cpl_layer *layer,
                                    const cpli_buffer *buffers, size_t n,
                                    int64_t room)
{
    CPL_TRY(make_room(layer, n));
    for (size_t i = 0; i < n; i++) {
        cpl_tensor *tensor;
        CPL_TRY(make_buffer(layer, &buffers[i], cpli_max(buffers[i].rows, room),
                            &tensor));
        tensor->shape[0] = buffers[i].rows;
        layer->tensors[layer->n_tensors++] = tensor;
        *buffers[i].tensor = tensor;
    }
    return CPL_OK;
}

cpl_status cpli_layer_numbers(cpl_layer *layer, cpl_dtype dtype, int64_t n,
                              cpl_tensor **out)
{
    CPL_TRY(make_room(layer, 1));
    CPL_TRY(cpl_tensor_create(dtype, 1, &n, layer->place->comm, out));
    layer->tensors[layer->n_tensors++] = *out;
    return CPL_OK;
}

/* ---- rows ---- */

cpli_columns cpli_columns_of(const cpl_tensor *matrix, int64_t row,
                             int64_t column)
{
    int64_t width = cpl_tensor_width(matrix);
    size_t bytes = cpl_dtype_bytes(matrix->dtype);
    return (cpli_columns){
        (char *)matrix->data + (size_t)(row * width + column) * bytes, width};
}

void cpli_move_columns(const cpl_layer *layer, int64_t n, int64_t width,
                       cpli_columns from, cpli_columns to, bool add)
{
    layer->kernels->move_rows(&(cpl_move_rows){.x = from.data,
                                               .y = to.data,
                                               .n = n,
                                               .width = width,
                                               .x_stride = from.stride,
                                               .y_stride = to.stride,
                                               .add = add});
}

void cpli_move_wide_rows(const cpl_layer *layer, int64_t n, int64_t width,
                         const void *x, const int64_t *from, void *y,
                         const int64_t *to)
{
    layer->wide_kernels->move_rows(&(cpl_move_rows){.x = x,
                                                    .y = y,
                                                    .from = from,
                                                    .to = to,
                                                    .n = n,
                                                    .width = width,
                                                    .x_stride = width,
                                                    .y_stride = width});
}

/* ---- slices ---- */

cpl_status cpli_layer_share(const cpl_layer *layer, const char *what, int64_t n,
                            cpli_share *out)
{
    const cpl_place *place = layer->place;
    if (n % place->tp != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: %s = %lld is not a multiple of tp = "
                         "%d",
                         layer->name, what, (long long)n, place->tp);
    out->n = n / place->tp;
    out->first = place->tp_rank * out->n;
    return CPL_OK;
}

cpl_status cpli_layer_share_used(const cpl_layer *layer, const char *what,
                                 int64_t n, cpli_share *out)
{
    const cpl_place *place = layer->place;
    if (n % place->tp == 0)
        return cpli_layer_share(layer, what, n, out);
    if (place->tp % n != 0)
        return cpli_fail(CPL_INVALID,
                         "%s: %s = %lld is neither a multiple nor a divisor of "
                         "tp = %d",
                         layer->name, what, (long long)n, place->tp);
    out->n = 1;
    out->first = place->tp_rank * n / place->tp;
    return CPL_OK;
}

/* ---- projections ---- */

cpli_block cpli_matrix(const cpl_layer *layer, int param)
{
    const cpl_param_info *info = &layer->params[param];
    return (cpli_block){
        .param = param, .rows = info->shape[0], .columns = info->shape[1]};
}

int64_t cpli_block_offset(const cpl_layer *layer, const cpli_block *block)
{
    return block->row * layer->params[block->param].shape[1] + block->column;
}

void cpli_project_block(const cpl_layer *layer, cpli_block block, int64_t n,
                        const void *x, int64_t ldx, void *y, int64_t ldy)
{
    layer->kernels->matmul(
        &(cpl_matmul){.a = x,
                      .b = cpli_at(layer, cpli_weight(layer, block.param),
                                   cpli_block_offset(layer, &block)),
                      .c = y,
                      .m = n,
                      .n = block.rows,
                      .k = block.columns,
                      .lda = ldx,
                      .ldb = layer->params[block.param].shape[1],
                      .ldc = ldy,
                      .transpose_b = true,
                      .alpha = 1});
}

void cpli_project_block_backward(const cpl_layer *layer, cpli_block block,
                                 int64_t n, const void *x, int64_t ldx,
                                 const void *dy, int64_t lddy, void *dx,
                                 int64_t lddx, bool accumulate)
{
    int64_t offset = cpli_block_offset(layer, &block);
    int64_t stride = layer->params[block.param].shape[1];
    layer->kernels->matmul(&(cpl_matmul){
        .a = dy,
        .b = x,
        .c = cpli_at_wide(layer, cpli_grad(layer, block.param), offset),
        .m = block.rows,
        .n = block.columns,
        .k = n,
        .lda = lddy,
        .ldb = ldx,
        .ldc = stride,
        .transpose_a = true,
        .wide_c = true,
        .alpha = 1,
        .beta = 1});
    if (dx == NULL)
        return;
    layer->kernels->matmul(&(cpl_matmul){
        .a = dy,
        .b = cpli_at(layer, cpli_weight(layer, block.param), offset),
        .c = dx,
        .m = n,
        .n = block.columns,
        .k = block.rows,
        .lda = lddy,
        .ldb = stride,
        .ldc = lddx,
        .alpha = 1,
        .beta = accumulate ? 1 : 0});
}

void cpli_project(const cpl_layer *layer, int i, const void *x, int64_t ldx,
                  void *y, int64_t ldy)
{
    cpli_project_block(layer, cpli_matrix(layer, i), layer->n_rows, x, ldx, y,
                       ldy);
}

void cpli_project_backward(const cpl_layer *layer, int i, const void *x,
                           int64_t ldx, const void *dy, int64_t lddy, void *dx,
                           int64_t lddx, bool accumulate)
{
    cpli_project_block_backward(layer, cpli_matrix(layer, i), layer->n_rows, x,
                                ldx, dy, lddy, dx, lddx, accumulate);
}

cpl_status cpli_check_view(const cpl_layer *layer, const cpl_tensor *tensor,
                           const cpl_view *view)
{
    int rank = layer->place->rank;
    if (tensor->trace == NULL)
        return CPL_OK;
    int64_t n_runs;
    CPL_TRY(cpl_view_n_runs(view, rank, &n_runs));
    cpl_run *runs;
    CPL_TRY(CPL_ALLOC(n_runs, &runs));
    cpl_status status = cpl_view_runs(view, rank, runs);
    if (status == CPL_OK)
        status = cpli_trace_runs(tensor, runs, n_runs, rank, layer->name);
    cpli_free(runs);
    return status;
}

/* ---- the public face ---- */

const char *cpl_layer_kind(const cpl_layer *layer)
{
    return layer->ops->kind;
}

int64_t cpl_layer_out_width(const cpl_layer *layer)
{
    return layer->out_width;
}

int cpl_layer_n_params(const cpl_layer *layer)
{
    return layer->n_params;
}

const cpl_param_info *cpl_layer_param(const cpl_layer *layer, int i)
{
    return i >= 0 && i < layer->n_params ? &layer->params[i] : NULL;
}

static double draw(cpli_draw how, uint64_t key, uint64_t i, int64_t columns)
{
    switch (how) {
    case CPLI_DRAW_ZERO:
        break;
    case CPLI_DRAW_ONE:
        return 1;
    case CPLI_DRAW_NORMAL:
        return 0.02 * cpl_random_normal(key, i);
    case CPLI_DRAW_CONV:
        return (2 * cpl_random_uniform(key, i) - 1) / sqrt((double)columns);
    case CPLI_DRAW_DECAY: {
        double low = log(1e-3);
        return low + (log(16.0) - low) * cpl_random_uniform(key, i);
    }
    }
    return 0;
}

static cpl_status check_param(const cpl_layer *layer, int i, const char *what,
                              const cpl_tensor *tensor, cpl_dtype dtype)
{
    const cpl_param_info *info = &layer->params[i];
    bool same = tensor->dtype == dtype && tensor->n_dims == info->n_dims;
    for (int d = 0; same && d < info->n_dims; d++)
        same = tensor->shape[d] == info->shape[d];
    if (same)
        return CPL_OK;
    return cpli_fail(
        CPL_MISMATCH, "%s: %s %s is %s of %lld x %lld, not what was given",
        layer->ops->kind, what, info->name, cpl_dtype_name(dtype),
        (long long)info->shape[0], (long long)cpli_max(info->shape[1], 1));
}

static cpl_status check_weight(const cpl_layer *layer, int i,
                               const cpl_tensor *tensor)
{
    return check_param(layer, i, "parameter", tensor, layer->params[i].dtype);
}

cpl_status cpl_layer_init(const cpl_layer *layer, int i, uint64_t seed,
                          const char *name, cpl_tensor *param)
{
    if (i < 0 || i >= layer->n_params)
        return cpli_fail(CPL_INVALID, "%s: no parameter %d of %d",
                         layer->ops->kind, i, layer->n_params);
    CPL_TRY(check_weight(layer, i, param));
    bool is_here = cpli_device_of(param->comm) == NULL;
    void *values = param->data;
    if (!is_here)
        CPL_TRY(cpli_alloc(1, cpl_tensor_bytes(param), &values));
    uint64_t key = cpl_random_key(seed, name);
    int64_t n = cpl_tensor_n_elements(param);
    for (int64_t j = 0; j < n; j++)
        cpl_dtype_store(
            param->dtype, values, j,
            draw(layer->draws[i], key, (uint64_t)j, layer->params[i].shape[1]));
    if (is_here)
        return CPL_OK;
    cpl_status status = cpl_tensor_upload(param, values);
    cpli_free(values);
    return status;
}

cpl_status cpl_layer_bind(cpl_layer *layer, cpl_tensor *const *params,
                          cpl_tensor *const *grads)
{
    for (int i = 0; i < layer->n_params; i++) {
        CPL_TRY(check_weight(layer, i, params[i]));
        CPL_TRY(
            check_param(layer, i, "the gradient of", grads[i], layer->wide));
    }
    memcpy(layer->weights, params, (size_t)layer->n_params * sizeof *params);
    memcpy(layer->grads, grads, (size_t)layer->n_params * sizeof *grads);
    return CPL_OK;
}

static void release(cpl_layer *layer)
{
    if (layer->ops->release != NULL)
        layer->ops->release(layer);
    for (int64_t i = 0; i < layer->n_tensors; i++)
        cpl_tensor_destroy(layer->tensors[i]);
    cpli_lists_free(&layer->lists);
    cpli_free(layer->tensors);
    cpli_free(layer->name);
    layer->tensors = NULL;
    layer->n_tensors = 0;
    layer->name = NULL;
    layer->place = NULL;
    layer->kernels = layer->wide_kernels = NULL;
    layer->cache = NULL;
    layer->x = NULL;
}

void cpl_layer_destroy(cpl_layer *layer)
{
    if (layer == NULL)
        return;
    release(layer);
    cpli_free(layer);
}

/* The layer's own prepare begins on all ranks or on none. */
static cpl_status begin(cpl_layer *layer, const char *name, cpl_place *place)
{
    CPL_TRY(cpl_comm_agree(place->comm, cpli_text(&layer->name, "%s", name)));
    layer->place = place;
    layer->cache = layer->bound_cache;
    layer->n_rows = place->n_rows;
    layer->lists.comm = place->memory;
    cpli_place_begin_scratch(place);
    return CPL_OK;
}

static cpl_status find_kernels(const cpl_layer *layer, cpl_dtype dtype,
                               const cpl_kernels **out)
{
    *out = cpl_comm_kernels(layer->place->comm, dtype);
    return *out != NULL ? CPL_OK : CPL_UNSUPPORTED;
}

static cpl_status prepare(cpl_layer *layer)
{
    if (layer->place->tp > 1 && !layer->ops->splits)
        return cpli_fail(CPL_UNSUPPORTED,
                         "%s: %s layers do not split by tensor parallelism (tp "
                         "= %d)",
                         layer->name, layer->ops->kind, layer->place->tp);
    CPL_TRY(find_kernels(layer, layer->dtype, &layer->kernels));
    CPL_TRY(find_kernels(layer, layer->wide, &layer->wide_kernels));
    CPL_ASSERT(layer->kernels->wide == layer->wide);
    return layer->ops->prepare != NULL ? layer->ops->prepare(layer) : CPL_OK;
}

cpl_status cpl_layer_prepare(cpl_layer *layer, const char *name,
                             cpl_place *place)
{
    cpl_status status;
    release(layer);
    CPL_TRY_GO(begin(layer, name, place), fail);
    CPL_TRY_GO(cpl_comm_agree(place->comm, prepare(layer)), fail);
    return CPL_OK;
fail:
    release(layer);
    return status;
}

static cpl_status check_rows(const cpl_layer *layer, const char *what,
                             const cpl_tensor *tensor, int64_t width,
                             cpl_dtype dtype)
{
    if (layer->place == NULL)
        return cpli_fail(CPL_INVALID, "%s: not prepared", layer->ops->kind);
    if (tensor->dtype != dtype || cpl_tensor_n_rows(tensor) != layer->n_rows ||
        cpl_tensor_width(tensor) != width)
        return cpli_fail(CPL_MISMATCH,
                         "%s: %s is %s of %lld x %lld, expected %s of %lld x "
                         "%lld",
                         layer->name, what, cpl_dtype_name(tensor->dtype),
                         (long long)cpl_tensor_n_rows(tensor),
                         (long long)cpl_tensor_width(tensor),
                         cpl_dtype_name(dtype), (long long)layer->n_rows,
                         (long long)width);
    return CPL_OK;
}

/* The layer was prepared for rows of its place's layout: that is what the plan
 * says. What the tensor says is what the last exchange or layer left. */
static cpl_status check_contract(const cpl_layer *layer,
                                 const cpl_tensor *tensor)
{
    const cpl_place *place = layer->place;
    return (place->demands_marks ? cpl_tensor_expect : cpl_trace_check)(
        tensor, place->layout, place->rank, layer->name);
}

static cpl_status poison(const cpl_layer *layer)
{
    if (cpl_faults_here()->poison_scratch == 0)
        return CPL_OK;
    return cpli_place_poison_scratch(layer->place);
}

cpl_status cpl_layer_forward(cpl_layer *layer, const cpl_tensor *x,
                             cpl_tensor *y)
{
    cpl_dtype in_dtype = layer->takes_tokens ? CPL_I32 : layer->dtype;
    CPL_TRY(check_rows(layer, "x", x, layer->in_width, in_dtype));
    CPL_TRY(check_rows(layer, "y", y, layer->out_width, layer->dtype));
    CPL_TRY(check_contract(layer, x));
    layer->x = x;
    CPL_TRY(poison(layer));
    CPL_TRY(layer->ops->forward(layer, x, y));
    return cpl_tensor_mark_like(y, x);
}

cpl_status cpl_layer_backward(cpl_layer *layer, const cpl_tensor *dy,
                              cpl_tensor *dx)
{
    CPL_TRY(check_rows(layer, "dy", dy, layer->out_width, layer->dtype));
    if (dx != NULL)
        CPL_TRY(check_rows(layer, "dx", dx, layer->in_width, layer->dtype));
    if (layer->x == NULL)
        return cpli_fail(CPL_INVALID, "%s: backward before forward",
                         layer->name);
    if (layer->cache != NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "%s: there is no backward through a cache of keys",
                         layer->name);
    CPL_TRY(check_contract(layer, dy));
    CPL_TRY(poison(layer));
    CPL_TRY(layer->ops->backward(layer, dy, dx));
    return dx != NULL ? cpl_tensor_mark_like(dx, dy) : CPL_OK;
}
