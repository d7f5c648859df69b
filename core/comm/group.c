/*
 * group.c: how one rank process waits for another. Every wait has the group's
 * deadline, ends with the first failure of any rank, and ends at once when the
 * rank that it waits for has returned.
 */
#include "group.h"

#include <math.h>
#include <stdio.h>

/* How long a rank that fails waits for those who may be in its memory. */
#define WITHDRAWAL_S 1.0

/* ---- news ---- */

static void take_news(cpli_group *me, int from, const cpli_news *news)
{
    switch ((cpli_news_kind)news->kind) {
    case CPLI_NEWS_FAILED:
        if (me->failed_rank < 0) {
            memcpy(me->message, news->message, sizeof me->message);
            me->failed_rank = from;
        }
        break;
    case CPLI_NEWS_LEFT:
        me->n_left += !me->has_left[from];
        me->has_left[from] = true;
        me->left_after[from] = news->n_all_to_alls;
        break;
    default:
        me->is_out[from] = true;
    }
}

void cpli_group_listen(cpli_group *me)
{
    cpli_desk *desk = me->desk;
    bool came = false;
    cpli_arrival arrival = {0};
    while (cpli_wire_test(&desk->request, &came, &arrival) == CPL_OK && came) {
        if (desk->heard.group == me->number)
            take_news(me, arrival.from, &desk->heard);
        if (cpli_wire_receive(&desk->channel, CPLI_ANYBODY, 0, &desk->heard,
                              sizeof desk->heard, &desk->request) != CPL_OK)
            return;
    }
}

bool cpli_told(cpli_telling *telling)
{
    bool done = true;
    cpli_arrival arrival;
    while (done && telling->n_done < telling->n) {
        cpli_wire_test(&telling->requests[telling->n_done], &done, &arrival);
        telling->n_done += done;
    }
    return done;
}

void cpli_group_tell(cpli_group *me, cpli_news_kind kind)
{
    cpli_desk *desk = me->desk;
    if (me->has_told[kind])
        return;
    me->has_told[kind] = true;
    cpli_telling *telling = &desk->tellings[desk->n_told++ % CPLI_TELLINGS];
    for (double since = cpl_clock(); !cpli_told(telling);)
        cpli_pause(cpl_clock() - since);
    telling->n = telling->n_done = 0;
    telling->news = (cpli_news){.group = me->number,
                                .n_all_to_alls = me->n_all_to_alls,
                                .kind = (int32_t)kind};
    memcpy(telling->news.message, me->message, sizeof me->message);
    for (int rank = 0; rank < me->comm.size; rank++)
        if (rank != me->comm.rank &&
            cpli_wire_send(&desk->channel, rank, 0, &telling->news,
                           sizeof telling->news,
                           &telling->requests[telling->n]) == CPL_OK)
            telling->n++;
}

/* ---- batches ---- */

static cpli_ticket *new_ticket(cpli_batch *batch, int peer, size_t bytes,
                               bool is_receive)
{
    cpli_ticket *ticket = &batch->tickets[batch->n++];
    *ticket = (cpli_ticket){
        .bytes = (int64_t)bytes, .peer = peer, .is_receive = is_receive};
    return ticket;
}

static size_t part_of(size_t bytes)
{
    return bytes < CPLI_PART_BYTES ? bytes : CPLI_PART_BYTES;
}

/* Takes back the ticket of a message that could not be started. */
static cpl_status not_started(cpli_group *me, cpli_batch *batch,
                              cpl_status status)
{
    batch->n--;
    return cpli_group_fail_with(me, status);
}

cpl_status cpli_group_send(cpli_group *me, cpli_batch *batch, int peer, int tag,
                           const void *data, size_t bytes)
{
    const char *from = data;
    do {
        size_t part = part_of(bytes);
        cpli_ticket *ticket = new_ticket(batch, peer, part, false);
        cpl_status status = cpli_wire_send(&me->channel, peer, tag, from, part,
                                           &ticket->request);
        if (status != CPL_OK)
            return not_started(me, batch, status);
        from += part;
        bytes -= part;
    } while (bytes > 0);
    return CPL_OK;
}

cpl_status cpli_group_receive(cpli_group *me, cpli_batch *batch, int peer,
                              int tag, void *data, size_t bytes)
{
    char *to = data;
    do {
        size_t part = part_of(bytes);
        cpli_ticket *ticket = new_ticket(batch, peer, part, true);
        cpl_status status = cpli_wire_receive(&me->channel, peer, tag, to, part,
                                              &ticket->request);
        if (status != CPL_OK)
            return not_started(me, batch, status);
        to += part;
        bytes -= part;
    } while (bytes > 0);
    return CPL_OK;
}

