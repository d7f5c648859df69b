/*
 * gdn_ref.c: the gated delta rule, token by token. One value head of one span,
 * with S the state [K, V] and s the scale:
 *   S~ = e^g S,  p = S~'k,  d = beta (v - p),  S = S~ + k d',  o = s S'q.
 * Backward, from the last token, X the gradient of the state that leaves it:
 *   X += s q do',  dq = s S do,  dd = X'k,  dk = X d + S~ dp,  dp = -beta dd,
 *   dbeta = dd.(v - p),  dv = beta dd,  X~ = X + k dp',  dg = <X~, S~>,
 *   X = e^g X~.
 * The summary is the product of the tokens' own affine maps
 *   S -> e^g (I - beta k k') S + beta k v'.
 */
#include <math.h>

#include "entries.h"
#include "spans.h"

/* One token of one value head. */
typedef struct token {
    const double *q, *k, *v;
    double g, beta;
} token;

static token token_at(const cpl_gdn *p, int64_t slot, int64_t head)
{
    int64_t key_head = head / (p->value_heads / p->key_heads);
    int64_t gate = slot * p->value_heads + head;
    token t = {
        .q = (const double *)p->q + slot * p->q_stride + key_head * p->key_dim,
        .k = (const double *)p->k + slot * p->k_stride + key_head * p->key_dim,
        .v = (const double *)p->v + slot * p->v_stride + head * p->value_dim,
        .g = ((const double *)p->g)[gate],
        .beta = ((const double *)p->beta)[gate]};
    return t;
}

/* Elements of one state, and where that of (span, head) starts. */
static int64_t state_size(const cpl_gdn *p)
{
    return p->key_dim * p->value_dim;
}

static int64_t state_at(const cpl_gdn *p, int64_t span, int64_t head)
{
    return (span * p->value_heads + head) * state_size(p);
}

/* S = S~ + k d', in place; `s` holds the state that the token meets. */
static void step(const cpl_gdn *p, const token *t, double *s)
{
    for (int64_t i = 0; i < state_size(p); i++)
        s[i] *= exp(t->g);
    for (int64_t j = 0; j < p->value_dim; j++) {
        double prediction = 0;
        for (int64_t i = 0; i < p->key_dim; i++)
            prediction += s[i * p->value_dim + j] * t->k[i];
        double delta = t->beta * (t->v[j] - prediction);
        for (int64_t i = 0; i < p->key_dim; i++)
            s[i * p->value_dim + j] += t->k[i] * delta;
    }
}

static void load_state(const void *states, int64_t at, int64_t n, double *s)
{
    for (int64_t i = 0; i < n; i++)
        s[i] = states == NULL ? 0 : ((const double *)states)[at + i];
}

size_t NAME(gdn_workspace)(const cpl_gdn *p)
{
    return (size_t)state_size(p) * sizeof(double);
}

void NAME(gdn)(const cpl_gdn *p)
{
    const int64_t width = p->value_heads * p->value_dim;
    size_t row_bytes = (size_t)width * sizeof(double);
    double *s = p->workspace;
    zero_gaps(p->o, row_bytes, row_bytes, p->spans, p->n_spans, p->n_rows);
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t head = 0; head < p->value_heads; head++) {
            load_state(p->state_in, state_at(p, i, head), state_size(p), s);
            for (int64_t n = 0; n < p->spans[i].length; n++) {
                int64_t slot = p->spans[i].slot + n;
                token t = token_at(p, slot, head);
                double *o = (double *)p->o + slot * width + head * p->value_dim;
                step(p, &t, s);
                for (int64_t b = 0; b < p->value_dim; b++) {
                    o[b] = 0;
                    for (int64_t a = 0; a < p->key_dim; a++)
                        o[b] += p->scale * s[a * p->value_dim + b] * t.q[a];
                }
            }
            if (p->state_out != NULL)
                memcpy((double *)p->state_out + state_at(p, i, head), s,
                       (size_t)state_size(p) * sizeof(double));
        }
}

/* Gradients of one token; NULL where they are not wanted (the summary). */
typedef struct gradients {
    double *dq, *dk, *dv, *dg, *dbeta;
} gradients;

