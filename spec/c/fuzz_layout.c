/*
 * fuzz_layout.c: libFuzzer on streams, layouts, orders, views and routes. The
 * input is a list of small choices. Whatever they are, a call either refuses
 * with a sentence or gives what its contract says: each position is held once
 * and located where it is held, and carrying out a route (or a route to a view)
 * on the source's own positions gives the target's.
 *
 *     clang -fsanitize=fuzzer: build with -DCPLAB_FUZZ=ON, run bin/fuzz_layout
 */
#include <stdio.h>
#include <stdlib.h>

#include "base.h"

enum {
    MAX_SEQUENCES = 6,
    MAX_CP = 6,
    MAX_TP = 3,
    MAX_RANKS = MAX_CP * MAX_TP,
    MAX_POSITIONS = 1024, /* of a stream that is checked row by row */
    MAX_HALO = 8,
    MAX_ROWS = MAX_HALO * MAX_POSITIONS /* of a rank's view */
};

typedef struct input {
    const uint8_t *data;
    size_t size;
} input;

/* The next choice, 0 .. n-1; 0 when the input is used up. */
static int choose(input *in, int n)
{
    if (in->size == 0)
        return 0;
    in->size--;
    return *in->data++ % n;
}

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* True on success; a refusal must say why. */
static bool is_ok(cpl_status status)
{
    CHECK(status == CPL_OK || cpl_last_error()[0] != '\0');
    CHECK(status != CPL_MEMORY);
    return status == CPL_OK;
}

/* ---- making ---- */

/* Any 64 bits, to see that what cannot be is refused. */
static int64_t wild(input *in)
{
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | (uint64_t)choose(in, 256);
    return (int64_t)bits;
}

static cpl_stream *make_stream(input *in, int unit)
{
    int64_t cu[MAX_SEQUENCES + 1] = {0}, real[MAX_SEQUENCES + 1] = {0};
    int n = choose(in, MAX_SEQUENCES + 1), odd = choose(in, 8);
    cpl_stream *stream = NULL;
    for (int i = 0; i < n; i++) {
        int length = unit * choose(in, 4) + (odd == 0 ? choose(in, 3) : 0);
        cu[i + 1] = cu[i] + length;
        real[i + 1] = real[i] + choose(in, length + 1);
    }
    if (odd == 1)
        cu[choose(in, n + 1)] = wild(in);
    if (odd == 2)
        return is_ok(cpl_stream_sbhd(unit * choose(in, 6), choose(in, 3),
                                     &stream))
                   ? stream
                   : NULL;
    return is_ok(cpl_stream_thd(cu, odd % 2 ? real : NULL, n, &stream)) ? stream
                                                                        : NULL;
}

static void shuffle(input *in, int n, int *out)
{
    for (int i = 0; i < n; i++) {
        int j = choose(in, i + 1);
        out[i] = out[j];
        out[j] = i;
    }
}

enum { MAX_RUNS = 24 };

typedef struct deal {
    cpl_run runs[MAX_RANKS * MAX_RUNS];
    int64_t n_runs[MAX_RANKS];
} deal;

/* Cuts the stream by choice and deals the pieces out in any order; what is left
 * is the last piece. One of them may be spoilt. */
static void make_runs(input *in, int64_t n, int n_ranks, deal *out)
{
    int total = 0;
    int64_t at = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        out->n_runs[rank] = 0;
        while (at < n && out->n_runs[rank] < choose(in, MAX_RUNS)) {
            int64_t length = cpli_min(n - at, 1 + choose(in, 40));
            out->runs[total++] = (cpl_run){at, length};
            out->n_runs[rank]++;
            at += length;
        }
    }
    if (total > 0)
        out->runs[total - 1].length += n - at;
    for (int i = total - 1; i > 0; i--) {
        int j = choose(in, i + 1);
        cpl_run run = out->runs[i];
        out->runs[i] = out->runs[j];
        out->runs[j] = run;
    }
    if (total > 0 && choose(in, 6) == 0)
        out->runs[choose(in, total)].start = wild(in);
}

/* A layout of any kind, perhaps in an order found near another. */
static cpl_layout *make_layout(input *in, const cpl_stream *stream, int cp,
                               int tp, const cpl_layout *near)
{
    static const char *const kinds[] = {"contiguous", "zigzag",  "mirror",
                                        "snake",      "striped", "custom"};
    enum { N_KINDS = sizeof kinds / sizeof *kinds };
    static deal dealt;
    int order[MAX_RANKS], shards[MAX_CP];
    const char *kind = kinds[choose(in, N_KINDS)];
    cpl_layout_options options = {.cp = cp, .tp = tp};
    if (choose(in, 2)) {
        shuffle(in, cp * tp, order);
        options.group_order = order;
    }
    options.block = choose(in, 9) - 1;
    if (strcmp(kind, "custom") == 0) {
        make_runs(in, cpl_stream_n_positions(stream), cp * tp, &dealt);
        options.runs = dealt.runs;
        options.n_runs = dealt.n_runs;
    } else if (near != NULL && choose(in, 3) == 0) {
        options.near = near;
        options.node_size = choose(in, 4);
    } else if (choose(in, 3) == 0) {
        shuffle(in, cp, shards);
        options.order = shards;
    }
    cpl_layout *layout = NULL;
    return is_ok(cpl_layout_create(kind, stream, &options, &layout)) ? layout
                                                                     : NULL;
}

