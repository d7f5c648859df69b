/*
 * ranks.c: runs a Lua function on rank threads. Each rank has a thread, a
 * place in a world and a Lua state of its own; they share nothing but what
 * goes through the world.
 */
#define _GNU_SOURCE /* pthread_timedjoin_np */
#include <lauxlib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "host.h"
#include "print.h"
#include "state.h"

enum {
    STACK_BYTES = 8 << 20,
    LOOK_NS = 50000000 /* how often a waiting host looks for an abort */
};

/* Ranks that are about to end get this long even where the deadline is shorter:
 * a loaded machine must not make them look stuck. */
static const double grace_s = 2;

/* What one rank left behind. */
typedef struct outcome {
    char *result;
    size_t result_bytes;
    char *message; /* NULL: it did not fail */
    char *traceback;
} outcome;

struct cpl_host_run {
    int n_ranks;
    int failed_rank;
    bool is_stuck;
    outcome *outcomes; /* of the ranks that returned */
    char *message;     /* NULL: none failed */
};

typedef struct crew crew;

typedef struct rank_job {
    crew *crew;
    int rank;
    bool is_stuck;
    outcome outcome;
    pthread_t thread;
} rank_job;

/* All that rank threads see. It is never freed where one of them does not
 * return: that one still uses it. */
struct crew {
    cpl_world *world;
    double deadline_s;
    char *module;
    char *payload;
    size_t payload_bytes;
    int n_ranks;
    rank_job *jobs;
    double stopped_at; /* when the host saw the abort; 0: none */
    double given_up_at;
    int n_stuck;
};

/* Whether any run of this process left a thread behind. */
static atomic_bool has_stuck;

/* The light userdata becomes what the rest of the Lua code knows as a comm. */
static const char boot[] =
    "local module, comm, payload = ...\n"
    "local ffi = require('clib').ffi\n"
    "local result = require(module)(ffi.cast('cpl_comm *', comm), payload)\n"
    "if type(result) ~= 'string' then\n"
    "  error(module .. ': a rank must return a string, not a ' .. "
    "type(result), 0)\n"
    "end\n"
    "return result\n";

/* ---- one rank ---- */

/* A copy that survives its Lua state; NULL when even that has no memory. */
static char *keep(const char *text, size_t bytes)
{
    char *copy;
    if (CPL_ALLOC(bytes + 1, &copy) != CPL_OK)
        return NULL;
    memcpy(copy, text, bytes);
    return copy;
}

static void fail_rank(rank_job *job, const char *message, const char *traceback)
{
    cpl_world_abort(job->crew->world, job->rank, message);
    job->outcome.message = keep(message, strlen(message));
    job->outcome.traceback = keep(traceback, strlen(traceback));
}

static void run_in_state(rank_job *job, lua_State *L)
{
    host_restrain_rank(L, job->rank);
    luaL_loadbuffer(L, boot, sizeof boot - 1, "=boot");
    const crew *all = job->crew;
    lua_pushstring(L, all->module);
    lua_pushlightuserdata(L, cpl_world_comm(all->world, job->rank));
    lua_pushlstring(L, all->payload, all->payload_bytes);
    if (host_state_call(L, 3, 1) != 0) {
        fail_rank(job, lua_tostring(L, -2), lua_tostring(L, -1));
        return;
    }
    outcome *out = &job->outcome;
    const char *result = lua_tolstring(L, -1, &out->result_bytes);
    out->result = keep(result, out->result_bytes);
    if (out->result == NULL)
        fail_rank(job, "host: no memory for the result of a rank", "");
}

static void *run_rank(void *argument)
{
    rank_job *job = argument;
    lua_State *L = host_state_open();
    if (L == NULL)
        fail_rank(job, "host: no memory for the Lua state of a rank", "");
    else
        run_in_state(job, L);
    if (L != NULL)
        host_flush_rank(L, job->rank);
    /* Leaves before its objects die, so that nobody still reads their rows. */
    cpl_world_leave(job->crew->world, job->rank);
    if (L != NULL)
        lua_close(L);
    return NULL;
}

/* ---- all ranks ---- */

static cpl_status start_rank(rank_job *job)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int error = pthread_create(&job->thread, &attributes, run_rank, job);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        return cpli_fail(CPL_SYSTEM, "host: no thread for rank %d: %s",
                         job->rank, strerror(error));
    return CPL_OK;
}

/* Whether the thread ended within one look; it is joined then. */
static bool has_ended(pthread_t thread)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += LOOK_NS;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return pthread_timedjoin_np(thread, NULL, &at) == 0;
}

/*
 * Waits for a rank as long as it takes while all is well: a long computation
 * is no failure. After an abort every call of the world fails at once, so a
 * rank that still runs a deadline later loops in its own code, and no other
 * thread can end it.
 */
static void join_rank(rank_job *job)
{
    crew *all = job->crew;
    double patience = all->deadline_s > grace_s ? all->deadline_s : grace_s;
    while (!has_ended(job->thread)) {
        if (cpl_world_aborted(all->world) < 0)
            continue;
        double now = cpl_clock();
        if (all->stopped_at <= 0)
            all->stopped_at = now;
        if (now - all->stopped_at < patience)
            continue;
        pthread_detach(job->thread);
        job->is_stuck = true;
        all->given_up_at = now;
        all->n_stuck++;
        atomic_store(&has_stuck, true);
        return;
    }
}

