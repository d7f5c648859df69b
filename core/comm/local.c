/*
 * local.c: the transport of rank threads. A transfer posts its place to every
 * receiver; a receiver pulls its pieces straight from the sender's memory, so
 * each byte is copied once. A rank carries its transfers out in the order in
 * which it started them: that is how two ranks match them.
 */
#include "world.h"

/* What a rank adds up at a time; stays in the first-level cache. */
enum { SUM_BYTES = 4096 };

static cpli_member *member_of(const cpli_member *me, int rank)
{
    return &me->world->members[rank];
}

/* ---- transfers: start ---- */

/* The first piece of `peer`, or where it would stand: they are in peer order.
 */
static int64_t begin_of_peer(const cpli_piece *pieces, int64_t n, int peer)
{
    int64_t low = 0;
    int64_t high = n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (pieces[middle].peer < peer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void post(cpli_member *me, int peer, int place)
{
    cpli_member *receiver = member_of(me, peer);
    pthread_mutex_lock(&receiver->mutex);
    cpli_box *box = &receiver->boxes[me->comm.rank];
    box->places[box->posted++ % CPLI_IN_FLIGHT] = (uint8_t)place;
    cpli_member_notify(receiver);
    pthread_mutex_unlock(&receiver->mutex);
}

static cpl_status free_place(cpli_member *me, int *out)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        if (me->flights[i].transfer == NULL) {
            *out = i;
            return CPL_OK;
        }
    return cpli_fail(CPL_INVALID, "local: more than %d transfers in flight",
                     CPLI_IN_FLIGHT);
}

static cpl_status start(cpl_comm *comm, const cpli_transfer *transfer)
{
    cpli_member *me = (cpli_member *)comm;
    int place = 0;
    CPL_TRY(cpli_member_alive(me));
    CPL_TRY(free_place(me, &place));
    bool moves = me->mover != NULL && !transfer->is_host;
    if (moves)
        CPL_TRY(me->mover->begin(me, transfer, place));
    me->flights[place] = (cpli_flight){
        .transfer = transfer, .number = ++me->n_started, .moves = moves};
    const cpli_piece *sends = transfer->sends;
    for (int64_t i = 0; i < transfer->n_sends;
         i = cpli_end_of_peer(sends, transfer->n_sends, i))
        if (sends[i].peer != comm->rank)
            post(me, sends[i].peer, place);
    return CPL_OK;
}

/* ---- transfers: finish ---- */

static bool has_posted(const cpli_member *me, int peer)
{
    return me->boxes[peer].posted != me->boxes[peer].taken;
}

static bool has_consumed(const cpli_member *me, int peer)
{
    return me->consumed[peer] != me->settled[peer];
}

static bool has_posted_already(cpli_member *me, int peer)
{
    pthread_mutex_lock(&me->mutex);
    bool has = has_posted(me, peer);
    pthread_mutex_unlock(&me->mutex);
    return has;
}

/* The flight that `peer` posted to me and that I take next; who has pinned it
 * may look. */
static cpli_source next_from(cpli_member *me, int peer)
{
    const cpli_member *member = member_of(me, peer);
    pthread_mutex_lock(&me->mutex);
    cpli_box *box = &me->boxes[peer];
    int place = box->places[box->taken++ % CPLI_IN_FLIGHT];
    pthread_mutex_unlock(&me->mutex);
    return (cpli_source){.member = member,
                         .transfer = member->flights[place].transfer,
                         .place = place};
}

/* Their pieces to me, which must be mine from them, one by one; or NULL. */
static const cpli_piece *match(const cpli_transfer *mine, int64_t first,
                               int64_t n, const cpli_transfer *theirs, int rank)
{
    int64_t at = begin_of_peer(theirs->sends, theirs->n_sends, rank);
    if (theirs->way != mine->way ||
        (theirs->combine == CPLI_SWAP) != (mine->combine == CPLI_SWAP) ||
        theirs->n_sends - at < n ||
        (at + n < theirs->n_sends && theirs->sends[at + n].peer == rank))
        return NULL;
    for (int64_t i = 0; i < n; i++) {
        const cpli_piece *a = &mine->receives[first + i];
        const cpli_piece *b = &theirs->sends[at + i];
        if (b->peer != rank || a->bytes != b->bytes ||
            (mine->way == CPLI_PULL && a->peer_offset != b->offset))
            return NULL;
    }
    return &theirs->sends[at];
}

static cpl_status fail_pieces(cpli_member *me, int64_t number, int peer)
{
    return cpli_member_fail(me, CPL_MISMATCH,
                            "local: rank %d expects other pieces in transfer "
                            "%lld than rank %d sends: the ranks made different "
                            "collective calls",
                            me->comm.rank, (long long)number, peer);
}

/* Takes the pieces first .. first + n - 1 of `mine` from their sender. */
static cpl_status take(cpli_member *me, const cpli_transfer *mine,
                       int64_t first, int64_t n, int64_t number)
{
    int rank = me->comm.rank;
    int peer = mine->receives[first].peer;
    cpli_wait wait = {.what = "transfer", .number = number, .peer = peer};
    CPL_TRY(cpli_member_wait(me, has_posted, wait));
    if (!cpli_member_pin(me, peer))
        return cpli_member_lost(me, peer, "transfer", number);
    const cpli_transfer *theirs = next_from(me, peer).transfer;
    const cpli_piece *sources = match(mine, first, n, theirs, rank);
    for (int64_t i = 0; sources != NULL && i < n; i++) {
        if (i + 1 < n)
            cpli_fetch_ahead((const char *)theirs->src + sources[i + 1].offset,
                             sources[i + 1].bytes);
        cpli_move_between(mine, &mine->receives[first + i],
                          (char *)(uintptr_t)theirs->src + sources[i].offset,
                          rank);
    }
    cpli_member_unpin(me, peer, sources != NULL);
    return sources != NULL ? CPL_OK : fail_pieces(me, number, peer);
}

/* The pieces first .. end - 1 of one sender, who may be the rank itself. */
static cpl_status receive_from(cpli_member *me, const cpli_transfer *transfer,
                               int64_t first, int64_t end, int64_t number)
{
    if (transfer->receives[first].peer != me->comm.rank)
        return take(me, transfer, first, end - first, number);
    const cpli_piece *pieces = transfer->receives;
    for (int64_t i = first; i < end; i++) {
        if (i + 1 < end)
            cpli_fetch_ahead((const char *)transfer->src +
                                 pieces[i + 1].peer_offset,
                             pieces[i + 1].bytes);
        cpli_move_within(transfer, &pieces[i]);
    }
    return CPL_OK;
}

/* Sums are in rank order. */
static cpl_status
receive_in_order(cpli_member *me, const cpli_transfer *transfer, int64_t number)
{
    int64_t n = transfer->n_receives;
    int64_t end = 0;
    for (int64_t i = 0; i < n; i = end) {
        end = cpli_end_of_peer(transfer->receives, n, i);
        CPL_TRY(receive_from(me, transfer, i, end, number));
    }
    return CPL_OK;
}

/* The pieces begin .. end - 1; without may_wait only from senders that have
 * come. */
static cpl_status receive_some(cpli_member *me, const cpli_flight *flight,
                               int64_t begin, int64_t end, bool may_wait)
{
    const cpli_transfer *transfer = flight->transfer;
    int64_t next = begin;
    for (int64_t i = begin; i < end; i = next) {
        int peer = transfer->receives[i].peer;
        next = cpli_end_of_peer(transfer->receives, end, i);
        if (me->boxes[peer].is_served || (!may_wait && peer != me->comm.rank &&
                                          !has_posted_already(me, peer)))
            continue;
        CPL_TRY(receive_from(me, transfer, i, next, flight->number));
        me->boxes[peer].is_served = true;
    }
    return CPL_OK;
}

/* From the rank itself, then round, so that not all read from the same rank at
 * once; first from those who have come. */
static cpl_status receive_round(cpli_member *me, const cpli_flight *flight)
{
    int64_t n = flight->transfer->n_receives;
    int64_t own = begin_of_peer(flight->transfer->receives, n, me->comm.rank);
    for (int peer = 0; peer < me->comm.size; peer++)
        me->boxes[peer].is_served = false;
    for (int may_wait = 0; may_wait < 2; may_wait++) {
        CPL_TRY(receive_some(me, flight, own, n, may_wait));
        CPL_TRY(receive_some(me, flight, 0, own, may_wait));
    }
    return CPL_OK;
}

static cpl_status settle_all(cpli_member *me, const cpli_transfer *transfer,
                             int64_t number)
{
    const cpli_piece *sends = transfer->sends;
    for (int64_t i = 0; i < transfer->n_sends;
         i = cpli_end_of_peer(sends, transfer->n_sends, i)) {
        int peer = sends[i].peer;
        if (peer == me->comm.rank)
            continue;
        cpli_wait wait = {.what = "transfer", .number = number, .peer = peer};
        CPL_TRY(cpli_member_wait(me, has_consumed, wait));
        me->settled[peer]++;
    }
    return CPL_OK;
}

static cpli_flight *flight_of(cpli_member *me, const cpli_transfer *transfer)
{
    for (int i = 0; i < CPLI_IN_FLIGHT; i++)
        if (me->flights[i].transfer == transfer)
            return &me->flights[i];
    return NULL;
}

/* The flight not yet carried out that was started first. */
static cpli_flight *oldest_flight(cpli_member *me)
{
    cpli_flight *oldest = NULL;
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        cpli_flight *flight = &me->flights[i];
        if (flight->transfer != NULL && !flight->done &&
            (oldest == NULL || flight->number < oldest->number))
            oldest = flight;
    }
    return oldest;
}

