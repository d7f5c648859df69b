/*
 * costs.c: the table of costs, from which "auto" chooses.
 */
#include "costs.h"

#include "plan.h"

/*
 * Fitted by hand to medians of 30 November 2026 on 2 cores of an AMD EPYC (32
 * MiB of last-level cache), 2 ranks, so that each has a core: local and mpi
 * (Open MPI 4.1, one machine) with
 *   ./cplab bench convert --cp 2 -b 64K -e 64M -f 8 --row-bytes 256
 *     --sequences 1,64,1000 --from zigzag,mirror --json
 * and the same behind ./cplab mpirun -n 2. A fit is within a factor of 2 of
 * most medians; what matters is which method it puts first.
 *
 * Nobody measured devices yet. From lua/cplab/clusters (gpu.lua, h100.lua, with
 * their sources): 380 GB/s between H100 of a node, 1 us a message beyond what
 * every exchange pays, and 1500 GB/s for bytes that a device copies (3.35 TB/s,
 * read and written, at nine tenths). Assumed: 1 us a send or receive that NCCL
 * is told of, and nothing worth counting for a piece of a kernel's list. So
 * `cuda`, where ranks reach each other, copies; `nccl` sends runs as they are
 * where they are few, else packs them.
 */
typedef struct transport_costs {
    const char *transport;
    cpli_cost of[CPLI_N_METHODS]; /* in the order of cpli_methods */
} transport_costs;

static const transport_costs table[] = {
    {"local",
     {{1.5, 0.015, 25, 25},   /* copy */
      {1.5, 0.015, 25, 25},   /* direct */
      {1.5, 0.015, 25, 25},   /* packed */
      {1.5, 0.015, 25, 25},   /* alltoallv */
      {1.5, 0.015, 25, 25}}}, /* composed */
    {"mpi",
     {{0.7, 0.02, 16, 16},  /* copy */
      {1.5, 0.80, 7, 16},   /* direct */
      {2.0, 0.02, 6, 14},   /* packed */
      {2.5, 0.02, 10, 16},  /* alltoallv */
      {2.0, 0.02, 6, 14}}}, /* composed */
    {"cuda",
     {{1, 0.001, 380, 1500},   /* copy */
      {1, 0.001, 380, 1500},   /* direct */
      {1, 0.001, 380, 1500},   /* packed */
      {1, 0.001, 380, 1500},   /* alltoallv */
      {1, 0.001, 380, 1500}}}, /* composed */
    {"nccl",
     {{1, 0.001, 380, 1500},   /* copy: not offered */
      {1, 1.000, 380, 1500},   /* direct */
      {1, 0.001, 380, 1500},   /* packed */
      {1, 0.001, 380, 1500},   /* alltoallv */
      {1, 0.001, 380, 1500}}}, /* composed */
};
enum { N_TRANSPORTS = sizeof table / sizeof *table };

static _Thread_local const cpli_cost *replaced;

void cpli_costs_replace(const cpli_cost *costs)
{
    replaced = costs;
}

/* By the beginning of its name: cuda-emulated is priced as what it emulates.
 * One that is not there is taken for the first. */
const cpli_cost *cpli_costs_of(const char *transport)
{
    if (replaced != NULL)
        return replaced;
    for (int i = 0; i < N_TRANSPORTS; i++)
        if (strncmp(table[i].transport, transport,
                    strlen(table[i].transport)) == 0)
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
