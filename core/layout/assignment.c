/*
 * assignment.c: the linear assignment problem in integers, by shortest
 * augmenting paths (Kuhn and Munkres; the order of work is that of Jonker and
 * Volgenant, "A shortest augmenting path algorithm for dense and sparse linear
 * assignment problems", Computing 38, 1987): O(n^3) at worst.
 *
 * Prices u (of rows) and v (of columns) prove that a result is optimal: every
 * cost is >= u + v, and equal where it is assigned. Such edges are *tight*; all
 * optimal assignments are the perfect matchings of tight edges, and from them
 * the lexicographically lowest is taken, so that ties are decided.
 */
#include "layout.h"

/* With costs <= 2^57 / n no sum of prices and path lengths overflows. */
#define MAX_SUM ((int64_t)1 << 57)
#define FAR INT64_MAX

typedef struct problem {
    int n;
    const int64_t *cost; /* [row * n + column] */
    int64_t *u, *v;
    int *column_of, *row_of; /* -1: free */
    /* of one search */
    int64_t *distance;
    int *before; /* the row from which a column is reached */
    int *queue;  /* columns: those reached for good, then the others */
    /* of the choice among optimal assignments */
    uint64_t *tight; /* of each column, its rows as bits */
    uint64_t *open;  /* rows that a search has still to find, as bits */
    int *next;
} problem;

/* ---- shortest augmenting paths ---- */

/* Lowers the columns to their smallest cost and gives each column, from the
 * last, to the row of that cost if it is still free. */
static void reduce_columns(problem *p)
{
    int n = p->n;
    for (int j = 0; j < n; j++)
        p->v[j] = p->cost[j];
    for (int i = 1; i < n; i++)
        for (int j = 0; j < n; j++)
            p->v[j] = cpli_min(p->v[j], p->cost[(int64_t)i * n + j]);
    for (int i = 0; i < n; i++) {
        const int64_t *cost = p->cost + (int64_t)i * n;
        for (int j = 0; j < n; j++)
            if (p->row_of[j] < 0 && cost[j] == p->v[j]) {
                p->row_of[j] = i;
                p->column_of[i] = j;
                break;
            }
    }
}

/* Offers the columns that are not yet reached for good a way through `row`,
 * which is itself `base` away, and swaps the nearest of them to the front of
 * these; the search lives in this loop. */
static int64_t relax(problem *p, int row, int64_t base, int first)
{
    const int64_t *restrict cost = p->cost + (int64_t)row * p->n;
    const int64_t *restrict v = p->v;
    int64_t *restrict distances = p->distance;
    int *restrict queue = p->queue;
    int64_t start = base - p->u[row], nearest = FAR;
    int best = first;
    for (int k = first; k < p->n; k++) {
        int j = queue[k];
        int64_t distance = start + cost[j] - v[j];
        if (distance < distances[j]) {
            distances[j] = distance;
            p->before[j] = row;
        }
        if (distances[j] < nearest) {
            nearest = distances[j];
            best = k;
        }
    }
    int column = queue[best];
    queue[best] = queue[first];
    queue[first] = column;
    return nearest;
}

/* Moves the prices so that the path found is tight and no edge is too cheap. */
static void reprice(problem *p, int free_row, int n_reached, int64_t length)
{
    p->u[free_row] += length;
    for (int k = 0; k < n_reached; k++) {
        int j = p->queue[k];
        p->u[p->row_of[j]] += length - p->distance[j];
        p->v[j] -= length - p->distance[j];
    }
}

static void augment(problem *p, int free_row)
{
    int n = p->n, row = free_row, n_reached = 0;
    int64_t length = 0;
    for (int j = 0; j < n; j++) {
        p->queue[j] = j;
        p->distance[j] = FAR;
    }
    for (;;) {
        length = relax(p, row, length, n_reached);
        row = p->row_of[p->queue[n_reached]];
        if (row < 0)
            break;
        n_reached++;
    }
    int column = p->queue[n_reached];
    reprice(p, free_row, n_reached, length);
    for (row = -1; row != free_row;) {
        row = p->before[column];
        int next = p->column_of[row];
        p->row_of[column] = row;
        p->column_of[row] = column;
        column = next;
    }
}

/* ---- the lowest of the optimal assignments ---- */

enum { WORD = 64 };

static int n_words(int n)
{
    return (n + WORD - 1) / WORD;
}

static void set_bit(uint64_t *set, int i)
{
    set[i / WORD] |= (uint64_t)1 << i % WORD;
}

static bool has_bit(const uint64_t *set, int i)
{
    return set[i / WORD] >> i % WORD & 1;
}

