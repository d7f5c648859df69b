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
#define _POSIX_C_SOURCE 200809L
#include "group.h"
#include "letters.h"

#include <unistd.h>

/* What the ranks of a group tell each other when they join. */
typedef struct cpli_card {
    int64_t status;
    int64_t number;
    int64_t last_failed;
    int64_t pid;
    int64_t secret;   /* which lies ... */
    cpli_spot window; /* ... here */
} cpli_card;

typedef struct cpli_assembly {
    cpli_channel channel; /* made when they first join */
    cpli_channel last;    /* that of the last group, if there was one */
    bool last_failed;
    cpli_windows last_windows; /* of a group that failed */
    cpli_card *cards;          /* by rank */
    int64_t *reaches;          /* by rank: whether it reaches all others */
} cpli_assembly;

struct cpli_processes {
    cpli_channel channel;
    cpli_letters letters;
    cpli_desk desk;
    cpli_assembly *assemblies; /* by number of ranks */
    cpli_card *cards;          /* by rank */
    int64_t *reaches;          /* by rank: whether it reaches all others */
    cpli_request *requests;    /* of all that is told */
    int64_t n_groups;
    cpli_windows windows; /* what a probe looks for */
    cpli_spot window;
    int64_t secret;
    int64_t pid;
    int rank;
    int size;
};

/* ---- starting and ending ---- */

/* Puts something into a window for others to find; where windows can not be
 * made they will not find it. */
static void lay_out(cpli_processes *all)
{
    void *memory = NULL;
    uint64_t key = cpl_random_key((uint64_t)all->pid, "secret");
    double now = cpl_clock();
    all->secret = (int64_t)cpl_random_bits(key, cpl_hash(0, &now, sizeof now));
    if (cpli_windows_alloc(&all->windows, sizeof all->secret, &memory) ==
        CPL_OK)
        memcpy(memory, &all->secret, sizeof all->secret);
    all->window = cpli_windows_spot(&all->windows, memory);
}

static cpl_status open_channels(cpli_processes *all)
{
    all->pid = getpid();
    lay_out(all);
    CPL_TRY(CPL_ALLOC(all->size + 1, &all->assemblies));
    CPL_TRY(CPL_ALLOC(all->size, &all->cards));
    CPL_TRY(CPL_ALLOC(all->size, &all->reaches));
    CPL_TRY(CPL_ALLOC(all->size * CPLI_TELLINGS, &all->requests));
    for (int i = 0; i < CPLI_TELLINGS; i++)
        all->desk.tellings[i].requests = all->requests + i * all->size;
    CPL_TRY(cpli_wire_copy(&all->channel, &all->letters.channel));
    CPL_TRY(cpli_wire_copy(&all->channel, &all->desk.channel));
    return cpli_wire_receive(&all->desk.channel, CPLI_ANYBODY, 0,
                             &all->desk.heard, sizeof all->desk.heard,
                             &all->desk.request);
}

static cpl_status open_all(cpli_processes **out)
{
    cpli_processes *all;
    CPL_TRY(CPL_ALLOC(1, &all));
    cpl_status status = cpli_wire_open(&all->channel);
    if (status == CPL_OK) {
        all->rank = all->channel.rank;
        all->size = all->channel.size;
        status = open_channels(all);
    }
    if (status != CPL_OK)
        return status; /* a process that can not start ends: no tidying up */
    *out = all;
    return CPL_OK;
}

/* Whether all my letters and news are away. */
static bool is_away(cpli_processes *all)
{
    bool is_all = cpli_letters_reap(&all->letters);
    for (int i = 0; i < CPLI_TELLINGS; i++)
        is_all = cpli_told(&all->desk.tellings[i]) && is_all;
    return is_all;
}

/* Reads letters that nobody wants, until `request` is done; without one, until
 * all my own are away. */
static void drain(cpli_processes *all, cpli_request *request)
{
    double since = cpl_clock();
    bool done = request == NULL && is_away(all);
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
            done = is_away(all);
        else if (cpli_wire_test(request, &done, &arrival) != CPL_OK)
            return;
    }
}

