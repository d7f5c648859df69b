/*
 * moves.c: segments of rows as pieces of bytes, for one size of row, and a
 * method's recipes for them.
 */
#include "plan.h"

#include <limits.h>

/* ---- lists and boxes ---- */

static cpl_status take_list(cpli_moves *moves, int64_t n, size_t size,
                            void **out)
{
    CPL_ASSERT(moves->n_lists < CPLI_MAX_LISTS);
    CPL_TRY(cpli_alloc((size_t)n, size, out));
    moves->lists[moves->n_lists++] = *out;
    return CPL_OK;
}

cpl_status cpli_list(const cpli_task *task, int64_t n, size_t size, void **out)
{
    return take_list(task->moves, n, size, out);
}

static cpl_status take_boxes(cpli_moves *moves)
{
    int64_t outbox = 0;
    int64_t inbox = 0;
    for (int mode = 0; mode < CPLI_N_MODES; mode++) {
        outbox = cpli_max(outbox, moves->recipes[mode].outbox_bytes);
        inbox = cpli_max(inbox, moves->recipes[mode].inbox_bytes);
    }
    if (outbox > 0)
        CPL_TRY(cpli_comm_alloc(moves->comm, (size_t)outbox, &moves->outbox));
    if (inbox > 0)
        CPL_TRY(cpli_comm_alloc(moves->comm, (size_t)inbox, &moves->inbox));
    return CPL_OK;
}

static void release_recipe(cpli_moves *moves, cpli_recipe *recipe)
{
    const cpli_device_ops *device = cpli_device_of(moves->comm);
    for (int i = 0; i < recipe->n_legs; i++)
        cpli_transfer_release(moves->comm, &recipe->legs[i].transfer);
    if (device == NULL)
        return;
    device->release(moves->comm, &recipe->load);
    device->release(moves->comm, &recipe->unload);
}

void cpli_moves_destroy(cpli_moves *moves)
{
    if (moves->comm == NULL)
        return; /* nothing was made yet */
    for (int mode = 0; mode < CPLI_N_MODES; mode++)
        release_recipe(moves, &moves->recipes[mode]);
    if (cpli_device_of(moves->comm) != NULL)
        cpli_device_of(moves->comm)->release(moves->comm, &moves->fills);
    for (int i = 0; i < moves->n_lists; i++)
        cpli_free(moves->lists[i]);
    if (moves->outbox != NULL)
        cpli_comm_free(moves->comm, moves->outbox);
    if (moves->inbox != NULL)
        cpli_comm_free(moves->comm, moves->inbox);
}

/* ---- what methods are made of ---- */

void cpli_add_leg(const cpli_task *task, cpli_recipe *recipe, cpli_leg leg,
                  const cpli_pieces *sends, const cpli_pieces *receives)
{
    CPL_ASSERT(recipe->n_legs < CPLI_MAX_LEGS);
    leg.transfer.sends = sends->items;
    leg.transfer.n_sends = sends->n;
    leg.transfer.receives = receives->items;
    leg.transfer.n_receives = receives->n;
    leg.transfer.dtype = task->dtype;
    leg.transfer.is_large = task->is_large;
    leg.transfer.row_bytes = task->has_room ? task->row_bytes : 0;
    recipe->legs[recipe->n_legs++] = leg;
}

static bool is_boxed(const cpli_task *task, const cpli_piece *piece)
{
    return task->in_place || piece->peer != cpl_comm_rank(task->moves->comm);
}

cpl_status cpli_boxed(const cpli_task *task, const cpli_pieces *pieces,
                      cpli_pieces *out)
{
    out->n = 0;
    CPL_TRY(CPLI_LIST(task, pieces->n, &out->items));
    for (int64_t i = 0; i < pieces->n; i++)
        if (is_boxed(task, &pieces->items[i]))
            out->items[out->n++] = pieces->items[i];
    return CPL_OK;
}