static void mark_tight(problem *p)
{
    int n = p->n;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (p->cost[(int64_t)i * n + j] == p->u[i] + p->v[j])
                set_bit(p->tight + (int64_t)j * n_words(n), i);
}

/*
 * Finds the columns whose rows could give them up if `row` gave up its own: a
 * chain of tight edges leads from each of them to the column of `row`, and
 * next[column] is its next column. Rows up to `row` keep theirs.
 */
static void search_back(problem *p, int row)
{
    int n = p->n, words = n_words(n), n_queue = 0;
    memset(p->open, 0, (size_t)words * sizeof *p->open);
    for (int j = 0; j < n; j++)
        p->next[j] = -1;
    for (int i = row + 1; i < n; i++)
        set_bit(p->open, i);
    p->queue[n_queue++] = p->column_of[row];
    for (int k = 0; k < n_queue; k++) {
        const uint64_t *tight = p->tight + (int64_t)p->queue[k] * words;
        for (int w = 0; w < words; w++) {
            uint64_t found = tight[w] & p->open[w];
            p->open[w] &= ~found;
            for (; found != 0; found &= found - 1) {
                int column = p->column_of[w * WORD + __builtin_ctzll(found)];
                p->next[column] = p->queue[k];
                p->queue[n_queue++] = column;
            }
        }
    }
}

/* Gives `row` the lowest column that the rows after it can leave it. */
static void settle(problem *p, int row)
{
    int own = p->column_of[row], column = 0;
    bool is_known = false;
    for (; column < own; column++) {
        const uint64_t *tight = p->tight + (int64_t)column * n_words(p->n);
        if (!has_bit(tight, row) || p->row_of[column] < row)
            continue;
        if (!is_known)
            search_back(p, row);
        is_known = true;
        if (p->next[column] >= 0)
            break;
    }
    /* Along the chain each row takes the next column, the last one `own`. */
    for (int taker = row; taker >= 0;) {
        int owner = column != own ? p->row_of[column] : -1;
        p->row_of[column] = taker;
        p->column_of[taker] = column;
        column = owner >= 0 ? p->next[column] : own;
        taker = owner;
    }
}

/* ---- the whole ---- */

static cpl_status allocate(problem *p, int n)
{
    CPL_TRY(CPL_ALLOC(n, &p->u));
    CPL_TRY(CPL_ALLOC(n, &p->v));
    CPL_TRY(CPL_ALLOC(n, &p->column_of));
    CPL_TRY(CPL_ALLOC(n, &p->row_of));
    CPL_TRY(CPL_ALLOC(n, &p->distance));
    CPL_TRY(CPL_ALLOC(n, &p->before));
    CPL_TRY(CPL_ALLOC((int64_t)n * n_words(n), &p->tight));
    CPL_TRY(CPL_ALLOC(n_words(n), &p->open));
    CPL_TRY(CPL_ALLOC(n, &p->next));
    return CPL_ALLOC(n, &p->queue);
}

static void release(problem *p)
{
    cpli_free(p->queue);
    cpli_free(p->next);
    cpli_free(p->open);
    cpli_free(p->tight);
    cpli_free(p->before);
    cpli_free(p->distance);
    cpli_free(p->row_of);
    cpli_free(p->column_of);
    cpli_free(p->v);
    cpli_free(p->u);
}

static cpl_status check(int n, const int64_t *cost)
{
    if (n < 0 || n > CPLI_MAX_ASSIGNED)
        return cpli_fail(CPL_INVALID,
                         "assign: a matrix of %d rows, not of 0 .. %d", n,
                         CPLI_MAX_ASSIGNED);
    int64_t limit = MAX_SUM / cpli_max(n, 1);
    for (int64_t i = 0; i < (int64_t)n * n; i++)
        if (cost[i] > limit || cost[i] < -limit)
            return cpli_fail(CPL_INVALID,
                             "assign: the cost %lld is beyond 2^57 / %d",
                             (long long)cost[i], n);
    return CPL_OK;
}

cpl_status cpl_assign(int n, const int64_t *cost, int *out)
{
    problem p = {.n = n, .cost = cost};
    CPL_TRY(check(n, cost));
    cpl_status status = allocate(&p, n);
    if (status != CPL_OK)
        goto done;
    for (int i = 0; i < n; i++)
        p.column_of[i] = p.row_of[i] = -1;
    reduce_columns(&p);
    for (int i = 0; i < n; i++)
        if (p.column_of[i] < 0)
            augment(&p, i);
    mark_tight(&p);
    for (int i = 0; i < n; i++)
        settle(&p, i);
    for (int i = 0; i < n; i++)
        out[i] = p.column_of[i];
done:
    release(&p);
    return status;
}
