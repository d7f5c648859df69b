/*
 * recipe.c: carrying out a recipe, whatever method made it: pack, transfer,
 * unpack. Nothing is taken and nothing is decided here.
 */
#include "exchange.h"

static const char *source_of(char *const *at, const cpli_carry *item)
{
    return at[item->from] + item->from_offset;
}

static void carry(const cpli_carries *list, const cpli_carry *item,
                  char *const *at, char *to)
{
    char *dst = to + item->to_offset;
    size_t bytes = (size_t)item->bytes;
    if (list->combine == CPLI_COPY)
        cpli_copy_bytes(dst, source_of(at, item), bytes, list->is_large);
    else if (list->combine == CPLI_ADD)
        cpli_add_elements(list->dtype, dst, source_of(at, item),
                          (int64_t)(bytes / cpl_dtype_bytes(list->dtype)));
    else
        memset(dst, list->fill, bytes);
}

static void carry_here(const cpli_carries *list, char *const *at, char *to)
{
    for (int64_t i = 0; i < list->n; i++) {
        const cpli_carry *next = &list->items[i + 1];
        if (i + 1 < list->n && list->combine != CPLI_FILL)
            cpli_fetch_ahead(source_of(at, next), next->bytes);
        carry(list, &list->items[i], at, to);
    }
    cpli_copy_fence();
}

static cpl_status carry_all(const cpli_moves *moves, const cpli_carries *list,
                            char *to)
{
    const cpli_device_ops *device = cpli_device_of(moves->comm);
    if (list->n == 0 && list->tables == NULL)
        return CPL_OK;
    if (device != NULL)
        return device->carry(moves->comm, list, moves->at, to);
    carry_here(list, moves->at, to);
    return CPL_OK;
}

cpl_status cpli_moves_fill(const cpli_moves *moves, void *dst)
{
    return carry_all(moves, &moves->fills, dst);
}

cpl_status cpli_moves_clear(const cpli_moves *moves, void *dst, size_t bytes)
{
    const cpli_device_ops *device = cpli_device_of(moves->comm);
    if (device != NULL)
        return device->fill(moves->comm, dst, "", 1, (int64_t)bytes);
    memset(dst, 0, bytes);
    return CPL_OK;
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
    CPL_TRY(carry_all(moves, &recipe->load, moves->outbox));
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
    return carry_all(moves, &recipe->unload, moves->at[CPLI_DST]);
}
