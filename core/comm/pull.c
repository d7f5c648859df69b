/*
 * pull.c: transfers between processes of one machine, each byte copied once.
 * The sender tells each receiver in a *head* where its memory lies; the
 * receiver checks it, takes its pieces straight from there (mapped, where it is
 * a window; else through the kernel) and acknowledges. As among threads, a rank
 * carries its transfers out in the order in which it started them.
 */
#include "group.h"

/* What goes through the kernel at a time, where it can not go straight to its
 * place; stays in the cache. */
enum { BUFFER_BYTES = 1 << 16 };

struct cpli_head_of_pull {
    cpli_spot src;
    int64_t n;
    uint64_t hash; /* of the pieces' places and sizes */
    uint32_t count;
    int32_t swaps;
};

typedef struct cpli_head_of_pull head_of_pull;

/* ---- heads ---- */

static uint64_t mix(uint64_t hash, int64_t value)
{
    return (hash ^ (uint64_t)value) * UINT64_C(0x9e3779b97f4a7c15) +
           (hash >> 29);
}

/* What both sides know about the pieces first .. end - 1, by their places in
 * the sender's memory. */
static head_of_pull describe(const cpli_transfer *transfer, bool is_send,
                             int64_t first, int64_t end)
{
    const cpli_piece *pieces = is_send ? transfer->sends : transfer->receives;
    head_of_pull head = {.n = end - first,
                         .swaps = transfer->combine == CPLI_SWAP};
    for (int64_t i = first; i < end; i++) {
        head.hash =
            mix(head.hash, is_send ? pieces[i].offset : pieces[i].peer_offset);
        head.hash = mix(head.hash, pieces[i].bytes);
    }
    return head;
}

size_t cpli_pull_heads_bytes(int size)
{
    return 2 * (size_t)size * sizeof(head_of_pull);
}

static int head_tag(uint32_t count)
{
    return CPLI_TAG_TRANSFERS + (int)(count % CPLI_TAGS);
}

static int taken_tag(uint32_t count)
{
    return head_tag(count) + CPLI_TAGS;
}

/* ---- start ---- */

static cpl_status expect_heads(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    for (int64_t i = 0; i < transfer->n_receives;
         i = cpli_end_of_peer(transfer->receives, transfer->n_receives, i)) {
        int peer = transfer->receives[i].peer;
        if (peer == me->comm.rank)
            continue;
        CPL_TRY(cpli_group_receive(
            me, &crossing->heads, peer, head_tag(++me->n_from[peer]),
            &crossing->heads_in[crossing->heads.n], sizeof(head_of_pull)));
    }
    return CPL_OK;
}

static cpl_status send_heads(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    const cpli_piece *sends = transfer->sends;
    cpli_spot src = cpli_windows_spot(&me->windows, transfer->src);
    int64_t end = 0;
    int n = 0;
    for (int64_t i = 0; i < transfer->n_sends; i = end) {
        int peer = sends[i].peer;
        end = cpli_end_of_peer(sends, transfer->n_sends, i);
        if (peer == me->comm.rank)
            continue;
        head_of_pull *head = &crossing->heads_in[me->comm.size + n++];
        *head = describe(transfer, true, i, end);
        head->src = src;
        head->count = ++me->n_to[peer];
        CPL_TRY(cpli_group_send(me, &crossing->batch, peer,
                                head_tag(head->count), head, sizeof *head));
        CPL_TRY(cpli_group_receive(me, &crossing->batch, peer,
                                   taken_tag(head->count), &crossing->nothing,
                                   0));
    }
    return CPL_OK;
}

cpl_status cpli_pull_start(cpli_group *me, cpli_crossing *crossing)
{
    CPL_TRY(expect_heads(me, crossing));
    return send_heads(me, crossing);
}

/* ---- moving what is not mapped ---- */

static cpl_status add_piece(const cpli_neighbour *neighbour,
                            const cpli_transfer *transfer,
                            const cpli_piece *piece, uint64_t src)
{
    _Alignas(64) char buffer[BUFFER_BYTES];
    int64_t element = (int64_t)cpl_dtype_bytes(transfer->dtype);
    char *dst = (char *)transfer->dst + piece->offset;
    for (int64_t i = 0; i < piece->bytes; i += BUFFER_BYTES) {
        int64_t n = cpli_min(BUFFER_BYTES, piece->bytes - i);
        CPL_TRY(cpli_neighbour_read(neighbour, buffer, src + (uint64_t)i,
                                    (size_t)n));
        cpli_add_elements(transfer->dtype, dst + i, buffer, n / element);
    }
    return CPL_OK;
}

