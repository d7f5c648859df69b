/* tensor.h: what layers and exchanges need of tensors beyond cplab.h. */
#ifndef CPLI_TENSOR_H
#define CPLI_TENSOR_H

#include "cplab.h"

/* Local. A tensor over memory of `comm` that somebody else takes and gives
 * back. */
cpl_status cpli_tensor_over(void *data, cpl_dtype dtype, int n_dims,
                            const int64_t *shape, cpl_comm *comm,
                            cpl_tensor **out);

/* Local. Takes memory for a trace where the tensor has none. Errors: MEMORY. */
cpl_status cpli_need_trace(cpl_tensor *tensor);
/* Local. Takes the trace away. On a device its memory stays with the tensor:
 * giving it back would wait for the device. */
void cpli_drop_trace(cpl_tensor *tensor);
/* Local. A trace of rows that are nobody's: -1. Errors: MEMORY, SYSTEM. */
cpl_status cpli_clear_trace(cpl_tensor *tensor);
/* Local. For a tensor that holds the rows of `other` again and again: each time
 * with its trace, or none. Errors: MEMORY, SYSTEM. */
cpl_status cpli_repeat_trace(cpl_tensor *tensor, const cpl_tensor *other);

/* Compares the trace of `tensor`, which must have one, with runs (fill: -1);
 * counts the wrong rows and keeps the first sentence: of rows on a device when
 * cpl_trace_settle asks. */
cpl_status cpli_trace_runs(const cpl_tensor *tensor, const cpl_run *runs,
                           int64_t n_runs, int rank, const char *who);

#endif
