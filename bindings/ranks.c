/*
 * ranks.c: runs a Lua function on rank threads. Each rank has a thread, a
 * place in a world and a Lua state of its own; they share nothing but what
 * goes through the world.
 */
#define _POSIX_C_SOURCE 200809L
#include <lauxlib.h>
#include <pthread.h>

#include "base.h"
#include "host.h"
#include "print.h"
#include "state.h"

enum { STACK_BYTES = 8 << 20 };

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
    outcome *outcomes;
    char *world_message; /* of a failure that no rank raised */
};

typedef struct rank_job {
    cpl_world *world;
    int rank;
    const char *module;
    const char *payload;
    size_t payload_bytes;
    outcome *outcome;
    pthread_t thread;
} rank_job;

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

/* ---- one rank --------------------------------------------------------------
 */

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
    cpl_world_abort(job->world, job->rank, message);
    job->outcome->message = keep(message, strlen(message));
    job->outcome->traceback = keep(traceback, strlen(traceback));
}

static void run_in_state(rank_job *job, lua_State *L)
{
    host_restrain_rank(L, job->rank);
    luaL_loadbuffer(L, boot, sizeof boot - 1, "=boot");
    lua_pushstring(L, job->module);
    lua_pushlightuserdata(L, cpl_world_comm(job->world, job->rank));
    lua_pushlstring(L, job->payload, job->payload_bytes);
    if (host_state_call(L, 3, 1) != 0) {
        fail_rank(job, lua_tostring(L, -2), lua_tostring(L, -1));
        return;
    }
    outcome *out = job->outcome;
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
    /* Leaves before its objects die, so that nobody still reads their rows. */
    cpl_world_leave(job->world, job->rank);
    if (L != NULL)
        lua_close(L);
    return NULL;
}

/* ---- all ranks --------------------------------------------------------------
 */

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

/* If a thread cannot be made, the ranks before it end with the world. */
static cpl_status run_jobs(cpl_world *world, rank_job *jobs, int n)
{
    cpl_status status = CPL_OK;
    int n_started = 0;
    while (status == CPL_OK && n_started < n) {
        status = start_rank(&jobs[n_started]);
        if (status == CPL_OK)
            n_started++;
        else
            cpl_world_abort(world, n_started, cpl_last_error());
    }
    for (int rank = 0; rank < n_started; rank++)
        pthread_join(jobs[rank].thread, NULL);
    return status;
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

static cpl_status run_world(cpl_host_run *run, cpl_world *world,
                            const rank_job *pattern)
{
    rank_job *jobs;
    CPL_TRY(CPL_ALLOC(run->n_ranks, &jobs));
    for (int rank = 0; rank < run->n_ranks; rank++) {
        jobs[rank] = *pattern;
        jobs[rank].world = world;
        jobs[rank].rank = rank;
        jobs[rank].outcome = &run->outcomes[rank];
    }
    cpl_status status = run_jobs(world, jobs, run->n_ranks);
    cpli_free(jobs);
    run->failed_rank = cpl_world_aborted(world);
    if (status == CPL_OK && run->failed_rank >= 0)
        status = cpli_text(&run->world_message, "%s", cpl_world_message(world));
    return status;
}

cpl_status cpl_host_run_ranks(int n_ranks, double deadline_s,
                              const char *module, const char *payload,
                              size_t payload_bytes, cpl_host_run **out)
{
    cpl_world *world;
    CPL_TRY(cpl_world_create(n_ranks, deadline_s, &world));
    cpl_host_run *run = NULL;
    cpl_status status = take_run(n_ranks, &run);
    rank_job pattern = {
        .module = module, .payload = payload, .payload_bytes = payload_bytes};
    if (status == CPL_OK)
        status = run_world(run, world, &pattern);
    cpl_world_destroy(world);
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
    for (int rank = 0; rank < run->n_ranks; rank++) {
        cpli_free(run->outcomes[rank].result);
        cpli_free(run->outcomes[rank].message);
        cpli_free(run->outcomes[rank].traceback);
    }
    cpli_free(run->outcomes);
    cpli_free(run->world_message);
    cpli_free(run);
}

int cpl_host_failed_rank(const cpl_host_run *run)
{
    return run->failed_rank;
}

const char *cpl_host_message(const cpl_host_run *run)
{
    if (run->failed_rank < 0)
        return "";
    const char *raised = run->outcomes[run->failed_rank].message;
    return raised != NULL ? raised : run->world_message;
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
