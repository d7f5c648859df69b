/*
 * entries.h: how one set of the host's kernels is named. Every kernel file is
 * compiled once per set: the references once (double), the fast ones with
 * CPLI_F64 and again with CPLI_F32. NAME() keeps the sets apart, and the list
 * of ops (ops.h) makes the prototypes and the tables.
 */
#ifndef CPLI_ENTRIES_H
#define CPLI_ENTRIES_H

#include "kernels.h"
#include "ops.h"

#if defined CPLI_F64
#define NAME(x) cpli_##x##_f64
#elif defined CPLI_F32
#define NAME(x) cpli_##x##_f32
#else
#define NAME(x) cpli_##x##_ref
#endif

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