static cpl_status swap_piece(const cpli_neighbour *neighbour,
                             const cpli_transfer *transfer,
                             const cpli_piece *piece, uint64_t src, int rank)
{
    char buffer[BUFFER_BYTES];
    char *dst = (char *)transfer->dst + piece->offset;
    cpli_range share = cpli_swap_share(piece, rank);
    for (int64_t i = share.begin; i < share.end; i += BUFFER_BYTES) {
        size_t n = (size_t)cpli_min(BUFFER_BYTES, share.end - i);
        CPL_TRY(cpli_neighbour_read(neighbour, buffer, src + (uint64_t)i, n));
        CPL_TRY(cpli_neighbour_write(neighbour, dst + i, src + (uint64_t)i, n));
        memcpy(dst + i, buffer, n);
    }
    return CPL_OK;
}

/* A piece of the memory that begins at `base` in the neighbour. */
static cpl_status fetch_piece(const cpli_neighbour *neighbour,
                              const cpli_transfer *transfer,
                              const cpli_piece *piece, uint64_t base, int rank)
{
    uint64_t src = base + (uint64_t)piece->peer_offset;
    if (transfer->combine == CPLI_ADD)
        return add_piece(neighbour, transfer, piece, src);
    if (transfer->combine == CPLI_SWAP)
        return swap_piece(neighbour, transfer, piece, src, rank);
    return cpli_neighbour_read(neighbour, (char *)transfer->dst + piece->offset,
                               src, (size_t)piece->bytes);
}

/* ---- finish ---- */

static cpl_status move_pieces(cpli_group *me, const cpli_transfer *transfer,
                              int64_t first, int64_t end,
                              const head_of_pull *head)
{
    const cpli_piece *pieces = transfer->receives;
    cpli_neighbour *neighbour = &me->neighbours[pieces[first].peer];
    char *src = cpli_neighbour_map(neighbour, &head->src);
    for (int64_t i = first; i < end; i++) {
        cpl_status status = CPL_OK;
        if (src != NULL)
            cpli_move_between(transfer, &pieces[i], src + pieces[i].peer_offset,
                              me->comm.rank);
        else
            status = fetch_piece(neighbour, transfer, &pieces[i],
                                 head->src.address, me->comm.rank);
        if (status != CPL_OK)
            return cpli_group_fail_with(me, status);
    }
    return CPL_OK;
}

/* Takes the pieces first .. end - 1 from their sender, whose head is the i-th
 * that I expect. */
static cpl_status take(cpli_group *me, cpli_crossing *crossing, int64_t i,
                       int64_t first, int64_t end)
{
    const cpli_transfer *transfer = crossing->transfer;
    int peer = transfer->receives[first].peer;
    cpli_batch one = {.tickets = &crossing->heads.tickets[i],
                      .n = 1,
                      .what = crossing->batch.what,
                      .number = crossing->number};
    CPL_TRY(cpli_group_wait(me, &one));
    const head_of_pull *theirs = &crossing->heads_in[i];
    head_of_pull mine = describe(transfer, false, first, end);
    if (mine.n != theirs->n || mine.hash != theirs->hash ||
        mine.swaps != theirs->swaps)
        return cpli_group_fail_sizes(me, &crossing->batch, peer);
    CPL_TRY(move_pieces(me, transfer, first, end, theirs));
    return cpli_group_send(me, &crossing->batch, peer, taken_tag(theirs->count),
                           &crossing->nothing, 0);
}

static cpl_status carry_out(cpli_group *me, cpli_crossing *crossing)
{
    const cpli_transfer *transfer = crossing->transfer;
    const cpli_piece *receives = transfer->receives;
    int64_t n_heads = 0;
    int64_t end = 0;
    for (int64_t i = 0; i < transfer->n_receives; i = end) {
        end = cpli_end_of_peer(receives, transfer->n_receives, i);
        if (receives[i].peer != me->comm.rank)
            CPL_TRY(take(me, crossing, n_heads++, i, end));
        else
            for (int64_t j = i; j < end; j++)
                cpli_move_within(transfer, &receives[j]);
    }
    CPL_TRY(cpli_group_wait(me, &crossing->batch));
    crossing->is_done = true;
    return CPL_OK;
}

/* The pull not yet carried out that was started first. */
static cpli_crossing *oldest(cpli_group *me)
{
    cpli_crossing *out = NULL;
    for (int i = 0; i < CPLI_IN_FLIGHT; i++) {
        cpli_crossing *crossing = &me->crossings[i];
        if (crossing->transfer != NULL && !crossing->is_done &&
            crossing->transfer->way == CPLI_PULL &&
            (out == NULL || crossing->number < out->number))
            out = crossing;
    }
    return out;
}

cpl_status cpli_pull_until(cpli_group *me, int64_t number)
{
    cpli_crossing *next = oldest(me);
    while (next != NULL && next->number <= number) {
        CPL_TRY(carry_out(me, next));
        next = oldest(me);
    }
    return CPL_OK;
}
