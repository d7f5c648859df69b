/*
 * carrier.h: a plan from plain segments whose rows bring their trace along,
 * when the caller says that they have one. Positions travel beside the rows,
 * are counted nowhere, and cost nothing where nothing is traced.
 */
#ifndef CPLI_CARRIER_H
#define CPLI_CARRIER_H

#include "exchange/exchange.h"
#include "layer.h"

typedef struct cpli_carrier {
    cpl_plan *rows; /* NULL: this rank has no part in it; with room (comm.h)
                       all take part */
    cpl_plan *positions;
    cpl_tensor from, to; /* the traces in flight */
    bool is_traced;
} cpli_carrier;

/* Local. Rows of `width` elements, of the layer's dtype or its wide one. */
cpl_status cpli_carrier_create(const cpl_layer *layer,
                               const cpl_route_part *part, cpl_dtype dtype,
                               int64_t width, cpli_carrier *out);
void cpli_carrier_destroy(cpli_carrier *carrier);

/* As cpl_plan_start and cpl_plan_finish. `traced`: src has a trace, and dst
 * gets one, -1 where no row came; the same on all ranks. */
cpl_status cpli_carrier_start(cpli_carrier *carrier, const cpl_tensor *src,
                              cpl_tensor *dst, bool traced);
cpl_status cpli_carrier_finish(cpli_carrier *carrier);

#endif
