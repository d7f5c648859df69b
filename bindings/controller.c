/*
 * controller.c: process 0 hands a job to the others, runs rank 0 itself, and
 * collects what all ranks left.
 *
 * Rank 0 runs in a thread, as it would where all ranks are threads, so that
 * somebody is there to hear of a failure while it computes.
 */
#include "base.h"
#include "devices.h"
#include "guard.h"
#include "letter.h"
#include "processes.h"
#include "rank.h"

static const double look_s = 0.05;

static int64_t n_jobs;
/* By process: the job that it has not come back from; 0: none. */
static int64_t *busy;
static bool is_running;

/* Of one job. Never freed where rank 0 does not return: it still uses it. */
typedef struct crew {
    host_job job;
    char *module;
    char *payload;
    int64_t number;
    cpl_host_run *run;
    host_rank zero;
    pthread_t thread;
    bool zero_runs;
    int n_ready;
    int n_open;      /* processes that are not done */
    int failed_rank; /* as the first letter of a failure has it; -1: none */
    char *said;
    host_patience patience;
} crew;

/* ---- letters ---- */

static cpl_status send(int to, int kind, int64_t number)
{
    return host_world.ops->send(host_world.all, to, kind, &number,
                                sizeof number);
}

static cpl_status take_done(crew *all, const cpli_letter *letter)
{
    int failed_rank;
    const char *said;
    host_outcome *left = &all->run->outcomes[letter->from];
    CPL_TRY(letter_read_done(letter, left, &failed_rank, &said));
    all->n_open--;
    if (failed_rank < 0 || all->failed_rank >= 0)
        return CPL_OK;
    all->failed_rank = failed_rank;
    return cpli_text(&all->said, "%s", said);
}

/* A letter of an earlier job only says that its process is there again. */
static cpl_status take(crew *all, const cpli_letter *letter)
{
    int64_t number = letter_number(letter);
    bool is_of_now = all != NULL && number == all->number;
    if (letter->kind == LETTER_READY && is_of_now)
        all->n_ready++;
    if (letter->kind != LETTER_DONE)
        return CPL_OK;
    if (busy[letter->from] == number)
        busy[letter->from] = 0;
    return is_of_now ? take_done(all, letter) : CPL_OK;
}

/* Takes the letters that are there, or come within patience_s. */
static cpl_status take_letters(crew *all, double patience_s)
{
    bool came = true;
    while (came) {
        cpli_letter letter;
        CPL_TRY(host_world.ops->receive(host_world.all, patience_s, &letter,
                                        &came));
        if (!came)
            break;
        cpl_status status = take(all, &letter);
        cpli_free(letter.data);
        CPL_TRY(status);
        patience_s = 0;
    }
    return CPL_OK;
}

/* ---- calling the ranks together ---- */

static cpl_status send_job(crew *all)
{
    void *data;
    size_t bytes;
    cpl_status status = CPL_OK;
    CPL_TRY(letter_write_job(all->number, &all->job, &data, &bytes));
    for (int p = 1; p < all->job.n_ranks && status == CPL_OK; p++) {
        status =
            host_world.ops->send(host_world.all, p, LETTER_JOB, data, bytes);
        if (status == CPL_OK) {
            busy[p] = all->number;
            all->n_open++;
        }
    }
    cpli_free(data);
    return status;
}

static cpl_status wait_until_ready(crew *all)
{
    host_patience patience = {.deadline_s = all->job.deadline_s};
    while (all->n_ready < all->n_open) {
        CPL_TRY(take_letters(all, look_s));
        if (host_patience_ends(&patience, true))
            return cpli_fail(CPL_SYSTEM,
                             "host: %d of %d processes do not answer",
                             all->n_open - all->n_ready, all->n_open);
    }
    return CPL_OK;
}

/* All of them are told the same: to go, or to stay. */
static cpl_status call_up(crew *all)
{
    cpl_status status = send_job(all);
    if (status == CPL_OK)
        status = wait_until_ready(all);
    int kind = status == CPL_OK ? LETTER_GO : LETTER_STAY;
    for (int p = 1; p < all->job.n_ranks; p++)
        if (busy[p] == all->number && send(p, kind, all->number) != CPL_OK)
            host_processes_give_up(cpl_last_error());
    return status;
}

/* ---- waiting for them ---- */

/* Takes letters, and tells whether a rank failed, unless rank 0 is inside the
 * plug-in: then it hears of a failure itself. */
static cpl_status look(crew *all, bool *has_failed)
{
    *has_failed = all->failed_rank >= 0;
    if (!host_guard_try())
        return CPL_OK;
    cpl_status status = take_letters(all, all->zero_runs ? 0 : look_s);
    *has_failed =
        all->failed_rank >= 0 || host_world.ops->failed(all->zero.comm) >= 0;
    host_guard_unlock();
    return status;
}

static void give_up(crew *all)
{
    for (int p = 1; p < all->job.n_ranks; p++)
        all->run->outcomes[p].is_stuck = busy[p] == all->number;
    all->run->outcomes[0].is_stuck = all->zero_runs;
    if (all->zero_runs)
        pthread_detach(all->thread);
    host_run_leave_stuck();
}

