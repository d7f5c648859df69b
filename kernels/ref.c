/*
 * ref.c: the table of the references: naive, double, the truth.
 */
#include "entries.h"

const cpl_kernels cpli_kernels_ref = {
    .device = "ref", .dtype = CPL_F64, .wide = CPL_F64, CPLI_ENTRIES};
