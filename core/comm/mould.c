/*
 * mould.c: what the rest of the core asks about moulds; see cpli_mould_ops.
 */
#include "comm.h"

static const cpli_mould_ops *moulds_of(const cpl_comm *comm)
{
    const cpli_device_ops *device = cpli_device_of(comm);
    return device != NULL ? device->moulds : NULL;
}

bool cpli_has_room(const cpl_comm *comm)
{
    const cpli_mould_ops *moulds = moulds_of(comm);
    return moulds != NULL && moulds->is_open(cpli_comm_whole((cpl_comm *)(uintptr_t)comm));
}

static int64_t room(cpl_comm *comm, int64_t n, bool is_exact)
{
    if (!cpli_has_room(comm))
        return n;
    return moulds_of(comm)->room(cpli_comm_whole(comm), n, is_exact);
}

int64_t cpli_room(cpl_comm *comm, int64_t n)
{
    return room(comm, n, false);
}

int64_t cpli_most(cpl_comm *comm, int64_t n)
{
    return room(comm, n, true);
}
