/*
 * custom.c: runs given by the user, per group rank, in any order and number.
 */
#include <inttypes.h>

#include "layout.h"

static cpl_status tabulate(const cpl_layout *layout,
                           const cpl_layout_options *options, cpli_table **out)
{
    int n_ranks = cpl_layout_n_ranks(layout);
    if (options->n_runs == NULL)
        return cpli_fail(CPL_INVALID, "layout.custom: no runs given");
    for (int rank = 0; rank < n_ranks; rank++)
        if (options->n_runs[rank] < 0 ||
            (options->n_runs[rank] > 0 && options->runs == NULL))
            return cpli_fail(CPL_INVALID,
                             "layout.custom: rank %d has %" PRId64
                             " runs, of which none is given",
                             rank, options->n_runs[rank]);
    return cpli_table_create("layout.custom",
                             cpl_stream_n_positions(layout->stream), n_ranks,
                             options->runs, options->n_runs, out);
}

const cpli_kind cpli_custom = {
    .name = "custom",
    .tabulate = tabulate,
};
