/*
 * entries.h: the list of kernels and how one set of them is named. Every
 * kernel file is compiled once per set: the references once (double), the fast
 * ones with CPLI_F64 and again with CPLI_F32. NAME() keeps the sets apart, and
 * the list makes the prototypes and the tables, so an entry is typed once.
 */
#ifndef CPLI_ENTRIES_H
#define CPLI_ENTRIES_H

#include "kernels.h"

#if defined CPLI_F64
#define NAME(x) cpli_##x##_f64
#elif defined CPLI_F32
#define NAME(x) cpli_##x##_f32
#else
#define NAME(x) cpli_##x##_ref
#endif

/* Kernels that need no workspace, and those that do. */
#define CPLI_PLAIN_LIST(X)     \
    X(rms_norm)                \
    X(rms_norm_backward)       \
    X(gated_rms_norm)          \
    X(gated_rms_norm_backward) \
    X(l2norm)                  \
    X(l2norm_backward)         \
    X(rope)                    \
    X(conv1d)                  \
    X(conv1d_backward)         \
    X(gates)                   \
    X(gates_backward)          \
    X(merge)                   \
    X(merge_backward)          \
    X(sigmoid_gate)            \
    X(sigmoid_gate_backward)   \
    X(swiglu)                  \
    X(swiglu_backward)         \
    X(embedding)               \
    X(embedding_backward)      \
    X(cross_entropy)           \
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
    X(sum_squares)             \
    X(adamw)
#define CPLI_WORKSPACE_LIST(X) \
    X(gdn)                     \
    X(gdn_backward)            \
    X(gdn_summary)             \
    X(gdn_summary_backward)    \
    X(attention)               \
    X(attention_backward)

#define CPLI_PROTOTYPE(op) void NAME(op)(const cpl_##op *p);
#define CPLI_PROTOTYPE_WORKSPACE(op) \
    size_t NAME(op##_workspace)(const cpl_##op *p);
CPLI_PLAIN_LIST(CPLI_PROTOTYPE)
CPLI_WORKSPACE_LIST(CPLI_PROTOTYPE)
CPLI_WORKSPACE_LIST(CPLI_PROTOTYPE_WORKSPACE)
#undef CPLI_PROTOTYPE
#undef CPLI_PROTOTYPE_WORKSPACE

/* The initialisers of a table. */
#define CPLI_ENTRY(op) .op = NAME(op),
#define CPLI_ENTRY_WORKSPACE(op) \
    .op = NAME(op), .op##_workspace = NAME(op##_workspace),
#define CPLI_ENTRIES            \
    CPLI_PLAIN_LIST(CPLI_ENTRY) \
    CPLI_WORKSPACE_LIST(CPLI_ENTRY_WORKSPACE)

/* The tables themselves. */
extern const cpl_kernels cpli_kernels_ref;
extern const cpl_kernels cpli_kernels_f64;
extern const cpl_kernels cpli_kernels_f32;

#endif
