/* kv_cache.c: see kv_cache.h. */
#include "kv_cache.h"

#include "comm/comm.h"

/* ---- making ---- */

static cpl_status fill(cpl_kv_cache *cache, const int64_t *capacity)
{
    int64_t n = cache->n_sequences;
    CPL_TRY(CPL_ALLOC(n + 1, &cache->first));
    CPL_TRY(CPL_ALLOC(n, &cache->n_rows));
    CPL_TRY(CPL_ALLOC(n, &cache->seen));
    CPL_TRY(CPL_ALLOC(n, &cache->incoming));
    CPL_TRY(CPL_ALLOC(n, &cache->n_runs));
    for (int64_t i = 0; i < n; i++)
        cache->first[i + 1] = cache->first[i] + capacity[i];
    return CPL_ALLOC(cache->first[n], &cache->runs);
}

cpl_status cpl_kv_cache_create(int64_t n_sequences, const int64_t *capacity,
                               cpl_kv_cache **out)
{
    for (int64_t i = 0; i < n_sequences; i++)
        if (capacity[i] < 0)
            return cpli_fail(CPL_INVALID,
                             "kv_cache: sequence %lld has a capacity of %lld",
                             (long long)i, (long long)capacity[i]);
    cpl_kv_cache *cache;
    CPL_TRY(CPL_ALLOC(1, &cache));
    cache->n_sequences = n_sequences;
    cpl_status status = fill(cache, capacity);
    if (status != CPL_OK) {
        cpl_kv_cache_destroy(cache);
        return status;
    }
    *out = cache;
    return CPL_OK;
}

void cpl_kv_cache_destroy(cpl_kv_cache *cache)
{
    if (cache == NULL)
        return;
    cpl_tensor_destroy(cache->rows);
    cpli_free(cache->owner);
    cpli_free(cache->runs);
    cpli_free(cache->n_runs);
    cpli_free(cache->incoming);
    cpli_free(cache->seen);
    cpli_free(cache->n_rows);
    cpli_free(cache->first);
    cpli_free(cache);
}

void cpl_kv_cache_clear(cpl_kv_cache *cache)
{
    for (int64_t i = 0; i < cache->n_sequences; i++)
        cache->n_rows[i] = cache->n_runs[i] = cache->seen[i] = 0;
}

int64_t cpl_kv_cache_seen(const cpl_kv_cache *cache, int64_t sequence)
{
    CPL_ASSERT(sequence >= 0 && sequence < cache->n_sequences);
    return cache->seen[sequence];
}

int64_t cpl_kv_cache_bytes(const cpl_kv_cache *cache)
{
    int64_t n = 0;
    if (cache->rows == NULL)
        return 0;
    for (int64_t i = 0; i < cache->n_sequences; i++)
        n += cache->n_rows[i];
    return n * cpl_tensor_width(cache->rows) *
           (int64_t)cpl_dtype_bytes(cache->rows->dtype);
}

bool cpli_kv_cache_has_past(const cpl_kv_cache *cache)
{
    for (int64_t i = 0; i < cache->n_sequences; i++)
        if (cache->seen[i] > 0)
            return true;
    return false;
}

/* ---- whose it is ---- */

static cpl_status own(cpl_kv_cache *cache, const cpl_layer *layer,
                      int64_t width)
{
    cpl_comm *comm = layer->place->comm;
    const int64_t shape[] = {cache->first[cache->n_sequences], width};
    cpl_tensor *rows;
    CPL_TRY(cpl_tensor_create(layer->dtype, 2, shape, cpli_comm_whole(comm),
                              &rows));
    cpl_status status = cpli_text(&cache->owner, "%s", layer->name);
    if (status != CPL_OK) {
        cpl_tensor_destroy(rows);
        return status;
    }
    cache->rows = rows;
    cache->group = cpli_comm_whole(comm);
    cache->rank = cpl_comm_rank(comm);
    cache->size = cpl_comm_size(comm);
    return CPL_OK;
}