static void close_all(cpli_processes *all)
{
    cpli_request barrier;
    if (all == NULL)
        return;
    drain(all, NULL);
    if (cpli_wire_barrier(&all->channel, &barrier) == CPL_OK)
        drain(all, &barrier);
    cpli_letters_destroy(&all->letters);
    cpli_wire_cancel(&all->desk.request);
    for (int n = 0; n <= all->size; n++)
        cpli_windows_destroy(&all->assemblies[n].last_windows);
    cpli_windows_destroy(&all->windows);
    cpli_wire_close();
    cpli_free(all->requests);
    cpli_free(all->reaches);
    cpli_free(all->cards);
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
    return way != CPLI_PULL || ((const cpli_group *)comm)->pulls;
}

/* Windows where they serve, else the heap. */
static cpl_status alloc(cpl_comm *comm, size_t bytes, void **out)
{
    cpli_group *group = (cpli_group *)comm;
    if (!group->pulls)
        return cpli_alloc(bytes, 1, out);
    return cpli_windows_alloc(&group->windows, bytes, out);
}

static void free_memory(cpl_comm *comm, void *memory)
{
    cpli_group *group = (cpli_group *)comm;
    if (group->pulls)
        cpli_windows_free(&group->windows, memory);
    else
        cpli_free(memory);
}

static const cpli_comm_ops group_ops = {
    .name = "mpi",
    .offers = offers,
    .alloc = alloc,
    .free = free_memory,
    .reserve = cpli_crossing_reserve,
    .start = cpli_crossing_start,
    .finish = cpli_crossing_finish,
    .barrier = cpli_group_barrier,
    .gather = cpli_group_gather,
    .sum = cpli_group_sum,
    .watch = cpli_group_watch,
    .plain_exchange = cpli_group_plain,
};

static cpl_status take_crossings(cpli_group *group)
{
    int n = group->comm.size;
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        cpli_crossing *crossing = &group->crossings[i];
        CPL_TRY(CPL_ALLOC(4 * n, &crossing->blocks));
        CPL_TRY(CPL_ALLOC(4 * n, &crossing->ints));
        CPL_TRY(CPL_ALLOC(n, &crossing->heads.tickets));
        CPL_TRY(cpli_alloc(cpli_pull_heads_bytes(n), 1,
                           (void **)&crossing->heads_in));
    }
    return CPL_OK;
}

static cpl_status take_memory(cpli_group *group)
{
    int n = group->comm.size;
    CPL_TRY(CPL_ALLOC(n, &group->has_left));
    CPL_TRY(CPL_ALLOC(n, &group->left_after));
    CPL_TRY(CPL_ALLOC(n, &group->is_out));
    CPL_TRY(CPL_ALLOC(n, &group->calls));
    CPL_TRY(CPL_ALLOC(2 * n, &group->meeting.tickets));
    CPL_TRY(CPL_ALLOC(2 * n, &group->plain));
    CPL_TRY(CPL_ALLOC(cpli_group_sums_bytes(n), &group->sums));
    CPL_TRY(CPL_ALLOC(n, &group->n_to));
    CPL_TRY(CPL_ALLOC(n, &group->n_from));
    CPL_TRY(CPL_ALLOC(n, &group->neighbours));
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
        cpli_free(group->crossings[i].heads.tickets);
        cpli_free(group->crossings[i].heads_in);
    }
    cpli_free(group->neighbours);
    cpli_free(group->n_from);
    cpli_free(group->n_to);
    cpli_free(group->sums);
    cpli_free(group->plain);
    cpli_free(group->meeting.tickets);
    cpli_free(group->calls);
    cpli_free(group->is_out);
    cpli_free(group->left_after);
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
    group->desk = &all->desk;
    group->deadline_s = deadline_s;
    group->failed_rank = -1;
    return take_memory(group);
}

