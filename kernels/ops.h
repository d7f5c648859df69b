/*
 * ops.h: the list of ops. Tables, prototypes and launchers of every device are
 * made from it, so that an entry is typed once and no table lacks one.
 */
#ifndef CPLI_OPS_H
#define CPLI_OPS_H

/* Kernels that need no workspace, and those that do. */
#define CPLI_PLAIN_LIST(X)     \
    X(rms_norm)                \
    X(gated_rms_norm)          \
    X(gated_rms_norm_backward) \
    X(l2norm)                  \
    X(l2norm_backward)         \
    X(rope)                    \
    X(conv1d)                  \
    X(conv1d_backward)         \
    X(gates)                   \
    X(gates_backward)          \
    X(gdn_carry)               \
    X(merge)                   \
    X(merge_backward)          \
    X(sigmoid_gate)            \
    X(sigmoid_gate_backward)   \
    X(swiglu)                  \
    X(swiglu_backward)         \
    X(embedding)               \
    X(embedding_backward)      \
    X(matmul)                  \
    X(grouped_matmul)          \
    X(grouped_matmul_backward) \
    X(move_rows)               \
    X(axpby)                   \
    X(moe_route)               \
    X(moe_route_backward)      \
    X(moe_group)               \
    X(moe_load)                \
    X(moe_balance)             \
    X(moe_dispatch)            \
    X(moe_combine)             \
    X(moe_combine_backward)    \
    X(step_factors)            \
    X(adamw)                   \
    X(sgd)
#define CPLI_WORKSPACE_LIST(X) \
    X(gdn)                     \
    X(gdn_backward)            \
    X(gdn_summary)             \
    X(gdn_summary_backward)    \
    X(attention)               \
    X(attention_backward)      \
    X(rms_norm_backward)       \
    X(cross_entropy)           \
    X(sum_squares)

#endif
