/*
 * kernels.h: every op that computes, as one parameter struct and one entry in
 * a table per (device, dtype).
 *
 * An op folder holds <op>_ref.c (naive, double, readable aloud: the truth),
 * <op>_cpu.c (blocked, on BLAS where it pays; compiled once per dtype) and
 * <op>.cu (for CUDA devices; launch.h names what it holds). The table "ref" is
 * filled with the references, "cpu" with the fast ones, those of devices by
 * their plug-ins; all obey the contracts below, so a spec compares table with
 * table.
 *
 * Contracts. All arrays are dense and row-major unless a stride is named;
 * strides count elements between rows. Pointers have the table's dtype, but
 * for positions and lists (int64_t), tokens (int32_t), spans and blocks, and
 * what is called WIDE: of a table of bf16 that is f32, else it has the table's
 * dtype too. Row counts may be 0.
 * Nothing is allocated; `workspace` holds <op>_workspace(p) bytes, 64-byte
 * aligned, and may be NULL where that is 0. Outputs must not alias inputs
 * except where said. Gradients of activations are overwritten; gradients of
 * PARAMETERS (named `grad_*`) are added to, and may be NULL. Kernels do not
 * fail: sizes are the caller's duty.
 * Spans stand in slot order and do not overlap; here a span may be empty (its
 * state then passes unchanged). Kernels may run on many threads at once.
 *
 * On a device everything that a struct points at lies there, lists and single
 * results too, and an entry only enqueues, in the order of the calling rank's
 * work. What goes wrong there is told by the next call that can fail.
 * WIDE are all grad_* of parameters, and: rms_norm nothing else; gates g, beta
 * and their gradients, a_log, dt_bias; gdn g, beta, every state and what has a
 * state's shape, transitions; attention and merge lse and its gradients;
 * moe probs, weights, their gradients; adamw, sgd and axpby as said there.
 *
 * Letters: n rows, D width of a head, H heads, K = key_dim, V = value_dim.
 */
#ifndef CPLAB_KERNELS_H
#define CPLAB_KERNELS_H

#include "cplab.h"
#include "moe.h"

/* y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset) per row; the offset
 * is 1 for the zero-centred weights of Qwen3.5's norms, else 0. */
typedef struct cpl_rms_norm {
    const void *x;      /* [n, D] */
    const void *weight; /* [D] */
    void *y;            /* [n, D]; may be x */
    int64_t n_rows, width, x_stride, y_stride;
    double eps, weight_offset;
} cpl_rms_norm;
typedef struct cpl_rms_norm_backward {
    const void *x, *weight, *dy;
    void *dx;          /* may be dy */
    void *grad_weight; /* [D] */
    int64_t n_rows, width, x_stride, dy_stride, dx_stride;
    double eps, weight_offset;
    void *workspace; /* where dx is dy */
} cpl_rms_norm_backward;

/* y = x / sqrt(mean(x^2) + eps) * weight * silu(z): normalise first, gate
 * after (Qwen3-Next; transformers modeling_qwen3_next.py). */
typedef struct cpl_gated_rms_norm {
    const void *x, *z; /* [n, D] */
    const void *weight;
    void *y;
    int64_t n_rows, width;
    int64_t heads; /* rows per token: row i's z lies at
                      (i / heads) * z_stride + (i % heads) * D */
    int64_t z_stride;
    double eps;
} cpl_gated_rms_norm;
typedef struct cpl_gated_rms_norm_backward {
    const void *x, *z, *weight, *dy;
    void *dx, *dz; /* dz has z's strides */
    void *grad_weight;
    int64_t n_rows, width, heads, z_stride;
    double eps;
} cpl_gated_rms_norm_backward;

/* y = x / sqrt(sum(x^2) + eps) per head: [n, heads, D], row stride given. */
typedef struct cpl_l2norm {
    const void *x;
    void *y; /* may be x */
    int64_t n_rows, heads, width, x_stride, y_stride;
    double eps;
} cpl_l2norm;
typedef struct cpl_l2norm_backward {
    const void *x, *dy;
    void *dx; /* may be dy */
    int64_t n_rows, heads, width, x_stride, dy_stride, dx_stride;
    double eps;
} cpl_l2norm_backward;

/* Rotates the first rotary_dim dims of each head, half-split pairing (i with
 * i + rotary_dim/2), angle position * theta^(-2i/rotary_dim); the rest is
 * copied. Angles in double. With `inverse` it rotates back (the backward). */
