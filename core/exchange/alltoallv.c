/*
 * alltoallv.c: packing as in packed.c, and one all-to-all of the whole group
 * instead of messages between those who have rows for each other.
 */
#include "exchange.h"

/* Ranks without rows take part too; plain segments are not for all ranks. */
static cpl_status prepare(const cpli_task *task, cpli_recipe *recipe)
{
    return cpli_pack(task, CPLI_ALLTOALL, recipe);
}

static cpli_effort effort(const cpli_census *census)
{
    return (cpli_effort){
        .messages = 2 * (census->n_ranks - 1),
        .pieces = census->pieces_out + census->pieces_in + census->pieces_own,
        .crossing = cpli_max(census->bytes_out, census->bytes_in),
        .carried = census->bytes_out + census->bytes_in + census->bytes_own};
}

const cpli_method cpli_method_alltoallv = {
    .name = "alltoallv",
    .way = CPLI_ALLTOALL,
    .is_fused = true,
    .prepare = prepare,
    .effort = effort,
};
