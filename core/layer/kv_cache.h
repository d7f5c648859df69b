/*
 * kv_cache.h: the keys and values of tokens that a layer has seen before. Rows
 * stay on the rank that made them, wherever its layout put them, each with its
 * position inside its sequence; padding is never kept. Rows of a sequence lie
 * together, in a region of the cache that is taken when the layer is prepared,
 * in the order in which they came. They are where kernels work; which position
 * lies where is known to the host.
 */
#ifndef CPLI_KV_CACHE_H
#define CPLI_KV_CACHE_H

#include "layer.h"

/* Rows of consecutive slots with consecutive positions of one sequence. */
typedef struct cpli_kv_run {
    int64_t position, slot, length;
} cpli_kv_run;

struct cpl_kv_cache {
    int64_t n_sequences;
    int64_t *first;    /* n + 1: slots of each sequence's region */
    int64_t *n_rows;   /* that each holds here */
    int64_t *seen;     /* tokens of each, on all ranks */
    int64_t *incoming; /* scratch */
    cpli_kv_run *runs; /* those of a sequence begin at its first slot */
    int64_t *n_runs;

    /* Since the first layer that took it. */
    char *owner;
    const cpl_comm *group;
    int rank, size;
    cpl_tensor *rows;
};

/* Which rows of a layer's place go to which of its cache: other ones in each
 * step. */
typedef struct cpli_kv_moves {
    int64_t *rows; /* from n_rows of the place, and behind these, to */
    int64_t *sent; /* where kernels read them */
} cpli_kv_moves;

/* Local. The cache becomes that of a layer, whose rows are `width` wide, or is
 * it already. Errors: MISMATCH (of another layer, group or number of sequences,
 * or with other rows), MEMORY. */
cpl_status cpli_kv_cache_take(cpl_kv_cache *cache, const cpl_layer *layer,
                              int64_t width);
/* Whether some sequence has a past; the same on all ranks. */
bool cpli_kv_cache_has_past(const cpl_kv_cache *cache);
/* Local. What keeping rows of the layer's place needs. Errors: MEMORY. */
cpl_status cpli_kv_moves_make(cpl_layer *layer, cpli_kv_moves *out);
/* Local. Keeps the real rows of the layer's place, or nothing if they do not
 * fit. Errors: INVALID (they do not), those of lists that are sent again. */
cpl_status cpli_kv_cache_keep(cpl_kv_cache *cache, const cpl_layer *layer,
                              const cpli_kv_moves *moves, const cpl_tensor *kv);
/* All real tokens of the place are seen now. */
void cpli_kv_cache_advance(cpl_kv_cache *cache, const cpl_place *place);

static inline const cpli_kv_run *cpli_kv_runs(const cpl_kv_cache *cache,
                                              int64_t sequence)
{
    return cache->runs + cache->first[sequence];
}

#endif
