/*
 * member.c: how one rank thread waits for another. Every wait has the world's
 * deadline, ends with the first failure of any rank, and ends at once when the
 * rank that it waits for has returned.
 */
#define _POSIX_C_SOURCE 200809L
#include "world.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

enum {
    SENTENCE_BYTES = 1024,
    REPORTED_HOPS = 4 /* of the chain of who waits for whom */
};

/* How long a wait looks before it sleeps: about what falling asleep and being
 * woken take. */
static const double look_s = 50e-6;

static cpli_member *member_of(const cpli_member *me, int rank)
{
    return &me->world->members[rank];
}

/* ---- failing ---- */

cpl_status cpli_member_alive(cpli_member *me)
{
    int failed = cpl_world_aborted(me->world);
    if (failed < 0)
        return CPL_OK;
    cpli_member_withdraw(me);
    return cpli_fail(CPL_ABORTED, "rank %d failed: %s", failed,
                     cpl_world_message(me->world));
}

cpl_status cpli_member_fail(cpli_member *me, cpl_status status,
                            const char *format, ...)
{
    char text[SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cpl_world_abort(me->world, me->comm.rank, text);
    if (cpl_world_aborted(me->world) != me->comm.rank)
        return cpli_member_alive(me);
    return cpli_fail(status, "%s", text);
}

/* The first member that has not come to my last meeting, or -1. */
static int missing_rank(const cpli_member *me)
{
    for (int rank = 0; rank < me->world->n; rank++)
        if (atomic_load(&member_of(me, rank)->n_met) < atomic_load(&me->n_met))
            return rank;
    return -1;
}

/* A member that I wait for and that has left, or -1. */
static int left_rank(const cpli_member *me, int peer)
{
    if (peer >= 0)
        return atomic_load(&member_of(me, peer)->left) ? peer : -1;
    for (int rank = 0; rank < me->world->n; rank++) {
        const cpli_member *member = member_of(me, rank);
        if (atomic_load(&member->left) &&
            atomic_load(&member->n_met) < atomic_load(&me->n_met))
            return rank;
    }
    return -1;
}

static cpl_status fail_left(cpli_member *me, int left, const char *what,
                            int64_t number)
{
    return cpli_member_fail(me, CPL_MISMATCH,
                            "local: rank %d waits for rank %d in %s %lld, but "
                            "rank %d has returned: the ranks made different "
                            "collective calls",
                            me->comm.rank, left, what, (long long)number, left);
}

/* Appends what `rank` waits for, and returns for whom (-1: for nobody). */
static int report_wait(const cpli_member *me, int rank, char *text)
{
    cpli_member *member = member_of(me, rank);
    pthread_mutex_lock(&member->mutex);
    cpli_wait wait = member->wait;
    pthread_mutex_unlock(&member->mutex);
    size_t used = strlen(text);
    size_t room = SENTENCE_BYTES - used;
    if (wait.what == NULL) {
        snprintf(text + used, room, "; rank %d does not wait", rank);
        return -1;
    }
    int next = wait.peer >= 0 ? wait.peer : missing_rank(member);
    if (next >= 0)
        snprintf(text + used, room,
                 "; rank %d waits for rank %d in %s %lld since %.1f s", rank,
                 next, wait.what, (long long)wait.number,
                 cpl_clock() - wait.since);
    return next;
}

static cpl_status fail_deadline(cpli_member *me, const cpli_wait *wait)
{
    int rank = me->comm.rank;
    int next = wait->peer >= 0 ? wait->peer : missing_rank(me);
    if (next < 0)
        next = rank; /* the last one came too late, but came */
    char text[SENTENCE_BYTES];
    snprintf(text, sizeof text,
             "local: rank %d waited %.1f s for rank %d in %s %lld", rank,
             cpl_clock() - wait->since, next, wait->what,
             (long long)wait->number);
    for (int hop = 0; hop < REPORTED_HOPS && next >= 0 && next != rank; hop++)
        next = report_wait(me, next, text);
    return cpli_member_fail(me, CPL_DEADLINE, "%s", text);
}

/* ---- waiting ---- */

/* Whether a member that I wait for has stopped and does not know that it is
 * missed. */
static bool is_unaware(const cpli_member *me, int peer)
{
    return peer >= 0 && atomic_load(&member_of(me, peer)->stopped) &&
           !atomic_load(&member_of(me, peer)->missed);
}

/* Whether a wait is over for another reason than being ready. */
static bool is_hopeless(const cpli_member *me, int peer)
{
    return cpl_world_aborted(me->world) >= 0 || left_rank(me, peer) >= 0 ||
           atomic_load(&me->missed) || is_unaware(me, peer);
}

/* Under my mutex: sleeps until ready, hopeless, or past the deadline. */
static bool sleep_until(cpli_member *me, cpli_ready *ready, int peer)
{
    double end = me->wait.since + me->world->deadline_s;
    struct timespec at = {.tv_sec = (time_t)fmin(end, 4e9)};
    at.tv_nsec = (long)(1e9 * fmin(end - (double)at.tv_sec, 0.999999999));
    int error = 0;
    me->ready = ready;
    while (!ready(me, peer) && !is_hopeless(me, peer) && error != ETIMEDOUT)
        error = pthread_cond_timedwait(&me->changed, &me->mutex, &at);
    me->ready = NULL;
    return ready(me, peer);
}

/* Looks that let others run: cheaper than a sleep when they are close. */
static bool look(cpli_member *me, cpli_ready *ready, int peer)
{
    double end = cpl_clock() + look_s;
    do {
        pthread_mutex_lock(&me->mutex);
        bool is_ready = ready(me, peer);
        pthread_mutex_unlock(&me->mutex);
        if (is_ready)
            return true;
        sched_yield();
    } while (cpl_clock() < end);
    return false;
}

/* Tells a member that has stopped; it fails, and that ends my wait. */
static void miss(cpli_member *member)
{
    pthread_mutex_lock(&member->mutex);
    atomic_store(&member->missed, true);
    pthread_cond_broadcast(&member->changed);
    pthread_mutex_unlock(&member->mutex);
}

static bool fall_asleep(cpli_member *me, cpli_ready *ready, cpli_wait wait)
{
    pthread_mutex_lock(&me->mutex);
    me->wait = wait;
    bool is_ready = sleep_until(me, ready, wait.peer);
    if (is_ready)
        me->wait.what = NULL;
    pthread_mutex_unlock(&me->mutex);
    return is_ready;
}

cpl_status cpli_member_wait(cpli_member *me, cpli_ready *ready, cpli_wait wait)
{
    if (look(me, ready, wait.peer))
        return CPL_OK;
    wait.since = cpl_clock();
    bool is_ready = fall_asleep(me, ready, wait);
    while (!is_ready && is_unaware(me, wait.peer)) {
        miss(member_of(me, wait.peer));
        is_ready = fall_asleep(me, ready, wait);
    }
    if (is_ready)
        return CPL_OK;
    CPL_TRY(cpli_member_alive(me));
    if (atomic_load(&me->missed))
        return cpli_member_fail(me, CPL_ABORTED, "%s", me->why);
    int left = left_rank(me, wait.peer);
    if (left >= 0)
        return fail_left(me, left, wait.what, wait.number);
    return fail_deadline(me, &wait);
}

void cpli_member_notify(cpli_member *member)
{
    bool is_ready =
        member->ready != NULL && member->ready(member, member->wait.peer);
    if (is_ready || (member->withdrawn && member->pins == 0))
        pthread_cond_broadcast(&member->changed);
}

bool cpli_member_pin(cpli_member *me, int peer)
{
    cpli_member *member = member_of(me, peer);
    pthread_mutex_lock(&member->mutex);
    bool is_open = !member->withdrawn;
    if (is_open)
        member->pins++;
    pthread_mutex_unlock(&member->mutex);
    return is_open;
}

cpl_status cpli_member_lost(cpli_member *me, int peer, const char *what,
                            int64_t number)
{
    CPL_TRY(cpli_member_alive(me));
    return fail_left(me, peer, what, number);
}

void cpli_member_unpin(cpli_member *me, int peer, bool consumed)
{
    cpli_member *member = member_of(me, peer);
    pthread_mutex_lock(&member->mutex);
    member->pins--;
    if (consumed)
        member->consumed[me->comm.rank]++;
    cpli_member_notify(member);
    pthread_mutex_unlock(&member->mutex);
}

/* ---- meeting ---- */

static bool has_met(const cpli_member *me, int peer)
{
    (void)peer;
    return atomic_load(&me->world->n_meetings) >= atomic_load(&me->n_met);
}

/* The last to come opens the door for all. */
static void come(cpl_world *world)
{
    pthread_mutex_lock(&world->mutex);
    bool is_last = ++world->n_present == world->n;
    if (is_last) {
        world->n_present = 0;
        atomic_fetch_add(&world->n_meetings, 1);
    }
    pthread_mutex_unlock(&world->mutex);
    for (int rank = 0; is_last && rank < world->n; rank++) {
        pthread_mutex_lock(&world->members[rank].mutex);
        pthread_cond_broadcast(&world->members[rank].changed);
        pthread_mutex_unlock(&world->members[rank].mutex);
    }
}

/* Nobody can be two meetings ahead of anybody, so two notices are enough. */
static cpli_notice *notice_of(const cpli_member *me, int rank)
{
    return &member_of(me, rank)->notices[atomic_load(&me->n_met) & 1];
}

void *cpli_member_notice(const cpli_member *me, int rank)
{
    return notice_of(me, rank)->data;
}

static cpl_status compare_notices(cpli_member *me)
{
    const cpli_notice *a = notice_of(me, 0);
    for (int rank = 1; rank < me->world->n; rank++) {
        const cpli_notice *b = notice_of(me, rank);
        if (strcmp(a->what, b->what) != 0 || a->n != b->n ||
            a->dtype != b->dtype)
            return cpli_member_fail(
                me, CPL_MISMATCH,
                "local: rank 0 is in a %s of %lld %s, rank %d in a %s of %lld "
                "%s: the ranks made different collective calls",
                a->what, (long long)a->n, cpl_dtype_name(a->dtype), rank,
                b->what, (long long)b->n, cpl_dtype_name(b->dtype));
    }
    return CPL_OK;
}

cpl_status cpli_member_meet(cpli_member *me, cpli_notice notice)
{
    CPL_TRY(cpli_member_alive(me));
    int64_t number = atomic_fetch_add(&me->n_met, 1) + 1;
    *notice_of(me, me->comm.rank) = notice;
    come(me->world);
    cpli_wait wait = {.what = notice.what, .number = number, .peer = -1};
    CPL_TRY(cpli_member_wait(me, has_met, wait));
    return compare_notices(me);
}