/* Tells the others how I stand; the worst status of all. */
static cpl_status show_cards(cpli_processes *all, cpli_assembly *assembly,
                             int n, cpl_status mine)
{
    cpli_card card = {.status = mine,
                      .number = all->n_groups + 1,
                      .last_failed = assembly->last_failed,
                      .pid = all->pid,
                      .secret = all->secret,
                      .window = all->window};
    CPL_TRY(cpli_wire_gather(&assembly->channel, &card, (int)sizeof card,
                             all->cards));
    all->n_groups = all->cards[0].number;
    for (int i = 0; i < n; i++) {
        assembly->last_failed |= all->cards[i].last_failed != 0;
        if (mine == CPL_OK && all->cards[i].status != CPL_OK)
            return cpli_fail((cpl_status)all->cards[i].status,
                             "mpi: rank %d could not join the group: %s", i,
                             cpl_status_text((cpl_status)all->cards[i].status));
    }
    return mine;
}

/* Whether I reach what a rank wrote on its card: mapped and through the kernel.
 * Only the right process has it there. */
static bool reach(cpli_neighbour *neighbour, const cpli_card *card)
{
    int64_t found = 0;
    const int64_t *mapped = cpli_neighbour_map(neighbour, &card->window);
    bool is_right = mapped != NULL && *mapped == card->secret &&
                    cpli_neighbour_read(neighbour, &found, card->window.address,
                                        sizeof found) == CPL_OK &&
                    found == card->secret;
    cpli_neighbour_unmap(neighbour);
    return is_right;
}

/* Finds out whether all ranks reach all others. */
static cpl_status probe(cpli_assembly *assembly, cpli_group *group)
{
    cpli_processes *all = group->all;
    int64_t reaches = 1;
    int n = group->comm.size;
    for (int rank = 0; rank < n; rank++) {
        group->neighbours[rank].pid = all->cards[rank].pid;
        if (reaches != 0)
            reaches = reach(&group->neighbours[rank], &all->cards[rank]);
    }
    CPL_TRY(cpli_wire_gather(&assembly->channel, &reaches, sizeof reaches,
                             all->reaches));
    group->pulls = true;
    for (int rank = 0; rank < n; rank++)
        group->pulls = group->pulls && all->reaches[rank] != 0;
    return CPL_OK;
}

/* All ranks of earlier groups of n and fewer have come out of them. What may
 * still be under way in a group that failed keeps its channel for ever. */
static void forget_last(cpli_processes *all, int n)
{
    cpli_assembly *assembly = &all->assemblies[n];
    if (assembly->last.size > 0 && !assembly->last_failed)
        cpli_wire_free(&assembly->last);
    assembly->last = (cpli_channel){0};
    assembly->last_failed = false;
    for (int i = 1; i <= n; i++)
        cpli_windows_destroy(&all->assemblies[i].last_windows);
}

static cpl_status join(cpli_processes *all, int n, double deadline_s,
                       cpl_comm **out)
{
    cpli_group *group = NULL;
    if (n < 1 || n > all->size || all->rank >= n)
        return cpli_fail(CPL_INVALID,
                         "mpi: process %d of %d joins a group of %d", all->rank,
                         all->size, n);
    cpli_assembly *assembly = &all->assemblies[n];
    if (assembly->channel.size == 0)
        CPL_TRY(cpli_wire_first(&all->channel, n, &assembly->channel));
    cpl_status status = create_group(all, n, deadline_s, &group);
    status = show_cards(all, assembly, n, status);
    if (status == CPL_OK) {
        forget_last(all, n);
        group->number = all->n_groups;
        status = probe(assembly, group);
    }
    if (status == CPL_OK)
        status = cpli_wire_copy(&assembly->channel, &group->channel);
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
    if (assembly->last_failed)
        assembly->last_windows = group->windows;
    else
        cpli_windows_destroy(&group->windows);
    for (int rank = 0; rank < comm->size; rank++)
        cpli_neighbour_unmap(&group->neighbours[rank]);
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
        .open = open_all,
        .close = close_all,
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
