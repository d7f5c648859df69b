/*
 * balanced_prices.c: prices at which the lower bound of balanced_bound.c is
 * high. The dual with a soft minimum is smooth and concave in the prices of
 * tokens and of work, so limited-memory BFGS climbs it (Nocedal and Wright,
 * Numerical Optimization, algorithm 7.4). A price of work is the square of what
 * is climbed, which keeps it from being negative. What comes out may be poor,
 * never wrong: any prices give a bound.
 */
#include <math.h>

#include "balanced.h"

enum { MEMORY = 12, ITERATIONS = 60, HALVINGS = 12 };

/* A step that was taken, and how the slope changed over it. */
typedef struct step {
    double *move;
    double *turn;
    double scale; /* 1 / (move . turn) */
} step;

typedef struct climb {
    const cpli_cells *cells;
    double n_local;
    double limit;
    double tau;
    int dim;         /* 2 * cp */
    double *x;       /* prices, then roots; the caller's */
    double *slope;   /* of minus the dual at x */
    double *heading; /* where to go */
    double *next_x;
    double *next_slope;
    double *line; /* cp of them: the weights of one cell */
    step steps[MEMORY];
    int n_steps;
    double *memory;
} climb;

/* ---- the soft dual ---- */

/* Weights exp((lowest - line) / tau) of the ranks at work u. */
static double weigh(const climb *c, const double *x, double u, double *lowest)
{
    int cp = c->cells->cp;
    double sum = 0;
    *lowest = INFINITY;
    for (int r = 0; r < cp; r++) {
        c->line[r] = x[r] + x[cp + r] * x[cp + r] * u;
        *lowest = fmin(*lowest, c->line[r]);
    }
    for (int r = 0; r < cp; r++) {
        c->line[r] = exp((*lowest - c->line[r]) / c->tau);
        sum += c->line[r];
    }
    return sum;
}

/* Adds the value of cell k, and its slopes by the lines of the ranks: those by
 * tokens, and (at cp + r) those by work. */
static double add_cell(const climb *c, const double *x, int64_t k,
                       double *slope)
{
    int cp = c->cells->cp;
    double u = c->cells->work[k], lowest, value = 0, moved = 0;
    double away = exp(-1 / c->tau);
    double all = away * weigh(c, x, u, &lowest);
    const double *count = c->cells->count + k * cp;
    for (int r = 0; r < cp; r++) {
        if (count[r] == 0)
            continue;
        double z = all + (1 - away) * c->line[r];
        double share = count[r] / z, kept = (1 - away) * share * c->line[r];
        value += count[r] * (lowest - c->tau * log(z));
        moved += share;
        slope[r] += kept;
        slope[cp + r] += kept * u;
    }
    for (int r = 0; r < cp; r++) {
        double got = c->line[r] * away * moved;
        slope[r] += got;
        slope[cp + r] += got * u;
    }
    return value;
}

/* Minus the soft dual per token, and its slope. */
static double evaluate(const climb *c, const double *x, double *slope)
{
    int cp = c->cells->cp;
    double n = c->n_local, total = n * cp, value = 0;
    for (int r = 0; r < cp; r++) {
        slope[r] = -n;
        slope[cp + r] = -n * c->limit;
    }
    for (int64_t k = 0; k < c->cells->n; k++)
        value += add_cell(c, x, k, slope);
    for (int r = 0; r < cp; r++) {
        double root = x[cp + r];
        value -= n * x[r] + n * c->limit * root * root;
        slope[r] /= -total;
        slope[cp + r] *= -2 * root / total;
    }
    return -value / total;
}

/* ---- steps ---- */

