/*
 * gqa.h: the core of attention and its modes. The layer makes queries, keys and
 * values of its rank's rows; a *mode* is one way in which queries meet the keys
 * of other ranks. What a query sees follows from the spans alone, so every mode
 * is right in any layout.
 *
 *   gather   brings exactly the keys that the rank's queries may see
 *   p2p      keys and values go round the ranks; results are joined by their
 *            log-sum-exp, gradients travel behind and come home at the end
 *   a2a      heads are spread over the ranks, each sees all rows
 *   a2a+p2p  heads are spread inside groups of ranks, keys go round the groups
 *
 * Modes are for sequences that begin. Those that go on meet a cache of keys,
 * in one way whatever the mode: see gqa_past.c.
 */
#ifndef CPLI_GQA_H
#define CPLI_GQA_H

#include "carrier.h"
#include "gqa_ring.h"
#include "kv_cache.h"

typedef struct cpli_core {
    cpl_layer *layer;
    int64_t heads, kv_heads, key_dim, value_dim;
    bool values_in_keys; /* of one kv head: a value is the first V numbers of
                            its key */
    int64_t window;      /* 0: none */
    int64_t n_rows;
    double scale;
    int a2a;         /* ranks that spread heads: asked for by a2a+p2p */
    int64_t *rotary; /* those of the rank's rows, if not the place's; sent */
    int64_t *sent_rotary;     /* to here */
    const int64_t *positions; /* of the last forward, where kernels read them */

    /* The caller's, forward: q [n, heads, K] and kv [n, kv_heads * K, then
     * kv_heads * V unless they are in the keys], both kept until backward, are
     * read; o [n, heads, V] is made, and lse [n, heads] for backward, which
     * there is none behind a past. Backward reads d_o, makes d_q and d_kv. kv
     * carries the marks of the rows. */
    cpl_tensor *q, *kv, *o, *lse;
    cpl_tensor *d_o, *d_q, *d_kv;

    const struct gqa_mode *mode;
    void *state;           /* of the mode */
    cpli_kv_moves moves;   /* of a cache */
    struct gqa_past *past; /* what a forward with a past needs; or NULL */
} cpli_core;

typedef struct gqa_mode {
    const char *name;
    /* Collective, and before anything that can fail on one rank alone; the core
     * has its sizes, no tensors yet. */
    cpl_status (*prepare)(cpli_core *core);
    cpl_status (*forward)(cpli_core *core);
    cpl_status (*backward)(cpli_core *core);
    void (*release)(cpli_core *core); /* state may be NULL, or half made */
} gqa_mode;

extern const gqa_mode cpli_gqa_gather;
extern const gqa_mode cpli_gqa_p2p;
extern const gqa_mode cpli_gqa_a2a;
extern const gqa_mode cpli_gqa_a2a_p2p;

/* The mode of a name (NULL: gather) of a layer of kind `who`. Errors: INVALID,
 * naming all of them. */
cpl_status cpli_gqa_find_mode(const char *who, const char *name,
                              const gqa_mode **out);
/* Whether a layer may have these. Errors: INVALID. */
cpl_status cpli_gqa_check_mode(const char *who, int window, int a2a,
                               const char *name);

/* ---- a layer's core, with or without a cache ---- */

/* Collective, as the mode's prepare; the layer's cache becomes its own. */
cpl_status cpli_core_prepare(cpli_core *core);
/* Collective. From q and kv to o; the cache keeps the real rows of kv. */
cpl_status cpli_core_forward(cpli_core *core);
void cpli_core_release(cpli_core *core);
/* Makes `positions`, the rotary position of each row: inside its sequence, its
 * past included. */
cpl_status cpli_core_rotary(cpli_core *core);

/* gqa_past.c: attention to the keys of a cache, which has those of the core's
 * rows already. */
cpl_status cpli_past_create(cpli_core *core, struct gqa_past **out);
void cpli_past_destroy(struct gqa_past *past);
cpl_status cpli_past_forward(cpli_core *core);

/* ---- the kernel on a core ---- */

static inline int64_t cpli_core_kv_width(const cpli_core *core)
{
    int64_t values = core->values_in_keys ? 0 : core->value_dim;
    return core->kv_heads * (core->key_dim + values);
}

/* Says whose kept buffers the layer may have in turn: those of its own mode,
 * and of what the sizes of that mode depend on. */
void cpli_core_keeps_apart(const cpli_core *core);

/* Attention to the keys and values in rows like the core's kv. */
cpl_attention cpli_core_attention(const cpli_core *core, const cpl_tensor *kv,
                                  void *workspace);
/* Its backward; dq is the core's, dk and dv go to rows like those of kv. */
cpl_attention_backward cpli_core_backward(const cpli_core *core,
                                          const cpl_tensor *kv,
                                          const cpl_tensor *d_kv,
                                          void *workspace);
/* Scratch for both, with at most so many blocks and keys in a call. Errors:
 * UNSUPPORTED (sizes that the kernels do not take), MEMORY. */
cpl_status cpli_core_workspace(const cpli_core *core, int64_t n_blocks,
                               int64_t n_keys, void **out);

/* ---- rows that go round ---- */

/* What the modes over a ring share: see gqa_p2p.c. */
typedef struct cpli_round cpli_round;

cpl_status cpli_round_create(cpli_core *core, const cpli_ring *ring,
                             cpli_round **out);
void cpli_round_destroy(cpli_round *round);
cpl_status cpli_round_forward(cpli_round *round, bool traced);
cpl_status cpli_round_backward(cpli_round *round);

#endif