typedef struct cpl_rope {
    const void *x; /* [n, heads, D] */
    void *y;       /* may be x */
    const int64_t *positions;
    int64_t n_rows, heads, width, rotary_dim, x_stride, y_stride;
    double theta;
    bool inverse;
} cpl_rope;

/* Depthwise causal convolution over spans, then SiLU if asked:
 * pre[t, c] = bias[c] + sum_j weight[c, j] x[t - (W-1) + j, c]. What lies
 * before a span is its halo, W-1 rows; NULL: zeros. Rows outside the spans
 * give y = 0 (dx = 0). */
typedef struct cpl_conv1d {
    const void *x;      /* [n, C], row stride */
    const void *weight; /* [C, W] */
    const void *bias;   /* [C] or NULL */
    const void *halo;   /* [n_spans, W-1, C] or NULL */
    void *y;            /* [n, C] dense */
    const cpl_span *spans;
    int64_t n_spans, n_rows, channels, width, x_stride;
    bool silu;
} cpl_conv1d;
typedef struct cpl_conv1d_backward {
    const void *x, *weight, *bias, *halo, *dy;
    void *dx;    /* [n, C], row stride dx_stride */
    void *dhalo; /* [n_spans, W-1, C] or NULL */
    void *grad_weight, *grad_bias;
    const cpl_span *spans;
    int64_t n_spans, n_rows, channels, width, x_stride, dx_stride;
    bool silu;
} cpl_conv1d_backward;

/* Gates of the delta rule: g = -exp(a_log) softplus(a + dt_bias), beta =
 * sigmoid(b), per value head (facts of Qwen3-Next and fla, gate.py). */
typedef struct cpl_gates {
    const void *a, *b;           /* [n, H], row strides */
    const void *a_log, *dt_bias; /* [H] */
    void *g, *beta;              /* [n, H] dense */
    int64_t n_rows, heads, a_stride, b_stride;
} cpl_gates;
typedef struct cpl_gates_backward {
    const void *a, *b, *a_log, *dt_bias, *dg, *dbeta;
    void *da, *db; /* strides da_stride, db_stride */
    void *grad_a_log, *grad_dt_bias;
    int64_t n_rows, heads, a_stride, b_stride, da_stride, db_stride;
} cpl_gates_backward;

/*
 * The gated delta rule (Yang, Kautz, Hatamizadeh, arXiv 2412.06464; chunked
 * WY form as in flash-linear-attention ops/gated_delta_rule) over spans. Value
 * head h uses key head h / (value_heads / key_heads). Per token
 *   S = exp(g) S;  S += k (beta (v - S'k))';  o = scale S'q.
 * Each span starts from its state_in and leaves its state_out. Only exponents
 * <= 0 are formed, masks come before exp. Rows outside the spans give o = 0
 * and zero gradients.
 */
typedef struct cpl_gdn {
    const void *q, *k;    /* [n, key_heads, K], row strides */
    const void *v;        /* [n, value_heads, V], row stride */
    const void *g, *beta; /* [n, value_heads] dense */
    const void *state_in; /* [n_spans, value_heads, K, V]; NULL: zeros */
    void *o;              /* [n, value_heads, V] dense */
    void *state_out;      /* [n_spans, value_heads, K, V] or NULL */
    const cpl_span *spans;
    int64_t n_spans, n_rows, key_heads, value_heads, key_dim, value_dim;
    int64_t q_stride, k_stride, v_stride;
    int64_t chunk; /* rows per chunk, 1..64 */
    double scale;
    void *workspace;
} cpl_gdn;
typedef struct cpl_gdn_backward {
    cpl_gdn forward;         /* its o and state_out are not read */
    const void *d_o;         /* [n, value_heads, V] dense */
    const void *d_state_out; /* [n_spans, ...] or NULL */
    void *dq, *dk, *dv;      /* row strides dq_stride, ... */
    void *dg, *dbeta;        /* dense */
    void *d_state_in;        /* [n_spans, ...] or NULL */
    int64_t dq_stride, dk_stride, dv_stride;
    void *workspace;
} cpl_gdn_backward;

/*
 * The affine summary of spans: state_out = M state_in + B. Reads q-independent
 * inputs of `gdn` (k, v, g, beta, spans). transition or offset may be NULL.
 */
