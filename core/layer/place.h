/*
 * place.h: a place is one rank's part of a layout, made ready for layers: its
 * spans, the chain of its states, and the routes to the views that layers need
 * there. Built once per microbatch, shared by all layers that run in that
 * layout. Lists are there for the host, and for kernels (lists.h).
 */
#ifndef CPLI_PLACE_H
#define CPLI_PLACE_H

#include "lists.h"

typedef struct cpli_seen {
    cpl_view *view;
    cpl_route *route;
    int64_t width; /* of a halo; of a window of keys, 0: no limit */
} cpli_seen;

enum { CPLI_MAX_HALOS = 4 };   /* convolution widths in one model */
enum { CPLI_MAX_WINDOWS = 8 }; /* of attention in one model */

typedef struct cpli_ring cpli_ring; /* gqa_ring.h */

/* Layers for which this is the same keep the same buffers: of one kind, and
 * where layers of a kind may differ in one model, alike in that. */
typedef struct cpli_alike {
    const void *kind; /* NULL: any layer */
    const void *mode;
    int64_t window;
    int a2a;
} cpli_alike;

/* Memory that layers of the place use in turn. */
typedef struct cpli_scratch {
    void *block;
    size_t bytes;
    cpli_alike owner;
    bool is_taken; /* by the layer that is being prepared */
} cpli_scratch;

struct cpl_place {
    cpl_comm *comm;
    cpl_comm *memory; /* whose the scratch is; outlives a part of a group */
    const cpl_layout *layout;
    int rank;
    int tp_rank, tp; /* of those who split each layer; see cpl_place_split */
    int64_t n_rows;
    cpl_span *spans; /* the real ones */
    int64_t n_spans;
    cpl_link *links;    /* one a span */
    int64_t *positions; /* of each slot, inside its sequence; padding too */
    cpli_lists lists;
    cpl_span *kernel_spans; /* these two where kernels read them */
    int64_t *kernel_positions;
    int64_t n_kernel_spans; /* with room (cpli_room): beyond n_spans they have
                               no rows */
    cpli_seen keys[CPLI_MAX_WINDOWS];
    int n_keys;
    cpli_seen whole;
    cpli_ring *rings;
    cpli_seen halos[CPLI_MAX_HALOS];
    int n_halos;
    int64_t routes_built;
    cpli_scratch *scratch;
    int64_t n_scratch;
    bool shares_kept;   /* see cpl_place_share_kept */
    bool demands_marks; /* see cpl_place_demand_marks */
};

/* The keys that the rank's queries may see in a window (0: no limit). Owned by
 * the place. */
cpl_status cpli_place_keys(cpl_place *place, int64_t window,
                           const cpli_seen **out);
/* All positions, a slice of the row on each rank. Owned by the place. */
cpl_status cpli_place_whole(cpl_place *place, const cpli_seen **out);
/* Frees a chain of rings. */
void cpli_rings_destroy(cpli_ring *ring);
/* `width` positions before each real span. Owned by the place. */
cpl_status cpli_place_halo(cpl_place *place, int64_t width,
                           const cpli_seen **out);

/*
 * Scratch: what a layer writes and reads within one forward or one backward.
 * No two layers are at work at once, so all layers of a place take the same
 * blocks; a layer never gets a block twice. begin says that the next layer is
 * being prepared. The memory is the transport's, and not zeroed again.
 */
void cpli_place_begin_scratch(cpl_place *place);
cpl_status cpli_place_scratch(cpl_place *place, size_t bytes, void **out);
/* The same, but in turn with layers of the same owner alone: what is kept from
 * forward to backward where the place shares it. Others of the same size mean
 * something else by it, or have their padding elsewhere. */
cpl_status cpli_place_kept(cpl_place *place, cpli_alike owner, size_t bytes,
                           void **out);
/* Every byte of what no layer keeps becomes 0xff: NaN. */
cpl_status cpli_place_poison_scratch(cpl_place *place);

#endif
