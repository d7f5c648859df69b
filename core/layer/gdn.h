/*
 * gdn.h: what the files of the Gated DeltaNet layer share.
 *
 * Tensor parallelism gives a rank a slice of the heads, which it treats as if
 * there were no others; its y is then a partial sum.
 *
 * The layer has two parts. Projections and the gated norm act token by token,
 * on the rank's own rows and all heads (gdn.c). The core - convolution,
 * l2norm, gates, delta rule - looks back along its sequence (gdn_core.c) and
 * works on the rows and heads that a mode brings: own rows and all heads, with
 * a halo and a chain of states (gdn_chunkwise.c), or all positions and the
 * rank's own heads (gdn_headwise.c). gdn_state.c holds the states that
 * sequences enter with and leave.
 */
#ifndef CPLI_GDN_H
#define CPLI_GDN_H

#include "chain.h"

enum {
    GDN_QKV_PROJ,
    GDN_Z_PROJ,
    GDN_B_PROJ,
    GDN_A_PROJ,
    GDN_CONV,
    GDN_A_LOG,
    GDN_DT_BIAS,
    GDN_NORM,
    GDN_OUT_PROJ
};

typedef struct gdn_layer gdn_layer;

/* How the core gets its rows. Every call is collective. */
typedef struct gdn_mode {
    const char *name;
    cpl_status (*prepare)(gdn_layer *gdn);
    void (*release)(gdn_layer *gdn);
    /* Projects x, and brings the core its inputs. */
    cpl_status (*bring)(gdn_layer *gdn, const cpl_tensor *x);
    /* Completes core.state_in, which holds the states that sequences enter
     * with. */
    cpl_status (*enter)(gdn_layer *gdn, const cpl_gdn *rule);
    /* From core.o to o. */
    cpl_status (*give)(gdn_layer *gdn);
    /* From d_o to core.d_o. */
    cpl_status (*give_back)(gdn_layer *gdn);
    /* Completes core.d_state_out, which holds the gradients of the states that
     * sequences leave. */
    cpl_status (*enter_back)(gdn_layer *gdn, const cpl_gdn *rule);
    /* From the gradients of the core's inputs to dx, which may be NULL. */
    cpl_status (*bring_back)(gdn_layer *gdn, void *dx);
} gdn_mode;

extern const gdn_mode cpli_gdn_chunkwise, cpli_gdn_headwise;

/* Columns of q, k or v: `own` counts in the rows of a core, `all` in those of
 * the layer's heads. */
typedef struct gdn_section {
    int64_t own, all, width;
    bool is_first; /* no lower rank has the same columns */
} gdn_section;

enum { GDN_N_SECTIONS = 3 };

/* Rows and heads of the core. */
typedef struct gdn_core {
    const cpl_span *spans, *kernel_spans; /* the second where kernels read it */
    int64_t n_spans, n_kernel_spans;      /* the second with room: place.h */
    int64_t n_rows;
    int64_t key_heads, value_heads, first_value_head;
    int64_t q_width, v_width, conv_width; /* Hk K, Hv V, 2 Hk K + Hv V */
    gdn_section sections[GDN_N_SECTIONS]; /* q, k, v */

    void *x, *a, *b, *d_x, *d_a, *d_b; /* strides x_stride, gate_stride */
    int64_t x_stride, gate_stride;
    cpl_tensor *weight, *d_weight; /* the core's rows of the convolution's;
                                      NULL: all of them */
    cpl_tensor *halo, *d_halo;     /* [n_spans * (conv - 1), conv_width], with
                                      room for n_kernel_spans; or NULL */
    cpl_tensor *conv, *q, *k, *g, *beta, *o;
    cpl_tensor *d_conv, *d_q, *d_k, *d_g, *d_beta, *d_o;
    cpl_tensor *state_in, *state_out; /* [n_kernel_spans, Hv * K * V] or NULL */
    cpl_tensor *d_state_in, *d_state_out;
    void *workspace;
} gdn_core;

/* Rows of the core and rows of all channels or heads that belong together, by
 * their numbers; where kernels read them. */
typedef struct gdn_pairs {
    int64_t n;
    int64_t *own, *all;
} gdn_pairs;

