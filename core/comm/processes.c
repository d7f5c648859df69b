/*
 * processes.c: the processes that mpirun started, and the groups they join for
 * one job after the other. What needs no waiting of ranks for each other is
 * here; a group's own life is in group.c.
 *
 * The first n processes that join share an *assembly*: a channel on which
 * nothing but joining ever happens, so that it is always clean. Each group gets
 * a fresh copy of it for its own. That copy, and the memory of a group that
 * failed, are given up at a later joining, when all its ranks have come out.
 */
#include "group.h"
#include "letters.h"

#include <stdio.h>

/* What the ranks of a group tell each other when they join. */
typedef struct cpli_card {
    int64_t status;
    int64_t number;
    int64_t last_failed;
} cpli_card;

typedef struct cpli_assembly {
    cpli_channel *channel; /* NULL: nobody has joined it yet */
    cpli_channel *last;    /* that of the last group; NULL: there was none */
    bool last_failed;
    cpli_card *cards; /* by rank */
} cpli_assembly;

struct cpli_processes {
    cpli_channel *channel;
    cpli_letters letters;
    cpli_ear ear;
    cpli_assembly *assemblies; /* by number of ranks */
    int64_t n_groups;
    int rank;
    int size;
};

/* ---- starting and ending ---- */

static cpl_status open_channels(cpli_processes *all)
{
    CPL_TRY(CPL_ALLOC(all->size + 1, &all->assemblies));
    CPL_TRY(cpli_wire_copy(all->channel, &all->letters.channel));
    CPL_TRY(cpli_wire_copy(all->channel, &all->ear.channel));
    return cpli_wire_receive(all->ear.channel, CPLI_ANYBODY, 0, &all->ear.heard,
                             sizeof all->ear.heard, &all->ear.request);
}

static cpl_status open(cpli_processes **out)
{
    cpli_processes *all;
    CPL_TRY(CPL_ALLOC(1, &all));
    cpl_status status = cpli_wire_open(&all->channel);
    if (status == CPL_OK) {
        all->rank = cpli_wire_rank(all->channel);
        all->size = cpli_wire_size(all->channel);
        status = open_channels(all);
    }
    if (status != CPL_OK)
        return status; /* a process that can not start ends: no tidying up */
    *out = all;
    return CPL_OK;
}

/* Reads letters that nobody wants, until `request` is done. */
static void drain(cpli_processes *all, cpli_request *request)
{
    double since = cpl_clock();
    bool done = request == NULL && cpli_letters_reap(&all->letters);
    while (!done) {
        cpli_letter letter;
        cpli_arrival arrival;
        bool came = false;
        cpl_status status = cpli_letters_look(&all->letters, &letter, &came);
        if (status == CPL_OK && came)
            cpl_free(letter.data);
        else
            cpli_pause(cpl_clock() - since);
        if (request == NULL)
            done = cpli_letters_reap(&all->letters);
        else if (cpli_wire_test(request, &done, &arrival) != CPL_OK)
            return;
    }
}

static void close(cpli_processes *all)
{
    cpli_request barrier;
    if (all == NULL)
        return;
    drain(all, NULL); /* my letters are away */
    if (cpli_wire_barrier(all->channel, &barrier) == CPL_OK)
        drain(all, &barrier);
    cpli_letters_destroy(&all->letters);
    cpli_wire_cancel(&all->ear.request);
    for (int n = 0; n <= all->size; n++) {
        cpli_assembly *assembly = &all->assemblies[n];
        cpli_free(assembly->cards);
        cpli_wire_leak(assembly->channel);
        cpli_wire_leak(assembly->last);
    }
    cpli_wire_leak(all->ear.channel);
    cpli_wire_leak(all->letters.channel);
    cpli_wire_leak(all->channel);
    cpli_wire_close();
    cpli_free(all->assemblies);
    cpli_free(all);
}

static void abort_all(cpli_processes *all, int status)
{
    (void)all;
    cpli_wire_abort(status);
}

