/*
 * recipe.c: carrying out a recipe, whatever method made it: pack, transfer,
 * unpack. Nothing is taken and nothing is decided here.
 */
#include "exchange.h"

static void carry(const cpli_moves *moves, const cpli_carry *item, char *to)
{
    cpli_copy_bytes(to + item->to_offset,
                    moves->at[item->from] + item->from_offset,
                    (size_t)item->bytes, moves->flying->is_large);
}

static void load(const cpli_moves *moves)
{
    const cpli_carries *list = &moves->flying->load;
    for (int64_t i = 0; i < list->n; i++)
        carry(moves, &list->items[i], moves->at[CPLI_OUTBOX]);
}

/* By now everybody has read my rows, so src may be dst. */
static void unload(const cpli_moves *moves)
{
    const cpli_recipe *recipe = moves->flying;
    const cpli_carries *list = &recipe->unload;
    char *dst = moves->at[CPLI_DST];
    cpl_dtype dtype = recipe->dtype;
    for (int64_t i = 0; i < list->n; i++) {
        const cpli_carry *item = &list->items[i];
        if (recipe->combine == CPLI_COPY)
            carry(moves, item, dst);
        else
            cpli_add_elements(dtype, dst + item->to_offset,
                              moves->at[item->from] + item->from_offset,
                              item->bytes / (int64_t)cpl_dtype_bytes(dtype));
    }
}

/* An all-to-all needs every rank, others only those with pieces. */
static bool is_idle(const cpli_leg *leg)
{
    return leg->transfer.way != CPLI_ALLTOALL &&
           leg->transfer.n_sends + leg->transfer.n_receives == 0;
}

static cpl_status start_leg(const cpli_moves *moves, cpli_leg *leg)
{
    if (is_idle(leg))
        return CPL_OK;
    leg->transfer.src = moves->at[leg->src];
    leg->transfer.dst = moves->at[leg->dst];
    return cpli_transfer_start(moves->comm, &leg->transfer);
}

static cpl_status finish_leg(const cpli_moves *moves, const cpli_leg *leg)
{
    if (is_idle(leg))
        return CPL_OK;
    return cpli_transfer_finish(moves->comm, &leg->transfer);
}

cpl_status cpli_moves_start(cpli_moves *moves, cpli_mode mode, const void *src,
                            void *dst)
{
    cpli_recipe *recipe = &moves->recipes[mode];
    moves->flying = recipe;
    moves->at[CPLI_SRC] = (char *)src;
    moves->at[CPLI_DST] = dst;
    moves->at[CPLI_OUTBOX] = moves->outbox;
    moves->at[CPLI_INBOX] = moves->inbox;
    load(moves);
    int n_at_once = recipe->in_turn ? 1 : recipe->n_legs;
    for (int i = 0; i < n_at_once; i++)
        CPL_TRY(start_leg(moves, &recipe->legs[i]));
    return CPL_OK;
}

cpl_status cpli_moves_finish(cpli_moves *moves)
{
    cpli_recipe *recipe = moves->flying;
    for (int i = 0; i < recipe->n_legs; i++) {
        if (recipe->in_turn && i > 0)
            CPL_TRY(start_leg(moves, &recipe->legs[i]));
        CPL_TRY(finish_leg(moves, &recipe->legs[i]));
    }
    unload(moves);
    return CPL_OK;
}