typedef struct cpl_gdn_summary {
    cpl_gdn gdn;
    void *transition; /* M: [n_spans, value_heads, K, K] */
    void *offset;     /* B: [n_spans, value_heads, K, V]; with gdn.state_in,
                         which it may be, M state_in + B */
    void *workspace;
} cpl_gdn_summary;
/* Its adjoint: d_state_in = M' d_state_out + offset; only the offset (the
 * sweep with d_state_out = 0) is made here. */
typedef struct cpl_gdn_summary_backward {
    cpl_gdn gdn;
    const void *d_o;
    const void *d_state_out; /* [n_spans, ...] or NULL: zeros */
    void *offset; /* [n_spans, value_heads, K, V]; with d_state_out, which it
                     may be, M' d_state_out + offset */
    void *workspace;
} cpl_gdn_summary_backward;

/*
 * States that go on by summaries: for i < n, of span s = span[i],
 *   out[s] = offset[o] + transition[t] in[s], t = transition_of[i], o =
 *   offset_of[i], or with `transpose` offset[o] + transition[t]' in[s].
 * Where t is -1 there is no product, and in[s] is not read; where s is -1 there
 * is nothing to do. No span twice. Everything is WIDE.
 */
typedef struct cpl_gdn_carry {
    const void *transition;                          /* [.., heads, K, K] */
    const void *offset;                              /* [.., heads, K, V] */
    const void *in;                                  /* [.., heads, K, V] */
    void *out;                                       /* [.., heads, K, V] */
    const int64_t *span, *transition_of, *offset_of; /* [n] */
    int64_t n, heads, key_dim, value_dim;
    bool transpose;
} cpl_gdn_carry;

/*
 * A block of queries and the keys that they meet: kv_slot .. kv_slot + n_keys -
 * 1. Query q_slot + i sees key kv_slot + j iff 0 <= j < n_keys, j <= n_before +
 * i, and with a window j > n_before + i - window. n_before may be anything:
 * below 0 the first queries see nothing; n_keys - 1 or more, and all queries
 * see all keys.
 */
typedef struct cpl_attention_block {
    int64_t q_slot, n_queries;
    int64_t kv_slot, n_keys;
    int64_t n_before;
} cpl_attention_block;

/*
 * Causal softmax attention over blocks; query head h uses kv head
 * h / (heads / kv_heads). Never holds a T x T matrix. Blocks may share queries,
 * not pairs of a query and a key: each goes on from what the ones before it
 * left in (o, lse), and with `accumulate` the first goes on from what the
 * caller left there, a result over other keys (o = 0 and lse = -inf: none).
 * Otherwise queries that see no key give o = 0 and lse = -inf.
 */
typedef struct cpl_attention {
    const void *q; /* [n_queries, heads, D] */
    const void *k; /* [n_keys, kv_heads, D] */
    const void *v; /* [n_keys, kv_heads, V] */
    void *o;       /* [n_queries, heads, V] dense */
    void *lse;     /* [n_queries, heads]: log sum exp of scaled scores */
    const cpl_attention_block *blocks;
    int64_t n_blocks, n_queries, n_keys, heads, kv_heads, key_dim, value_dim;
    int64_t q_stride, k_stride, v_stride;
    int64_t window; /* keys that a query sees, its own included; 0: no limit */
    double scale;
    bool accumulate;
    void *workspace;
} cpl_attention;
/* v may lie in the rows of k; dv then lies there in those of dk, and what both
 * give adds up. o and lse are those over all keys, whichever the blocks of this
 * call are: the gradients of parts add up. Queries and keys outside the blocks
 * get zeros, or with forward.accumulate everything is added to dq, dk and dv.
 */
typedef struct cpl_attention_backward {
    cpl_attention forward; /* o and lse as computed */
    const void *d_o;       /* [n_queries, heads, V] dense */
    void *dq, *dk, *dv;    /* row strides dq_stride, dk_stride, dv_stride */
    int64_t dq_stride, dk_stride, dv_stride;
    void *workspace;
} cpl_attention_backward;

/* Merges a partial attention result (o_b, lse_b) into (o, lse), by log-sum-exp:
 * o -= sigmoid(lse_b - lse) (o - o_b); both -inf: stays 0 and -inf. */