static int rank(const cpli_processes *all)
{
    return all->rank;
}

static int size(const cpli_processes *all)
{
    return all->size;
}

/* ---- letters ---- */

static cpl_status send(cpli_processes *all, int to, int kind, const void *data,
                       size_t bytes)
{
    if (to < 0 || to >= all->size)
        return cpli_fail(CPL_INVALID, "mpi: a letter to process %d of %d", to,
                         all->size);
    return cpli_letters_send(&all->letters, to, kind, data, bytes);
}

static cpl_status receive(cpli_processes *all, double patience_s,
                          cpli_letter *out, bool *came)
{
    double since = cpl_clock();
    while (true) {
        CPL_TRY(cpli_letters_look(&all->letters, out, came));
        double waited = cpl_clock() - since;
        if (*came || waited >= patience_s)
            return CPL_OK;
        cpli_pause(waited);
    }
}

/* ---- groups ---- */

static bool offers(const cpl_comm *comm, cpli_way way)
{
    (void)comm;
    return way != CPLI_PULL;
}

static const cpli_comm_ops group_ops = {
    .name = "mpi",
    .offers = offers,
    .reserve = cpli_crossing_reserve,
    .start = cpli_crossing_start,
    .finish = cpli_crossing_finish,
    .barrier = cpli_group_barrier,
    .gather = cpli_group_gather,
    .sum = cpli_group_sum,
    .plain_exchange = cpli_group_plain,
};

static cpl_status take_crossings(cpli_group *group)
{
    int n = group->comm.size;
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        CPL_TRY(CPL_ALLOC(4 * n, &group->crossings[i].blocks));
        CPL_TRY(CPL_ALLOC(4 * n, &group->crossings[i].ints));
    }
    return CPL_OK;
}

static cpl_status take_memory(cpli_group *group)
{
    int n = group->comm.size;
    CPL_TRY(CPL_ALLOC(n, &group->has_left));
    CPL_TRY(CPL_ALLOC(n, &group->is_out));
    CPL_TRY(CPL_ALLOC(n * CPLI_N_NEWS, &group->telling.tickets));
    CPL_TRY(CPL_ALLOC(n, &group->calls));
    CPL_TRY(CPL_ALLOC(2 * n, &group->meeting.tickets));
    CPL_TRY(CPL_ALLOC(cpli_group_sums_bytes(n), &group->sums));
    CPL_TRY(CPL_ALLOC(n, &group->n_to));
    CPL_TRY(CPL_ALLOC(n, &group->n_from));
    return take_crossings(group);
}

static void destroy_group(cpli_group *group)
{
    if (group == NULL)
        return;
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        cpli_free(group->crossings[i].batch.tickets);
        cpli_free(group->crossings[i].blocks);
        cpli_free(group->crossings[i].ints);
    }
    cpli_free(group->n_from);
    cpli_free(group->n_to);
    cpli_free(group->sums);
    cpli_free(group->meeting.tickets);
    cpli_free(group->calls);
    cpli_free(group->telling.tickets);
    cpli_free(group->is_out);
    cpli_free(group->has_left);
    cpli_free(group);
}

static cpl_status create_group(cpli_processes *all, int n, double deadline_s,
                               cpli_group **out)
{
    CPL_TRY(CPL_ALLOC(1, out));
    cpli_group *group = *out;
    group->comm = (cpl_comm){.ops = &group_ops, .rank = all->rank, .size = n};
    group->all = all;
    group->ear = &all->ear;
    group->deadline_s = deadline_s;
    group->failed_rank = -1;
    return take_memory(group);
}

/* The channel of the first n, made when they first join. */
static cpl_status find_assembly(cpli_processes *all, int n, cpli_assembly **out)
{
    cpli_assembly *assembly = &all->assemblies[n];
    if (assembly->cards == NULL)
        CPL_TRY(CPL_ALLOC(n, &assembly->cards));
    if (assembly->channel == NULL)
        CPL_TRY(cpli_wire_first(all->channel, n, &assembly->channel));
    *out = assembly;
    return CPL_OK;
}