/* ---- transfers: finish, where a device moves the rows ---- */

/* Until all senders have come. */
static cpl_status await_senders(cpli_member *me, const cpli_flight *flight)
{
    const cpli_piece *pieces = flight->transfer->receives;
    int64_t n = flight->transfer->n_receives;
    cpli_wait wait = {.what = "transfer", .number = flight->number};
    for (int64_t i = 0; i < n; i = cpli_end_of_peer(pieces, n, i)) {
        wait.peer = pieces[i].peer;
        if (wait.peer != me->comm.rank)
            CPL_TRY(cpli_member_wait(me, has_posted, wait));
    }
    return CPL_OK;
}

/* Unpins the senders of pieces before `end`. */
static void unpin_senders(cpli_member *me, const cpli_transfer *transfer,
                          int64_t end, bool consumed)
{
    const cpli_piece *pieces = transfer->receives;
    for (int64_t i = 0; i < end; i = cpli_end_of_peer(pieces, end, i))
        if (pieces[i].peer != me->comm.rank)
            cpli_member_unpin(me, pieces[i].peer, consumed);
}

/* Pins all senders, or none: see cpli_member_pin. */
static cpl_status pin_senders(cpli_member *me, const cpli_flight *flight)
{
    const cpli_piece *pieces = flight->transfer->receives;
    int64_t n = flight->transfer->n_receives;
    for (int64_t i = 0; i < n; i = cpli_end_of_peer(pieces, n, i)) {
        int peer = pieces[i].peer;
        if (peer == me->comm.rank || cpli_member_pin(me, peer))
            continue;
        unpin_senders(me, flight->transfer, i, false);
        return cpli_member_lost(me, peer, "transfer", flight->number);
    }
    return CPL_OK;
}

