/*
 * mould.c: moulds and rehearsals, as everybody sees them; what they do is the
 * device's (cpli_mould_ops).
 */
#include "comm.h"

struct cpl_mould {
    cpl_comm *comm; /* that carries */
    const cpli_mould_ops *ops;
    void *inside;
};

static const cpli_mould_ops *ops_of(const cpl_comm *comm)
{
    const cpli_device_ops *device = cpli_device_of(comm);
    return device != NULL ? device->moulds : NULL;
}

static cpl_status find_ops(const cpl_comm *comm, const char *who,
                           const cpli_mould_ops **out)
{
    *out = ops_of(comm);
    return *out != NULL ? CPL_OK
                        : cpli_fail(CPL_UNSUPPORTED,
                                    "%s: on the cpu nothing is captured", who);
}

/* ---- room ---- */

bool cpli_has_room(const cpl_comm *comm)
{
    const cpli_mould_ops *ops = ops_of(comm);
    return ops != NULL &&
           ops->is_open(comm->whole != NULL ? comm->whole : comm);
}

static int64_t room(cpl_comm *comm, int64_t n, bool is_exact)
{
    if (!cpli_has_room(comm))
        return n;
    return ops_of(comm)->room(cpli_comm_whole(comm), n, is_exact);
}

int64_t cpli_room(cpl_comm *comm, int64_t n)
{
    return room(comm, n, false);
}

int64_t cpli_most(cpl_comm *comm, int64_t n)
{
    return room(comm, n, true);
}

/* ---- moulds ---- */

cpl_status cpl_mould_create(cpl_comm *comm, cpl_mould **out)
{
    cpl_comm *whole = cpli_comm_whole(comm);
    const cpli_mould_ops *ops;
    cpl_mould *mould;
    CPL_TRY(find_ops(whole, "mould", &ops));
    CPL_TRY(CPL_ALLOC(1, &mould));
    *mould = (cpl_mould){.comm = whole, .ops = ops};
    cpl_status status = ops->make(whole, &mould->inside);
    if (status != CPL_OK) {
        cpli_free(mould);
        return status;
    }
    *out = mould;
    return CPL_OK;
}

void cpl_mould_open(cpl_mould *mould, bool anew)
{
    mould->ops->use(mould->comm, mould->inside, anew);
}

void cpl_mould_close(cpl_mould *mould)
{
    mould->ops->use(mould->comm, NULL, false);
}

void cpl_mould_destroy(cpl_mould *mould)
{
    if (mould == NULL)
        return;
    mould->ops->drop(mould->comm, mould->inside);
    cpli_free(mould);
}

/* ---- rehearsals ---- */

cpl_status cpl_rehearsal_begin(cpl_comm *comm, cpl_rehearsal *out)
{
    cpl_comm *whole = cpli_comm_whole(comm);
    const cpli_mould_ops *ops;
    CPL_TRY(find_ops(whole, "rehearsal", &ops));
    CPL_TRY(ops->begin_rehearsal(whole));
    /* The numbers of checks are part of launches: they begin at 1. */
    *out = (cpl_rehearsal){.counted = *cpl_counters_here()};
    *cpl_counters_here() = (cpl_counters){0};
    return CPL_OK;
}

cpl_status cpl_rehearsal_end(cpl_comm *comm, cpl_rehearsal *rehearsal)
{
    cpl_comm *whole = cpli_comm_whole(comm);
    cpl_counters before = rehearsal->counted;
    rehearsal->counted = *cpl_counters_here();
    *cpl_counters_here() = before;
    return ops_of(whole)->end_rehearsal(whole, &rehearsal->digest);
}