typedef struct cpl_merge {
    void *o, *lse; /* [n, heads, V], [n, heads] */
    const void *o_b, *lse_b;
    int64_t n_rows, heads, width;
} cpl_merge;
/* From what both sides were before the merge and the gradients of its results.
 * With the share of b, s = sigmoid(lse_b - lse), and c = sum over V of
 * d_o (o_b - o), s (1 - s) times which is what lse_b gains and lse loses:
 *   d_o_a = (1 - s) d_o,  d_lse_a = (1 - s) d_lse - s (1 - s) c,
 *   d_o_b = s d_o,        d_lse_b = s d_lse + s (1 - s) c.
 * A side with lse = -inf saw no key and gets zeros; where both have it, a is
 * what came out and gets all.
 */
typedef struct cpl_merge_backward {
    const void *o, *lse, *o_b, *lse_b;
    const void *d_o, *d_lse; /* d_lse may be NULL: zeros */
    void *d_o_a, *d_lse_a, *d_o_b, *d_lse_b;
    int64_t n_rows, heads, width;
} cpl_merge_backward;

/* y = x sigmoid(gate), [n, heads, D]; gate and x by row and head strides. */
typedef struct cpl_sigmoid_gate {
    const void *x, *gate; /* x is dense */
    void *y;              /* dense */
    int64_t n_rows, heads, width, gate_stride, gate_head_stride;
} cpl_sigmoid_gate;
typedef struct cpl_sigmoid_gate_backward {
    const void *x, *gate, *dy;
    void *dx, *dgate; /* dgate has gate's strides */
    int64_t n_rows, heads, width, gate_stride, gate_head_stride;
} cpl_sigmoid_gate_backward;

/* y = silu(gate) * up. */
typedef struct cpl_swiglu {
    const void *gate, *up; /* [n, F], row stride */
    void *y;               /* [n, F] dense */
    int64_t n_rows, width, stride;
} cpl_swiglu;
typedef struct cpl_swiglu_backward {
    const void *gate, *up, *dy;
    void *dgate, *dup; /* row stride as gate and up */
    int64_t n_rows, width, stride;
} cpl_swiglu_backward;

/* y[i] = table[tokens[i]]; a token < 0 gives a zero row (and no gradient), one
 * beyond the vocabulary a row of NaN (and none): on a device nobody else can
 * look at it. */
typedef struct cpl_embedding {
    const void *table; /* [vocab, D] */
    const int32_t *tokens;
    void *y;
    int64_t n_rows, width;
    int64_t vocabulary; /* rows of the table; 0: any token will do */
} cpl_embedding;
typedef struct cpl_embedding_backward {
    const int32_t *tokens;
    const void *dy;
    void *grad_table;
    int64_t n_rows, width, vocabulary;
} cpl_embedding_backward;

/* Softmax cross-entropy of rows whose label is >= 0; loss_sum is their sum
 * (double), dlogits = (softmax - onehot) * grad_scale, 0 for unlabelled rows;
 * with `scale`, a number in memory, times that too. dlogits may be logits, or
 * NULL. */
typedef struct cpl_cross_entropy {
    const void *logits; /* [n, vocab] */
    const int32_t *labels;
    void *dlogits;
    double *loss_sum;
    const double *scale; /* or NULL: 1 */
    int64_t n_rows, vocab;
    double grad_scale;
    void *workspace; /* where dlogits is logits or NULL */
} cpl_cross_entropy;

/* c = alpha op(a) op(b) + beta c, row-major; op(a) is [m, k], op(b) [k, n];
 * ld* are row strides of a, b, c as stored. The same `batch` times (0: once),
 * with matrices that lie *_step elements apart. */
typedef struct cpl_matmul {
    const void *a, *b;
    void *c; /* WIDE with wide_c */
    int64_t m, n, k, lda, ldb, ldc;
    bool transpose_a, transpose_b, wide_c;
    double alpha, beta;
    int64_t batch, a_step, b_step, c_step;
} cpl_matmul;

/*
 * Products of groups of rows, one matrix for each: group e is the rows
 * offsets[e] .. offsets[e + 1] - 1. Matrix e is [out, in] row-major, w_step
 * elements behind the one before.
 *   forward    y[i] = x[i] W_e'
 *   backward   dx[i] = dy[i] W_e, or with `accumulate` dx[i] += dy[i] W_e;
 *              grad_w_e += dy_e' x_e (WIDE). dx or grad_w may be NULL.
 */
