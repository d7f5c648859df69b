/*
 * key_traffic.c: who sees how many of whose keys in causal attention. Every
 * sequence is followed once, span by span, with what each rank has held of it
 * so far; so the cost is spans times ranks, once for sequences that are cut
 * alike, and no key is enumerated. With a
 * window, what is out of sight is passed over by a pointer that only advances.
 */
#include "trail.h"

typedef struct counter {
    cpl_key_traffic counts;
    cpli_trail trail;
    cpli_pattern pattern; /* trails not yet counted; without a window */
    int n_ranks;
    int node_size, n_nodes;
    int64_t window;
    int64_t *held; /* of each rank: rows of the sequence so far */
    int *holders;  /* the ranks that have some; without a window */
    int n_holders;
    int64_t *seen;      /* by a rank of the sequence: up to here; window only */
    int64_t *node_seen; /* by the ranks of a node */
} counter;

/* ---- no window: a query sees all that was held before ---- */

/* Span q of all trails of the pattern; lengths are in units. */
static void meet_all(counter *c, const cpli_holding *q)
{
    int64_t row = (int64_t)q->rank * c->n_ranks;
    int64_t *pairs = c->counts.pairs + row;
    int64_t *blocks = c->counts.blocks + row;
    int64_t n = q->length, times = c->pattern.times;
    int64_t n2 = n * c->pattern.sum2;
    if (c->held[q->rank] == 0)
        c->holders[c->n_holders++] = q->rank;
    for (int i = 0; i < c->n_holders; i++) {
        int k = c->holders[i];
        pairs[k] += n2 * c->held[k];
        blocks[k] += times;
    }
    pairs[q->rank] += (n * n2 + n * c->pattern.sum) / 2;
    c->held[q->rank] += n;
}

static void add_rows(const counter *c, int64_t row, int64_t *to)
{
    for (int i = 0; i < c->n_holders; i++) {
        int k = c->holders[i];
        to[row * c->n_ranks + k] += c->pattern.sum * c->held[k];
    }
}

/* From the end back: the last span of a rank, or of a node, sees the most. */
static void need_all(counter *c)
{
    memset(c->seen, 0, (size_t)c->n_ranks * sizeof *c->seen);
    memset(c->node_seen, 0, (size_t)c->n_nodes * sizeof *c->node_seen);
    for (int64_t i = c->pattern.n - 1; i >= 0; i--) {
        const cpli_holding *q = &c->pattern.items[i];
        int node = q->rank / c->node_size;
        if (c->seen[q->rank]++ == 0)
            add_rows(c, q->rank, c->counts.keys);
        if (c->node_seen[node]++ == 0)
            add_rows(c, node, c->counts.node_keys);
        c->held[q->rank] -= q->length;
    }
}

static void count_pattern(counter *c)
{
    c->n_holders = 0;
    for (int64_t i = 0; i < c->pattern.n; i++)
        meet_all(c, &c->pattern.items[i]);
    need_all(c);
}

static cpl_status count_all(counter *c)
{
    if (cpli_pattern_add(&c->pattern, &c->trail))
        return CPL_OK;
    count_pattern(c);
    return cpli_pattern_begin(&c->pattern, &c->trail);
}

/* ---- with a window ---- */

static int64_t end_of(const cpli_holding *span)
{
    return span->start + span->length;
}

/* Sum over queries before `q` of the keys of a span that begins at k and has n
 * keys, were each to see all keys up to its own. */
static int64_t pairs_before(int64_t q, int64_t k, int64_t n)
{
    int64_t some = cpli_min(cpli_max(q - k, 0), n);
    int64_t whole = cpli_max(q - k - n, 0);
    return some * (some + 1) / 2 + whole * n;
}

/* The same with a window: less those that have left it. */
static int64_t pairs_of(const cpli_holding *q, const cpli_holding *k,
                        int64_t window)
{
    int64_t from = q->start, to = end_of(q);
    return pairs_before(to, k->start, k->length) -
           pairs_before(from, k->start, k->length) -
           pairs_before(to - window, k->start, k->length) +
           pairs_before(from - window, k->start, k->length);
}

/* Adds the rows of spans first .. last that lie in [from, to). */
static void add_between(const counter *c, int64_t first, int64_t last,
                        int64_t from, int64_t to, int64_t *rows)
{
    for (int64_t i = first; i <= last; i++) {
        const cpli_holding *k = &c->trail.items[i];
        int64_t n = cpli_min(end_of(k), to) - cpli_max(k->start, from);
        rows[k->rank] += cpli_max(n, 0);
    }
}