cpl_status cpli_land(const cpli_task *task, const cpli_pieces *pieces,
                     cpli_pieces *out, int64_t *bytes)
{
    *bytes = 0;
    out->n = pieces->n;
    CPL_TRY(CPLI_LIST(task, pieces->n, &out->items));
    for (int64_t i = 0; i < pieces->n; i++) {
        out->items[i] = pieces->items[i];
        out->items[i].offset = *bytes;
        *bytes += pieces->items[i].bytes;
    }
    return CPL_OK;
}

cpl_status cpli_unload(const cpli_task *task, cpli_recipe *recipe)
{
    const cpli_pieces *receives = &task->receives;
    int64_t landed = 0;
    recipe->unload.n = receives->n;
    CPL_TRY(CPLI_LIST(task, receives->n, &recipe->unload.items));
    for (int64_t i = 0; i < receives->n; i++) {
        const cpli_piece *piece = &receives->items[i];
        bool boxed = is_boxed(task, piece);
        recipe->unload.items[i] =
            (cpli_carry){.from = boxed ? CPLI_INBOX : CPLI_SRC,
                         .from_offset = boxed ? landed : piece->peer_offset,
                         .to_offset = piece->offset,
                         .bytes = piece->bytes};
        landed += boxed ? piece->bytes : 0;
    }
    recipe->inbox_bytes = landed;
    if (task->has_room) /* it is there, whatever lands in it */
        recipe->inbox_bytes = cpli_max(landed, task->row_bytes);
    return CPL_OK;
}

/* ---- pieces for one size of row ---- */

/* With room nobody knows who will have pieces another time: an empty one goes
 * to each rank before `next` that has none, and every rank takes part. */
static void add_empty(const cpli_task *task, int next, cpli_pieces *out)
{
    int first = out->n > 0 ? out->items[out->n - 1].peer + 1 : 0;
    for (int rank = 0; task->has_room && rank < task->comm->size; rank++) {
        int peer = cpli_peer(task->comm, rank);
        if (peer >= first && peer < next && rank != task->comm->rank)
            out->items[out->n++] = (cpli_piece){.peer = peer};
    }
}

cpl_status cpli_scale(const cpli_task *task, const cpl_segment *segments,
                      int64_t n, cpli_pieces *out)
{
    int64_t bytes = task->row_bytes;
    int64_t empty = task->has_room ? task->comm->size : 0;
    CPL_TRY(CPLI_LIST(task, n + empty, &out->items));
    out->n = 0;
    for (int64_t i = 0; i < n; i++) {
        int peer = cpli_peer(task->comm, segments[i].peer);
        add_empty(task, peer, out);
        out->items[out->n++] =
            (cpli_piece){.peer = peer,
                         .offset = segments[i].slot * bytes,
                         .peer_offset = segments[i].peer_slot * bytes,
                         .bytes = segments[i].length * bytes};
    }
    add_empty(task, INT_MAX, out);
    return CPL_OK;
}

/* The same task from the target side to the source side. */
static cpli_task turned(const cpli_task *task)
{
    cpli_task back = *task;
    back.sends = task->receives;
    back.receives = task->sends;
    back.is_back = true;
    return back;
}

/* ---- recipes ---- */

static cpl_status reserve_list(const cpli_moves *moves, cpli_carries *list)
{
    const cpli_device_ops *device = cpli_device_of(moves->comm);
    bool is_used = list->n > 0 || (list->row_bytes > 0 && list->items != NULL);
    return device != NULL && is_used ? device->reserve(moves->comm, list)
                                     : CPL_OK;
}

static cpl_status prepare(const cpl_plan *plan, cpli_task task, cpli_mode mode)
{
    cpli_recipe *recipe = &task.moves->recipes[mode];
    task.combine = mode == CPLI_BACK_ADDING ? CPLI_ADD : CPLI_COPY;
    recipe->load =
        (cpli_carries){.dtype = task.dtype,
                       .is_large = task.is_large,
                       .row_bytes = task.has_room ? task.row_bytes : 0};
    recipe->unload = recipe->load;
    recipe->unload.combine = task.combine;
    CPL_TRY(plan->method->prepare(&task, recipe));
    for (int i = 0; i < recipe->n_legs; i++)
        CPL_TRY(
            cpli_transfer_reserve(task.moves->comm, &recipe->legs[i].transfer));
    CPL_TRY(reserve_list(task.moves, &recipe->load));
    return reserve_list(task.moves, &recipe->unload);
}

