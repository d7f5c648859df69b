/*
 * cuda_table.c: lists of pieces as the kernels of exchanges read them. A table
 * is one block of the device's memory; the host keeps the same block, to find
 * its parts, and to send it again where pieces move.
 */
#include "cuda_rank.h"

#include "exchange/sums.h"

/* One launch: the pieces (or sums) of consecutive places. */
typedef struct batch {
    int first_place, n_places;
    int64_t first, n_ends; /* of the table's ends */
    int64_t n_items;       /* pieces, or sums */
    int64_t n_tiles;
    /* where the parts lie, from the beginning of the block */
    size_t count, items, sources, tile_ends;
} batch;

struct cpli_table {
    cpli_combine combine;
    cpl_dtype dtype;
    int fill;
    int unit;
    int64_t row_bytes; /* with room, else 0 */
    bool is_changed;   /* the host's block is newer */
    int64_t n_ends;
    cpl_cuda_piece *pieces; /* of the ends; a peer is a place of its batch */
    batch *batches;
    int n_batches;
    size_t bytes;
    char *here; /* the block on the host */
    void *there;
};

/* ---- making: what each launch has ---- */

/* With room: a batch for all places, whether ends are of them or not. */
static cpl_status cut_places(cpli_table *table, const cpli_end *ends,
                             int n_places)
{
    int64_t at = 0;
    CPL_TRY(CPL_ALLOC((n_places + CPL_CUDA_BASES - 1) / CPL_CUDA_BASES,
                      &table->batches));
    for (int first = 0; first < n_places; first += CPL_CUDA_BASES) {
        batch *one = &table->batches[table->n_batches++];
        *one =
            (batch){.first_place = first,
                    .n_places = (int)cpli_min(n_places - first, CPL_CUDA_BASES),
                    .first = at};
        while (at < table->n_ends && ends[at].place < first + CPL_CUDA_BASES)
            at++;
        one->n_ends = at - one->first;
    }
    return CPL_OK;
}

/* Cuts the ends where a place is too far from the first of its batch. */
static cpl_status cut(cpli_table *table, const cpli_end *ends)
{
    CPL_TRY(CPL_ALLOC(table->n_ends, &table->batches));
    for (int64_t i = 0; i < table->n_ends; i++) {
        int place = ends[i].place;
        batch *last = &table->batches[table->n_batches - 1];
        if (i == 0 || place >= last->first_place + CPL_CUDA_BASES) {
            last = &table->batches[table->n_batches++];
            *last =
                (batch){.first_place = place / CPL_CUDA_BASES * CPL_CUDA_BASES,
                        .first = i};
        }
        last->n_places =
            (int)cpli_max(last->n_places, place - last->first_place + 1);
        last->n_ends++;
    }
    return CPL_OK;
}

static cpl_status list_pieces(cpli_table *table, const cpli_end *ends)
{
    CPL_TRY(CPL_ALLOC(table->n_ends, &table->pieces));
    for (int64_t i = 0; i < table->n_ends; i++)
        table->pieces[i] =
            (cpl_cuda_piece){.from = ends[i].from,
                             .to = ends[i].to,
                             .bytes = ends[i].bytes,
                             .peer = ends[i].place % CPL_CUDA_BASES};
    return CPL_OK;
}

/* The largest power of two, up to 16, that divides all that is moved. */
static int unit_of(const cpli_table *table)
{
    int64_t all = 16 | table->row_bytes;
    for (int64_t i = 0; table->row_bytes == 0 && i < table->n_ends; i++)
        all |= table->pieces[i].from | table->pieces[i].to |
               table->pieces[i].bytes;
    return (int)(all & -all);
}

/* ---- making: the block ---- */

/* Takes `bytes` at the end of the block; the place is where it begins. */
static size_t place_in(cpli_table *table, size_t bytes)
{
    size_t at = table->bytes;
    table->bytes += (bytes + 15) / 16 * 16;
    return at;
}

/* With room a list has at least so much: most never need more. */
enum { LEAST_ROOM = 32 };