/* Tells the mover of every sender's pieces; *wrong: who sends others than I
 * expect, or -1. */
static cpl_status meet_senders(cpli_member *me, const cpli_transfer *mine,
                               int *wrong)
{
    int64_t end = 0;
    *wrong = -1;
    for (int64_t i = 0; i < mine->n_receives; i = end) {
        int peer = mine->receives[i].peer;
        end = cpli_end_of_peer(mine->receives, mine->n_receives, i);
        if (peer == me->comm.rank)
            continue;
        cpli_source from = next_from(me, peer);
        from.pieces = match(mine, i, end - i, from.transfer, me->comm.rank);
        if (from.pieces == NULL)
            *wrong = peer;
        else
            CPL_TRY(me->mover->meet(me, mine, (cpli_range){i, end}, &from));
    }
    return CPL_OK;
}

static cpl_status move_all(cpli_member *me, const cpli_flight *flight)
{
    const cpli_transfer *mine = flight->transfer;
    int wrong = -1;
    CPL_TRY(await_senders(me, flight));
    CPL_TRY(pin_senders(me, flight));
    cpl_status status = meet_senders(me, mine, &wrong);
    if (status == CPL_OK && wrong < 0)
        status = me->mover->move(me, mine);
    unpin_senders(me, mine, mine->n_receives, status == CPL_OK && wrong < 0);
    if (wrong >= 0)
        return fail_pieces(me, flight->number, wrong);
    if (status != CPL_OK)
        return cpli_member_fail(me, status, "%s", cpl_last_error());
    return CPL_OK;
}

