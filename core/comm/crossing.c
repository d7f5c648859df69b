/*
 * crossing.c: transfers between ranks that are processes: messages, a message a
 * piece, and all-to-alls; pulls are in pull.c. Everything is posted in start;
 * finish waits, and moves what the rank keeps. A pair of ranks counts the
 * transfers between them, and the count is the tag, so that transfers in flight
 * never mix.
 */
#include "group.h"

/* ---- places ---- */

static int64_t tickets_of(const cpli_piece *pieces, int64_t n, int rank)
{
    int64_t tickets = 0;
    for (int64_t i = 0; i < n; i++)
        if (pieces[i].peer != rank)
            tickets += cpli_parts((size_t)pieces[i].bytes);
    return tickets;
}

/* Makes room for as many messages in every place. */
static cpl_status grow(cpli_group *me, int64_t tickets)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        void *room = me->crossings[i].batch.tickets;
        CPL_TRY(cpli_realloc(&room, (size_t)tickets, sizeof(cpli_ticket)));
        me->crossings[i].batch.tickets = room;
    }
    me->crossing_tickets = tickets;
    return CPL_OK;
}

static cpl_status make_room(cpli_group *me, const cpli_transfer *transfer)
{
    int rank = me->comm.rank;
    int64_t tickets = 3 * me->comm.size; /* a pull: head, answer, and mine */
    if (transfer->way == CPLI_MESSAGES)
        tickets = tickets_of(transfer->sends, transfer->n_sends, rank) +
                  tickets_of(transfer->receives, transfer->n_receives, rank);
    return tickets <= me->crossing_tickets ? CPL_OK : grow(me, tickets);
}

cpl_status cpli_crossing_reserve(cpl_comm *comm, cpli_transfer *transfer)
{
    return make_room((cpli_group *)comm, transfer);
}

static cpl_status free_place(cpli_group *me, cpli_crossing **out)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        if (me->crossings[i].transfer == NULL) {
            *out = &me->crossings[i];
            return CPL_OK;
        }
    return cpli_fail(CPL_INVALID, "mpi: more than %d transfers in flight",
                     CPLI_IN_FLIGHT);
}

static cpli_crossing *crossing_of(cpli_group *me, const cpli_transfer *transfer)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        if (me->crossings[i].transfer == transfer)
            return &me->crossings[i];
    return NULL;
}

/* ---- messages ---- */

static int tag_of(uint32_t count)
{
    return CPLI_TAG_TRANSFERS + (int)(count % CPLI_TAGS);
}

static cpl_status post_receives(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    int last = CPLI_ANYBODY;
    for (int64_t i = 0; i < transfer->n_receives; i++) {
        const cpli_piece *piece = &transfer->receives[i];
        if (piece->peer == me->comm.rank)
            continue;
        me->n_from[piece->peer] += piece->peer != last;
        last = piece->peer;
        CPL_TRY(cpli_group_receive(
            me, &crossing->batch, piece->peer, tag_of(me->n_from[piece->peer]),
            (char *)transfer->dst + piece->offset, (size_t)piece->bytes));
    }
    return CPL_OK;
}

static cpl_status post_sends(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    int last = CPLI_ANYBODY;
    for (int64_t i = 0; i < transfer->n_sends; i++) {
        const cpli_piece *piece = &transfer->sends[i];
        if (piece->peer == me->comm.rank)
            continue;
        me->n_to[piece->peer] += piece->peer != last;
        last = piece->peer;
        CPL_TRY(cpli_group_send(
            me, &crossing->batch, piece->peer, tag_of(me->n_to[piece->peer]),
            (const char *)transfer->src + piece->offset, (size_t)piece->bytes));
    }
    return CPL_OK;
}

static cpl_status start_messages(cpli_group *me, cpli_crossing *crossing)
{
    CPL_TRY(post_receives(me, crossing));
    return post_sends(me, crossing);
}

/* Also the end of an all-to-all. */
static cpl_status finish_messages(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    for (int64_t i = 0; i < transfer->n_receives; i++)
        if (transfer->receives[i].peer == me->comm.rank)
            cpli_move_within(transfer, &transfer->receives[i]);
    return cpli_group_wait(me, &crossing->batch);
}

/* ---- all-to-all ---- */

