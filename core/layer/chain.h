/*
 * chain.h: the hand-over of recurrent states along the chain of runs of each
 * sequence, whoever owns them: one message per hop and pair of ranks for all
 * sequences together.
 *
 * A span's effect on the state is affine, S_out = M S_in + B, and so is its
 * adjoint, dS_in = M' dS_out + b. Each rank makes (M, B) of its spans without
 * waiting; what travels from hop to hop is the state alone, and the full
 * kernel then starts every span from its true state at once. (Affine
 * summaries: flash-linear-attention, ops/cp; there they are gathered from all
 * ranks to all, here the state walks, so that many chains stay cheap.)
 */
#ifndef CPLI_CHAIN_H
#define CPLI_CHAIN_H

#include "layer.h"

/* Spans that are alike in what they need, by their numbers in the place. */
typedef struct cpli_subset {
    int64_t n;
    int64_t *index;
    /* Where kernels read them, with room (cpli_room). */
    int64_t room;
    cpl_span *kernel_spans;
    int64_t *kernel_index;
} cpli_subset;

/* The members of a subset in the order of the hop at which they have their
 * turn: those of a hop from first[hop] on, with room as many at every hop. The
 * lists are cpl_gdn_carry's, where kernels read them. */
typedef struct cpli_turns {
    int64_t *first; /* [n_hops + 2] */
    int64_t *span, *transition_of, *offset_of;
} cpli_turns;

typedef struct cpli_chain {
    cpl_layer *layer;
    int64_t heads, key_dim, value_dim; /* value heads */

    const cpl_place *place; /* whose spans and links these are */
    /* The hops of this rank are 1 .. n_hops; with room those of all ranks. */
    int64_t n_hops;
    cpl_plan **plans; /* [n_hops + 1]; NULL where this rank has no part */

    /* Spans that the summaries are made for. */
    cpli_subset
        heads_of_chains;   /* first of a chain, with a successor: B only */
    cpli_subset middles;   /* with predecessor and successor: M and B */
    cpli_subset followers; /* with a predecessor: b of the backward */
    cpli_turns middle_turns, follower_turns;
    int64_t *ends; /* of the followers: the span, where the chain ends with it,
                      or -1; for kernels */

    cpl_tensor *state_in, *state_out;     /* [n_kernel_spans, H * K * V] */
    cpl_tensor *d_state_in, *d_state_out; /* likewise */
    cpl_tensor *transition;               /* M: [middles, H * K * K] */
    cpl_tensor *head_offset, *middle_offset, *back_offset;
    void *workspace; /* of the summaries */
} cpli_chain;

/* Collective. `gdn` holds the sizes and strides (no data yet). */
cpl_status cpli_chain_prepare(cpli_chain *chain, cpl_layer *layer,
                              const cpl_gdn *gdn);
void cpli_chain_release(cpli_chain *chain);

/* Collective. Fills state_in from the inputs in `gdn` (k, v, g, beta), but for
 * the spans that begin a chain: theirs is given. */
cpl_status cpli_chain_forward(cpli_chain *chain, const cpl_gdn *gdn);
/* Collective. Fills d_state_out, `gdn` as in forward with q, and d_o. For spans
 * that end a chain it is given; for all others it must be 0. */
cpl_status cpli_chain_backward(cpli_chain *chain, const cpl_gdn *gdn,
                               const void *d_o);

#endif
