/*
 * world.c: the ranks of one process: making them, and ending them together.
 * How bytes move between them is in local.c, how they wait in member.c.
 */
#define _POSIX_C_SOURCE 200809L
#include "world.h"

#include <stdio.h>
#include <time.h>

enum { MAX_RANKS = 1024 };

static void init_member(cpl_world *world, int rank)
{
    int n = world->n;
    cpli_member *member = &world->members[rank];
    member->comm = (cpl_comm){.ops = &cpli_local_ops, .rank = rank, .size = n};
    member->world = world;
    member->boxes = world->boxes + (int64_t)rank * n;
    member->consumed = world->counts + (int64_t)rank * 2 * n;
    member->settled = member->consumed + n;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&member->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&member->mutex, NULL);
}

static cpl_status take_memory(cpl_world *world)
{
    int64_t n = world->n;
    CPL_TRY(CPL_ALLOC(n, &world->members));
    CPL_TRY(CPL_ALLOC(n * n, &world->boxes));
    return CPL_ALLOC(2 * n * n, &world->counts);
}

static void free_memory(cpl_world *world)
{
    cpli_free(world->counts);
    cpli_free(world->boxes);
    cpli_free(world->members);
    cpli_free(world);
}

cpl_status cpl_world_create(int n, double deadline_s, cpl_world **out)
{
    if (n < 1 || n > MAX_RANKS)
        return cpli_fail(CPL_INVALID, "world: %d ranks, not 1 to %d", n,
                         MAX_RANKS);
    if (!(deadline_s > 0))
        return cpli_fail(CPL_INVALID, "world: a deadline of %g s, not > 0",
                         deadline_s);
    cpl_world *world;
    CPL_TRY(CPL_ALLOC(1, &world));
    world->n = n;
    world->deadline_s = deadline_s;
    world->failed_rank = -1;
    cpl_status status = take_memory(world);
    if (status != CPL_OK) {
        free_memory(world);
        return status;
    }
    pthread_mutex_init(&world->mutex, NULL);
    for (int rank = 0; rank < n; rank++)
        init_member(world, rank);
    *out = world;
    return CPL_OK;
}

void cpl_world_destroy(cpl_world *world)
{
    if (world == NULL)
        return;
    for (int rank = 0; rank < world->n; rank++) {
        pthread_cond_destroy(&world->members[rank].changed);
        pthread_mutex_destroy(&world->members[rank].mutex);
    }
    pthread_mutex_destroy(&world->mutex);
    free_memory(world);
}

cpl_comm *cpl_world_comm(cpl_world *world, int rank)
{
    CPL_ASSERT(rank >= 0 && rank < world->n);
    return &world->members[rank].comm;
}

static void wake_all(cpl_world *world)
{
    for (int rank = 0; rank < world->n; rank++) {
        cpli_member *member = &world->members[rank];
        pthread_mutex_lock(&member->mutex);
        pthread_cond_broadcast(&member->changed);
        pthread_mutex_unlock(&member->mutex);
    }
}

void cpli_member_withdraw(cpli_member *member)
{
    pthread_mutex_lock(&member->mutex);
    member->withdrawn = true;
    while (member->pins > 0)
        pthread_cond_wait(&member->changed, &member->mutex);
    pthread_mutex_unlock(&member->mutex);
}

void cpli_member_stop(cpli_member *me, const char *why)
{
    me->why = why;
    atomic_store(&me->missed, false);
    atomic_store(&me->stopped, why != NULL);
    if (why != NULL)
        wake_all(me->world);
}

void cpl_world_abort(cpl_world *world, int rank, const char *message)
{
    pthread_mutex_lock(&world->mutex);
    if (atomic_load(&world->failed_rank) < 0) {
        snprintf(world->message, sizeof world->message, "%s", message);
        atomic_store(&world->failed_rank, rank);
    }
    pthread_mutex_unlock(&world->mutex);
    wake_all(world);
    cpli_member_withdraw(&world->members[rank]);
}

void cpl_world_leave(cpl_world *world, int rank)
{
    atomic_store(&world->members[rank].left, true);
    wake_all(world);
    cpli_member_withdraw(&world->members[rank]);
}

int cpl_world_aborted(const cpl_world *world)
{
    return atomic_load(&world->failed_rank);
}

const char *cpl_world_message(const cpl_world *world)
{
    /* Written once, before failed_rank. */
    return cpl_world_aborted(world) < 0 ? "" : world->message;
}
