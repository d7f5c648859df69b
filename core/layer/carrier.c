/* carrier.c: see carrier.h. */
#include "carrier.h"

cpl_status cpli_carrier_create(const cpl_layer *layer,
                               const cpl_route_part *part, cpl_dtype dtype,
                               int64_t width, cpli_carrier *out)
{
    cpl_comm *comm = layer->place->comm;
    bool has_part = part->n_sends + part->n_receives > 0;
    if (!has_part && !cpli_has_room(layer->place->memory))
        return CPL_OK;
    CPL_TRY(cpli_plan_from_parts(part, comm, dtype, width, &out->rows));
    return cpli_plan_from_parts(part, comm, CPL_I64, 1, &out->positions);
}

void cpli_carrier_destroy(cpli_carrier *carrier)
{
    cpl_plan_destroy(carrier->rows);
    cpl_plan_destroy(carrier->positions);
    *carrier = (cpli_carrier){0};
}

static cpl_tensor trace_of(const cpl_tensor *tensor)
{
    return (cpl_tensor){.data = tensor->trace,
                        .shape = {cpl_tensor_n_rows(tensor), 1},
                        .n_dims = 2,
                        .dtype = CPL_I64,
                        .comm = tensor->comm};
}

static cpl_status start_positions(cpli_carrier *carrier, const cpl_tensor *src,
                                  cpl_tensor *dst)
{
    CPL_TRY(cpli_clear_trace(dst));
    carrier->from = trace_of(src);
    carrier->to = trace_of(dst);
    return cpl_plan_start(carrier->positions, &carrier->from, &carrier->to);
}

cpl_status cpli_carrier_start(cpli_carrier *carrier, const cpl_tensor *src,
                              cpl_tensor *dst, bool traced)
{
    if (carrier->rows == NULL)
        return CPL_OK;
    carrier->is_traced = traced;
    CPL_TRY(cpl_plan_start(carrier->rows, src, dst));
    return traced ? start_positions(carrier, src, dst) : CPL_OK;
}

cpl_status cpli_carrier_finish(cpli_carrier *carrier)
{
    if (carrier->rows == NULL)
        return CPL_OK;
    CPL_TRY(cpl_plan_finish(carrier->rows));
    if (!carrier->is_traced)
        return CPL_OK;
    cpl_counters *counters = cpl_counters_here();
    const cpl_counters before = *counters;
    cpl_status status = cpl_plan_finish(carrier->positions);
    *counters = before;
    return status;
}
