/*
 * composed.c: sequence parallelism as most systems do it, to compare with: the
 * windows of a CP rank are gathered by its tp ranks, CP ranks of equal tp index
 * convert whole shards, and each keeps its window. tp times the bytes of one
 * exchange cross, in two steps. Back it is the same path the other way: a
 * gradient is split among the tp ranks, not reduced over them, since each of
 * them carried the same rows.
 */
#include <stdlib.h>

#include "exchange.h"
#include "layout/layout.h"

/* One end of the path, as this rank sees it. */
typedef struct end {
    const cpl_layout *layout;
    int cp_rank, window; /* this rank's */
} end;

static end end_of(const cpl_layout *layout, int rank)
{
    int logical = layout->logical[rank];
    return (end){layout, logical / layout->tp, logical % layout->tp};
}

static int group_rank(const cpl_layout *layout, int cp_rank, int window)
{
    return layout->order[cp_rank * layout->tp + window];
}

/* Rows of the windows of a CP rank before `window`; of all of them at tp. */
static int64_t rows_before(const cpl_layout *layout, int cp_rank, int window)
{
    int64_t rows = 0;
    for (int i = 0; i < window; i++)
        rows += cpli_n_local(layout, group_rank(layout, cp_rank, i));
    return rows;
}

static cpl_status check(const cpl_route *route)
{
    const cpli_ends *ends = cpli_route_ends(route);
    if (ends->view != NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "exchange: method \"composed\" converts between "
                         "partitions; %s is a view",
                         cpl_view_describe(ends->view));
    if (ends->from->tp == 1)
        return cpli_fail(CPL_UNSUPPORTED,
                         "exchange: method \"composed\" needs tp > 1; %s has "
                         "tp 1",
                         cpl_route_describe(route));
    size_t bytes = (size_t)cpl_route_n_ranks(route) * sizeof(int);
    if (memcmp(ends->from->logical, ends->to->logical, bytes) != 0)
        return cpli_fail(CPL_UNSUPPORTED,
                         "exchange: method \"composed\" needs equal group "
                         "orders on both sides of %s",
                         cpl_route_describe(route));
    return CPL_OK;
}

static cpli_way shortest_way(const cpli_task *task)
{
    return cpli_comm_offers(task->comm, CPLI_PULL) ? CPLI_PULL : CPLI_MESSAGES;
}

static int compare_pieces(const void *a, const void *b)
{
    const cpli_piece *x = a;
    const cpli_piece *y = b;
    return (x->peer > y->peer) - (x->peer < y->peer);
}

/* ---- first step: all windows of the CP rank ---- */

static cpl_status gather(const cpli_task *task, const end *from,
                         cpli_recipe *recipe)
{
    const cpli_leg leg = {.src = CPLI_SRC,
                          .dst = CPLI_OUTBOX,
                          .transfer = {.way = shortest_way(task)}};
    const cpl_layout *layout = from->layout;
    int rank = cpl_comm_rank(task->comm);
    int64_t mine = cpli_n_local(layout, rank) * task->row_bytes;
    cpli_pieces sends = {0};
    cpli_pieces receives = {0};
    CPL_TRY(CPLI_LIST(task, layout->tp, &sends.items));
    CPL_TRY(CPLI_LIST(task, layout->tp, &receives.items));
    for (int window = 0; window < layout->tp; window++) {
        int peer = group_rank(layout, from->cp_rank, window);
        int64_t bytes = cpli_n_local(layout, peer) * task->row_bytes;
        cpli_piece piece = {.peer = cpli_peer(task->comm, peer), .bytes = mine};
        if (mine > 0)
            sends.items[sends.n++] = piece;
        if (bytes > 0)
            receives.items[receives.n++] = (cpli_piece){
                .peer = piece.peer,
                .offset = rows_before(layout, from->cp_rank, window) *
                          task->row_bytes,
                .bytes = bytes};
    }
    qsort(sends.items, (size_t)sends.n, sizeof *sends.items, compare_pieces);
    qsort(receives.items, (size_t)receives.n, sizeof *receives.items,
          compare_pieces);
    recipe->outbox_bytes =
        rows_before(layout, from->cp_rank, layout->tp) * task->row_bytes;
    cpli_add_leg(task, recipe, leg, &sends, &receives);
    return CPL_OK;
}

/* ---- second step: whole shards between CP ranks ---- */

/* The segments of one tp rank of this CP rank: what it sends, or receives. */
typedef struct side {
    const end *mine, *theirs;
    bool receives;
} side;

static cpl_status segments_of(cpl_route *route, const side *of, int window,
                              const cpl_segment **out, int64_t *n_out)
{
    cpl_route_part part;
    int rank = group_rank(of->mine->layout, of->mine->cp_rank, window);
    CPL_TRY(cpl_route_rank(route, rank, &part));
    *out = of->receives ? part.receives : part.sends;
    *n_out = of->receives ? part.n_receives : part.n_sends;
    return CPL_OK;
}