/* My work after this comes after what others do with my rows. */
static cpl_status settle_order(cpli_member *me, const cpli_transfer *transfer)
{
    const cpli_piece *sends = transfer->sends;
    int64_t n = transfer->n_sends;
    for (int64_t i = 0; i < n; i = cpli_end_of_peer(sends, n, i))
        if (sends[i].peer != me->comm.rank)
            CPL_TRY(me->mover->settle(me, member_of(me, sends[i].peer)));
    return CPL_OK;
}

static cpl_status carry_out(cpli_member *me, cpli_flight *flight)
{
    bool is_sum = flight->transfer->combine == CPLI_ADD;
    if (flight->moves)
        CPL_TRY(move_all(me, flight));
    else
        CPL_TRY(is_sum ? receive_in_order(me, flight->transfer, flight->number)
                       : receive_round(me, flight));
    CPL_TRY(settle_all(me, flight->transfer, flight->number));
    if (flight->moves)
        CPL_TRY(settle_order(me, flight->transfer));
    flight->done = true;
    return CPL_OK;
}

static cpl_status finish(cpl_comm *comm, const cpli_transfer *transfer)
{
    cpli_member *me = (cpli_member *)comm;
    cpli_flight *mine = flight_of(me, transfer);
    if (mine == NULL)
        return cpli_fail(CPL_INVALID,
                         "local: finish of a transfer that was not started");
    cpl_status status = CPL_OK;
    while (status == CPL_OK && !mine->done)
        status = carry_out(me, oldest_flight(me));
    mine->transfer = NULL;
    return status;
}

/* ---- collectives ---- */

static cpl_status barrier(cpl_comm *comm)
{
    return cpli_member_meet((cpli_member *)comm,
                            (cpli_notice){.what = "barrier"});
}

static cpl_status gather(cpl_comm *comm, const void *data, size_t bytes,
                         void *out)
{
    cpli_member *me = (cpli_member *)comm;
    cpli_notice notice = {
        .what = "gather", .n = (int64_t)bytes, .data = (void *)data};
    CPL_TRY(cpli_member_meet(me, notice));
    for (int rank = 0; rank < comm->size; rank++) {
        if (!cpli_member_pin(me, rank))
            return cpli_member_lost(me, rank, "gather",
                                    atomic_load(&me->n_met));
        memcpy((char *)out + (size_t)rank * bytes, cpli_member_notice(me, rank),
               bytes);
        cpli_member_unpin(me, rank, false);
    }
    return cpli_member_meet(me, notice);
}

/* The elements of a sum that `rank` adds up. */
static int64_t slice_begin(const cpli_member *me, int rank, int64_t n)
{
    int64_t size = me->comm.size;
    return n / size * rank + cpli_min(rank, n % size);
}

/* A sum on its way: what every rank holds, and what an element takes. */
typedef struct addends {
    cpli_member *me;
    cpl_dtype dtype;
    int64_t n;
} addends;

