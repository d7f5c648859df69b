/*
 * kernels.c: which table serves a device and a dtype.
 */
#include <cblas.h>

#include "base.h"
#include "entries.h"

static const cpl_kernels *const tables[] = {
    &cpli_kernels_f32, &cpli_kernels_f64, &cpli_kernels_ref};

const cpl_kernels *cpl_kernels_for(const char *device, cpl_dtype dtype)
{
    size_t n_tables = sizeof tables / sizeof *tables;
    for (size_t i = 0; i < n_tables; i++)
        if (strcmp(tables[i]->device, device) == 0 && tables[i]->dtype == dtype)
            return tables[i];
    cpli_fail(CPL_UNSUPPORTED,
              "kernels: no table for device '%s' and dtype %s (there are cpu "
              "f64, cpu f32, ref f64)",
              device, cpl_dtype_name(dtype));
    return NULL;
}

void cpl_kernels_one_thread(void)
{
    openblas_set_num_threads(1);
}
