/*
 * run.c: the result of a run of ranks, and which kind of ranks there are.
 */
#include "run.h"

#include <stdatomic.h>
#include <stdio.h>

#include "base.h"
#include "devices.h"
#include "processes.h"
#include "threads.h"

/* Ranks that are about to end get this long even where the deadline is shorter:
 * a loaded machine must not make them look stuck. */
static const double grace_s = 2;

/* Whether any run of this process left a rank behind. */
static atomic_bool has_stuck;

cpl_status cpl_host_run_ranks(int n_ranks, double deadline_s,
                              const char *module, const char *payload,
                              size_t payload_bytes, cpl_host_run **out)
{
    host_job job = {.n_ranks = n_ranks,
                    .deadline_s = deadline_s,
                    .module = module,
                    .payload = payload,
                    .payload_bytes = payload_bytes,
                    .device = host_devices_chosen()};
    if (cpl_host_n_processes() > 0)
        return host_processes_run(&job, out);
    return host_threads_run(&job, out);
}

/* ---- making it ---- */

void host_outcome_free(host_outcome *left)
{
    cpli_free(left->result);
    cpli_free(left->message);
    cpli_free(left->traceback);
}

/* After a failure every call of the group fails at once, so a rank that still
 * runs a deadline later loops in its own code, and nobody else can end it. */
bool host_patience_ends(host_patience *patience, bool has_failed)
{
    if (!has_failed)
        return false;
    double now = cpl_clock();
    if (patience->stopped_at <= 0)
        patience->stopped_at = now;
    patience->given_up_at = now;
    return now - patience->stopped_at >=
           (patience->deadline_s > grace_s ? patience->deadline_s : grace_s);
}

cpl_status host_run_create(int n_ranks, cpl_host_run **out)
{
    cpl_host_run *run;
    CPL_TRY(CPL_ALLOC(1, &run));
    run->n_ranks = n_ranks;
    run->failed_rank = -1;
    cpl_status status = CPL_ALLOC(n_ranks, &run->outcomes);
    if (status != CPL_OK) {
        cpli_free(run);
        return status;
    }
    *out = run;
    return CPL_OK;
}

/* "; rank 1 does not return, 2.0 s after the others were stopped" */
static void describe_stuck(const cpl_host_run *run, const host_patience *since,
                           char *text, size_t room)
{
    int first = -1, n = 0;
    for (int rank = run->n_ranks - 1; rank >= 0; rank--)
        if (run->outcomes[rank].is_stuck) {
            first = rank;
            n++;
        }
    if (n == 0)
        return;
    char others[32] = " does";
    if (n > 1)
        snprintf(others, sizeof others, " and %d more do", n - 1);
    snprintf(text, room,
             "; rank %d%s not return, %.1f s after the others were stopped",
             first, others, since->given_up_at - since->stopped_at);
}

cpl_status host_run_conclude(cpl_host_run *run, int failed_rank,
                             const char *said, const host_patience *patience)
{
    run->failed_rank = failed_rank;
    if (failed_rank < 0)
        return CPL_OK;
    for (int rank = 0; rank < run->n_ranks; rank++)
        run->is_stuck = run->is_stuck || run->outcomes[rank].is_stuck;
    char stuck[128] = "";
    describe_stuck(run, patience, stuck, sizeof stuck);
    const char *raised =
        failed_rank < run->n_ranks ? run->outcomes[failed_rank].message : NULL;
    return cpli_text(&run->message, "%s%s", raised != NULL ? raised : said,
                     stuck);
}

void cpl_host_run_destroy(cpl_host_run *run)
{
    if (run == NULL)
        return;
    for (int rank = 0; rank < run->n_ranks; rank++)
        host_outcome_free(&run->outcomes[rank]);
    cpli_free(run->outcomes);
    cpli_free(run->message);
    cpli_free(run);
}

/* ---- reading it ---- */

int cpl_host_failed_rank(const cpl_host_run *run)
{
    return run->failed_rank;
}

bool cpl_host_is_stuck(const cpl_host_run *run)
{
    return run->is_stuck;
}

const char *cpl_host_message(const cpl_host_run *run)
{
    return run->message != NULL ? run->message : "";
}

const char *cpl_host_traceback(const cpl_host_run *run)
{
    if (run->failed_rank < 0)
        return "";
    const char *traceback = run->outcomes[run->failed_rank].traceback;
    return traceback != NULL ? traceback : "";
}

const char *cpl_host_result(const cpl_host_run *run, int rank, size_t *bytes)
{
    if (rank < 0 || rank >= run->n_ranks || run->outcomes[rank].result == NULL)
        return NULL;
    *bytes = run->outcomes[rank].result_bytes;
    return run->outcomes[rank].result;
}

/* ---- ranks that do not return ---- */

void host_run_leave_stuck(void)
{
    atomic_store(&has_stuck, true);
}

bool cpl_host_has_stuck(void)
{
    return atomic_load(&has_stuck);
}