static cpl_status prepare_fills(const cpl_plan *plan, const cpli_task *task,
                                int value)
{
    cpli_carries *fills = &task->moves->fills;
    *fills = (cpli_carries){.combine = CPLI_FILL,
                            .fill = value,
                            .row_bytes = task->has_room ? task->row_bytes : 0};
    if (!plan->may_fill)
        return CPL_OK;
    CPL_TRY(CPLI_LIST(task, plan->n_fills, &fills->items));
    fills->n = plan->n_fills;
    for (int64_t i = 0; i < fills->n; i++)
        fills->items[i] =
            (cpli_carry){.to_offset = plan->fills[i].start * task->row_bytes,
                         .bytes = plan->fills[i].length * task->row_bytes};
    return reserve_list(task->moves, fills);
}

static cpl_status prepare_out_of_place(const cpl_plan *plan,
                                       const cpl_route_part *part,
                                       cpli_task task, bool is_added)
{
    CPL_TRY(cpli_scale(&task, part->sends, part->n_sends, &task.sends));
    CPL_TRY(
        cpli_scale(&task, part->receives, part->n_receives, &task.receives));
    CPL_TRY(prepare(plan, task, CPLI_FORWARD));
    if (plan->is_partition)
        CPL_TRY(prepare(plan, turned(&task), CPLI_BACK));
    if (is_added)
        CPL_TRY(prepare(plan, turned(&task), CPLI_BACK_ADDING));
    return CPL_OK;
}

static cpl_status prepare_in_place(const cpl_plan *plan, cpli_task task)
{
    const cpli_split *split = &plan->split;
    task.in_place = true;
    CPL_TRY(cpli_scale(&task, split->swaps, split->n_swaps, &task.swaps));
    CPL_TRY(cpli_scale(&task, split->sends, split->n_sends, &task.sends));
    CPL_TRY(
        cpli_scale(&task, split->receives, split->n_receives, &task.receives));
    CPL_TRY(prepare(plan, task, CPLI_FORWARD_IN_PLACE));
    return prepare(plan, turned(&task), CPLI_BACK_IN_PLACE);
}

cpl_status cpli_moves_prepare(const cpl_plan *plan, cpl_route *route,
                              const cpl_route_part *part, cpli_row row,
                              cpli_moves *out)
{
    out->comm = cpli_comm_whole(plan->comm);
    cpli_task task = {.moves = out,
                      .comm = plan->comm,
                      .route = route,
                      .dtype = row.dtype,
                      .row_bytes = row.bytes,
                      .has_room = cpli_has_room(plan->comm) &&
                                  plan->method == &cpli_method_copy};
    /* They are read and written. */
    task.is_large = cpli_is_beyond_caches(2 * plan->rows_of_all * row.bytes);
    CPL_TRY(prepare_out_of_place(plan, part, task, row.is_added));
    if (plan->is_in_place)
        CPL_TRY(prepare_in_place(plan, task));
    CPL_TRY(prepare_fills(plan, &task, row.fill));
    return take_boxes(out);
}

cpli_traffic cpli_moves_traffic(const cpli_moves *moves, cpli_mode mode)
{
    const cpli_recipe *recipe = &moves->recipes[mode];
    int rank = cpl_comm_rank(moves->comm);
    cpli_traffic sum = {0};
    for (int leg = 0; leg < recipe->n_legs; leg++) {
        const cpli_transfer *transfer = &recipe->legs[leg].transfer;
        const cpli_piece *sends = transfer->sends;
        for (int64_t i = 0; i < transfer->n_sends; i++) {
            if (sends[i].peer == rank || sends[i].bytes == 0)
                continue;
            sum.bytes += sends[i].bytes;
            sum.messages += i == 0 || sends[i].peer != sends[i - 1].peer;
        }
    }
    return sum;
}