/* Room for a list of n, of a table with room. */
static size_t room_for(cpl_comm *comm, const cpli_table *table, int64_t n)
{
    bool has_room = table->row_bytes > 0;
    return (size_t)(has_room ? cpli_room(comm, cpli_max(n, LEAST_ROOM)) : n);
}

static void place_lists(cpl_comm *comm, cpli_table *table,
                        const cpli_sums *sums)
{
    for (int i = 0; i < table->n_batches; i++) {
        batch *one = &table->batches[i];
        bool is_sum = table->combine == CPLI_ADD;
        size_t item = is_sum ? sizeof(cpl_cuda_sum) : sizeof(cpl_cuda_piece);
        one->n_items = is_sum ? sums[i].n_sums : one->n_ends;
        size_t n = room_for(comm, table, one->n_items);
        one->count = place_in(table, sizeof(int64_t));
        one->items = place_in(table, n * item);
        one->tile_ends = place_in(table, n * sizeof(int64_t));
        if (is_sum)
            one->sources =
                place_in(table, room_for(comm, table, sums[i].n_sources) *
                                    sizeof(cpl_cuda_source));
    }
}

static void copy_sums(char *block, const batch *one, const cpli_sums *sums)
{
    size_t n = (size_t)sums->n_sums;
    memcpy(block + one->items, sums->sums, n * sizeof *sums->sums);
    memcpy(block + one->tile_ends, sums->tile_ends, n * sizeof(int64_t));
    memcpy(block + one->sources, sums->sources,
           (size_t)sums->n_sources * sizeof *sums->sources);
}

static void copy_pieces(const cpli_table *table, const batch *one)
{
    memcpy(table->here + one->items, table->pieces + one->first,
           (size_t)one->n_items * sizeof *table->pieces);
}

static void write_lists(cpl_comm *comm, cpli_table *table,
                        const cpli_sums *sums)
{
    for (int i = 0; i < table->n_batches; i++) {
        batch *one = &table->batches[i];
        int64_t *ends = (int64_t *)(table->here + one->tile_ends);
        memcpy(table->here + one->count, &one->n_items, sizeof one->n_items);
        if (table->combine == CPLI_ADD)
            copy_sums(table->here, one, &sums[i]);
        else {
            copy_pieces(table, one);
            cpl_cuda_tiles(table->pieces + one->first, one->n_items, ends);
        }
        one->n_tiles = one->n_items > 0 ? ends[one->n_items - 1] : 0;
        one->n_tiles = (int64_t)room_for(comm, table, one->n_tiles);
    }
}

static cpl_status take_block(cpl_comm *comm, cpli_table *table)
{
    CPL_TRY(cpli_cuda_alloc(comm, table->bytes, &table->there));
    return CPL_ALLOC(table->bytes, &table->here);
}

static cpl_status make_sums(const cpli_table *table, cpli_sums *out)
{
    for (int i = 0; table->combine == CPLI_ADD && i < table->n_batches; i++)
        CPL_TRY(cpli_sums_create(table->pieces + table->batches[i].first,
                                 table->batches[i].n_ends, &out[i]));
    return CPL_OK;
}

static cpl_status make_block(cpl_comm *comm, cpli_table *table)
{
    cpli_sums *sums;
    CPL_TRY(CPL_ALLOC(table->n_batches, &sums));
    cpl_status status = make_sums(table, sums);
    if (status == CPL_OK) {
        place_lists(comm, table, sums);
        status = take_block(comm, table);
    }
    if (status == CPL_OK)
        write_lists(comm, table, sums);
    for (int i = 0; i < table->n_batches; i++)
        cpli_sums_destroy(&sums[i]);
    cpli_free(sums);
    return status;
}

static cpl_status fill_table(cpl_comm *comm, cpli_table *table,
                             const cpli_end *ends, int n_places, bool late)
{
    CPL_TRY(table->row_bytes > 0 ? cut_places(table, ends, n_places)
                                 : cut(table, ends));
    CPL_TRY(list_pieces(table, ends));
    table->unit = unit_of(table);
    CPL_TRY(make_block(comm, table));
    table->is_changed = late;
    if (late)
        return CPL_OK;
    return cpli_cuda_upload(comm, table->there, table->here, table->bytes);
}

