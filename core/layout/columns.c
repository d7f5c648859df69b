/*
 * columns.c: an sbhd stream of several columns as a stream of as many
 * sequences, one after the other, and its layouts as layouts of that.
 *
 * A rank holds its rows column by column, not position by position: what works
 * on sequences then finds each of them in as few spans as a rank has of one
 * sequence, and needs no copy. A conversion has `batch` times as many segments,
 * but no more messages and no more bytes.
 */
#include <inttypes.h>

#include "layout.h"

/* ---- streams ---- */

cpl_status cpl_stream_columns(const cpl_stream *stream, cpl_stream **out)
{
    if (!stream->is_sbhd)
        return cpli_fail(CPL_INVALID,
                         "stream.columns: %s has none; an sbhd stream has",
                         stream->text);
    int64_t length = cpl_stream_n_positions(stream);
    if (stream->batch > CPLI_MAX_POSITIONS / cpli_max(length, 1))
        return cpli_fail(CPL_INVALID, "stream.columns: %s: more than 2^53 rows",
                         stream->text);
    return cpli_stream_create_columns(length, stream->batch, out);
}

/* ---- layouts ---- */

static cpl_status check(const cpl_layout *layout, const cpl_stream *columns)
{
    const cpl_stream *stream = layout->stream;
    if (stream->is_sbhd && columns->is_columns &&
        columns->n_sequences == stream->batch &&
        cpl_stream_n_positions(columns) / stream->batch ==
            cpl_stream_n_positions(stream))
        return CPL_OK;
    return cpli_fail(CPL_MISMATCH,
                     "layout.columns: %s are not the columns of the stream of "
                     "%s",
                     columns->text, layout->text);
}

static cpl_status copy_ranks(const int *from, int n, int **out)
{
    CPL_TRY(CPL_ALLOC(n, out));
    memcpy(*out, from, (size_t)n * sizeof **out);
    return CPL_OK;
}

/* Equal layouts of positions, and no others, have equal columns. */
static uint64_t digest(const cpl_layout *layout)
{
    uint64_t words[] = {layout->stream->digest, layout->positions->digest};
    return cpl_hash(0, words, sizeof words);
}

static cpl_status fill(cpl_layout *layout)
{
    const cpl_layout *positions = layout->positions;
    int n = cpl_layout_n_ranks(layout);
    CPL_TRY(copy_ranks(positions->cp_order, layout->cp, &layout->cp_order));
    CPL_TRY(copy_ranks(positions->order, n, &layout->order));
    CPL_TRY(copy_ranks(positions->logical, n, &layout->logical));
    layout->digest = digest(layout);
    return cpli_text(&layout->text, "columns of %s", positions->text);
}

cpl_status cpl_layout_columns(const cpl_layout *layout,
                              const cpl_stream *columns, cpl_layout **out)
{
    cpl_layout *made;
    CPL_TRY(check(layout, columns));
    CPL_TRY(CPL_ALLOC(1, &made));
    made->kind = layout->kind;
    made->stream = columns;
    made->cp = layout->cp;
    made->tp = layout->tp;
    made->positions = layout;
    cpl_status status = fill(made);
    if (status != CPL_OK) {
        cpl_layout_destroy(made);
        return status;
    }
    *out = made;
    return CPL_OK;
}

/* ---- holdings ---- */

/* Holdings of positions become those of a column; returns n. */
static int move(const cpl_layout *layout, int64_t column, cpli_holding *out,
                int n)
{
    int64_t length = cpl_stream_n_positions(layout->positions->stream);
    for (int i = 0; i < n; i++) {
        out[i].start += column * length;
        out[i].slot += column * cpli_n_local(layout->positions, out[i].rank);
    }
    return n;
}

int cpli_columns_by_position(const cpl_layout *layout, int64_t position,
                             cpli_cursor *at, cpli_holding *out, int max)
{
    int64_t length = cpl_stream_n_positions(layout->positions->stream);
    int64_t column = position / length;
    int n = cpli_by_position(layout->positions, position - column * length, at,
                             out, max);
    return move(layout, column, out, n);
}

int cpli_columns_by_slot(const cpl_layout *layout, int rank, int64_t slot,
                         cpli_cursor *at, cpli_holding *out, int max)
{
    int64_t n_local = cpli_n_local(layout->positions, rank);
    int64_t column = slot / n_local;
    int n = cpli_by_slot(layout->positions, rank, slot - column * n_local, at,
                         out, max);
    return move(layout, column, out, n);
}
