/*
 * moe.h: the ops of a mixture of experts; a part of kernels.h, whose contracts
 * hold here.
 */
#ifndef CPLAB_MOE_H
#define CPLAB_MOE_H

#include "cplab.h"

/*
 * A mixture of experts (transformers modeling_qwen3_next.py): each token
 * chooses k of E experts, rows are grouped by expert, and what the experts
 * made of them comes back weighted. A group has one slot for each choice, by
 * expert, then by row.
 */

/* probs = softmax of a row over all experts; the k largest logits are chosen,
 * the lower index where they are equal; weights are the chosen probs, divided
 * by their sum with `renormalise`. Rows outside the spans choose nobody:
 * chosen = -1, weights and probs 0. */
typedef struct cpl_moe_route {
    const void *logits; /* [n, E] */
    void *probs;        /* [n, E] */
    void *weights;      /* [n, k], the largest first */
    int32_t *chosen;    /* [n, k] */
    double *margin;     /* the least gap between a row's last chosen logit and
                           the next one; inf without one. Or NULL */
    const cpl_span *spans;
    int64_t n_spans, n_rows, experts, top_k;
    bool renormalise;
} cpl_moe_route;
typedef struct cpl_moe_route_backward {
    const void *probs, *dweights;
    const double *dprobs; /* [E] or NULL: what the probs of each routed row get
                             besides, for balancing the load */
    const int32_t *chosen;
    void *dlogits; /* [n, E] */
    int64_t n_rows, experts, top_k;
    bool renormalise;
} cpl_moe_route_backward;

/* Sorts the choices: the j-th of row i takes slot places[i, j] (-1: none);
 * expert e has the slots offsets[e] .. offsets[e + 1] - 1. */
typedef struct cpl_moe_group {
    const int32_t *chosen; /* [n, k] */
    int64_t *places;       /* [n, k] */
    int64_t *offsets;      /* [E + 1] */
    int64_t n_rows, experts, top_k;
} cpl_moe_group;

/* The load of experts: load[e] is how many rows chose expert e, load[E + e] the
 * sum of its probs over all rows. */
typedef struct cpl_moe_load {
    const void *probs;      /* [n, E] */
    const int64_t *offsets; /* [E + 1] */
    double *load;           /* [2 E] */
    int64_t n_rows, experts;
} cpl_moe_load;
/*
 * The loss that balances the load (Fedus, Zoph, Shazeer, arXiv 2101.03961):
 * coefficient E sum f_e P_e, with f_e the choices of expert e and P_e the sum
 * of its probs, both per token, from a load that is that of all ranks. Only P_e
 * has a gradient, coefficient E f_e / tokens for each token. Without tokens
 * both are 0.
 */
typedef struct cpl_moe_balance {
    const double *load; /* [2 E] */
    double *loss;
    double *dprobs; /* [E], for moe_route_backward */
    int64_t experts, top_k;
    double coefficient;
} cpl_moe_balance;

/* y[places[i, j]] = x[i]. Its backward is moe_combine without weights. */
typedef struct cpl_moe_dispatch {
    const void *x; /* [n, D] */
    const int64_t *places;
    void *y; /* [slots, D] */
    int64_t n_rows, top_k, width;
} cpl_moe_dispatch;

/* y[i] = sum over j of weights[i, j] h[places[i, j]], in the order of j, plus
 * sigmoid(shared_gate[i]) shared[i]; rows without places give 0. */
typedef struct cpl_moe_combine {
    const void *h;           /* [slots, D] */
    const void *weights;     /* [n, k]; NULL: 1 */
    const void *shared;      /* [n, D] or NULL */
    const void *shared_gate; /* [n], with shared */
    const int64_t *places;
    void *y; /* [n, D] */
    int64_t n_rows, top_k, width;
} cpl_moe_combine;
typedef struct cpl_moe_combine_backward {
    cpl_moe_combine forward; /* its y is not read; it has weights */
    const void *dy;          /* [n, D] */
    void *dh;                /* [slots, D] */
    void *dweights;          /* [n, k] */
    void *dshared, *dshared_gate;
} cpl_moe_combine_backward;

#endif
