/*
 * packed.c: all rows for a peer are packed into one message, and unpacked where
 * they arrive; own rows go straight from src to dst.
 */
#include "exchange.h"

static cpl_status load(const cpli_task *task, const cpli_pieces *sends,
                       cpli_recipe *recipe)
{
    recipe->load.n = sends->n;
    recipe->outbox_bytes = 0;
    CPL_TRY(CPLI_LIST(task, sends->n, &recipe->load.items));
    for (int64_t i = 0; i < sends->n; i++) {
        const cpli_piece *piece = &sends->items[i];
        recipe->load.items[i] = (cpli_carry){.from = CPLI_SRC,
                                             .from_offset = piece->offset,
                                             .to_offset = recipe->outbox_bytes,
                                             .bytes = piece->bytes};
        recipe->outbox_bytes += piece->bytes;
    }
    return CPL_OK;
}

/* One piece a peer, one behind the other in a box. */
static cpl_status bundle(const cpli_task *task, const cpli_pieces *pieces,
                         cpli_pieces *out)
{
    int64_t at = 0;
    out->n = 0;
    CPL_TRY(CPLI_LIST(task, pieces->n, &out->items));
    for (int64_t i = 0; i < pieces->n; i++) {
        int peer = pieces->items[i].peer;
        if (out->n == 0 || out->items[out->n - 1].peer != peer)
            out->items[out->n++] = (cpli_piece){.peer = peer, .offset = at};
        out->items[out->n - 1].bytes += pieces->items[i].bytes;
        at += pieces->items[i].bytes;
    }
    return CPL_OK;
}

/* In place own rows are a bundle too, which the rank takes from itself. */
static void find_own(int rank, const cpli_pieces *out, cpli_pieces *in)
{
    for (int64_t i = 0; i < in->n; i++)
        for (int64_t j = 0; in->items[i].peer == rank && j < out->n; j++)
            if (out->items[j].peer == rank)
                in->items[i].peer_offset = out->items[j].offset;
}

cpl_status cpli_pack(const cpli_task *task, cpli_way way, cpli_recipe *recipe)
{
    const cpli_leg leg = {
        .src = CPLI_OUTBOX, .dst = CPLI_INBOX, .transfer = {.way = way}};
    cpli_pieces sends, receives, bundles_out, bundles_in;
    CPL_TRY(cpli_boxed(task, &task->sends, &sends));
    CPL_TRY(cpli_boxed(task, &task->receives, &receives));
    CPL_TRY(load(task, &sends, recipe));
    CPL_TRY(bundle(task, &sends, &bundles_out));
    CPL_TRY(bundle(task, &receives, &bundles_in));
    find_own(cpl_comm_rank(task->moves->comm), &bundles_out, &bundles_in);
    cpli_add_leg(task, recipe, leg, &bundles_out, &bundles_in);
    return cpli_unload(task, recipe);
}

static cpl_status prepare(const cpli_task *task, cpli_recipe *recipe)
{
    return cpli_pack(task, CPLI_MESSAGES, recipe);
}

static cpli_effort effort(const cpli_census *census)
{
    return (cpli_effort){
        .messages = census->peers_out + census->peers_in,
        .pieces = census->pieces_out + census->pieces_in + census->pieces_own,
        .crossing = cpli_max(census->bytes_out, census->bytes_in),
        .carried = census->bytes_out + census->bytes_in + census->bytes_own};
}

const cpli_method cpli_method_packed = {
    .name = "packed",
    .way = CPLI_MESSAGES,
    .is_fused = true,
    .prepare = prepare,
    .effort = effort,
};