/* ---- checking ---- */

/* The positions of every rank's slots, in rank order; rows[rank] of them. */
typedef struct held {
    int64_t positions[MAX_POSITIONS * MAX_RANKS];
    int64_t first[MAX_RANKS + 1];
} held;

static void hold(const cpl_layout *layout, held *out)
{
    out->first[0] = 0;
    for (int rank = 0; rank < cpl_layout_n_ranks(layout); rank++) {
        int64_t n;
        CHECK(cpl_layout_n_local(layout, rank, &n) == CPL_OK);
        CHECK(n <= MAX_POSITIONS);
        CHECK(cpl_layout_positions(
                  layout, rank, out->positions + out->first[rank]) == CPL_OK);
        out->first[rank + 1] = out->first[rank] + n;
    }
}

static void see(const cpl_view *view, int n_ranks, held *out)
{
    static cpl_run runs[MAX_ROWS];
    out->first[0] = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t n, at = out->first[rank];
        CHECK(cpl_view_n_runs(view, rank, &n) == CPL_OK && n <= MAX_ROWS);
        CHECK(cpl_view_runs(view, rank, runs) == CPL_OK);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < runs[i].length; j++)
                out->positions[at++] =
                    runs[i].start < 0 ? -1 : runs[i].start + j;
        CHECK(cpl_view_n_local(view, rank, &n) == CPL_OK);
        CHECK(at - out->first[rank] == n && n <= MAX_ROWS);
        out->first[rank + 1] = at;
    }
}

static void check_partition(const cpl_layout *layout, const held *rows)
{
    static bool seen[MAX_POSITIONS];
    int64_t n = cpl_stream_n_positions(cpl_layout_stream(layout));
    int n_ranks = cpl_layout_n_ranks(layout);
    memset(seen, 0, sizeof seen);
    CHECK(rows->first[n_ranks] == n);
    for (int rank = 0; rank < n_ranks; rank++)
        for (int64_t i = rows->first[rank]; i < rows->first[rank + 1]; i++) {
            int64_t p = rows->positions[i], slot, back;
            int found;
            CHECK(p >= 0 && p < n && !seen[p]);
            seen[p] = true;
            CHECK(cpl_layout_locate(layout, p, &found, &slot) == CPL_OK);
            CHECK(found == rank && slot == i - rows->first[rank]);
            CHECK(cpl_layout_position(layout, rank, slot, &back) == CPL_OK);
            CHECK(back == p);
        }
}

/* What a rank receives, row by row, against what its peers send: the i-th of
 * mine from a peer is the i-th of the peer's to me. */
static void check_route(cpl_route *route, const held *source,
                        const held *target)
{
    int n_ranks = cpl_route_n_ranks(route);
    for (int rank = 0; rank < n_ranks; rank++) {
        cpl_route_part mine, theirs;
        static bool filled[MAX_ROWS];
        int64_t base = target->first[rank], n_rows = 0;
        memset(filled, 0, sizeof filled);
        CHECK(cpl_route_rank(route, rank, &mine) == CPL_OK);
        CHECK(mine.n_target_rows == target->first[rank + 1] - base);
        int64_t next = 0;
        for (int64_t i = 0; i < mine.n_receives; i++) {
            const cpl_segment *in = &mine.receives[i];
            if (i == 0 || in->peer != in[-1].peer)
                next = 0;
            CHECK(cpl_route_rank(route, in->peer, &theirs) == CPL_OK);
            while (next < theirs.n_sends && theirs.sends[next].peer != rank)
                next++;
            CHECK(next < theirs.n_sends);
            const cpl_segment *out = &theirs.sends[next++];
            CHECK(out->length == in->length && out->slot == in->peer_slot &&
                  out->peer_slot == in->slot && out->position == in->position);
            for (int64_t j = 0; j < in->length; j++) {
                int64_t p = source->positions[source->first[in->peer] +
                                              in->peer_slot + j];
                CHECK(p == in->position + j && !filled[in->slot + j]);
                CHECK(target->positions[base + in->slot + j] == p);
                filled[in->slot + j] = true;
            }
            n_rows += in->length;
        }
        CHECK(n_rows + mine.n_fill_rows == mine.n_target_rows);
    }
}

