/* gqa_core.c: see gqa.h. */
#include "gqa.h"

static const gqa_mode *const modes[] = {
    &cpli_gqa_gather,
    &cpli_gqa_p2p,
    &cpli_gqa_a2a,
    &cpli_gqa_a2a_p2p,
};
enum { N_MODES = sizeof modes / sizeof *modes };

cpl_status cpli_gqa_find_mode(const char *who, const char *name,
                              const gqa_mode **out)
{
    for (int i = 0; i < N_MODES; i++)
        if (name == NULL || strcmp(name, modes[i]->name) == 0) {
            *out = modes[i];
            return CPL_OK;
        }
    return cpli_fail(CPL_INVALID,
                     "%s: unknown cp_mode \"%s\"; there are gather, p2p, a2a, "
                     "a2a+p2p",
                     who, name);
}

/* Groups are asked for where there are groups, and nowhere else. */
cpl_status cpli_gqa_check_mode(const char *who, int window, int a2a,
                               const char *name)
{
    const gqa_mode *mode = NULL;
    CPL_TRY(cpli_gqa_find_mode(who, name, &mode));
    if (window < 0)
        return cpli_fail(CPL_INVALID, "%s: window must be >= 0 (got %d)", who,
                         window);
    bool has_groups = mode == &cpli_gqa_a2a_p2p;
    if (has_groups == (a2a >= 1) && a2a >= 0)
        return CPL_OK;
    return cpli_fail(CPL_INVALID,
                     "%s: a2a = %d, the ranks that spread heads, must be %s "
                     "with cp_mode \"%s\"",
                     who, a2a, has_groups ? ">= 1" : "0", mode->name);
}

void cpli_core_keeps_apart(const cpli_core *core)
{
    cpli_alike *alike = &core->layer->alike;
    alike->mode = core->mode;
    alike->window = core->window;
    alike->a2a = core->a2a;
}

/* Where the values begin in a row of keys and values. */
static int64_t values_at(const cpli_core *core)
{
    return core->values_in_keys ? 0 : core->kv_heads * core->key_dim;
}

/* Without the arrays: all that a workspace depends on. */
static cpl_attention sizes_of(const cpli_core *core)
{
    return (cpl_attention){.n_queries = core->n_rows,
                           .heads = core->heads,
                           .kv_heads = core->kv_heads,
                           .key_dim = core->key_dim,
                           .value_dim = core->value_dim,
                           .q_stride = core->heads * core->key_dim,
                           .k_stride = cpli_core_kv_width(core),
                           .v_stride = cpli_core_kv_width(core),
                           .window = core->window,
                           .scale = core->scale};
}

cpl_attention cpli_core_attention(const cpli_core *core, const cpl_tensor *kv,
                                  void *workspace)
{
    cpl_attention attention = sizes_of(core);
    attention.q = core->q->data;
    attention.k = kv->data;
    attention.v = cpli_at(core->layer, kv->data, values_at(core));
    attention.n_keys = cpl_tensor_n_rows(kv);
    attention.o = core->o->data;
    attention.lse = core->lse->data;
    attention.workspace = workspace;
    return attention;
}

cpl_attention_backward cpli_core_backward(const cpli_core *core,
                                          const cpl_tensor *kv,
                                          const cpl_tensor *d_kv,
                                          void *workspace)
{
    return (cpl_attention_backward){
        .forward = cpli_core_attention(core, kv, workspace),
        .d_o = core->d_o->data,
        .dq = core->d_q->data,
        .dk = d_kv->data,
        .dv = cpli_at(core->layer, d_kv->data, values_at(core)),
        .dq_stride = core->heads * core->key_dim,
        .dk_stride = cpli_core_kv_width(core),
        .dv_stride = cpli_core_kv_width(core),
        .workspace = workspace};
}

static cpl_status check_sizes(const cpli_core *core, const cpl_attention *sizes)
{
    const cpl_kernels *kernels = core->layer->kernels;
    const char *why = kernels->attention_refusal != NULL
                          ? kernels->attention_refusal(sizes)
                          : NULL;
    if (why == NULL)
        return CPL_OK;
    return cpli_fail(CPL_UNSUPPORTED, "%s: %s", core->layer->name, why);
}

