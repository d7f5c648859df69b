/*
 * sums.h: pieces that are added one after the other, as sums that can be made
 * all at once (cpl_cuda_add_up). A set-up's work, on the host.
 */
#ifndef CPLI_SUMS_H
#define CPLI_SUMS_H

#include "cuda.h"

typedef struct cpli_sums {
    cpl_cuda_sum *sums; /* disjoint, by rising `to`, none empty */
    cpl_cuda_source *sources;
    int64_t *tile_ends; /* of the sums */
    int64_t n_sums, n_sources;
} cpli_sums;

/*
 * Local. Cuts the target where a piece begins or ends: between two cuts the
 * same pieces are added, in the order of the list. Takes memory for four lists;
 * n log n steps and one for each source. Exported for specs. Errors: MEMORY.
 */
CPL_API cpl_status cpli_sums_create(const cpl_cuda_piece *pieces, int64_t n,
                                    cpli_sums *out);
CPL_API void cpli_sums_destroy(cpli_sums *sums);

#endif
