/* gqa_core.c: see gqa.h. */
#include "gqa.h"

static const cpli_mode *const modes[] = {
    &cpli_mode_gather,
    &cpli_mode_p2p,
    &cpli_mode_a2a,
    &cpli_mode_a2a_p2p,
};
enum { N_MODES = sizeof modes / sizeof *modes };

cpl_status cpli_mode_find(const char *name, const cpli_mode **out)
{
    for (int i = 0; i < N_MODES; i++)
        if (name == NULL || strcmp(name, modes[i]->name) == 0) {
            *out = modes[i];
            return CPL_OK;
        }
    return cpli_fail(CPL_INVALID,
                     "gqa: unknown cp_mode \"%s\"; there are gather, p2p, a2a, "
                     "a2a+p2p",
                     name);
}

cpl_attention cpli_core_attention(const cpli_core *core, const cpl_tensor *kv,
                                  void *workspace)
{
    int64_t keys = core->kv_heads * core->key_dim;
    return (cpl_attention){.q = core->q->data,
                           .k = kv->data,
                           .v = cpli_at(core->layer, kv->data, keys),
                           .o = core->o->data,
                           .lse = core->lse->data,
                           .n_queries = core->n_rows,
                           .n_keys = cpl_tensor_n_rows(kv),
                           .heads = core->heads,
                           .kv_heads = core->kv_heads,
                           .key_dim = core->key_dim,
                           .value_dim = core->value_dim,
                           .q_stride = core->heads * core->key_dim,
                           .k_stride = cpli_core_kv_width(core),
                           .v_stride = cpli_core_kv_width(core),
                           .window = core->window,
                           .scale = core->scale,
                           .workspace = workspace};
}

cpl_attention_backward cpli_core_backward(const cpli_core *core,
                                          const cpl_tensor *kv,
                                          const cpl_tensor *d_kv,
                                          void *workspace)
{
    int64_t keys = core->kv_heads * core->key_dim;
    return (cpl_attention_backward){
        .forward = cpli_core_attention(core, kv, workspace),
        .d_o = core->d_o->data,
        .dq = core->d_q->data,
        .dk = d_kv->data,
        .dv = cpli_at(core->layer, d_kv->data, keys),
        .dq_stride = core->heads * core->key_dim,
        .dk_stride = cpli_core_kv_width(core),
        .dv_stride = cpli_core_kv_width(core),
        .workspace = workspace};
}

cpl_status cpli_core_workspace(const cpli_core *core, void **out)
{
    const cpl_kernels *kernels = core->layer->kernels;
    cpl_attention_backward backward =
        cpli_core_backward(core, core->kv, core->d_kv, NULL);
    size_t bytes = kernels->attention_workspace(&backward.forward);
    size_t more = kernels->attention_backward_workspace(&backward);
    return cpli_place_scratch(core->layer->place, bytes > more ? bytes : more,
                              out);
}