static int compare_segments(const void *a, const void *b)
{
    const cpl_segment *x = a;
    const cpl_segment *y = b;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

/* A segment between two tp ranks as one between their CP ranks, whose peer is
 * the one of this rank's tp index. */
static cpl_segment widened(const cpl_segment *segment, const side *of,
                           int window)
{
    const cpl_layout *mine = of->mine->layout;
    const cpl_layout *theirs = of->theirs->layout;
    end peer = end_of(theirs, segment->peer);
    cpl_segment wide = *segment;
    wide.peer = group_rank(theirs, peer.cp_rank, of->mine->window);
    wide.slot += rows_before(mine, of->mine->cp_rank, window);
    wide.peer_slot += rows_before(theirs, peer.cp_rank, peer.window);
    return wide;
}

/* All segments of the CP rank, in the order in which its peers list them. */
static cpl_status widen(const cpli_task *task, const side *of,
                        cpl_segment **out, int64_t *n_out)
{
    int64_t n, total = 0;
    const cpl_segment *segments;
    int tp = of->mine->layout->tp;
    for (int window = 0; window < tp; window++) {
        CPL_TRY(segments_of(task->route, of, window, &segments, &n));
        total += n;
    }
    CPL_TRY(CPLI_LIST(task, total, out));
    *n_out = 0;
    for (int window = 0; window < tp; window++) {
        CPL_TRY(segments_of(task->route, of, window, &segments, &n));
        for (int64_t i = 0; i < n; i++)
            (*out)[(*n_out)++] = widened(&segments[i], of, window);
    }
    qsort(*out, (size_t)total, sizeof **out, compare_segments);
    return CPL_OK;
}

static cpl_status list_pieces(const cpli_task *task, const side *of,
                              cpli_pieces *out)
{
    cpl_segment *segments;
    CPL_TRY(widen(task, of, &segments, &out->n));
    return cpli_scale(task, segments, out->n, out);
}

static cpl_status convert(const cpli_task *task, const end *from, const end *to,
                          cpli_recipe *recipe)
{
    const cpli_leg leg = {.src = CPLI_OUTBOX,
                          .dst = CPLI_INBOX,
                          .transfer = {.way = shortest_way(task)}};
    const side out = {from, to, task->is_back};
    const side in = {to, from, !task->is_back};
    cpli_pieces sends, receives;
    CPL_TRY(list_pieces(task, &out, &sends));
    CPL_TRY(list_pieces(task, &in, &receives));
    recipe->inbox_bytes =
        rows_before(to->layout, to->cp_rank, to->layout->tp) * task->row_bytes;
    cpli_add_leg(task, recipe, leg, &sends, &receives);
    return CPL_OK;
}

/* ---- third step: the own window ---- */

static cpl_status keep(const cpli_task *task, const end *to,
                       cpli_recipe *recipe)
{
    int64_t before = rows_before(to->layout, to->cp_rank, to->window);
    int64_t mine = cpli_n_local(to->layout, cpl_comm_rank(task->comm));
    CPL_TRY(CPLI_LIST(task, 1, &recipe->unload.items));
    recipe->unload.n = mine > 0 ? 1 : 0;
    recipe->unload.items[0] =
        (cpli_carry){.from = CPLI_INBOX,
                     .from_offset = before * task->row_bytes,
                     .bytes = mine * task->row_bytes};
    return CPL_OK;
}

static cpl_status prepare(const cpli_task *task, cpli_recipe *recipe)
{
    const cpli_ends *ends = cpli_route_ends(task->route);
    int rank = cpl_comm_rank(task->comm);
    end from = end_of(task->is_back ? ends->to : ends->from, rank);
    end to = end_of(task->is_back ? ends->from : ends->to, rank);
    recipe->in_turn = true;
    CPL_TRY(gather(task, &from, recipe));
    CPL_TRY(convert(task, &from, &to, recipe));
    return keep(task, &to, recipe);
}

/* Near enough: every tp rank moves what all tp ranks of one exchange move. */
static cpli_effort effort(const cpli_census *census)
{
    int tp = census->tp;
    int64_t shard = tp * (census->bytes_out + census->bytes_own);
    return (cpli_effort){
        .messages = 2 * (tp - 1) + census->peers_out + census->peers_in,
        .pieces = tp * (census->pieces_in + census->pieces_own),
        .crossing = shard - shard / tp + tp * census->bytes_in,
        .carried = census->bytes_in + census->bytes_own};
}

const cpli_method cpli_method_composed = {
    .name = "composed",
    .way = CPLI_MESSAGES,
    .check = check,
    .prepare = prepare,
    .effort = effort,
};
