/*
 * ffn.h: the SwiGLU feed-forward network, y = (silu(x Wg') * x Wu') Wd': what
 * an MLP does with all of its rows, experts with the slots of their groups, and
 * a shared expert with all rows again.
 */
#ifndef CPLI_FFN_H
#define CPLI_FFN_H

#include "layer.h"

/* Where a network's weights and rows lie. Its three parameters follow each
 * other, gate_proj, up_proj, down_proj; each may hold the matrices of several
 * experts, one below the other. */
typedef struct cpli_ffn {
    int first_param;
    int64_t experts;
    int64_t full_width;   /* of the parameters */
    int64_t first, width; /* the slice of it that this rank computes */
    int64_t n_rows;
    cpl_tensor *gate_up; /* [rows, 2F]: gate, up; kept */
    cpl_tensor *act;     /* [rows, F]; kept */
    cpl_tensor *d_gate_up, *d_act;
} cpli_ffn;

/* Declares the parameters of `experts` networks, named prefix_gate_proj and so
 * on (the names must live as long as the layer). */
void cpli_ffn_params(cpl_layer *layer, cpli_ffn *ffn,
                     const char *const names[3], int64_t experts,
                     int64_t width);
/* Takes the rank's slice of the width, called `what`, and buffers for n_rows
 * rows. */
cpl_status cpli_ffn_prepare(cpl_layer *layer, cpli_ffn *ffn, const char *what,
                            int64_t n_rows);

/* Rows offsets[e] .. offsets[e + 1] - 1 of x and y by expert e (rows of nobody
 * are undefined in y), or with offsets NULL all rows by the only one; of a
 * slice y and dx are partial sums. */
void cpli_ffn_forward(const cpl_layer *layer, const cpli_ffn *ffn,
                      const int64_t *offsets, const void *x, void *y);
/* Adds to the gradients of the networks' parameters; dx (NULL: none) is
 * written, or added to with `accumulate`. dx may be dy. */
void cpli_ffn_backward(const cpl_layer *layer, const cpli_ffn *ffn,
                       const int64_t *offsets, const void *x, const void *dy,
                       void *dx, bool accumulate);

#endif
