/* cuda_marks.c: marks of a rank's stream: events that tell the time. */
#include "cuda_rank.h"

typedef struct marks {
    int64_t n;
    cudaEvent_t events[];
} marks;

void cpli_cuda_drop_marks(cpl_comm *comm, void *handle)
{
    marks *all = handle;
    (void)comm;
    for (int64_t i = 0; all != NULL && i < all->n; i++)
        cudaEventDestroy(all->events[i]);
    cpli_free(all);
}

cpl_status cpli_cuda_make_marks(cpl_comm *comm, int64_t n, void **out)
{
    marks *all;
    CPL_TRY(cpli_alloc(1, sizeof *all + (size_t)n * sizeof *all->events,
                       (void **)&all));
    for (; all->n < n; all->n++) {
        cpl_status status = cpli_cuda_check(
            cpli_cuda_of(comm), cudaEventCreate(all->events + all->n),
            "making an event");
        if (status != CPL_OK) {
            cpli_cuda_drop_marks(comm, all);
            return status;
        }
    }
    *out = all;
    return CPL_OK;
}

cpl_status cpli_cuda_mark(cpl_comm *comm, void *handle, int64_t i)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    const marks *all = handle;
    cudaEvent_t event = all->events[i];
    if (CPLI_CUDA_NOTES(device, "mark", event))
        return CPL_OK;
    return cpli_cuda_check(device, cudaEventRecord(event, device->stream),
                           "recording an event");
}

cpl_status cpli_cuda_seconds(cpl_comm *comm, const void *from_marks,
                             int64_t from, const void *to_marks, int64_t to,
                             double *out)
{
    const marks *first = from_marks;
    const marks *last = to_marks;
    float ms = 0;
    CPL_TRY(cpli_cuda_check(
        cpli_cuda_of(comm),
        cudaEventElapsedTime(&ms, first->events[from], last->events[to]),
        "asking for a time"));
    *out = (double)ms / 1e3;
    return CPL_OK;
}
