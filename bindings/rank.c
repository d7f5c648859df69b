/*
 * rank.c: one rank of a run. It shares nothing with the others but what goes
 * through its group.
 */
#define _GNU_SOURCE /* pthread_timedjoin_np */
#include "rank.h"

#include <lauxlib.h>
#include <stdio.h>
#include <time.h>

#include "base.h"
#include "devices.h"
#include "print.h"
#include "state.h"

enum {
    STACK_BYTES = 8 << 20,
    LOOK_NS = 50000000 /* how often a waiting host looks for a failure */
};

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

/* A copy that survives its Lua state; NULL when even that has no memory. */
static char *keep(const char *text, size_t bytes)
{
    char *copy;
    if (CPL_ALLOC(bytes + 1, &copy) != CPL_OK)
        return NULL;
    memcpy(copy, text, bytes);
    return copy;
}

static void fail(host_rank *self, const char *message, const char *traceback)
{
    self->ops->fail(self, message);
    self->outcome.message = keep(message, strlen(message));
    self->outcome.traceback = keep(traceback, strlen(traceback));
}

static void keep_result(host_rank *self, const char *result, size_t bytes)
{
    if (bytes > self->ops->max_result) {
        char text[128];
        snprintf(text, sizeof text,
                 "host: the result of rank %d has %zu bytes, more than %zu",
                 self->rank, bytes, self->ops->max_result);
        fail(self, text, "");
        return;
    }
    self->outcome.result = keep(result, bytes);
    self->outcome.result_bytes = bytes;
    if (self->outcome.result == NULL)
        fail(self, "host: no memory for the result of a rank", "");
}

static void run_in_state(host_rank *self, lua_State *L)
{
    const host_job *job = self->job;
    host_restrain_rank(L, self->rank);
    luaL_loadbuffer(L, boot, sizeof boot - 1, "=boot");
    lua_pushstring(L, job->module);
    lua_pushlightuserdata(L, self->device_comm != NULL ? self->device_comm
                                                       : self->comm);
    lua_pushlstring(L, job->payload, job->payload_bytes);
    if (host_state_call(L, 3, 1) != 0) {
        fail(self, lua_tostring(L, -2), lua_tostring(L, -1));
        return;
    }
    size_t bytes;
    const char *result = lua_tolstring(L, -1, &bytes);
    keep_result(self, result, bytes);
}

void host_rank_run(host_rank *self)
{
    lua_State *L = host_state_open();
    if (L == NULL)
        fail(self, "host: no memory for the Lua state of a rank", "");
    else if (host_devices_join(&self->job->device, self->comm,
                               &self->device_comm) != CPL_OK)
        fail(self, cpl_last_error(), "");
    else
        run_in_state(self, L);
    if (L != NULL)
        host_flush_rank(L, self->rank);
    /* Leaves before its objects die, so that nobody still reads their rows:
     * first the group, so that nobody begins to. */
    self->ops->leave(self);
    host_devices_leave(&self->job->device, self->device_comm,
                       self->outcome.message != NULL);
    if (L != NULL)
        lua_close(L);
}

static void *run_in_thread(void *self)
{
    host_rank_run(self);
    return NULL;
}

cpl_status host_rank_start(host_rank *self, pthread_t *out)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int error = pthread_create(out, &attributes, run_in_thread, self);
    pthread_attr_destroy(&attributes);
    if (error != 0)
        return cpli_fail(CPL_SYSTEM, "host: no thread for rank %d: %s",
                         self->rank, strerror(error));
    return CPL_OK;
}

bool host_rank_has_ended(pthread_t thread)
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
