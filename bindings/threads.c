/*
 * threads.c: ranks that are threads of this process. Each has a place in a
 * world and a Lua state of its own.
 */
#include "threads.h"

#include "base.h"
#include "devices.h"
#include "rank.h"

typedef struct member {
    host_rank rank; /* first: a rank of threads is its member */
    pthread_t thread;
    bool is_stuck;
} member;

/* All that rank threads see. It is never freed where one of them does not
 * return: that one still uses it. */
typedef struct crew {
    cpl_world *world;
    host_job job;
    char *module;
    char *payload;
    member *members;
    host_patience patience;
    bool has_stuck;
} crew;

static void fail(const host_rank *self, const char *message)
{
    cpl_world_abort(self->group, self->rank, message);
}

static void leave(const host_rank *self)
{
    cpl_world_leave(self->group, self->rank);
}

static const host_rank_ops rank_ops = {
    .fail = fail, .leave = leave, .max_result = SIZE_MAX};

/* Waits for a rank as long as it takes while all is well: a long computation
 * is no failure. */
static void join_rank(crew *all, member *one)
{
    while (!host_rank_has_ended(one->thread)) {
        bool has_failed = cpl_world_aborted(all->world) >= 0;
        if (!host_patience_ends(&all->patience, has_failed))
            continue;
        pthread_detach(one->thread);
        one->is_stuck = true;
        all->has_stuck = true;
        host_run_leave_stuck();
        return;
    }
}

/* If a thread cannot be made, the ranks before it end with the world. */
static cpl_status run_members(crew *all)
{
    cpl_status status = CPL_OK;
    int n_started = 0;
    while (status == CPL_OK && n_started < all->job.n_ranks) {
        member *one = &all->members[n_started];
        status = host_rank_start(&one->rank, &one->thread);
        if (status == CPL_OK)
            n_started++;
        else
            cpl_world_abort(all->world, n_started, cpl_last_error());
    }
    for (int rank = 0; rank < n_started; rank++)
        join_rank(all, &all->members[rank]);
    for (int rank = 0; rank < n_started && !all->has_stuck; rank++)
        host_devices_part(&all->job.device,
                          all->members[rank].rank.device_comm);
    return status;
}

static void free_crew(crew *all)
{
    if (all == NULL || all->has_stuck)
        return;
    cpl_world_destroy(all->world);
    cpli_free(all->module);
    cpli_free(all->payload);
    cpli_free(all->members);
    cpli_free(all);
}

static cpl_status copy_text(const char *text, size_t bytes, char **out)
{
    CPL_TRY(CPL_ALLOC(bytes + 1, out));
    memcpy(*out, text, bytes);
    return CPL_OK;
}

/* The crew keeps its own copies: a rank that is stuck may outlive the call. */
static cpl_status fill_crew(crew *all, const host_job *job)
{
    int n = job->n_ranks;
    CPL_TRY(cpl_world_create(n, job->deadline_s, &all->world));
    CPL_TRY(CPL_ALLOC(n, &all->members));
    CPL_TRY(copy_text(job->module, strlen(job->module), &all->module));
    CPL_TRY(copy_text(job->payload, job->payload_bytes, &all->payload));
    all->job.module = all->module;
    all->job.payload = all->payload;
    for (int rank = 0; rank < n; rank++)
        all->members[rank].rank =
            (host_rank){.ops = &rank_ops,
                        .job = &all->job,
                        .group = all->world,
                        .comm = cpl_world_comm(all->world, rank),
                        .rank = rank};
    return CPL_OK;
}

/* Moves what the ranks left from the crew to the run. */
static cpl_status collect(const crew *all, cpl_host_run *run)
{
    for (int rank = 0; rank < run->n_ranks; rank++) {
        const member *one = &all->members[rank];
        if (one->is_stuck)
            run->outcomes[rank].is_stuck = true;
        else
            run->outcomes[rank] = one->rank.outcome;
    }
    return host_run_conclude(run, cpl_world_aborted(all->world),
                             cpl_world_message(all->world), &all->patience);
}

static cpl_status run_crew(crew *all, const host_job *job, cpl_host_run **out)
{
    CPL_TRY(fill_crew(all, job));
    CPL_TRY(host_run_create(job->n_ranks, out));
    cpl_status status = run_members(all);
    cpl_status collected = collect(all, *out);
    return status != CPL_OK ? status : collected;
}

cpl_status host_threads_run(const host_job *job, cpl_host_run **out)
{
    crew *all;
    CPL_TRY(CPL_ALLOC(1, &all));
    all->job = *job;
    all->patience.deadline_s = job->deadline_s;
    cpl_host_run *run = NULL;
    cpl_status status = run_crew(all, job, &run);
    free_crew(all);
    if (status != CPL_OK) {
        cpl_host_run_destroy(run);
        return status;
    }
    *out = run;
    return CPL_OK;
}
