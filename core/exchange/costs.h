/*
 * costs.h: what moving rows costs by each method, and what a plan would take.
 * costs.c says where, when and how the numbers were measured, or that they were
 * not; everything else here is arithmetic on them.
 */
#ifndef CPLI_COSTS_H
#define CPLI_COSTS_H

#include "exchange.h"

/* The prices of what a cpli_effort counts. */
typedef struct cpli_cost {
    double message_us;
    double piece_us;
    double crossing_gbs; /* 10^9 bytes a second */
    double carried_gbs;
} cpli_cost;

/* What the methods cost on a transport, in the order of cpli_methods. */
const cpli_cost *cpli_costs_of(const char *transport);

/* Seconds that one rank takes. */
double cpli_cost_of(const cpli_cost *cost, const cpli_effort *effort);

/* For specs alone, local: other costs for this thread; NULL: the measured ones
 * again. Borrows. */
CPL_API void cpli_costs_replace(const cpli_cost *costs);

#endif