static cpl_status check_rows(const cpl_kv_cache *cache, const cpl_layer *layer,
                             int64_t width)
{
    const cpl_tensor *rows = cache->rows;
    if (rows->dtype == layer->dtype && cpl_tensor_width(rows) == width)
        return CPL_OK;
    return cpli_fail(CPL_MISMATCH,
                     "%s: the cache holds rows of %lld x %s, the layer makes "
                     "rows of %lld x %s",
                     layer->name, (long long)cpl_tensor_width(rows),
                     cpl_dtype_name(rows->dtype), (long long)width,
                     cpl_dtype_name(layer->dtype));
}

static cpl_status check_owner(const cpl_kv_cache *cache, const cpl_layer *layer)
{
    cpl_comm *comm = layer->place->comm;
    if (strcmp(cache->owner, layer->name) != 0)
        return cpli_fail(CPL_MISMATCH, "%s: the cache is that of %s",
                         layer->name, cache->owner);
    if (cache->group == cpli_comm_whole(comm) &&
        cache->rank == cpl_comm_rank(comm) &&
        cache->size == cpl_comm_size(comm))
        return CPL_OK;
    return cpli_fail(CPL_MISMATCH,
                     "%s: the cache is that of rank %d of a group of %d, not "
                     "of rank %d of this group of %d",
                     layer->name, cache->rank, cache->size, cpl_comm_rank(comm),
                     cpl_comm_size(comm));
}

cpl_status cpli_kv_cache_take(cpl_kv_cache *cache, const cpl_layer *layer,
                              int64_t width)
{
    int64_t n = cpl_stream_n_sequences(cpl_layout_stream(layer->place->layout));
    if (cache->n_sequences != n)
        return cpli_fail(CPL_MISMATCH,
                         "%s: the cache is for %lld sequences, the stream has "
                         "%lld",
                         layer->name, (long long)cache->n_sequences,
                         (long long)n);
    if (cache->owner == NULL)
        return own(cache, layer, width);
    CPL_TRY(check_owner(cache, layer));
    return check_rows(cache, layer, width);
}

/* ---- keeping rows ---- */

static int64_t room(const cpl_kv_cache *cache, int64_t sequence)
{
    return cache->first[sequence + 1] - cache->first[sequence];
}

static cpl_status check_room(const cpl_kv_cache *cache, const cpl_layer *layer)
{
    const cpl_place *place = layer->place;
    int64_t n = cache->n_sequences;
    memset(cache->incoming, 0, (size_t)n * sizeof *cache->incoming);
    for (int64_t i = 0; i < place->n_spans; i++)
        cache->incoming[place->spans[i].sequence] += place->spans[i].length;
    for (int64_t i = 0; i < n; i++)
        if (cache->n_rows[i] + cache->incoming[i] > room(cache, i))
            return cpli_fail(CPL_INVALID,
                             "%s: the cache of rank %d holds %lld of %lld rows "
                             "of sequence %lld, and %lld more come",
                             layer->name, place->rank,
                             (long long)cache->n_rows[i],
                             (long long)room(cache, i), (long long)i,
                             (long long)cache->incoming[i]);
    return CPL_OK;
}

/* Rows that go on where the last run ends make it longer. */
static void note(cpl_kv_cache *cache, int64_t sequence, cpli_kv_run run)
{
    cpli_kv_run *runs = cache->runs + cache->first[sequence];
    int64_t n = cache->n_runs[sequence];
    if (n > 0 && runs[n - 1].position + runs[n - 1].length == run.position)
        runs[n - 1].length += run.length;
    else
        runs[cache->n_runs[sequence]++] = run;
}

/* Of a span that finds so many rows of its sequence here. The fault: a row of
 * padding behind the last token is kept, too. */