typedef struct cpl_grouped_matmul {
    const void *x;            /* [n, in], x_stride */
    const void *w;            /* [groups, out, in], row stride w_stride */
    void *y;                  /* [n, out], y_stride */
    const int64_t *offsets;   /* [groups + 1] */
    int64_t groups, max_rows; /* no more rows than max_rows in all groups */
    int64_t in, out, x_stride, w_stride, w_step, y_stride;
} cpl_grouped_matmul;
typedef struct cpl_grouped_matmul_backward {
    cpl_grouped_matmul forward; /* its y is not read */
    const void *dy;             /* [n, out], dy_stride */
    void *dx;                   /* [n, in], dx_stride */
    void *grad_w;               /* as w */
    int64_t dy_stride, dx_stride;
    bool accumulate;
} cpl_grouped_matmul_backward;

/* Rows by lists: y[to[i]] = x[from[i]] for i < n, or += with `add`; a list
 * that is NULL: i itself. A row from -1 is zeros, and none goes to -1. No row
 * of y twice. */
typedef struct cpl_move_rows {
    const void *x;
    void *y;
    const int64_t *from, *to;
    int64_t n, width, x_stride, y_stride;
    bool add;
    bool wide; /* x and y are WIDE */
} cpl_move_rows;

/* y = alpha x + beta y over n elements; with beta = 0, y is only written, with
 * alpha = 0, x is not read. */
typedef struct cpl_axpby {
    const void *x; /* WIDE with wide */
    void *y;       /* WIDE with wide */
    int64_t n;
    double alpha, beta;
    bool wide;
} cpl_axpby;

/* The sum of the squares of n elements, in double; the order of the sum is
 * fixed, so the same numbers give the same bits. */
typedef struct cpl_sum_squares {
    const void *x; /* WIDE */
    double *sum;
    int64_t n;
    void *workspace;
} cpl_sum_squares;

/*
 * What all parameters share in a step of an optimizer, made once and left in
 * memory: on a device nobody waits for the norm of the gradients, and a graph
 * that is replayed counts on. With t = step, which is counted up first,
 *   factors[0] = min(1, clip / (sqrt(squares) + 1e-6)), the share of the
 *                gradients that is applied; of a NaN a NaN;
 *   factors[1] = 1 - beta1^t;  factors[2] = 1 - beta2^t.
 */
typedef struct cpl_step_factors {
    const double *squares; /* of all gradients; NULL: factors[0] = 1 */
    int64_t *step;         /* steps before this one; NULL: factors[0] alone */
    double *factors;       /* [3] */
    double clip, beta1, beta2;
} cpl_step_factors;

/*
 * One step of Adam with decoupled weight decay (Loshchilov and Hutter, arXiv
 * 1711.05101; the decay is multiplied by the learning rate, as in PyTorch's
 * AdamW): with g = factors[0] grad,
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   w -= lr (weight_decay w
 *            + m / factors[1] / (sqrt(v / factors[2]) + eps)).
 */
typedef struct cpl_adamw {
    const void *grad; /* WIDE, and m and v */
    void *w, *m, *v;
    const double *factors; /* [3], of step_factors */
    const double *rate;    /* the learning rate in memory; NULL: lr */
    int64_t n;
    double lr, beta1, beta2, eps, weight_decay;
} cpl_adamw;

/* One step down the gradient: w -= lr factors[0] grad. */
typedef struct cpl_sgd {
    const void *grad; /* WIDE */
    void *w;
    const double *factors; /* of step_factors */
    const double *rate;    /* the learning rate in memory; NULL: lr */
    int64_t n;
    double lr;
} cpl_sgd;