cpl_status cpli_group_fail_sizes(cpli_group *me, const cpli_batch *batch,
                                 int peer)
{
    if (peer == CPLI_ANYBODY)
        return cpli_group_fail(me, CPL_MISMATCH,
                               "mpi: the ranks give different sizes in the "
                               "all-to-all of transfer %lld",
                               (long long)batch->number);
    return cpli_group_fail(me, CPL_MISMATCH,
                           "mpi: rank %d expects other pieces in %s %lld than "
                           "rank %d sends: the ranks made different collective "
                           "calls",
                           me->comm.rank, batch->what, (long long)batch->number,
                           peer);
}

/* Looks at one message. */
static cpl_status look_at(cpli_group *me, const cpli_batch *batch,
                          cpli_ticket *ticket)
{
    cpli_arrival arrival = {0};
    if (ticket->is_done)
        return CPL_OK;
    cpl_status status =
        cpli_wire_test(&ticket->request, &ticket->is_done, &arrival);
    if (status == CPL_MISMATCH)
        return cpli_group_fail_sizes(me, batch, ticket->peer);
    if (status != CPL_OK)
        return cpli_group_fail_with(me, status);
    if (ticket->is_done && ticket->is_receive && ticket->bytes >= 0 &&
        arrival.bytes != (size_t)ticket->bytes)
        return cpli_group_fail_sizes(me, batch, ticket->peer);
    return CPL_OK;
}

/* Each look goes on where the last one stopped. */
static cpl_status look(cpli_group *me, cpli_batch *batch)
{
    while (batch->n_done < batch->n) {
        cpli_ticket *ticket = &batch->tickets[batch->n_done];
        CPL_TRY(look_at(me, batch, ticket));
        if (!ticket->is_done)
            break;
        batch->n_done++;
    }
    return CPL_OK;
}

/* ---- waiting ---- */

/* Who has left, so that a message of the batch can not come any more; -1:
 * nobody. One may leave when an all-to-all is over for him, if not for all. */
static int left_rank(const cpli_group *me, const cpli_batch *batch, int peer)
{
    if (peer != CPLI_ANYBODY)
        return me->has_left[peer] ? peer : -1;
    for (int rank = 0; rank < me->comm.size; rank++)
        if (me->has_left[rank] && me->left_after[rank] < batch->all_to_all)
            return rank;
    return -1;
}

static cpl_status check_left(cpli_group *me, cpli_batch *batch)
{
    for (int64_t i = batch->n_done; me->n_left > 0 && i < batch->n; i++) {
        cpli_ticket *ticket = &batch->tickets[i];
        int left = left_rank(me, batch, ticket->peer);
        CPL_TRY(look_at(me, batch, ticket));
        if (!ticket->is_done && left >= 0)
            return cpli_group_fail(
                me, CPL_MISMATCH,
                "mpi: rank %d waits for rank %d in %s %lld, but rank %d has "
                "returned: the ranks made different collective calls",
                me->comm.rank, left, batch->what, (long long)batch->number,
                left);
    }
    return CPL_OK;
}

static cpl_status check_deadline(cpli_group *me, const cpli_batch *batch,
                                 double waited_s)
{
    if (waited_s <= me->deadline_s)
        return CPL_OK;
    char whom[32] = "the others";
    int peer = batch->tickets[batch->n_done].peer;
    if (peer != CPLI_ANYBODY)
        snprintf(whom, sizeof whom, "rank %d", peer);
    return cpli_group_fail(
        me, CPL_DEADLINE, "mpi: rank %d waited %.1f s for %s in %s %lld",
        me->comm.rank, waited_s, whom, batch->what, (long long)batch->number);
}

cpl_status cpli_group_wait(cpli_group *me, cpli_batch *batch)
{
    CPL_TRY(look(me, batch));
    double since = cpl_clock();
    while (batch->n_done < batch->n) {
        int64_t before = batch->n_done;
        cpli_group_listen(me); /* first: what was sent before has come */
        CPL_TRY(cpli_group_alive(me));
        CPL_TRY(look(me, batch));
        if (batch->n_done == batch->n)
            break;
        CPL_TRY(check_left(me, batch));
        double now = cpl_clock();
        if (batch->n_done > before)
            since = now;
        CPL_TRY(check_deadline(me, batch, now - since));
        cpli_pause(now - since);
    }
    return CPL_OK;
}

