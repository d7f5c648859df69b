/*
 * direct.c: a message for each run, from where it lies to where it goes, and
 * no packing. What must be added, and what changes in place, waits in the inbox
 * until everything has come.
 */
#include "exchange.h"

static cpl_status prepare(const cpli_task *task, cpli_recipe *recipe)
{
    cpli_leg leg = {
        .src = CPLI_SRC, .dst = CPLI_DST, .transfer = {.way = CPLI_MESSAGES}};
    if (!task->in_place && task->combine == CPLI_COPY) {
        cpli_add_leg(task, recipe, leg, &task->sends, &task->receives);
        return CPL_OK;
    }
    cpli_pieces sends, receives, landing;
    CPL_TRY(cpli_boxed(task, &task->sends, &sends));
    CPL_TRY(cpli_boxed(task, &task->receives, &receives));
    CPL_TRY(cpli_land(task, &receives, &landing, &recipe->inbox_bytes));
    leg.dst = CPLI_INBOX;
    cpli_add_leg(task, recipe, leg, &sends, &landing);
    return cpli_unload(task, recipe);
}

/* Of a run, sending and receiving are each a piece. */
static cpli_effort effort(const cpli_census *census)
{
    return (cpli_effort){
        .messages = census->peers_out + census->peers_in,
        .pieces = census->pieces_out + census->pieces_in + census->pieces_own,
        .crossing = cpli_max(census->bytes_out, census->bytes_in),
        .carried = census->bytes_own};
}

const cpli_method cpli_method_direct = {
    .name = "direct",
    .way = CPLI_MESSAGES,
    .is_fused = true,
    .prepare = prepare,
    .effort = effort,
};
