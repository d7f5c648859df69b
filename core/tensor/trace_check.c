/*
 * trace_check.c: the check that catches a permuted activation. A permutation
 * raises no error by itself; the trace that travels with the rows does.
 */
#include "base.h"
#include "trace/trace.h"

cpl_status cpl_trace_check(const cpl_tensor *tensor, const cpl_layout *layout,
                           int rank, const char *who)
{
    if (tensor->layout != 0 && tensor->layout != cpl_layout_digest(layout))
        return cpli_fail(CPL_MISMATCH,
                         "%s: expected rows of %s, got rows of another layout",
                         who, cpl_layout_describe(layout));
    if (tensor->trace == NULL)
        return CPL_OK;
    int64_t n_runs;
    CPL_TRY(cpl_layout_n_runs(layout, rank, &n_runs));
    cpl_run *runs;
    CPL_TRY(CPL_ALLOC(n_runs, &runs));
    cpl_status status = cpl_layout_runs(layout, rank, runs);
    int64_t slot = 0;
    int64_t n_rows = cpl_tensor_n_rows(tensor);
    for (int64_t i = 0; status == CPL_OK && i < n_runs; i++)
        for (int64_t j = 0; j < runs[i].length && slot < n_rows; j++, slot++)
            if (tensor->trace[slot] != runs[i].start + j)
                cpli_trace_wrong(1,
                                 "%s, rank %d, slot %lld: expected position "
                                 "%lld, found %lld",
                                 who, rank, (long long)slot,
                                 (long long)(runs[i].start + j),
                                 (long long)tensor->trace[slot]);
    cpli_free(runs);
    return status;
}