/*
 * One token backward: `x` is the gradient of the state that leaves it and
 * becomes that of the state that it meets, which is `before`.
 */
static void step_back(const cpl_gdn *p, const token *t, const double *before,
                      const double *d_o, const gradients *out, double *x)
{
    const int64_t key_dim = p->key_dim;
    const int64_t value_dim = p->value_dim;
    double decay = exp(t->g);
    for (int64_t j = 0; j < value_dim; j++) {
        double prediction = 0;
        for (int64_t i = 0; i < key_dim; i++) {
            prediction += decay * before[i * value_dim + j] * t->k[i];
            x[i * value_dim + j] += p->scale * t->q[i] * d_o[j];
        }
        double delta = t->beta * (t->v[j] - prediction);
        double d_delta = 0;
        for (int64_t i = 0; i < key_dim; i++) {
            double after = decay * before[i * value_dim + j] + t->k[i] * delta;
            out->dq[i] += p->scale * after * d_o[j];
            out->dk[i] += x[i * value_dim + j] * delta;
            d_delta += x[i * value_dim + j] * t->k[i];
        }
        *out->dbeta += d_delta * (t->v[j] - prediction);
        out->dv[j] = t->beta * d_delta;
        double d_prediction = -t->beta * d_delta;
        for (int64_t i = 0; i < key_dim; i++) {
            double decayed = decay * before[i * value_dim + j];
            out->dk[i] += decayed * d_prediction;
            double d_decayed = x[i * value_dim + j] + t->k[i] * d_prediction;
            *out->dg += d_decayed * decayed;
            x[i * value_dim + j] = decay * d_decayed;
        }
    }
}

static int64_t longest(const cpl_gdn *p)
{
    int64_t length = 0;
    for (int64_t i = 0; i < p->n_spans; i++)
        if (p->spans[i].length > length)
            length = p->spans[i].length;
    return length;
}

/* The state before every token, the last one, and its gradient. */
size_t NAME(gdn_backward_workspace)(const cpl_gdn_backward *p)
{
    int64_t n_states = longest(&p->forward) + 2;
    return (size_t)(n_states * state_size(&p->forward)) * sizeof(double);
}

static void zero_gradients(const cpl_gdn_backward *b)
{
    const cpl_gdn *p = &b->forward;
    size_t size = sizeof(double);
    size_t key_bytes = (size_t)(p->key_heads * p->key_dim) * size;
    size_t value_bytes = (size_t)(p->value_heads * p->value_dim) * size;
    size_t gate_bytes = (size_t)p->value_heads * size;
    zero_rows(b->dq, key_bytes, (size_t)b->dq_stride * size, 0, p->n_rows);
    zero_rows(b->dk, key_bytes, (size_t)b->dk_stride * size, 0, p->n_rows);
    zero_rows(b->dv, value_bytes, (size_t)b->dv_stride * size, 0, p->n_rows);
    zero_rows(b->dg, gate_bytes, gate_bytes, 0, p->n_rows);
    zero_rows(b->dbeta, gate_bytes, gate_bytes, 0, p->n_rows);
}

/* Key heads collect the gradients of all of their value heads. */
static void backward_head(const cpl_gdn_backward *b, int64_t i, int64_t head)
{
    const cpl_gdn *p = &b->forward;
    const cpl_span *span = &p->spans[i];
    const int64_t n = state_size(p);
    const int64_t key_at = head / (p->value_heads / p->key_heads) * p->key_dim;
    double *states = b->workspace;
    load_state(p->state_in, state_at(p, i, head), n, states);
    for (int64_t t = 0; t < span->length; t++) {
        token now = token_at(p, span->slot + t, head);
        memcpy(states + (t + 1) * n, states + t * n,
               (size_t)n * sizeof(double));
        step(p, &now, states + (t + 1) * n);
    }
    double *x = states + (span->length + 1) * n;
    load_state(b->d_state_out, state_at(p, i, head), n, x);
    for (int64_t t = span->length - 1; t >= 0; t--) {
        int64_t slot = span->slot + t;
        int64_t gate = slot * p->value_heads + head;
        token now = token_at(p, slot, head);
        gradients out = {.dq = (double *)b->dq + slot * b->dq_stride + key_at,
                         .dk = (double *)b->dk + slot * b->dk_stride + key_at,
                         .dv = (double *)b->dv + slot * b->dv_stride +
                               head * p->value_dim,
                         .dg = (double *)b->dg + gate,
                         .dbeta = (double *)b->dbeta + gate};
        step_back(p, &now, states + t * n,
                  (const double *)b->d_o + gate * p->value_dim, &out, x);
    }
    if (b->d_state_in != NULL)
        memcpy((double *)b->d_state_in + state_at(p, i, head), x,
               (size_t)n * sizeof(double));
}