static char *element(const addends *sum, int rank, int64_t i)
{
    return (char *)cpli_member_notice(sum->me, rank) +
           i * (int64_t)cpl_dtype_bytes(sum->dtype);
}

/* Adds all ranks' elements of one block in rank order; into my own. */
static void add_block(const addends *sum, int64_t first, int64_t n)
{
    _Alignas(64) char total[SUM_BYTES];
    size_t bytes = (size_t)n * cpl_dtype_bytes(sum->dtype);
    memcpy(total, element(sum, 0, first), bytes);
    for (int rank = 1; rank < sum->me->comm.size; rank++)
        cpli_add_elements(sum->dtype, total, element(sum, rank, first), n);
    memcpy(element(sum, sum->me->comm.rank, first), total, bytes);
}

static void unpin_below(cpli_member *me, int end)
{
    for (int rank = 0; rank < end; rank++)
        cpli_member_unpin(me, rank, false);
}

/* Pins all ranks, or none. */
static cpl_status pin_all(cpli_member *me)
{
    for (int rank = 0; rank < me->comm.size; rank++) {
        if (cpli_member_pin(me, rank))
            continue;
        unpin_below(me, rank);
        return cpli_member_lost(me, rank, "sum", atomic_load(&me->n_met));
    }
    return CPL_OK;
}

static void unpin_all(cpli_member *me)
{
    unpin_below(me, me->comm.size);
}

static cpl_status add_slice(const addends *sum)
{
    cpli_member *me = sum->me;
    int64_t begin = slice_begin(me, me->comm.rank, sum->n);
    int64_t end = slice_begin(me, me->comm.rank + 1, sum->n);
    int64_t step = SUM_BYTES / (int64_t)cpl_dtype_bytes(sum->dtype);
    CPL_TRY(pin_all(me));
    for (int64_t i = begin; i < end; i += step)
        add_block(sum, i, cpli_min(step, end - i));
    unpin_all(me);
    return CPL_OK;
}

static cpl_status fetch_slices(const addends *sum)
{
    cpli_member *me = sum->me;
    size_t element_bytes = cpl_dtype_bytes(sum->dtype);
    CPL_TRY(pin_all(me));
    for (int rank = 0; rank < me->comm.size; rank++) {
        int64_t begin = slice_begin(me, rank, sum->n);
        int64_t end = slice_begin(me, rank + 1, sum->n);
        if (rank != me->comm.rank)
            memcpy(element(sum, me->comm.rank, begin),
                   element(sum, rank, begin),
                   (size_t)(end - begin) * element_bytes);
    }
    unpin_all(me);
    return CPL_OK;
}

/* Each rank adds up its slice of all ranks' elements, then fetches the others'.
 */
static cpl_status sum(cpl_comm *comm, void *data, int64_t n, cpl_dtype dtype)
{
    addends all = {.me = (cpli_member *)comm, .dtype = dtype, .n = n};
    cpli_notice notice = {.what = "sum", .n = n, .dtype = dtype, .data = data};
    CPL_TRY(cpli_member_meet(all.me, notice));
    CPL_TRY(add_slice(&all));
    CPL_TRY(cpli_member_meet(all.me, notice));
    CPL_TRY(fetch_slices(&all));
    return cpli_member_meet(all.me, notice);
}

static cpl_status watch(cpl_comm *comm, double waited_s, const char *doing)
{
    cpli_member *me = (cpli_member *)comm;
    CPL_TRY(cpli_member_alive(me));
    if (waited_s <= me->world->deadline_s)
        return CPL_OK;
    return cpli_member_fail(me, CPL_DEADLINE,
                            "local: rank %d waited %.1f s for others in %s",
                            comm->rank, waited_s, doing);
}

const cpli_comm_ops cpli_local_ops = {
    .name = "local",
    .is_one_process = true,
    .start = start,
    .finish = finish,
    .barrier = barrier,
    .gather = gather,
    .sum = sum,
    .watch = watch,
};