/* If a thread cannot be made, the ranks before it end with the world. */
static cpl_status run_jobs(crew *all)
{
    cpl_status status = CPL_OK;
    int n_started = 0;
    while (status == CPL_OK && n_started < all->n_ranks) {
        status = start_rank(&all->jobs[n_started]);
        if (status == CPL_OK)
            n_started++;
        else
            cpl_world_abort(all->world, n_started, cpl_last_error());
    }
    for (int rank = 0; rank < n_started; rank++)
        join_rank(&all->jobs[rank]);
    return status;
}

static void free_outcome(outcome *left)
{
    cpli_free(left->result);
    cpli_free(left->message);
    cpli_free(left->traceback);
}

static void free_crew(crew *all)
{
    if (all == NULL || all->n_stuck > 0)
        return;
    cpl_world_destroy(all->world);
    cpli_free(all->module);
    cpli_free(all->payload);
    cpli_free(all->jobs);
    cpli_free(all);
}

static cpl_status copy_text(const char *text, size_t bytes, char **out)
{
    CPL_TRY(CPL_ALLOC(bytes + 1, out));
    memcpy(*out, text, bytes);
    return CPL_OK;
}

static cpl_status fill_crew(crew *all, const char *module, const char *payload)
{
    int n = all->n_ranks;
    CPL_TRY(cpl_world_create(n, all->deadline_s, &all->world));
    CPL_TRY(CPL_ALLOC(n, &all->jobs));
    CPL_TRY(copy_text(module, strlen(module), &all->module));
    CPL_TRY(copy_text(payload, all->payload_bytes, &all->payload));
    for (int rank = 0; rank < n; rank++) {
        all->jobs[rank].crew = all;
        all->jobs[rank].rank = rank;
    }
    return CPL_OK;
}

static cpl_status take_run(int n_ranks, cpl_host_run **out)
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
static void describe_stuck(const crew *all, char *text, size_t room)
{
    int first = 0;
    while (!all->jobs[first].is_stuck)
        first++;
    char others[32] = " does";
    if (all->n_stuck > 1)
        snprintf(others, sizeof others, " and %d more do", all->n_stuck - 1);
    snprintf(text, room,
             "; rank %d%s not return, %.1f s after the others were stopped",
             first, others, all->given_up_at - all->stopped_at);
}

/* Moves what the ranks left from the crew to the run. */
static cpl_status collect(const crew *all, cpl_host_run *run)
{
    for (int rank = 0; rank < run->n_ranks; rank++)
        if (!all->jobs[rank].is_stuck)
            run->outcomes[rank] = all->jobs[rank].outcome;
    run->is_stuck = all->n_stuck > 0;
    run->failed_rank = cpl_world_aborted(all->world);
    if (run->failed_rank < 0)
        return CPL_OK;
    char stuck[128] = "";
    if (run->is_stuck)
        describe_stuck(all, stuck, sizeof stuck);
    const char *raised = run->failed_rank < run->n_ranks
                             ? run->outcomes[run->failed_rank].message
                             : NULL;
    return cpli_text(&run->message, "%s%s",
                     raised != NULL ? raised : cpl_world_message(all->world),
                     stuck);
}

static cpl_status run_crew(crew *all, const char *module, const char *payload,
                           cpl_host_run **out)
{
    CPL_TRY(fill_crew(all, module, payload));
    CPL_TRY(take_run(all->n_ranks, out));
    cpl_status status = run_jobs(all);
    cpl_status collected = collect(all, *out);
    return status != CPL_OK ? status : collected;
}

cpl_status cpl_host_run_ranks(int n_ranks, double deadline_s,
                              const char *module, const char *payload,
                              size_t payload_bytes, cpl_host_run **out)
{
    crew *all;
    CPL_TRY(CPL_ALLOC(1, &all));
    *all = (crew){.n_ranks = n_ranks,
                  .deadline_s = deadline_s,
                  .payload_bytes = payload_bytes};
    cpl_host_run *run = NULL;
    cpl_status status = run_crew(all, module, payload, &run);
    free_crew(all);
    if (status != CPL_OK) {
        cpl_host_run_destroy(run);
        return status;
    }
    *out = run;
    return CPL_OK;
}

void cpl_host_run_destroy(cpl_host_run *run)
{
    if (run == NULL)
        return;
    for (int rank = 0; rank < run->n_ranks; rank++)
        free_outcome(&run->outcomes[rank]);
    cpli_free(run->outcomes);
    cpli_free(run->message);
    cpli_free(run);
}

int cpl_host_failed_rank(const cpl_host_run *run)
{
    return run->failed_rank;
}

bool cpl_host_is_stuck(const cpl_host_run *run)
{
    return run->is_stuck;
}

bool cpl_host_has_stuck(void)
{
    return atomic_load(&has_stuck);
}

void cpl_host_exit(int status)
{
    fflush(NULL);
    _exit(status);
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
