/*
 * recipe.c: carrying out a recipe, whatever method made it: pack, transfer,
 * unpack. Nothing is taken and nothing is decided here.
 */
#include "exchange.h"

static const char *source_of(const cpli_moves *moves, const cpli_carry *item)
{
    return moves->at[item->from] + item->from_offset;
}

static void carry(const cpli_moves *moves, const cpli_carry *item, char *to,
                  cpli_combine combine)
{
    const cpli_recipe *recipe = moves->flying;
    const char *from = source_of(moves, item);
    if (combine == CPLI_COPY)
        cpli_copy_bytes(to + item->to_offset, from, (size_t)item->bytes,
                        recipe->is_large);
    else
        cpli_add_elements(recipe->dtype, to + item->to_offset, from,
                          item->bytes /
                              (int64_t)cpl_dtype_bytes(recipe->dtype));
}

static void carry_all(const cpli_moves *moves, const cpli_carries *list,
                      char *to, cpli_combine combine)
{
    for (int64_t i = 0; i < list->n; i++) {
        const cpli_carry *next = &list->items[i + 1];
        if (i + 1 < list->n)
            cpli_fetch_ahead(source_of(moves, next), next->bytes);
        carry(moves, &list->items[i], to, combine);
    }
    cpli_copy_fence();
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
    CPL_TRY(cpli_transfer_finish(moves->comm, &leg->transfer));
    cpli_copy_fence();
    return CPL_OK;
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
    carry_all(moves, &recipe->load, moves->outbox, CPLI_COPY);
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
    /* By now everybody has read my rows, so dst may be src. */
    carry_all(moves, &recipe->unload, moves->at[CPLI_DST], recipe->combine);
    return CPL_OK;
}