void NAME(gdn_backward)(const cpl_gdn_backward *p)
{
    zero_gradients(p);
    for (int64_t i = 0; i < p->forward.n_spans; i++)
        for (int64_t head = 0; head < p->forward.value_heads; head++)
            backward_head(p, i, head);
}

size_t NAME(gdn_summary_workspace)(const cpl_gdn_summary *p)
{
    (void)p;
    return 0;
}

/* m = e^g (I - beta k k') m, a matrix of K rows and `width` columns. */
static void apply_transition(const token *t, int64_t key_dim, int64_t width,
                             double *m)
{
    for (int64_t j = 0; j < width; j++) {
        double along = 0;
        for (int64_t i = 0; i < key_dim; i++)
            along += t->k[i] * m[i * width + j];
        for (int64_t i = 0; i < key_dim; i++)
            m[i * width + j] =
                exp(t->g) * (m[i * width + j] - t->beta * t->k[i] * along);
    }
}

static void summarise_head(const cpl_gdn_summary *s, int64_t i, int64_t head)
{
    const cpl_gdn *p = &s->gdn;
    const int64_t key_dim = p->key_dim;
    const int64_t value_dim = p->value_dim;
    int64_t at = i * p->value_heads + head;
    double *m = s->transition;
    double *b = s->offset;
    if (m != NULL)
        m += at * key_dim * key_dim;
    if (b != NULL)
        b += at * key_dim * value_dim;
    for (int64_t a = 0; m != NULL && a < key_dim * key_dim; a++)
        m[a] = a / key_dim == a % key_dim ? 1 : 0;
    if (b != NULL)
        load_state(p->state_in, state_at(p, i, head), key_dim * value_dim, b);
    for (int64_t n = 0; n < p->spans[i].length; n++) {
        token t = token_at(p, p->spans[i].slot + n, head);
        if (m != NULL)
            apply_transition(&t, key_dim, key_dim, m);
        if (b == NULL)
            continue;
        apply_transition(&t, key_dim, value_dim, b);
        for (int64_t a = 0; a < key_dim * value_dim; a++)
            b[a] += t.beta * t.k[a / value_dim] * t.v[a % value_dim];
    }
}

void NAME(gdn_summary)(const cpl_gdn_summary *p)
{
    for (int64_t i = 0; i < p->gdn.n_spans; i++)
        for (int64_t head = 0; head < p->gdn.value_heads; head++)
            summarise_head(p, i, head);
}

size_t NAME(gdn_summary_backward_workspace)(const cpl_gdn_summary_backward *p)
{
    (void)p;
    return 0;
}

/* X -> e^g (I - beta k k') (X + s q do'), from the last token. */
void NAME(gdn_summary_backward)(const cpl_gdn_summary_backward *b)
{
    const cpl_gdn *p = &b->gdn;
    const int64_t value_dim = p->value_dim;
    for (int64_t i = 0; i < p->n_spans; i++)
        for (int64_t head = 0; head < p->value_heads; head++) {
            double *x = (double *)b->offset + state_at(p, i, head);
            load_state(b->d_state_out, state_at(p, i, head), state_size(p), x);
            for (int64_t n = p->spans[i].length - 1; n >= 0; n--) {
                int64_t slot = p->spans[i].slot + n;
                token t = token_at(p, slot, head);
                const double *d_o = (const double *)b->d_o +
                                    (slot * p->value_heads + head) * value_dim;
                for (int64_t a = 0; a < state_size(p); a++)
                    x[a] += p->scale * t.q[a / value_dim] * d_o[a % value_dim];
                apply_transition(&t, p->key_dim, value_dim, x);
            }
        }
}