static double dot(const climb *c, const double *a, const double *b)
{
    double sum = 0;
    for (int i = 0; i < c->dim; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add(const climb *c, double factor, const double *a, double *to)
{
    for (int i = 0; i < c->dim; i++)
        to[i] += factor * a[i];
}

static void negate_slope(climb *c)
{
    for (int i = 0; i < c->dim; i++)
        c->heading[i] = -c->slope[i];
}

/* Turns the slope into a heading by the steps remembered; returns how steep it
 * is, which is negative. */
static double choose_heading(climb *c)
{
    double along[MEMORY] = {0};
    negate_slope(c);
    for (int i = c->n_steps - 1; i >= 0; i--) {
        const step *s = &c->steps[i];
        along[i] = s->scale * dot(c, s->move, c->heading);
        add(c, -along[i], s->turn, c->heading);
    }
    if (c->n_steps > 0) {
        const step *s = &c->steps[c->n_steps - 1];
        double factor = 1 / (s->scale * dot(c, s->turn, s->turn));
        for (int i = 0; i < c->dim; i++)
            c->heading[i] *= factor;
    }
    for (int i = 0; i < c->n_steps; i++) {
        const step *s = &c->steps[i];
        add(c, along[i] - s->scale * dot(c, s->turn, c->heading), s->move,
            c->heading);
    }
    double steepness = dot(c, c->slope, c->heading);
    if (steepness < 0)
        return steepness;
    c->n_steps = 0;
    negate_slope(c);
    return -dot(c, c->slope, c->slope);
}

/* Halves the step until it descends enough; false if it never does. */
static bool search(climb *c, double value, double steepness, double *next)
{
    double length = 1;
    if (c->n_steps == 0)
        length = fmin(1, 0.1 / sqrt(-steepness));
    for (int i = 0; i < HALVINGS; i++) {
        for (int k = 0; k < c->dim; k++)
            c->next_x[k] = c->x[k] + length * c->heading[k];
        *next = evaluate(c, c->next_x, c->next_slope);
        if (*next <= value + 1e-4 * length * steepness)
            return true;
        length *= 0.5;
    }
    return false;
}

/* Goes to the point found, and remembers the step if it curves upward. */
static void advance(climb *c)
{
    if (c->n_steps == MEMORY) {
        step oldest = c->steps[0];
        memmove(c->steps, c->steps + 1, (MEMORY - 1) * sizeof *c->steps);
        c->steps[MEMORY - 1] = oldest;
        c->n_steps--;
    }
    step *s = &c->steps[c->n_steps];
    for (int i = 0; i < c->dim; i++) {
        s->move[i] = c->next_x[i] - c->x[i];
        s->turn[i] = c->next_slope[i] - c->slope[i];
        c->x[i] = c->next_x[i];
        c->slope[i] = c->next_slope[i];
    }
    double curve = dot(c, s->move, s->turn);
    if (curve <= 1e-18)
        return;
    s->scale = 1 / curve;
    c->n_steps++;
}

static void run(climb *c)
{
    double value = evaluate(c, c->x, c->slope);
    for (int i = 0; i < ITERATIONS; i++) {
        double steepness = choose_heading(c), next;
        if (steepness > -1e-14 || !search(c, value, steepness, &next))
            return;
        advance(c);
        if (value - next < 1e-7)
            return;
        value = next;
    }
}

/* ---- climbing ---- */

static cpl_status set_up(climb *c)
{
    size_t dim = (size_t)c->dim;
    CPL_TRY(CPL_ALLOC((5 + 2 * MEMORY) * dim, &c->memory));
    double *at = c->memory;
    double **parts[] = {&c->slope, &c->heading, &c->next_x, &c->next_slope,
                        &c->line};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, at += dim)
        *parts[i] = at;
    for (int i = 0; i < MEMORY; i++, at += 2 * dim) {
        c->steps[i].move = at;
        c->steps[i].turn = at + dim;
    }
    return CPL_OK;
}

cpl_status cpli_prices_climb(const cpli_cells *cells, double n_local,
                             double limit, double tau, double *prices)
{
    climb c = {
        .cells = cells,
        .n_local = n_local,
        .limit = limit,
        .tau = tau,
        .dim = 2 * cells->cp,
        .x = prices,
    };
    CPL_TRY(set_up(&c));
    /* A root has no slope at 0: those that an earlier climb pressed flat are
     * lifted. */
    for (int r = 0; r < cells->cp; r++)
        prices[cells->cp + r] = fmax(prices[cells->cp + r], 0.1);
    run(&c);
    cpli_free(c.memory);
    return CPL_OK;
}
