/*
 * copy.c: the method for ranks that reach each other's memory: every row is
 * copied once, from where it lies to where it goes. In place, rows that change
 * places are swapped without a buffer, and the rest lands in one first: a row
 * may be overwritten only when everybody has read it.
 */
#include "exchange.h"

static cpl_status prepare_in_place(const cpli_task *task, cpli_recipe *recipe)
{
    const cpli_leg swap = {
        .src = CPLI_SRC, .dst = CPLI_DST, .transfer = {.combine = CPLI_SWAP}};
    const cpli_leg rest = {.src = CPLI_SRC, .dst = CPLI_INBOX};
    cpli_pieces landing;
    CPL_TRY(cpli_land(task, &task->receives, &landing, &recipe->inbox_bytes));
    cpli_add_leg(task, recipe, swap, &task->swaps, &task->swaps);
    cpli_add_leg(task, recipe, rest, &task->sends, &landing);
    return cpli_unload(task, recipe);
}

static cpl_status prepare(const cpli_task *task, cpli_recipe *recipe)
{
    if (task->in_place)
        return prepare_in_place(task, recipe);
    const cpli_leg leg = {.src = CPLI_SRC,
                          .dst = CPLI_DST,
                          .transfer = {.combine = task->combine}};
    cpli_add_leg(task, recipe, leg, &task->sends, &task->receives);
    return CPL_OK;
}

static cpli_effort effort(const cpli_census *census)
{
    return (cpli_effort){.messages = census->peers_out + census->peers_in,
                         .pieces = census->pieces_in + census->pieces_own,
                         .crossing = census->bytes_in,
                         .carried = census->bytes_own};
}

const cpli_method cpli_method_copy = {
    .name = "copy",
    .way = CPLI_PULL,
    .can_swap = true,
    .is_fused = true,
    .prepare = prepare,
    .effort = effort,
};
