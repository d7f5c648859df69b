/*
 * stream.c: the global sequence of positions of one microbatch: boundaries,
 * real lengths, and the search for the sequence of a position.
 */
#include <inttypes.h>

#include "layout.h"

/* Walks go to the next non-empty sequence; further ones are searched. */
enum { STEPS_BEFORE_SEARCH = 4 };

static cpl_status check_boundaries(const char *name, const int64_t *cu,
                                   int64_t n)
{
    if (cu[0] != 0)
        return cpli_fail(CPL_INVALID,
                         "stream.thd: %s starts at %" PRId64 ", not at 0", name,
                         cu[0]);
    for (int64_t i = 0; i < n; i++)
        if (cu[i + 1] < cu[i])
            return cpli_fail(CPL_INVALID,
                             "stream.thd: %s must be nondecreasing, sequence "
                             "%" PRId64 " goes from %" PRId64 " to %" PRId64,
                             name, i, cu[i], cu[i + 1]);
    if (cu[n] > CPLI_MAX_POSITIONS)
        return cpli_fail(CPL_INVALID,
                         "stream.thd: %s ends at %" PRId64 ", beyond 2^53",
                         name, cu[n]);
    return CPL_OK;
}

static cpl_status check_real(const int64_t *cu, const int64_t *real, int64_t n)
{
    CPL_TRY(check_boundaries("cu_seqlens_real", real, n));
    for (int64_t i = 0; i < n; i++)
        if (real[i + 1] - real[i] > cu[i + 1] - cu[i])
            return cpli_fail(CPL_INVALID,
                             "stream.thd: sequence %" PRId64 " has %" PRId64
                             " real tokens, more than its %" PRId64
                             " positions",
                             i, real[i + 1] - real[i], cu[i + 1] - cu[i]);
    return CPL_OK;
}

static uint64_t digest(const cpl_stream *stream)
{
    int64_t format = stream->is_columns ? 2 : stream->is_sbhd;
    int64_t head[] = {format, stream->batch, stream->n_sequences};
    size_t n = (size_t)stream->n_sequences;
    uint64_t hash = cpl_hash(0, head, sizeof head);
    hash = cpl_hash(hash, stream->cu, (n + 1) * sizeof *stream->cu);
    return cpl_hash(hash, stream->real, n * sizeof *stream->real);
}

static cpl_status describe(cpl_stream *stream)
{
    int64_t n = stream->n_sequences;
    int64_t n_positions = stream->cu[n];
    if (stream->is_sbhd)
        return cpli_text(&stream->text,
                         "sbhd of %" PRId64 " positions, batch %" PRId64,
                         n_positions, stream->batch);
    const char *plural = n == 1 ? "" : "s";
    if (stream->is_columns)
        return cpli_text(&stream->text,
                         "%" PRId64 " column%s of %" PRId64 " positions", n,
                         plural, n_positions / n);
    int64_t n_real = 0;
    for (int64_t i = 0; i < n; i++)
        n_real += stream->real[i];
    if (n_real == n_positions)
        return cpli_text(&stream->text,
                         "thd of %" PRId64 " sequence%s, %" PRId64 " positions",
                         n, plural, n_positions);
    return cpli_text(&stream->text,
                     "thd of %" PRId64 " sequence%s, %" PRId64
                     " positions, %" PRId64 " real",
                     n, plural, n_positions, n_real);
}

/* Makes a stream of n sequences from what is valid; `real` NULL: every token is
 * real. */
static cpl_status create(cpl_stream format, const int64_t *cu,
                         const int64_t *real, int64_t n, cpl_stream **out)
{
    cpl_status status;
    cpl_stream *stream;
    CPL_TRY(CPL_ALLOC(1, &stream));
    *stream = format;
    CPL_TRY_GO(CPL_ALLOC(n + 1, &stream->cu), fail);
    CPL_TRY_GO(CPL_ALLOC(n, &stream->real), fail);
    memcpy(stream->cu, cu, (size_t)(n + 1) * sizeof *cu);
    const int64_t *lengths_of = real != NULL ? real : cu;
    for (int64_t i = 0; i < n; i++)
        stream->real[i] = lengths_of[i + 1] - lengths_of[i];
    stream->n_sequences = n;
    stream->digest = digest(stream);
    CPL_TRY_GO(describe(stream), fail);
    *out = stream;
    return CPL_OK;
fail:
    cpl_stream_destroy(stream);
    return status;
}

