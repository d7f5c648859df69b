/*
 * conv1d_cpu.c: tiles of rows x channels, so that the strided weights of a tap
 * are gathered once a tile and every inner loop runs over channels.
 */
#include "real.h"
#include "spans.h"

enum { TILE_ROWS = 32, TILE_CHANNELS = 64 };

typedef struct tile {
    int64_t span, row, n_rows;   /* rows row .. row + n_rows - 1 of a span */
    int64_t channel, n_channels; /* channels of the tile */
    real pre[TILE_ROWS][TILE_CHANNELS];
} tile;

/* Where row t of span i lies: in the rows, in the halo (t < 0), or NULL. */
static int64_t halo_row(int64_t i, int64_t width, int64_t t)
{
    return (i + 1) * (width - 1) + t;
}

static const real *input_row(const cpl_conv1d *p, const tile *s, int64_t t)
{
    if (t >= 0)
        return (const real *)p->x + (p->spans[s->span].slot + t) * p->x_stride +
               s->channel;
    if (p->halo == NULL)
        return NULL;
    return (const real *)p->halo +
           halo_row(s->span, p->width, t) * p->channels + s->channel;
}

/* The weights of tap j for the channels of the tile. */
static void gather_tap(const cpl_conv1d *p, const tile *s, int64_t j, real *tap)
{
    const real *weight = (const real *)p->weight + s->channel * p->width + j;
    for (int64_t c = 0; c < s->n_channels; c++)
        tap[c] = weight[c * p->width];
}

static void compute_pre(const cpl_conv1d *p, tile *s)
{
    const real *bias = p->bias;
    for (int64_t r = 0; r < s->n_rows; r++)
        for (int64_t c = 0; c < s->n_channels; c++)
            s->pre[r][c] = bias != NULL ? bias[s->channel + c] : 0;
    for (int64_t j = 0; j < p->width; j++) {
        real tap[TILE_CHANNELS];
        gather_tap(p, s, j, tap);
        for (int64_t r = 0; r < s->n_rows; r++) {
            const real *x = input_row(p, s, s->row + r - (p->width - 1) + j);
            if (x == NULL)
                continue;
            real *pre = s->pre[r];
#pragma omp simd
            for (int64_t c = 0; c < s->n_channels; c++)
                pre[c] += tap[c] * x[c];
        }
    }
}

static void store_output(const cpl_conv1d *p, const tile *s)
{
    int64_t slot = p->spans[s->span].slot + s->row;
    for (int64_t r = 0; r < s->n_rows; r++) {
        const real *pre = s->pre[r];
        real *y = (real *)p->y + (slot + r) * p->channels + s->channel;
        if (!p->silu)
            memcpy(y, pre, (size_t)s->n_channels * sizeof(real));
        else
#pragma omp simd
            for (int64_t c = 0; c < s->n_channels; c++)
                y[c] = real_silu(pre[c]);
    }
}

/* Calls visit(context, p, tile) with `pre` computed, for all tiles. */
static void each_tile(const cpl_conv1d *p, const void *context,
                      void (*visit)(const void *context, const cpl_conv1d *p,
                                    tile *s))
{
    tile s;
    for (s.span = 0; s.span < p->n_spans; s.span++) {
        int64_t length = p->spans[s.span].length;
        for (s.row = 0; s.row < length; s.row += TILE_ROWS)
            for (s.channel = 0; s.channel < p->channels;
                 s.channel += TILE_CHANNELS) {
                s.n_rows = cpli_min(length - s.row, TILE_ROWS);
                s.n_channels = cpli_min(p->channels - s.channel, TILE_CHANNELS);
                compute_pre(p, &s);
                visit(context, p, &s);
            }
    }
}

static void forward_tile(const void *context, const cpl_conv1d *p, tile *s)
{
    (void)context;
    store_output(p, s);
}

void NAME(conv1d)(const cpl_conv1d *p)
{
    size_t row_bytes = (size_t)p->channels * sizeof(real);
    zero_gaps(p->y, row_bytes, row_bytes, p->spans, p->n_spans, p->n_rows);
    each_tile(p, NULL, forward_tile);
}

/* pre becomes dpre = dy silu'(pre). */
static void compute_dpre(const cpl_conv1d_backward *b, tile *s)
{
    int64_t slot = b->spans[s->span].slot + s->row;
    for (int64_t r = 0; r < s->n_rows; r++) {
        real *pre = s->pre[r];
        const real *dy =
            (const real *)b->dy + (slot + r) * b->channels + s->channel;
        if (!b->silu)
            memcpy(pre, dy, (size_t)s->n_channels * sizeof(real));
        else
#pragma omp simd
            for (int64_t c = 0; c < s->n_channels; c++)
                pre[c] = dy[c] * real_silu_slope(pre[c]);
    }
}

static real *gradient_row(const cpl_conv1d_backward *b, const tile *s,
                          int64_t t)
{
    if (t >= 0)
        return (real *)b->dx + (b->spans[s->span].slot + t) * b->dx_stride +
               s->channel;
    if (b->dhalo == NULL)
        return NULL;
    return (real *)b->dhalo + halo_row(s->span, b->width, t) * b->channels +
           s->channel;
}

/* The share of tap j: dx of the rows that it reads, and its own gradient. */
static void backward_tap(const cpl_conv1d_backward *b, const cpl_conv1d *p,
                         const tile *s, int64_t j)
{
    real tap[TILE_CHANNELS];
    real grad[TILE_CHANNELS] = {0};
    gather_tap(p, s, j, tap);
    for (int64_t r = 0; r < s->n_rows; r++) {
        int64_t t = s->row + r - (b->width - 1) + j;
        const real *dpre = s->pre[r];
        const real *x = input_row(p, s, t);
        real *dx = gradient_row(b, s, t);
        if (x != NULL)
#pragma omp simd
            for (int64_t c = 0; c < s->n_channels; c++)
                grad[c] += dpre[c] * x[c];
        if (dx != NULL)
#pragma omp simd
            for (int64_t c = 0; c < s->n_channels; c++)
                dx[c] += dpre[c] * tap[c];
    }
    real *grad_weight = b->grad_weight;
    for (int64_t c = 0; grad_weight != NULL && c < s->n_channels; c++)
        grad_weight[(s->channel + c) * b->width + j] += grad[c];
}

static void backward_tile(const void *context, const cpl_conv1d *p, tile *s)
{
    const cpl_conv1d_backward *b = context;
    compute_dpre(b, s);
    for (int64_t j = 0; j < b->width; j++)
        backward_tap(b, p, s, j);
    if (b->grad_bias != NULL)
        for (int64_t r = 0; r < s->n_rows; r++)
            add_scaled((real *)b->grad_bias + s->channel, 1, s->pre[r],
                       s->n_channels);
}

void NAME(conv1d_backward)(const cpl_conv1d_backward *p)
{
    size_t row_bytes = (size_t)p->channels * sizeof(real);
    zero_rows(p->dx, row_bytes, (size_t)p->dx_stride * sizeof(real), 0,
              p->n_rows);
    if (p->dhalo != NULL)
        zero_rows(p->dhalo, row_bytes, row_bytes, 0,
                  p->n_spans * (p->width - 1));
    cpl_conv1d forward = {.x = p->x,
                          .weight = p->weight,
                          .bias = p->bias,
                          .halo = p->halo,
                          .spans = p->spans,
                          .n_spans = p->n_spans,
                          .n_rows = p->n_rows,
                          .channels = p->channels,
                          .width = p->width,
                          .x_stride = p->x_stride,
                          .silu = p->silu};
    each_tile(&forward, p, backward_tile);
}
