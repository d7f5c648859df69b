/*
 * gqa_ring.h: who meets whose keys when attention goes round a ring of ranks.
 * Integers only, from the spans of all ranks; made once per place and shared by
 * its layers.
 *
 * The ranks stand in groups of `a2a` consecutive ones. Inside a group heads are
 * spread: each member holds all rows of the group, its *shard*, for its slice
 * of the heads. The shards go round: at step s a rank of group g works on the
 * keys of group (g - s) mod n_groups, which it has from the rank of its place
 * in the group before. A shard goes no further than to the last group that sees
 * a key of it, and its gradients begin at the first.
 *
 * a2a = 1 is a plain ring, and a2a = n_ranks has one group, where nothing goes
 * round. Rows of a shard stand in the order of their positions; of a shard of
 * one rank, as they lie there.
 */
#ifndef CPLI_GQA_RING_H
#define CPLI_GQA_RING_H

#include "layer.h"

/* What a rank does with the shard of one group. */
typedef struct cpli_turn {
    cpl_attention_block *blocks; /* where kernels read them */
    int64_t n_blocks;
} cpli_turn;

struct cpli_ring {
    int a2a;
    int n_groups, group; /* group: this rank's */
    int64_t window;
    int64_t *n_rows_of; /* of each group's shard */
    int64_t n_rows;     /* of this group's */
    int64_t max_rows;   /* of the largest */
    int64_t max_blocks; /* of a turn */
    cpli_lists lists;
    cpli_turn *turns; /* n_groups, by step */
    /* By group: the steps at which its keys are first and last seen by another
     * group; 0: never. */
    int *first, *last;
    /* From the rank's rows, a2a packed slices of them, to the group's shard. */
    cpl_segment *spread;
    cpl_route_part part;
    cpli_ring *next; /* of the place */
};

/* Local. The ring of the place for a group size and a window (0: none); owned
 * by the place. Errors: INVALID (a2a does not divide the ranks), MEMORY. */
cpl_status cpli_place_ring(cpl_place *place, int a2a, int64_t window,
                           const cpli_ring **out);

/* Local. Compares a traced tensor, the shard of a group in its first rows, with
 * the positions that it must have. Errors: MEMORY. */
cpl_status cpli_ring_check(const cpl_layer *layer, const cpli_ring *ring,
                           int group, const cpl_tensor *tensor);

/* The group whose keys a rank of `group` has at a step. */
static inline int cpli_ring_origin(const cpli_ring *ring, int group, int step)
{
    return (group - step + ring->n_groups) % ring->n_groups;
}

#endif
