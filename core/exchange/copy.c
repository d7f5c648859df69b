/*
 * copy.c: the method for ranks that reach each other's memory: every row is
 * copied once, from where it lies to where it goes. In place, rows that change
 * places are swapped without a buffer, and the rest lands in one first: a row
 * may be overwritten only when everybody has read it.
 */
#include "exchange.h"

static bool applies(const cpl_comm *comm)
{
    return cpli_comm_offers(comm, CPLI_PULL);
}

static cpl_status start_transfer(cpl_comm *comm, cpli_moves *moves,
                                 cpli_transfer transfer)
{
    if (transfer.n_sends + transfer.n_receives == 0)
        return CPL_OK;
    cpli_transfer *mine = &moves->transfers[moves->n_transfers];
    *mine = transfer;
    CPL_TRY(cpli_transfer_start(comm, mine));
    moves->n_transfers++;
    return CPL_OK;
}

static cpli_transfer make_transfer(const cpli_execution *execution,
                                   const cpli_pieces *sends,
                                   const cpli_pieces *receives,
                                   cpli_combine combine)
{
    return (cpli_transfer){.src = execution->src,
                           .dst = execution->dst,
                           .sends = sends->items,
                           .receives = receives->items,
                           .n_sends = sends->n,
                           .n_receives = receives->n,
                           .combine = combine,
                           .dtype = execution->dtype};
}

static cpl_status start_in_place(cpl_comm *comm, cpli_moves *moves)
{
    const cpli_execution *execution = &moves->execution;
    bool adjoint = execution->adjoint;
    CPL_TRY(start_transfer(
        comm, moves,
        make_transfer(execution, &moves->swaps, &moves->swaps, CPLI_SWAP)));
    cpli_transfer rest = make_transfer(
        execution, adjoint ? &moves->rest_in : &moves->rest_out,
        adjoint ? &moves->landing_out : &moves->landing_in, CPLI_COPY);
    rest.dst = moves->staging;
    return start_transfer(comm, moves, rest);
}

static cpl_status start(cpl_comm *comm, cpli_moves *moves)
{
    const cpli_execution *execution = &moves->execution;
    moves->n_transfers = 0;
    if (execution->in_place)
        return start_in_place(comm, moves);
    return start_transfer(
        comm, moves,
        make_transfer(execution, execution->adjoint ? &moves->in : &moves->out,
                      execution->adjoint ? &moves->out : &moves->in,
                      execution->add ? CPLI_ADD : CPLI_COPY));
}

/* By now everybody has read my rows. */
static void unload_staging(cpli_moves *moves)
{
    bool adjoint = moves->execution.adjoint;
    const cpli_pieces *to = adjoint ? &moves->rest_out : &moves->rest_in;
    const cpli_pieces *from =
        adjoint ? &moves->landing_out : &moves->landing_in;
    char *rows = moves->execution.dst;
    for (int64_t i = 0; i < to->n; i++)
        memcpy(rows + to->items[i].offset,
               moves->staging + from->items[i].offset,
               (size_t)to->items[i].bytes);
}

static cpl_status finish(cpl_comm *comm, cpli_moves *moves)
{
    for (int i = 0; i < moves->n_transfers; i++)
        CPL_TRY(cpli_transfer_finish(comm, &moves->transfers[i]));
    if (moves->execution.in_place)
        unload_staging(moves);
    return CPL_OK;
}

const cpli_method cpli_method_copy = {
    .name = "copy",
    .applies = applies,
    .start = start,
    .finish = finish,
};