cpl_status cpli_table_create(cpl_comm *comm, const cpli_end *ends, int64_t n,
                             int n_places, const cpli_carries *like, bool late,
                             cpli_table **out)
{
    cpli_table *table;
    *out = NULL;
    if (n == 0 && like->row_bytes == 0)
        return CPL_OK;
    CPL_ASSERT(!late || like->combine == CPLI_COPY);
    CPL_TRY(CPL_ALLOC(1, &table));
    table->combine = like->combine;
    table->dtype = like->dtype;
    table->fill = like->fill;
    table->row_bytes = like->row_bytes;
    table->n_ends = n;
    cpl_status status = fill_table(comm, table, ends, n_places, late);
    if (status != CPL_OK) {
        cpli_table_destroy(comm, table);
        return status;
    }
    *out = table;
    return CPL_OK;
}

void cpli_table_destroy(cpl_comm *comm, cpli_table *table)
{
    if (table == NULL)
        return;
    cpli_cuda_free(comm, table->there); /* waits for the stream */
    cpli_free(table->here);
    cpli_free(table->batches);
    cpli_free(table->pieces);
    cpli_free(table);
}

/* ---- pieces that move ---- */

void cpli_table_set_from(cpli_table *table, int64_t i, int64_t from)
{
    table->is_changed |= table->pieces[i].from != from;
    table->pieces[i].from = from;
}

static cpl_status send(cpl_comm *comm, cpli_table *table)
{
    table->unit = unit_of(table);
    for (int i = 0; i < table->n_batches; i++)
        copy_pieces(table, &table->batches[i]);
    CPL_TRY(cpli_cuda_send(comm, table->there, table->here, table->bytes));
    table->is_changed = false;
    return CPL_OK;
}

/* ---- launching ---- */

static cpl_status launch_sums(cpli_cuda *device, const cpli_table *table,
                              const batch *one, const cpl_cuda_bases *theirs,
                              void *target)
{
    const char *block = table->there;
    cpl_cuda_add add = {.theirs = *theirs,
                        .mine = target,
                        .sums = (const cpl_cuda_sum *)(block + one->items),
                        .sources =
                            (const cpl_cuda_source *)(block + one->sources),
                        .tile_ends = (const int64_t *)(block + one->tile_ends),
                        .n_sums = (const int64_t *)(block + one->count),
                        .max_tiles = one->n_tiles,
                        .dtype = (int32_t)table->dtype,
                        .unit = table->unit};
    if (CPLI_CUDA_NOTES(device, "sum", add))
        return CPL_OK;
    return cpli_cuda_launched(device, cpl_cuda_add_up(&add, device->stream),
                              "cpl_cuda_add_up");
}

static cpl_status launch_moves(cpli_cuda *device, const cpli_table *table,
                               const batch *one, const cpl_cuda_bases *theirs,
                               void *target)
{
    const char *block = table->there;
    cpl_cuda_move move = {
        .theirs = *theirs,
        .mine = target,
        .pieces = (const cpl_cuda_piece *)(block + one->items),
        .tile_ends = (const int64_t *)(block + one->tile_ends),
        .n_pieces = (const int64_t *)(block + one->count),
        .max_tiles = one->n_tiles,
        .way = CPL_CUDA_PULL,
        .unit = table->unit};
    uint64_t pattern =
        (uint64_t)(unsigned char)table->fill * UINT64_C(0x0101010101010101);
    const char *what = table->combine == CPLI_COPY   ? "copy"
                       : table->combine == CPLI_SWAP ? "swap"
                                                     : "fill";
    if (CPLI_CUDA_NOTES(device, what, move) &&
        CPLI_CUDA_NOTES(device, what, pattern))
        return CPL_OK;
    if (table->combine == CPLI_COPY)
        return cpli_cuda_launched(device, cpl_cuda_copy(&move, device->stream),
                                  "cpl_cuda_copy");
    if (table->combine == CPLI_SWAP)
        return cpli_cuda_launched(device, cpl_cuda_swap(&move, device->stream),
                                  "cpl_cuda_swap");
    return cpli_cuda_launched(
        device, cpl_cuda_fill(&move, pattern, device->stream), "cpl_cuda_fill");
}