/* How states that come in and go out are moved: see gdn_state.c. */
typedef struct gdn_state_moves {
    gdn_pairs begins, ends; /* spans that begin, and end, sequences */
    gdn_pairs tails;        /* rows before the convolution, rows of tails */
    gdn_pairs *halos;       /* [conv - 1]: rows of halos, rows of tails, by the
                               offset of the span */
    int64_t *kept;          /* of each sequence: whose state passes through */
    int64_t *kept_up, *kept_down; /* of each row of a tail: forward, backward */
    cpl_tensor *kept_tail;
    cpl_sum *state_sum, *tail_sum; /* over the group; the second with tails */
} gdn_state_moves;

struct gdn_layer {
    cpl_layer base;
    cpl_gdn_config config;
    const gdn_mode *asked_mode;
    const gdn_mode *mode; /* since prepare */
    /* The heads that this rank computes: all, or a slice of tensor parallelism,
     * of which a mode may again cut the core's. */
    int64_t key_heads, value_heads, first_value_head;
    int64_t q_width, v_width, conv_width; /* of these */
    gdn_section slice[GDN_N_SECTIONS]; /* their q, k, v among the parameter's */
    gdn_core core;

    cpl_tensor *qkv;               /* [n, conv_width] */
    cpl_tensor *z, *o, *normed;    /* [n, Hv, V] */
    cpl_tensor *a, *b, *d_a, *d_b; /* [n, Hv] */
    cpl_tensor *d_qkv, *d_z, *d_o, *d_normed;

    /* chunkwise */
    const cpli_seen *seen; /* conv - 1 positions before each span; or NULL */
    cpl_plan *halo_plan;   /* NULL with conv 1 */
    cpli_chain chain;

    /* headwise */
    const cpli_seen *whole;
    cpl_plan *in_plan, *out_plan;
    cpl_tensor *slices, *o_slices; /* [ranks * n, width of a slice] */
    cpl_tensor *inputs, *d_inputs; /* [positions, width of a slice]: x, b, a */

    cpl_gdn_state bound_in, bound_out; /* from the next prepare on, */
    cpl_gdn_state in, out;             /* and now; all NULL: none */
    gdn_state_moves moves;
};

/* ---- gdn.c ---- */

/* y = x W' for GDN_QKV_PROJ, _Z_PROJ, _B_PROJ or _A_PROJ, of the rank's heads;
 * and back: see cpli_project_block_backward. */
void cpli_gdn_project(const gdn_layer *gdn, int which, const void *x, void *y);
void cpli_gdn_project_backward(const gdn_layer *gdn, int which, const void *dy,
                               void *dx, bool accumulate);

/* ---- gdn_core.c ---- */

/* Takes the buffers of the core, but for those that a mode brings. */
cpl_status cpli_gdn_core_buffers(gdn_layer *gdn);
/* From x, a, b and halo to o; from d_o to their gradients. */
cpl_status cpli_gdn_core_forward(gdn_layer *gdn);
cpl_status cpli_gdn_core_backward(gdn_layer *gdn);
/* Copies the rows of the convolution's weight that `sections` name into
 * core.weight, or adds core.d_weight to those of its gradient; nothing where
 * the core has no weight of its own. */
void cpli_gdn_take_weight(const gdn_layer *gdn, const gdn_section *sections);
void cpli_gdn_give_weight(const gdn_layer *gdn, const gdn_section *sections);
/* The parameters of the delta rule; without buffers only its sizes. */
cpl_gdn cpli_gdn_rule(const gdn_layer *gdn);
/* Whether the kernels take the core's sizes. Errors: UNSUPPORTED. */
cpl_status cpli_gdn_check_sizes(const gdn_layer *gdn);

/* ---- gdn_state.c ---- */

/* Whether states come in or go out. */
bool cpli_gdn_has_states(const gdn_layer *gdn);
/* Whether the bound states fit the place. */
cpl_status cpli_gdn_check_states(const gdn_layer *gdn);
/* When the core has its rows and heads: what may fail on one rank alone, and
 * then, collective, the rest. */
cpl_status cpli_gdn_list_states(gdn_layer *gdn);
cpl_status cpli_gdn_prepare_sums(gdn_layer *gdn);
void cpli_gdn_release_states(gdn_layer *gdn);
/* Before the core: fills state_in and the rows of the halo that lie before a
 * sequence. After it: fills the states that go out. The same for gradients. */
void cpli_gdn_load_states(gdn_layer *gdn);
cpl_status cpli_gdn_store_states(gdn_layer *gdn);
cpl_status cpli_gdn_load_state_gradients(gdn_layer *gdn);
cpl_status cpli_gdn_store_state_gradients(gdn_layer *gdn);

#endif
