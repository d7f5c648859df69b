/*
 * trace_check.c: the check that catches a permuted activation. A permutation
 * raises no error by itself; the trace that travels with the rows does.
 */
#include "base.h"
#include "comm/comm.h"
#include "tensor.h"
#include "trace/trace.h"

static void tell(const cpli_wrong *wrong)
{
    cpli_trace_wrong(wrong->rows, wrong->check,
                     "%s, rank %d, slot %lld: expected position %lld, found "
                     "%lld",
                     wrong->who, wrong->rank, (long long)wrong->slot,
                     (long long)wrong->expected, (long long)wrong->found);
}

static void compare(const cpli_comparison *what)
{
    cpli_wrong wrong = {
        .check = what->check, .who = what->who, .rank = what->rank};
    int64_t slot = 0;
    for (int64_t i = 0; i < what->n_runs; i++) {
        cpl_run run = what->runs[i];
        for (int64_t j = 0; j < run.length && slot < what->n_rows; j++) {
            int64_t expected = run.start < 0 ? -1 : run.start + j;
            int64_t found = what->trace[slot];
            if (found != expected && wrong.rows++ == 0) {
                wrong.slot = slot;
                wrong.expected = expected;
                wrong.found = found;
            }
            slot++;
        }
    }
    if (wrong.rows > 0)
        tell(&wrong);
}

cpl_status cpli_trace_runs(const cpl_tensor *tensor, const cpl_run *runs,
                           int64_t n_runs, int rank, const char *who)
{
    const cpli_device_ops *device = cpli_device_of(tensor->comm);
    cpli_comparison what = {.trace = tensor->trace,
                            .n_rows = cpl_tensor_n_rows(tensor),
                            .runs = runs,
                            .n_runs = n_runs,
                            .check = ++cpl_counters_here()->trace_checks,
                            .who = who,
                            .rank = rank};
    if (device != NULL)
        return device->compare(tensor->comm, &what);
    compare(&what);
    return CPL_OK;
}

cpl_status cpl_trace_settle(cpl_comm *comm)
{
    cpl_comm *group = cpli_comm_whole(comm);
    const cpli_device_ops *device = cpli_device_of(group);
    cpli_wrong wrong = {0};
    if (device == NULL)
        return CPL_OK;
    CPL_TRY(device->found(group, &wrong));
    if (wrong.rows > 0)
        tell(&wrong);
    return CPL_OK;
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
        status = cpli_trace_runs(tensor, runs, n_runs, rank, who);
    cpli_free(runs);
    return status;
}
