/* place.c: see place.h. */
#include "place.h"

static cpl_status fill_positions(cpl_place *place)
{
    cpl_span *spans;
    int64_t n;
    CPL_TRY(CPL_ALLOC(place->n_rows, &place->positions));
    CPL_TRY(cpl_layout_spans(place->layout, place->rank, false, &spans, &n));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < spans[i].length; j++)
            place->positions[spans[i].slot + j] = spans[i].offset + j;
    cpl_free(spans);
    return CPL_OK;
}

static cpl_status fill(cpl_place *place)
{
    int64_t n_links;
    CPL_TRY(cpl_layout_n_local(place->layout, place->rank, &place->n_rows));
    CPL_TRY(cpl_layout_spans(place->layout, place->rank, true, &place->spans,
                             &place->n_spans));
    CPL_TRY(
        cpl_layout_chain(place->layout, place->rank, &place->links, &n_links));
    CPL_ASSERT(n_links == place->n_spans);
    CPL_TRY(fill_positions(place));
    /* Behind all rows: kernels search spans in slot order. */
    const cpl_span beyond = {.slot = place->n_rows};
    place->n_kernel_spans = cpli_room(place->memory, place->n_spans);
    CPL_TRY(CPLI_LIST_PAD(&place->lists, place->spans, place->n_spans,
                          place->n_kernel_spans, &beyond,
                          &place->kernel_spans));
    return CPLI_LIST_SEND(&place->lists, place->positions, place->n_rows,
                          &place->kernel_positions);
}

cpl_status cpl_place_create(cpl_comm *comm, const cpl_layout *layout,
                            cpl_place **out)
{
    int size = cpl_comm_size(comm);
    if (cpl_layout_n_ranks(layout) != size)
        return cpli_fail(CPL_MISMATCH, "place: %d ranks in %s, %d in the group",
                         cpl_layout_n_ranks(layout),
                         cpl_layout_describe(layout), size);
    cpl_place *place;
    CPL_TRY(CPL_ALLOC(1, &place));
    place->comm = comm;
    place->memory = cpli_comm_whole(comm);
    place->lists.comm = place->memory;
    place->layout = layout;
    place->rank = cpl_comm_rank(comm);
    place->tp = 1;
    cpl_status status = fill(place);
    if (status != CPL_OK) {
        cpl_place_destroy(place);
        return status;
    }
    *out = place;
    return CPL_OK;
}

static void forget(cpli_seen *seen)
{
    cpl_route_destroy(seen->route);
    cpl_view_destroy(seen->view);
    *seen = (cpli_seen){0};
}

void cpl_place_destroy(cpl_place *place)
{
    if (place == NULL)
        return;
    for (int i = 0; i < place->n_halos; i++)
        forget(&place->halos[i]);
    for (int i = 0; i < place->n_keys; i++)
        forget(&place->keys[i]);
    forget(&place->whole);
    cpli_rings_destroy(place->rings);
    for (int64_t i = 0; i < place->n_scratch; i++)
        cpli_comm_free(place->memory, place->scratch[i].block);
    cpli_free(place->scratch);
    cpli_lists_free(&place->lists);
    cpli_free(place->positions);
    cpl_free(place->links);
    cpl_free(place->spans);
    cpli_free(place);
}

cpl_status cpl_place_split(cpl_place *place, int tp_rank, int tp)
{
    if (tp_rank < 0 || tp_rank >= tp)
        return cpli_fail(CPL_INVALID, "place: rank %d of tp = %d", tp_rank, tp);
    place->tp_rank = tp_rank;
    place->tp = tp;
    return CPL_OK;
}

void cpl_place_share_kept(cpl_place *place)
{
    place->shares_kept = true;
}

void cpl_place_demand_marks(cpl_place *place)
{
    place->demands_marks = true;
}

int64_t cpl_place_routes_built(const cpl_place *place)
{
    return place->routes_built;
}

/* Takes the view that the caller made, and routes to it. */
static cpl_status see(cpl_place *place, cpl_view *view, cpli_seen *seen)
{
    cpl_route *route;
    cpl_status status = cpl_route_to_view(view, &route);
    if (status != CPL_OK) {
        cpl_view_destroy(view);
        return status;
    }
    place->routes_built++;
    seen->view = view;
    seen->route = route;
    return CPL_OK;
}

