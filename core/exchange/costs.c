/*
 * costs.c: the table of measured costs, from which "auto" chooses.
 */
#include "costs.h"

#include "plan.h"

/*
 * local: measured on 30 November 2026, 2 cores of an AMD EPYC 9005 (32 MiB of
 * last-level cache), 2 and 4 ranks, rows of 64 B to 2 KiB, shards of 64 KiB to
 * 64 MiB, 1 to 4000 sequences; the processor time of a rank, so that ranks that
 * share a core count as if they had their own.
 * mpi: what is known of Open MPI 4.1 on one node, 2 processes, 64 MiB (Isend
 * and Irecv both ways 5 GB/s, Alltoallv 3, memcpy 8); not yet measured through
 * this code.
 */
typedef struct transport_costs {
    const char *transport;
    cpli_cost of[CPLI_N_METHODS]; /* in the order of cpli_methods */
} transport_costs;

static const transport_costs table[] = {
    {"local",
     {{2.0, 0.10, 25, 25},   /* copy */
      {2.0, 0.10, 25, 25},   /* direct */
      {2.0, 0.10, 25, 25},   /* packed */
      {2.0, 0.10, 25, 25},   /* alltoallv */
      {2.0, 0.10, 25, 25}}}, /* composed */
    {"mpi",
     {{4.0, 0.10, 8, 8},   /* copy */
      {1.0, 1.50, 5, 8},   /* direct */
      {2.5, 0.10, 5, 8},   /* packed */
      {4.0, 0.10, 3, 8},   /* alltoallv */
      {4.0, 0.10, 5, 8}}}, /* composed */
};
enum { N_TRANSPORTS = sizeof table / sizeof *table };

static _Thread_local const cpli_cost *replaced;

void cpli_costs_replace(const cpli_cost *costs)
{
    replaced = costs;
}

/* A transport that nobody measured is taken for the first. */
const cpli_cost *cpli_costs_of(const char *transport)
{
    if (replaced != NULL)
        return replaced;
    for (int i = 0; i < N_TRANSPORTS; i++)
        if (strcmp(table[i].transport, transport) == 0)
            return table[i].of;
    return table[0].of;
}

double cpli_cost_of(const cpli_cost *cost, const cpli_effort *effort)
{
    return 1e-6 * ((double)effort->messages * cost->message_us +
                   (double)effort->pieces * cost->piece_us) +
           1e-9 * ((double)effort->crossing / cost->crossing_gbs +
                   (double)effort->carried / cost->carried_gbs);
}
