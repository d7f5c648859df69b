/*
 * pull.h: the backward sweep of the state through one chunk. With X the
 * gradient of the state that leaves it,
 *   dN = P'dO + diag(D_n) K X,  dR = (I + L)'^-1 dN   (R = diag(beta) Y)
 *   dS = G_n X + Q' diag(s G) dO - K' diag(beta G) dR.
 */
#ifndef CPLI_GDN_PULL_H
#define CPLI_GDN_PULL_H

#include "gdn/chunk.h"

/* pulled [2n, V] becomes dO above dR. Uses products. */
void NAME(gdn_chunk_pull)(const cpl_gdn *p, chunk *c, const void *d_o,
                          const real *x, real *pulled);

/* X becomes dS; `pulled` is destroyed. */
void NAME(gdn_chunk_retreat)(const cpl_gdn *p, const chunk *c, real *pulled,
                             real *x);

#endif