cpl_status cpli_group_watch(cpl_comm *comm, double waited_s, const char *doing)
{
    cpli_group *me = (cpli_group *)comm;
    cpli_group_listen(me);
    CPL_TRY(cpli_group_alive(me));
    if (waited_s <= me->deadline_s)
        return CPL_OK;
    return cpli_group_fail(me, CPL_DEADLINE,
                           "mpi: rank %d waited %.1f s for others in %s",
                           comm->rank, waited_s, doing);
}

/* ---- failing ---- */

/* What a peer says when it has taken its pieces: until then it may be in my
 * memory. */
static bool is_answer(const cpli_ticket *ticket)
{
    return ticket->is_receive && ticket->bytes == 0;
}

/* Whether messages of a batch are still under way. With `cancels`, receives
 * that nothing has matched are given up. Answers touch no memory. */
static bool pending(cpli_batch *batch, bool cancels, bool receives_only)
{
    bool is_pending = false;
    for (int64_t i = batch->n_done; i < batch->n; i++) {
        cpli_ticket *ticket = &batch->tickets[i];
        cpli_arrival arrival;
        if (ticket->is_done || is_answer(ticket) ||
            (receives_only && !ticket->is_receive))
            continue;
        if (cancels && ticket->is_receive)
            cpli_wire_cancel(&ticket->request);
        cpli_wire_test(&ticket->request, &ticket->is_done, &arrival);
        is_pending = is_pending || !ticket->is_done;
    }
    return is_pending;
}

static bool any_pending(cpli_group *me, bool cancels, bool receives_only)
{
    bool is_pending = pending(&me->meeting, cancels, receives_only);
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        cpli_crossing *crossing = &me->crossings[i];
        if (crossing->transfer == NULL)
            continue;
        is_pending |= pending(&crossing->batch, cancels, receives_only);
        is_pending |= pending(&crossing->heads, cancels, receives_only);
    }
    return is_pending;
}

/* Whether I wait for answers of a batch. With `cancels` they are given up. */
static bool lacks_answers(cpli_batch *batch, bool cancels)
{
    bool lacks = false;
    for (int64_t i = batch->n_done; i < batch->n; i++) {
        cpli_ticket *ticket = &batch->tickets[i];
        cpli_arrival arrival;
        if (ticket->is_done || !is_answer(ticket))
            continue;
        if (cancels)
            cpli_wire_cancel(&ticket->request);
        cpli_wire_test(&ticket->request, &ticket->is_done, &arrival);
        lacks = lacks || !ticket->is_done;
    }
    return lacks;
}

static bool any_unanswered(cpli_group *me, bool cancels)
{
    bool is_unanswered = false;
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        if (me->crossings[i].transfer != NULL)
            is_unanswered |= lacks_answers(&me->crossings[i].batch, cancels);
    return is_unanswered;
}

static bool all_out(const cpli_group *me)
{
    for (int rank = 0; rank < me->comm.size; rank++)
        if (rank != me->comm.rank && !me->is_out[rank] && !me->has_left[rank])
            return false;
    return true;
}

void cpli_group_withdraw(cpli_group *me)
{
    if (me->is_withdrawn)
        return;
    me->is_withdrawn = true;
    double since = cpl_clock();
    double end = since + fmin(WITHDRAWAL_S, me->deadline_s);
    bool was_pending = any_pending(me, true, false);
    while (any_pending(me, false, true) && cpl_clock() < end)
        cpli_pause(cpl_clock() - since);
    cpli_group_tell(me, CPLI_NEWS_OUT);
    while ((was_pending || any_unanswered(me, false)) && !all_out(me) &&
           cpl_clock() < end) {
        cpli_group_listen(me);
        cpli_pause(cpl_clock() - since);
    }
    any_unanswered(me, true);
}

cpl_status cpli_group_alive(cpli_group *me)
{
    if (me->failed_rank < 0)
        return CPL_OK;
    cpli_group_withdraw(me);
    return cpli_fail(CPL_ABORTED, "rank %d failed: %s", me->failed_rank,
                     me->message);
}

cpl_status cpli_group_fail(cpli_group *me, cpl_status status,
                           const char *format, ...)
{
    char text[sizeof me->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cpli_group_listen(me);
    if (me->failed_rank >= 0)
        return cpli_group_alive(me);
    memcpy(me->message, text, sizeof text);
    me->failed_rank = me->comm.rank;
    cpli_group_tell(me, CPLI_NEWS_FAILED);
    cpli_group_withdraw(me);
    return cpli_fail(status, "%s", text);
}

cpl_status cpli_group_fail_with(cpli_group *me, cpl_status status)
{
    return cpli_group_fail(me, status, "%s", cpl_last_error());
}
