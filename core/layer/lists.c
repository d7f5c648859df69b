/* lists.c: see lists.h. */
#include "lists.h"

static cpl_status keep(void ***blocks, int64_t *n, void *block)
{
    CPL_TRY(cpli_realloc((void **)blocks, (size_t)*n + 1, sizeof **blocks));
    (*blocks)[(*n)++] = block;
    return CPL_OK;
}

cpl_status cpli_list_make(cpli_lists *lists, size_t n, size_t size, void **out)
{
    void *block;
    CPL_TRY(cpli_alloc(n, size, &block));
    cpl_status status = keep(&lists->here, &lists->n_here, block);
    if (status != CPL_OK) {
        cpli_free(block);
        return status;
    }
    *out = block;
    return CPL_OK;
}

cpl_status cpli_list_room(cpli_lists *lists, const void *list, size_t bytes,
                          void **out)
{
    void *copy = (void *)(uintptr_t)list; /* kernels only read it */
    if (cpli_device_of(lists->comm) != NULL) {
        CPL_TRY(cpli_comm_alloc(lists->comm, bytes, &copy));
        cpl_status status = keep(&lists->copies, &lists->n_copies, copy);
        if (status != CPL_OK) {
            cpli_comm_free(lists->comm, copy);
            return status;
        }
    }
    *out = copy;
    return CPL_OK;
}

cpl_status cpli_list_send(cpli_lists *lists, const void *list, size_t bytes,
                          void **out)
{
    const cpli_device_ops *device = cpli_device_of(lists->comm);
    void *there;
    CPL_TRY(cpli_list_room(lists, list, bytes, &there));
    if (device != NULL)
        CPL_TRY(device->upload(lists->comm, there, list, bytes));
    *out = there;
    return CPL_OK;
}

cpl_status cpli_list_pad(cpli_lists *lists, cpli_padded what, void **out)
{
    CPL_ASSERT(what.room >= what.n);
    if (what.room == what.n)
        return cpli_list_send(lists, what.list, what.n * what.size, out);
    char *all;
    CPL_TRY(cpli_list_make(lists, what.room, what.size, (void **)&all));
    if (what.n > 0)
        memcpy(all, what.list, what.n * what.size);
    for (size_t i = what.n; i < what.room; i++)
        memcpy(all + i * what.size, what.beyond, what.size);
    return cpli_list_send(lists, all, what.room * what.size, out);
}

cpl_status cpli_list_resend(const cpli_lists *lists, void *there,
                            const void *list, size_t bytes)
{
    const cpli_device_ops *device = cpli_device_of(lists->comm);
    return device != NULL ? device->send(lists->comm, there, list, bytes)
                          : CPL_OK;
}

void cpli_lists_free(cpli_lists *lists)
{
    for (int64_t i = 0; i < lists->n_copies; i++)
        cpli_comm_free(lists->comm, lists->copies[i]);
    for (int64_t i = 0; i < lists->n_here; i++)
        cpli_free(lists->here[i]);
    cpli_free(lists->copies);
    cpli_free(lists->here);
    *lists = (cpli_lists){0};
}