cpl_status cpl_stream_thd(const int64_t *cu_seqlens,
                          const int64_t *cu_seqlens_real, int64_t n_sequences,
                          cpl_stream **out)
{
    if (n_sequences < 0)
        return cpli_fail(CPL_INVALID,
                         "stream.thd: the number of sequences must be >= 0 "
                         "(got %" PRId64 ")",
                         n_sequences);
    CPL_TRY(check_boundaries("cu_seqlens", cu_seqlens, n_sequences));
    if (cu_seqlens_real != NULL)
        CPL_TRY(check_real(cu_seqlens, cu_seqlens_real, n_sequences));
    return create((cpl_stream){.batch = 1}, cu_seqlens, cu_seqlens_real,
                  n_sequences, out);
}

cpl_status cpl_stream_sbhd(int64_t seqlen, int64_t batch, cpl_stream **out)
{
    if (seqlen < 0 || seqlen > CPLI_MAX_POSITIONS)
        return cpli_fail(CPL_INVALID,
                         "stream.sbhd: seqlen must be in 0 .. 2^53 (got "
                         "%" PRId64 ")",
                         seqlen);
    if (batch < 1)
        return cpli_fail(CPL_INVALID,
                         "stream.sbhd: batch must be >= 1 (got %" PRId64 ")",
                         batch);
    const int64_t cu[] = {0, seqlen};
    return create((cpl_stream){.is_sbhd = true, .batch = batch}, cu, NULL, 1,
                  out);
}

cpl_status cpli_stream_create_columns(int64_t length, int64_t n,
                                      cpl_stream **out)
{
    int64_t *cu;
    CPL_TRY(CPL_ALLOC(n + 1, &cu));
    for (int64_t i = 0; i <= n; i++)
        cu[i] = i * length;
    cpl_status status =
        create((cpl_stream){.is_columns = true, .batch = 1}, cu, NULL, n, out);
    cpli_free(cu);
    return status;
}

void cpl_stream_destroy(cpl_stream *stream)
{
    if (stream == NULL)
        return;
    cpli_free(stream->text);
    cpli_free(stream->real);
    cpli_free(stream->cu);
    cpli_free(stream);
}

bool cpl_stream_is_sbhd(const cpl_stream *stream)
{
    return stream->is_sbhd;
}

int64_t cpl_stream_n_positions(const cpl_stream *stream)
{
    return stream->cu[stream->n_sequences];
}

int64_t cpl_stream_n_sequences(const cpl_stream *stream)
{
    return stream->n_sequences;
}

int64_t cpl_stream_batch(const cpl_stream *stream)
{
    return stream->batch;
}

uint64_t cpl_stream_digest(const cpl_stream *stream)
{
    return stream->digest;
}

cpl_sequence cpl_stream_sequence(const cpl_stream *stream, int64_t i)
{
    CPL_ASSERT(i >= 0 && i < stream->n_sequences);
    return (cpl_sequence){
        .start = stream->cu[i],
        .padded = stream->cu[i + 1] - stream->cu[i],
        .real = stream->real[i],
    };
}

/* The last boundary <= position opens a non-empty sequence, since the next
 * boundary is > position. */
static int64_t search(const cpl_stream *stream, int64_t position)
{
    int64_t low = 0, high = stream->n_sequences;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (stream->cu[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t cpli_stream_find(const cpl_stream *stream, int64_t position,
                         cpli_cursor *at)
{
    CPL_ASSERT(position >= 0 && position < cpl_stream_n_positions(stream));
    const int64_t *cu = stream->cu;
    int64_t i = at->index;
    for (int step = 0; step < STEPS_BEFORE_SEARCH; step++, i++)
        if (i >= stream->n_sequences || position < cu[i])
            break;
        else if (position < cu[i + 1])
            return at->index = i;
    return at->index = search(stream, position);
}

int64_t cpl_stream_sequence_of(const cpl_stream *stream, int64_t position)
{
    if (position < 0 || position >= cpl_stream_n_positions(stream))
        return -1;
    return search(stream, position);
}

const char *cpl_stream_describe(const cpl_stream *stream)
{
    return stream->text;
}