static int64_t rows_to_keep(const cpl_kv_cache *cache, const cpl_place *place,
                            const cpl_span *span, int64_t n_before)
{
    cpl_sequence sequence =
        cpl_stream_sequence(cpl_layout_stream(place->layout), span->sequence);
    bool is_padded = span->offset + span->length == sequence.real &&
                     sequence.real < sequence.padded &&
                     span->slot + span->length < place->n_rows &&
                     n_before + span->length < room(cache, span->sequence);
    return span->length +
           (cpl_faults_here()->cache_padding != 0 && is_padded ? 1 : 0);
}

cpl_status cpli_kv_moves_make(cpl_layer *layer, cpli_kv_moves *out)
{
    int64_t n = 2 * layer->n_rows;
    CPL_TRY(CPLI_LIST_MAKE(&layer->lists, n, &out->rows));
    return CPLI_LIST_ROOM(&layer->lists, out->rows, n, &out->sent);
}

/* Fills the lists; returns how many rows are kept. */
static int64_t list_moves(cpl_kv_cache *cache, const cpl_place *place,
                          int64_t *from, int64_t *to)
{
    int64_t n = 0;
    memset(cache->incoming, 0,
           (size_t)cache->n_sequences * sizeof *cache->incoming);
    for (int64_t i = 0; i < place->n_spans; i++) {
        const cpl_span *span = &place->spans[i];
        int64_t *incoming = &cache->incoming[span->sequence];
        int64_t n_before = cache->n_rows[span->sequence] + *incoming;
        int64_t n_kept = rows_to_keep(cache, place, span, n_before);
        int64_t slot = cache->first[span->sequence] + n_before;
        for (int64_t j = 0; j < n_kept; j++) {
            from[n] = span->slot + j;
            to[n++] = slot + j;
        }
        *incoming += n_kept;
    }
    return n;
}

static void note_spans(cpl_kv_cache *cache, const cpl_place *place)
{
    for (int64_t i = 0; i < place->n_spans; i++) {
        const cpl_span *span = &place->spans[i];
        int64_t sequence = span->sequence;
        int64_t n = rows_to_keep(cache, place, span, cache->n_rows[sequence]);
        note(cache, sequence,
             (cpli_kv_run){.position = cache->seen[sequence] + span->offset,
                           .slot =
                               cache->first[sequence] + cache->n_rows[sequence],
                           .length = n});
        cache->n_rows[sequence] += n;
    }
}

cpl_status cpli_kv_cache_keep(cpl_kv_cache *cache, const cpl_layer *layer,
                              const cpli_kv_moves *moves, const cpl_tensor *kv)
{
    int64_t n_rows = layer->n_rows;
    int64_t width = cpl_tensor_width(kv);
    CPL_TRY(check_room(cache, layer));
    int64_t n =
        list_moves(cache, layer->place, moves->rows, moves->rows + n_rows);
    CPL_TRY(
        CPLI_LIST_RESEND(&layer->lists, moves->sent, moves->rows, 2 * n_rows));
    layer->kernels->move_rows(&(cpl_move_rows){.x = kv->data,
                                               .y = cache->rows->data,
                                               .from = moves->sent,
                                               .to = moves->sent + n_rows,
                                               .n = n,
                                               .width = width,
                                               .x_stride = width,
                                               .y_stride = width});
    note_spans(cache, layer->place);
    return CPL_OK;
}

void cpli_kv_cache_advance(cpl_kv_cache *cache, const cpl_place *place)
{
    const cpl_stream *stream = cpl_layout_stream(place->layout);
    for (int64_t i = 0; i < cache->n_sequences; i++)
        cache->seen[i] += cpl_stream_sequence(stream, i).real;
}

/* ---- binding ---- */

cpl_status cpl_layer_kv_cache(cpl_layer *layer, cpl_kv_cache *cache)
{
    if (!layer->ops->has_keys)
        return cpli_fail(CPL_INVALID, "%s: only gqa and mla layers have keys",
                         cpl_layer_kind(layer));
    layer->bound_cache = cache;
    return CPL_OK;
}