/* Tells the others how I stand; the worst status of all. */
static cpl_status show_cards(cpli_processes *all, cpli_assembly *assembly,
                             int n, cpl_status mine)
{
    cpli_card card = {.status = mine,
                      .number = all->n_groups + 1,
                      .last_failed = assembly->last_failed};
    CPL_TRY(cpli_wire_gather(assembly->channel, &card, (int)sizeof card,
                             assembly->cards));
    all->n_groups = assembly->cards[0].number;
    for (int i = 0; i < n; i++) {
        assembly->last_failed |= assembly->cards[i].last_failed != 0;
        if (mine == CPL_OK && assembly->cards[i].status != CPL_OK)
            return cpli_fail(
                (cpl_status)assembly->cards[i].status,
                "mpi: rank %d could not join the group: %s", i,
                cpl_status_text((cpl_status)assembly->cards[i].status));
    }
    return mine;
}

/* All ranks of the last group have come out of it. */
static void forget_last(cpli_assembly *assembly)
{
    if (assembly->last != NULL && assembly->last_failed)
        cpli_wire_leak(assembly->last);
    else
        cpli_wire_free(assembly->last);
    assembly->last = NULL;
    assembly->last_failed = false;
}

static cpl_status join(cpli_processes *all, int n, double deadline_s,
                       cpl_comm **out)
{
    cpli_assembly *assembly = NULL;
    cpli_group *group = NULL;
    if (n < 1 || n > all->size || all->rank >= n)
        return cpli_fail(CPL_INVALID,
                         "mpi: process %d of %d joins a group of %d", all->rank,
                         all->size, n);
    CPL_TRY(find_assembly(all, n, &assembly));
    cpl_status status = create_group(all, n, deadline_s, &group);
    status = show_cards(all, assembly, n, status);
    if (status == CPL_OK) {
        forget_last(assembly);
        group->number = all->n_groups;
        status = cpli_wire_copy(assembly->channel, &group->channel);
    }
    if (status != CPL_OK) {
        destroy_group(group);
        return status;
    }
    *out = &group->comm;
    return CPL_OK;
}

static void part(cpl_comm *comm)
{
    cpli_group *group = (cpli_group *)comm;
    cpli_assembly *assembly = &group->all->assemblies[comm->size];
    cpli_group_listen(group);
    assembly->last = group->channel;
    assembly->last_failed = group->failed_rank >= 0;
    if (cpli_group_told_all(group))
        destroy_group(group);
}

static void fail(cpl_comm *comm, const char *message)
{
    cpli_group_fail((cpli_group *)comm, CPL_ABORTED, "%s", message);
}

static void leave(cpl_comm *comm)
{
    cpli_group *group = (cpli_group *)comm;
    cpli_group_tell(group, CPLI_NEWS_LEFT);
    cpli_group_withdraw(group);
}

/* The picture of the group is the rank's own, so that a getter may look. */
static int failed(const cpl_comm *comm)
{
    cpli_group *group = (cpli_group *)(uintptr_t)comm;
    cpli_group_listen(group);
    return group->failed_rank;
}

static const char *message(const cpl_comm *comm)
{
    const cpli_group *group = (const cpli_group *)comm;
    return group->failed_rank < 0 ? "" : group->message;
}

const cpli_processes_ops *cpli_mpi_processes(void)
{
    static const cpli_processes_ops ops = {
        .version = CPLI_PROCESSES_VERSION,
        .open = open,
        .close = close,
        .abort = abort_all,
        .rank = rank,
        .size = size,
        .send = send,
        .receive = receive,
        .join = join,
        .part = part,
        .fail = fail,
        .leave = leave,
        .failed = failed,
        .message = message,
    };
    return &ops;
}