cpl_status cpli_table_launch(cpl_comm *comm, cpli_table *table,
                             void *const *bases, void *target)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    if (table->is_changed)
        CPL_TRY(send(comm, table));
    for (int i = 0; i < table->n_batches; i++) {
        const batch *one = &table->batches[i];
        cpl_cuda_bases theirs = {0};
        for (int k = 0; bases != NULL && k < one->n_places; k++)
            theirs.few[k] = bases[one->first_place + k];
        CPL_TRY(table->combine == CPLI_ADD
                    ? launch_sums(device, table, one, &theirs, target)
                    : launch_moves(device, table, one, &theirs, target));
    }
    return CPL_OK;
}

static cpl_status copy_part(cpl_comm *comm, void *to, const cpli_table *table,
                            size_t from, size_t bytes)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    return cpli_cuda_check(
        device,
        cudaMemcpyAsync(to, (const char *)table->there + from, bytes,
                        cudaMemcpyDeviceToDevice, device->stream),
        "a list");
}

/* The launch of the places from first_place on, or NULL. */
static const batch *batch_at(const cpli_table *table, int first_place)
{
    for (int i = 0; i < table->n_batches; i++)
        if (table->batches[i].first_place == first_place)
            return &table->batches[i];
    return NULL;
}

cpl_status cpli_table_copy_list(cpl_comm *comm, const cpli_table *table,
                                int first_place, void *count, void *pieces,
                                void *tile_ends)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    const batch *one = batch_at(table, first_place);
    CPL_ASSERT(table->combine != CPLI_ADD);
    if (one == NULL)
        return cpli_cuda_check(
            device, cudaMemsetAsync(count, 0, sizeof(int64_t), device->stream),
            "a list");
    size_t n = (size_t)one->n_items;
    CPL_TRY(copy_part(comm, count, table, one->count, sizeof(int64_t)));
    CPL_TRY(
        copy_part(comm, pieces, table, one->items, n * sizeof(cpl_cuda_piece)));
    return copy_part(comm, tile_ends, table, one->tile_ends,
                     n * sizeof(int64_t));
}

/* ---- of transfers ---- */

/* What of receive i this rank carries out; false: nothing. */
static bool end_of(const cpl_comm *comm, const cpli_transfer *transfer,
                   int64_t i, cpli_end *out)
{
    const cpli_piece *piece = &transfer->receives[i];
    *out = (cpli_end){.from = piece->peer_offset,
                      .to = piece->offset,
                      .bytes = piece->bytes,
                      .place = piece->peer};
    if (transfer->combine != CPLI_SWAP)
        return true;
    if (piece->peer == comm->rank) /* listed from both ends */
        return piece->offset < piece->peer_offset;
    cpli_range share = cpli_swap_share(piece, comm->rank);
    out->from += share.begin;
    out->to += share.begin;
    out->bytes = share.end - share.begin;
    return out->bytes > 0;
}

cpl_status cpli_table_of_transfer(cpl_comm *comm, cpli_transfer *transfer)
{
    cpli_end *ends;
    int64_t n = 0;
    cpli_carries like = {.combine = transfer->combine,
                         .dtype = transfer->dtype,
                         .row_bytes = transfer->row_bytes};
    cpli_table *table = NULL;
    if (transfer->is_host ||
        (transfer->n_receives == 0 && transfer->row_bytes == 0))
        return CPL_OK;
    CPL_TRY(CPL_ALLOC(transfer->n_receives, &ends));
    for (int64_t i = 0; i < transfer->n_receives; i++)
        n += end_of(comm, transfer, i, &ends[n]);
    cpl_status status = cpli_table_create(comm, ends, n, comm->size, &like,
                                          transfer->way != CPLI_PULL, &table);
    cpli_free(ends);
    if (status == CPL_OK)
        transfer->tables = table;
    return status;
}