cpl_status cpli_core_workspace(const cpli_core *core, int64_t n_blocks,
                               int64_t n_keys, void **out)
{
    const cpl_kernels *kernels = core->layer->kernels;
    cpl_attention_backward backward = {.forward = sizes_of(core),
                                       .dq_stride = core->heads * core->key_dim,
                                       .dk_stride = cpli_core_kv_width(core),
                                       .dv_stride = cpli_core_kv_width(core)};
    backward.forward.n_blocks = n_blocks;
    backward.forward.n_keys = n_keys;
    CPL_TRY(check_sizes(core, &backward.forward));
    size_t bytes = kernels->attention_workspace(&backward.forward);
    size_t more = kernels->attention_backward_workspace(&backward);
    return cpli_place_scratch(core->layer->place, bytes > more ? bytes : more,
                              out);
}

/* ---- with or without a cache ---- */

/* A cache may fail on one rank alone, so the mode comes first. */
cpl_status cpli_core_prepare(cpli_core *core)
{
    cpl_kv_cache *cache = core->layer->cache;
    cpli_lists *lists = &core->layer->lists;
    int64_t n = core->n_rows;
    CPL_TRY(core->mode->prepare(core));
    CPL_TRY(CPLI_LIST_MAKE(lists, n, &core->rotary));
    CPL_TRY(CPLI_LIST_ROOM(lists, core->rotary, n, &core->sent_rotary));
    if (cache == NULL)
        return CPL_OK;
    CPL_TRY(cpli_kv_cache_take(cache, core->layer, cpli_core_kv_width(core)));
    CPL_TRY(cpli_kv_moves_make(core->layer, &core->moves));
    if (!cpli_kv_cache_has_past(cache))
        return CPL_OK;
    return cpli_past_create(core, &core->past);
}

void cpli_core_release(cpli_core *core)
{
    if (core->mode == NULL)
        return; /* never prepared */
    core->mode->release(core);
    cpli_past_destroy(core->past);
    core->state = NULL;
    core->past = NULL;
}

static cpl_status attend(cpli_core *core)
{
    const cpl_layer *layer = core->layer;
    if (layer->cache == NULL || !cpli_kv_cache_has_past(layer->cache))
        return core->mode->forward(core);
    if (core->past != NULL)
        return cpli_past_forward(core);
    return cpli_fail(
        CPL_INVALID,
        "%s: its cache has a past, but it was prepared while there "
        "was none",
        layer->name);
}

cpl_status cpli_core_forward(cpli_core *core)
{
    const cpl_layer *layer = core->layer;
    if (layer->cache == NULL)
        return core->mode->forward(core);
    CPL_TRY(cpli_kv_cache_keep(layer->cache, layer, &core->moves, core->kv));
    CPL_TRY(attend(core));
    cpli_kv_cache_advance(layer->cache, layer->place);
    return CPL_OK;
}

/* Behind what the cache has seen. Rows of padding come after all real ones of
 * their sequence: their positions do not matter. */
static void fill_rotary(const cpli_core *core)
{
    const cpl_place *place = core->layer->place;
    const cpl_kv_cache *cache = core->layer->cache;
    for (int64_t i = 0; i < core->n_rows; i++)
        core->rotary[i] = place->positions[i] + cpl_faults_here()->rope_shift;
    if (cache == NULL || cpl_faults_here()->forget_offset != 0)
        return;
    for (int64_t i = 0; i < place->n_spans; i++) {
        const cpl_span *span = &place->spans[i];
        for (int64_t j = 0; j < span->length; j++)
            core->rotary[span->slot + j] += cache->seen[span->sequence];
    }
}

/* Of sequences that begin they are those of the place; others are known now
 * only. */
cpl_status cpli_core_rotary(cpli_core *core)
{
    const cpl_layer *layer = core->layer;
    core->positions = layer->place->kernel_positions;
    if (layer->cache == NULL && cpl_faults_here()->rope_shift == 0)
        return CPL_OK;
    fill_rotary(core);
    core->positions = core->sent_rotary;
    return CPLI_LIST_RESEND(&layer->lists, core->sent_rotary, core->rotary,
                            core->n_rows);
}