static cpl_status wait_for_ranks(crew *all)
{
    cpl_status status = CPL_OK;
    while (all->zero_runs || all->n_open > 0) {
        if (all->zero_runs && host_rank_has_ended(all->thread))
            all->zero_runs = false;
        bool has_failed = false;
        status = look(all, &has_failed);
        if (status == CPL_OK && !host_patience_ends(&all->patience, has_failed))
            continue;
        give_up(all);
        break;
    }
    return status;
}

/* ---- a job ---- */

static cpl_status start_zero(crew *all)
{
    const cpli_processes_ops *ops = host_world.ops;
    cpl_status status = host_rank_start(&all->zero, &all->thread);
    all->zero_runs = status == CPL_OK;
    if (status != CPL_OK) {
        ops->fail(all->zero.comm, cpl_last_error());
        ops->leave(all->zero.comm);
    }
    return status;
}

static cpl_status conclude(crew *all)
{
    const cpli_processes_ops *ops = host_world.ops;
    cpl_comm *comm = all->zero.comm;
    if (!all->zero_runs)
        all->run->outcomes[0] = all->zero.outcome;
    if (!host_guard_try()) /* rank 0 is stuck inside the plug-in */
        return host_run_conclude(all->run, all->failed_rank, all->said,
                                 &all->patience);
    int failed_rank = ops->failed(comm);
    const char *said = ops->message(comm);
    if (failed_rank < 0 && all->failed_rank >= 0) {
        failed_rank = all->failed_rank;
        said = all->said;
    }
    cpl_status status =
        host_run_conclude(all->run, failed_rank, said, &all->patience);
    host_guard_unlock();
    return status;
}

static cpl_status run_ranks(crew *all)
{
    const cpli_processes_ops *ops = host_world.ops;
    CPL_TRY(call_up(all));
    CPL_TRY(ops->join(host_world.all, all->job.n_ranks, all->job.deadline_s,
                      &all->zero.comm));
    host_guard_comm(all->zero.comm);
    cpl_status status = start_zero(all);
    cpl_status waited = wait_for_ranks(all);
    cpl_status concluded = conclude(all);
    if (!all->zero_runs) {
        host_devices_part(&all->job.device, all->zero.device_comm);
        ops->part(all->zero.comm);
    }
    CPL_TRY(status);
    CPL_TRY(waited);
    return concluded;
}

static cpl_status copy_text(const char *text, size_t bytes, char **out)
{
    CPL_TRY(CPL_ALLOC(bytes + 1, out));
    memcpy(*out, text, bytes);
    return CPL_OK;
}

static cpl_status fill_crew(crew *all, const host_job *job)
{
    all->number = ++n_jobs;
    all->failed_rank = -1;
    all->patience.deadline_s = job->deadline_s;
    all->job = *job;
    CPL_TRY(copy_text(job->module, strlen(job->module), &all->module));
    CPL_TRY(copy_text(job->payload, job->payload_bytes, &all->payload));
    all->job.module = all->module;
    all->job.payload = all->payload;
    all->zero = (host_rank){.ops = &host_process_rank_ops, .job = &all->job};
    return host_run_create(job->n_ranks, &all->run);
}

static void free_crew(crew *all)
{
    if (all->zero_runs)
        return;
    cpli_free(all->said);
    cpli_free(all->payload);
    cpli_free(all->module);
    cpli_free(all);
}

/* Those that an earlier job left behind are not there. */
static cpl_status check_presence(int n_ranks)
{
    if (busy == NULL)
        CPL_TRY(CPL_ALLOC(host_world.size, &busy));
    host_guard_lock();
    cpl_status status = take_letters(NULL, 0);
    host_guard_unlock();
    CPL_TRY(status);
    for (int p = 0; p < n_ranks; p++)
        if (busy[p] != 0)
            return cpli_fail(CPL_SYSTEM,
                             "host: rank %d of an earlier run still runs", p);
    return CPL_OK;
}

static cpl_status check_job(const host_job *job)
{
    if (host_world.rank != 0 || is_running)
        return cpli_fail(CPL_INVALID, "host: a rank cannot start ranks");
    if (job->n_ranks < 1 || job->n_ranks > host_world.size)
        return cpli_fail(
            CPL_INVALID, "host: %d ranks, but mpirun started %d process%s",
            job->n_ranks, host_world.size, host_world.size == 1 ? "" : "es");
    if (!(job->deadline_s > 0))
        return cpli_fail(CPL_INVALID, "host: a deadline of %g s, not > 0",
                         job->deadline_s);
    if (job->payload_bytes > letter_max_bytes)
        return cpli_fail(CPL_INVALID,
                         "host: a payload of %zu bytes, more than %zu",
                         job->payload_bytes, letter_max_bytes);
    return check_presence(job->n_ranks);
}

cpl_status host_processes_run(const host_job *job, cpl_host_run **out)
{
    CPL_TRY(check_job(job));
    crew *all;
    CPL_TRY(CPL_ALLOC(1, &all));
    is_running = true;
    cpl_status status = fill_crew(all, job);
    if (status == CPL_OK)
        status = run_ranks(all);
    is_running = false;
    if (all->zero_runs)
        busy[0] = all->number;
    cpl_host_run *run = all->run;
    free_crew(all);
    if (status != CPL_OK) {
        cpl_host_run_destroy(run);
        return status;
    }
    *out = run;
    return CPL_OK;
}
