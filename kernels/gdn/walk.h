/*
 * walk.h: a chunk token by token, as gdn_ref.c has it. Products of matrices
 * multiply zeros by what is no finite number, which gives NaN in rows that
 * never met it, and add up in another order, which gives Inf where a walk gives
 * NaN. So what comes out of a chunk not finite is made anew here; that costs
 * who has only finite numbers a look at them.
 */
#ifndef CPLI_GDN_WALK_H
#define CPLI_GDN_WALK_H

#include "gdn/chunk.h"

/* The loaded chunk's outputs, where there is p->q, and S becomes S'. Uses
 * products. */
void NAME(gdn_walk)(const cpl_gdn *p, const chunk *c, real *state);

/* Gradients of a loaded chunk of value head c->head; every row has n. */
typedef struct walk_back {
    const real *state; /* [K, V]: S */
    real *x;           /* [K, V]: X, and dS when it is done */
    real *dq, *dk;     /* [n, K] */
    real *column;      /* [K] scratch */
} walk_back;

/* Writes dq and dk of the chunk, and its rows of b->dv, dg and dbeta. Uses
 * products. */
void NAME(gdn_walk_back)(const cpl_gdn_backward *b, const chunk *c,
                         const walk_back *w);

#endif