/* Takes the view, of `from`. */
static void check_view(cpl_view *view, const cpl_layout *from,
                       const held *source)
{
    static held target;
    cpl_route *route;
    see(view, cpl_layout_n_ranks(from), &target);
    CHECK(cpl_route_to_view(view, &route) == CPL_OK);
    check_route(route, source, &target);
    cpl_route_destroy(route);
    cpl_view_destroy(view);
}

static void check_views(input *in, const cpl_layout *from,
                        const cpl_layout *other, const held *source)
{
    cpl_view *view;
    if (is_ok(cpl_view_halo(from, choose(in, MAX_HALO + 1), choose(in, 2),
                            &view)))
        check_view(view, from, source);
    if (is_ok(cpl_view_shift(from, choose(in, 64) - 32, &view)))
        check_view(view, from, source);
    if (is_ok(cpl_view_keys(from, choose(in, 32), &view)))
        check_view(view, from, source);
    if (is_ok(cpl_view_whole(from, false, &view)))
        check_view(view, from, source);
    if (other != NULL && is_ok(cpl_view_onto(from, other, &view)))
        check_view(view, from, source);
    if (other != NULL && is_ok(cpl_view_shard(from, other, &view)))
        check_view(view, from, source);
}

static void check_pair(input *in, const cpl_layout *from, const cpl_layout *to)
{
    static held source, target;
    cpl_route *route;
    hold(from, &source);
    check_partition(from, &source);
    check_views(in, from, to, &source);
    if (to == NULL)
        return;
    hold(to, &target);
    check_partition(to, &target);
    if (!is_ok(cpl_route_create(from, to, &route)))
        return;
    check_route(route, &source, &target);
    cpl_route_destroy(route);
}

/* The columns of an sbhd stream are layouts like others. */
static void check_columns(input *in, const cpl_stream *stream,
                          const cpl_layout *from, const cpl_layout *to)
{
    cpl_stream *columns;
    cpl_layout *of_from = NULL, *of_to = NULL;
    if (!is_ok(cpl_stream_columns(stream, &columns)))
        return;
    CHECK(is_ok(cpl_layout_columns(from, columns, &of_from)));
    if (to != NULL && !is_ok(cpl_layout_columns(to, columns, &of_to)))
        of_to = NULL;
    if (cpl_stream_n_positions(columns) <= MAX_POSITIONS)
        check_pair(in, of_from, of_to);
    cpl_layout_destroy(of_to);
    cpl_layout_destroy(of_from);
    cpl_stream_destroy(columns);
}

/* Of a stream too long to look at every row: some rows there and back. */
static void check_samples(input *in, const cpl_stream *stream, int cp, int tp)
{
    static const char *const kinds[] = {"contiguous", "zigzag", "mirror",
                                        "snake", "striped"};
    cpl_layout_options options = {.cp = cp, .tp = tp, .block = wild(in)};
    cpl_layout *layout;
    if (!is_ok(
            cpl_layout_create(kinds[choose(in, 5)], stream, &options, &layout)))
        return;
    for (int i = 0; i < 8; i++) {
        int64_t n = cpl_stream_n_positions(stream), slot, back;
        int64_t p = (int64_t)((uint64_t)wild(in) % (uint64_t)n);
        int rank;
        CHECK(cpl_layout_locate(layout, p, &rank, &slot) == CPL_OK);
        CHECK(cpl_layout_position(layout, rank, slot, &back) == CPL_OK);
        CHECK(back == p);
    }
    cpl_layout_destroy(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    int cp = 1 + choose(&in, MAX_CP), tp = 1 + choose(&in, MAX_TP);
    cpl_stream *stream = make_stream(&in, 2 * cp * tp);
    cpl_stream *other = choose(&in, 3) == 0 ? make_stream(&in, cp * tp) : NULL;
    cpl_layout *from = NULL, *to = NULL;
    if (stream != NULL && cpl_stream_n_positions(stream) > MAX_POSITIONS)
        check_samples(&in, stream, cp, tp);
    else if (stream != NULL)
        from = make_layout(&in, stream, cp, tp, NULL);
    if (from != NULL && other == NULL)
        to = make_layout(&in, stream, cp, tp, from);
    if (from != NULL && other != NULL &&
        cpl_stream_n_positions(other) <= MAX_POSITIONS)
        to = make_layout(&in, other, cp, tp, NULL);
    if (from != NULL) {
        check_pair(&in, from, to);
        check_columns(&in, stream, from, to);
    }
    cpl_layout_destroy(to);
    cpl_layout_destroy(from);
    cpl_stream_destroy(other);
    cpl_stream_destroy(stream);
    cpl_memory_stats stats;
    cpl_memory(&stats);
    CHECK(stats.live_blocks == 0);
    return 0;
}