cpl_status cpli_place_keys(cpl_place *place, int64_t window,
                           const cpli_seen **out)
{
    for (int i = 0; i < place->n_keys; i++)
        if (place->keys[i].width == window) {
            *out = &place->keys[i];
            return CPL_OK;
        }
    if (place->n_keys == CPLI_MAX_WINDOWS)
        return cpli_fail(CPL_UNSUPPORTED,
                         "place: more than %d windows of keys in one layout",
                         CPLI_MAX_WINDOWS);
    cpli_seen *seen = &place->keys[place->n_keys];
    cpl_view *view;
    CPL_TRY(cpl_view_keys(place->layout, window, &view));
    CPL_TRY(see(place, view, seen));
    seen->width = window;
    place->n_keys++;
    *out = seen;
    return CPL_OK;
}

cpl_status cpli_place_whole(cpl_place *place, const cpli_seen **out)
{
    if (place->whole.view == NULL) {
        cpl_view *view;
        CPL_TRY(cpl_view_whole(place->layout, true, &view));
        CPL_TRY(see(place, view, &place->whole));
    }
    *out = &place->whole;
    return CPL_OK;
}

cpl_status cpli_place_halo(cpl_place *place, int64_t width,
                           const cpli_seen **out)
{
    for (int i = 0; i < place->n_halos; i++)
        if (place->halos[i].width == width) {
            *out = &place->halos[i];
            return CPL_OK;
        }
    if (place->n_halos == CPLI_MAX_HALOS)
        return cpli_fail(CPL_UNSUPPORTED,
                         "place: more than %d widths of halo in one layout",
                         CPLI_MAX_HALOS);
    cpli_seen *seen = &place->halos[place->n_halos];
    cpl_view *view;
    CPL_TRY(cpl_view_halo(place->layout, width, true, &view));
    CPL_TRY(see(place, view, seen));
    seen->width = width;
    place->n_halos++;
    *out = seen;
    return CPL_OK;
}

void cpli_place_begin_scratch(cpl_place *place)
{
    for (int64_t i = 0; i < place->n_scratch; i++)
        place->scratch[i].is_taken = false;
}

cpl_status cpli_place_poison_scratch(cpl_place *place)
{
    const cpli_device_ops *device = cpli_device_of(place->memory);
    const unsigned char poison = 0xff;
    for (int64_t i = 0; i < place->n_scratch; i++) {
        const cpli_scratch *scratch = &place->scratch[i];
        if (scratch->owner.kind != NULL)
            continue;
        if (device == NULL)
            memset(scratch->block, poison, scratch->bytes);
        else
            CPL_TRY(device->fill(place->memory, scratch->block, &poison, 1,
                                 (int64_t)scratch->bytes));
    }
    return CPL_OK;
}

cpl_status cpli_place_scratch(cpl_place *place, size_t bytes, void **out)
{
    return cpli_place_kept(place, (cpli_alike){0}, bytes, out);
}

static bool are_alike(cpli_alike a, cpli_alike b)
{
    return a.kind == b.kind && a.mode == b.mode && a.window == b.window &&
           a.a2a == b.a2a;
}

cpl_status cpli_place_kept(cpl_place *place, cpli_alike owner, size_t bytes,
                           void **out)
{
    for (int64_t i = 0; i < place->n_scratch; i++) {
        cpli_scratch *scratch = &place->scratch[i];
        if (scratch->is_taken || scratch->bytes != bytes ||
            !are_alike(scratch->owner, owner))
            continue;
        scratch->is_taken = true;
        *out = scratch->block;
        return CPL_OK;
    }
    cpli_scratch fresh = {.bytes = bytes, .owner = owner, .is_taken = true};
    CPL_TRY(cpli_realloc((void **)&place->scratch, (size_t)place->n_scratch + 1,
                         sizeof *place->scratch));
    CPL_TRY(cpli_comm_alloc(place->memory, bytes, &fresh.block));
    place->scratch[place->n_scratch++] = fresh;
    *out = fresh.block;
    return CPL_OK;
}