/* Spans first .. i are in sight of span i. */
static void meet_near(counter *c, int64_t first, int64_t i)
{
    const cpli_holding *q = &c->trail.items[i];
    int64_t row = (int64_t)q->rank * c->n_ranks;
    for (int64_t j = first; j <= i; j++) {
        const cpli_holding *k = &c->trail.items[j];
        c->counts.pairs[row + k->rank] += pairs_of(q, k, c->window);
        c->counts.blocks[row + k->rank] += c->held[k->rank] == 0;
        c->held[k->rank] = 1;
    }
    for (int64_t j = first; j <= i; j++)
        c->held[c->trail.items[j].rank] = 0;
    int node = q->rank / c->node_size;
    int64_t from = cpli_max(q->start - c->window + 1, 0);
    add_between(c, first, i, cpli_max(from, c->seen[q->rank]), end_of(q),
                c->counts.keys + row);
    add_between(c, first, i, cpli_max(from, c->node_seen[node]), end_of(q),
                c->counts.node_keys + (int64_t)node * c->n_ranks);
    c->seen[q->rank] = c->node_seen[node] = end_of(q);
}

static void count_near(counter *c)
{
    memset(c->seen, 0, (size_t)c->n_ranks * sizeof *c->seen);
    memset(c->node_seen, 0, (size_t)c->n_nodes * sizeof *c->node_seen);
    for (int64_t i = 0, first = 0; i < c->trail.n; i++) {
        int64_t from = c->trail.items[i].start - c->window + 1;
        while (end_of(&c->trail.items[first]) <= from)
            first++;
        meet_near(c, first, i);
    }
}

/* ---- all sequences ---- */

static cpl_status check(const cpl_layout *layout, int64_t window, int node_size)
{
    const cpl_stream *stream = layout->stream;
    int64_t sum = 0;
    if (layout->tp != 1)
        return cpli_fail(CPL_INVALID,
                         "layout.key_traffic: keys are counted between CP "
                         "ranks; this layout has tp %d",
                         layout->tp);
    if (window < 0 || node_size < 1)
        return cpli_fail(CPL_INVALID,
                         "layout.key_traffic: window %lld must be >= 0 and "
                         "node_size %d >= 1",
                         (long long)window, node_size);
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        int64_t n = stream->real[i], square;
        if (__builtin_mul_overflow(n, n + 1, &square) ||
            __builtin_add_overflow(sum, square, &sum))
            return cpli_fail(CPL_INVALID,
                             "layout.key_traffic: the causal work of %s "
                             "reaches 2^62",
                             cpl_layout_describe(layout));
    }
    return CPL_OK;
}

static size_t bytes_of(const counter *c, int n_rows)
{
    return (size_t)n_rows * (size_t)c->n_ranks * sizeof(int64_t);
}

/* Counts are made aside, so that a failure leaves what the caller has. */
static cpl_status set_aside(counter *c)
{
    int64_t n = c->n_ranks;
    CPL_TRY(CPL_ALLOC(3 * n, &c->held));
    c->seen = c->held + n;
    c->node_seen = c->seen + n;
    CPL_TRY(CPL_ALLOC(n, &c->holders));
    CPL_TRY(CPL_ALLOC((3 * n + c->n_nodes) * n, &c->counts.pairs));
    c->counts.blocks = c->counts.pairs + n * n;
    c->counts.keys = c->counts.blocks + n * n;
    c->counts.node_keys = c->counts.keys + n * n;
    return CPL_OK;
}

static void hand_over(const counter *c, const cpl_key_traffic *out)
{
    memcpy(out->pairs, c->counts.pairs, bytes_of(c, c->n_ranks));
    memcpy(out->blocks, c->counts.blocks, bytes_of(c, c->n_ranks));
    memcpy(out->keys, c->counts.keys, bytes_of(c, c->n_ranks));
    memcpy(out->node_keys, c->counts.node_keys, bytes_of(c, c->n_nodes));
}

static cpl_status count(counter *c, const cpl_layout *layout)
{
    const cpl_stream *stream = layout->stream;
    for (int64_t i = 0; i < stream->n_sequences; i++) {
        CPL_TRY(cpli_trail_follow(&c->trail, i));
        if (c->window > 0 && stream->real[i] > c->window)
            count_near(c);
        else if (c->trail.n > 0)
            CPL_TRY(count_all(c));
    }
    count_pattern(c);
    return CPL_OK;
}

cpl_status cpl_layout_key_traffic(const cpl_layout *layout, int64_t window,
                                  int node_size, const cpl_key_traffic *out)
{
    cpl_status status;
    CPL_TRY(check(layout, window, node_size));
    counter c = {.trail = {.lookup = {.layout = layout}},
                 .n_ranks = layout->cp,
                 .node_size = node_size,
                 .n_nodes = (layout->cp - 1) / node_size + 1,
                 .window = window};
    CPL_TRY_GO(set_aside(&c), done);
    CPL_TRY_GO(count(&c, layout), done);
    hand_over(&c, out);
done:
    cpli_trail_end(&c.trail);
    cpli_pattern_end(&c.pattern);
    cpli_free(c.counts.pairs);
    cpli_free(c.holders);
    cpli_free(c.held);
    return status;
}
