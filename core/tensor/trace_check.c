/*
 * trace_check.c: the check that catches a permuted activation. A permutation
 * raises no error by itself; the trace that travels with the rows does.
 */
#include "base.h"
#include "comm/comm.h"
#include "tensor.h"
#include "trace/trace.h"

static void check_runs(const int64_t *trace, int64_t n_rows,
                       const cpl_run *runs, int64_t n_runs, int rank,
                       const char *who)
{
    int64_t slot = 0;
    cpl_counters_here()->trace_checks++;
    for (int64_t i = 0; i < n_runs; i++)
        for (int64_t j = 0; j < runs[i].length && slot < n_rows; j++, slot++) {
            int64_t expected = runs[i].start < 0 ? -1 : runs[i].start + j;
            if (trace[slot] != expected)
                cpli_trace_wrong(1,
                                 "%s, rank %d, slot %lld: expected position "
                                 "%lld, found %lld",
                                 who, rank, (long long)slot,
                                 (long long)expected, (long long)trace[slot]);
        }
}

void cpli_trace_runs(const cpl_tensor *tensor, const cpl_run *runs,
                     int64_t n_runs, int rank, const char *who)
{
    check_runs(tensor->trace, cpl_tensor_n_rows(tensor), runs, n_runs, rank,
               who);
}

/* A trace on a device is looked at here: traced steps are never timed. */
static cpl_status check_trace(const cpl_tensor *tensor, const cpl_run *runs,
                              int64_t n_runs, int rank, const char *who)
{
    int64_t n_rows = cpl_tensor_n_rows(tensor);
    int64_t *trace;
    if (cpli_device_of(tensor->comm) == NULL) {
        cpli_trace_runs(tensor, runs, n_runs, rank, who);
        return CPL_OK;
    }
    CPL_TRY(CPL_ALLOC(n_rows, &trace));
    cpl_status status = cpl_tensor_get_trace(tensor, trace);
    if (status == CPL_OK)
        check_runs(trace, n_rows, runs, n_runs, rank, who);
    cpli_free(trace);
    return status;
}

/* Two layouts of one kind may still differ: another stream, order, tolerance.
 */
static cpl_status refuse(const cpl_tensor *tensor, const cpl_layout *layout,
                         const char *who)
{
    const char *kind = tensor->layout_kind;
    bool is_same = kind == cpl_layout_kind(layout);
    return cpli_fail(CPL_MISMATCH, "%s: expected rows of %s, got rows of %s%s",
                     who, cpl_layout_describe(layout),
                     is_same ? "another " : "",
                     kind != NULL ? kind : "another layout");
}

cpl_status cpl_tensor_expect(const cpl_tensor *tensor, const cpl_layout *layout,
                             int rank, const char *who)
{
    if (tensor->layout == 0)
        return cpli_fail(CPL_MISMATCH,
                         "%s: expected rows of %s, got rows that nothing "
                         "brought there: they carry no mark",
                         who, cpl_layout_describe(layout));
    return cpl_trace_check(tensor, layout, rank, who);
}

cpl_status cpl_trace_check(const cpl_tensor *tensor, const cpl_layout *layout,
                           int rank, const char *who)
{
    if (tensor->layout != 0 && tensor->layout != cpl_layout_digest(layout))
        return refuse(tensor, layout, who);
    if (tensor->trace == NULL)
        return CPL_OK;
    int64_t n_runs;
    CPL_TRY(cpl_layout_n_runs(layout, rank, &n_runs));
    cpl_run *runs;
    CPL_TRY(CPL_ALLOC(n_runs, &runs));
    cpl_status status = cpl_layout_runs(layout, rank, runs);
    if (status == CPL_OK)
        status = check_trace(tensor, runs, n_runs, rank, who);
    cpli_free(runs);
    return status;
}