/* The table of one (device, dtype). */
typedef struct cpl_kernels {
    const char *device; /* "cpu", "ref", "cuda", "cuda-emulated" */
    cpl_dtype dtype;
    cpl_dtype wide; /* of what is WIDE */
    /* Of kernels that do not take every size: what they take and what was
     * asked for, or NULL where that will do. Both NULL: everything will. */
    const char *(*attention_refusal)(const cpl_attention *p);
    const char *(*gdn_refusal)(const cpl_gdn *p);
    void (*rms_norm)(const cpl_rms_norm *p);
    size_t (*rms_norm_backward_workspace)(const cpl_rms_norm_backward *p);
    void (*rms_norm_backward)(const cpl_rms_norm_backward *p);
    void (*gated_rms_norm)(const cpl_gated_rms_norm *p);
    void (*gated_rms_norm_backward)(const cpl_gated_rms_norm_backward *p);
    void (*l2norm)(const cpl_l2norm *p);
    void (*l2norm_backward)(const cpl_l2norm_backward *p);
    void (*rope)(const cpl_rope *p);
    void (*conv1d)(const cpl_conv1d *p);
    void (*conv1d_backward)(const cpl_conv1d_backward *p);
    void (*gates)(const cpl_gates *p);
    void (*gates_backward)(const cpl_gates_backward *p);
    size_t (*gdn_workspace)(const cpl_gdn *p);
    void (*gdn)(const cpl_gdn *p);
    size_t (*gdn_backward_workspace)(const cpl_gdn_backward *p);
    void (*gdn_backward)(const cpl_gdn_backward *p);
    size_t (*gdn_summary_workspace)(const cpl_gdn_summary *p);
    void (*gdn_summary)(const cpl_gdn_summary *p);
    size_t (*gdn_summary_backward_workspace)(const cpl_gdn_summary_backward *p);
    void (*gdn_summary_backward)(const cpl_gdn_summary_backward *p);
    void (*gdn_carry)(const cpl_gdn_carry *p);
    size_t (*attention_workspace)(const cpl_attention *p);
    void (*attention)(const cpl_attention *p);
    size_t (*attention_backward_workspace)(const cpl_attention_backward *p);
    void (*attention_backward)(const cpl_attention_backward *p);
    void (*merge)(const cpl_merge *p);
    void (*merge_backward)(const cpl_merge_backward *p);
    void (*sigmoid_gate)(const cpl_sigmoid_gate *p);
    void (*sigmoid_gate_backward)(const cpl_sigmoid_gate_backward *p);
    void (*swiglu)(const cpl_swiglu *p);
    void (*swiglu_backward)(const cpl_swiglu_backward *p);
    void (*embedding)(const cpl_embedding *p);
    void (*embedding_backward)(const cpl_embedding_backward *p);
    size_t (*cross_entropy_workspace)(const cpl_cross_entropy *p);
    void (*cross_entropy)(const cpl_cross_entropy *p);
    void (*matmul)(const cpl_matmul *p);
    void (*grouped_matmul)(const cpl_grouped_matmul *p);
    void (*grouped_matmul_backward)(const cpl_grouped_matmul_backward *p);
    void (*move_rows)(const cpl_move_rows *p);
    void (*axpby)(const cpl_axpby *p);
    void (*moe_route)(const cpl_moe_route *p);
    void (*moe_route_backward)(const cpl_moe_route_backward *p);
    void (*moe_group)(const cpl_moe_group *p);
    void (*moe_load)(const cpl_moe_load *p);
    void (*moe_balance)(const cpl_moe_balance *p);
    void (*moe_dispatch)(const cpl_moe_dispatch *p);
    void (*moe_combine)(const cpl_moe_combine *p);
    void (*moe_combine_backward)(const cpl_moe_combine_backward *p);
    size_t (*sum_squares_workspace)(const cpl_sum_squares *p);
    void (*sum_squares)(const cpl_sum_squares *p);
    void (*step_factors)(const cpl_step_factors *p);
    void (*adamw)(const cpl_adamw *p);
    void (*sgd)(const cpl_sgd *p);
} cpl_kernels;

/* The table of the host, or NULL (with a sentence in cpl_last_error) where
 * there is none: "cpu" has F32 and F64, "ref" has F64. Those of devices (F32,
 * F64, BF16) belong to groups: cpl_comm_kernels. */
CPL_API const cpl_kernels *cpl_kernels_for(const char *device, cpl_dtype dtype);
/* The table that works in the memory of a group: the host's, or of its device.
 * NULL as above. */
CPL_API const cpl_kernels *cpl_comm_kernels(const cpl_comm *comm,
                                            cpl_dtype dtype);
/* The naive kernels beside them, which specs hold them against. */
CPL_API const cpl_kernels *cpl_comm_naive_kernels(const cpl_comm *comm,
                                                  cpl_dtype dtype);

/* Limits the matrix library to one thread; called once by every host. */
CPL_API void cpl_kernels_one_thread(void);

#endif