/* The size and place of the one block of each rank; others have none. */
static cpl_status set_blocks(const cpli_group *me, const cpli_piece *pieces,
                             int64_t n, int64_t *bytes, int64_t *offsets)
{
    for (int rank = 0; rank < me->comm.size; rank++)
        bytes[rank] = offsets[rank] = 0;
    for (int64_t i = 0; i < n; i++) {
        if (pieces[i].peer == me->comm.rank)
            continue; /* moved by us: no message to itself */
        if (bytes[pieces[i].peer] > 0)
            return cpli_fail(CPL_INVALID,
                             "mpi: two pieces between ranks %d and %d in an "
                             "all-to-all",
                             me->comm.rank, pieces[i].peer);
        bytes[pieces[i].peer] = pieces[i].bytes;
        offsets[pieces[i].peer] = pieces[i].offset;
    }
    return CPL_OK;
}

static cpl_status start_all_to_all(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    int64_t *numbers = crossing->blocks;
    int n = me->comm.size;
    cpl_status status = set_blocks(me, transfer->sends, transfer->n_sends,
                                   numbers, numbers + n);
    if (status == CPL_OK)
        status = set_blocks(me, transfer->receives, transfer->n_receives,
                            numbers + 2 * n, numbers + 3 * n);
    cpli_blocks blocks = {.src = transfer->src,
                          .dst = transfer->dst,
                          .to = numbers,
                          .to_offsets = numbers + n,
                          .from = numbers + 2 * n,
                          .from_offsets = numbers + 3 * n,
                          .ints = crossing->ints};
    cpli_ticket *ticket = &crossing->batch.tickets[0];
    *ticket = (cpli_ticket){.peer = CPLI_ANYBODY};
    if (status == CPL_OK)
        status = cpli_wire_all_to_all(&me->channel, &blocks, &ticket->request);
    if (status != CPL_OK)
        return cpli_group_fail_with(me, status);
    crossing->batch.n = 1;
    crossing->batch.all_to_all = ++me->n_all_to_alls;
    return CPL_OK;
}

/* ---- transfers ---- */

static cpl_status start_any(cpli_group *me, cpli_crossing *crossing)
{
    if (crossing->transfer->way == CPLI_PULL)
        return cpli_pull_start(me, crossing);
    if (crossing->transfer->way == CPLI_ALLTOALL)
        return start_all_to_all(me, crossing);
    return start_messages(me, crossing);
}

cpl_status cpli_crossing_start(cpl_comm *comm, const cpli_transfer *transfer)
{
    cpli_group *me = (cpli_group *)comm;
    cpli_crossing *crossing = NULL;
    CPL_ASSERT(transfer->way == CPLI_PULL || transfer->combine == CPLI_COPY);
    cpli_group_listen(me);
    CPL_TRY(cpli_group_alive(me));
    if (transfer->way == CPLI_PULL && !me->pulls)
        return cpli_fail(CPL_UNSUPPORTED,
                         "mpi: the ranks do not reach each other's memory");
    CPL_TRY(make_room(me, transfer));
    CPL_TRY(free_place(me, &crossing));
    crossing->transfer = transfer;
    crossing->number = ++me->n_started;
    crossing->is_done = false;
    crossing->batch.n = crossing->batch.n_done = 0;
    crossing->heads.n = crossing->heads.n_done = 0;
    crossing->batch.what = "transfer";
    crossing->batch.number = crossing->number;
    cpl_status status = start_any(me, crossing);
    if (status != CPL_OK)
        crossing->transfer = NULL;
    return status;
}

cpl_status cpli_crossing_finish(cpl_comm *comm, const cpli_transfer *transfer)
{
    cpli_group *me = (cpli_group *)comm;
    cpli_crossing *mine = crossing_of(me, transfer);
    if (mine == NULL)
        return cpli_fail(CPL_INVALID,
                         "mpi: finish of a transfer that was not started");
    cpl_status status = cpli_group_alive(me);
    if (status == CPL_OK)
        status = cpli_pull_until(me, mine->number);
    if (status == CPL_OK && transfer->way != CPLI_PULL)
        status = finish_messages(me, mine);
    mine->transfer = NULL;
    return status;
}

cpl_status cpli_group_plain(cpl_comm *comm, const void *src, const size_t *to,
                            void *dst, const size_t *from)
{
    cpli_group *me = (cpli_group *)comm;
    cpli_group_listen(me);
    CPL_TRY(cpli_group_alive(me));
    return cpli_wire_plain(&me->channel, CPLI_TAG_PLAIN, src, to, dst, from,
                           me->plain);
}
