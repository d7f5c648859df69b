/*
 * guard.c: the comm gets a table of its own, whose entries take the lock and
 * call the real ones. Who waits in an operation holds the lock as long; it
 * hears of a failure itself.
 */
#define _GNU_SOURCE /* a mutex that is recursive from the start */
#include "guard.h"

#include <pthread.h>

#include "comm/comm.h"

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static const cpli_comm_ops *real;
static cpli_comm_ops guarded;

void host_guard_lock(void)
{
    pthread_mutex_lock(&mutex);
}

bool host_guard_try(void)
{
    return pthread_mutex_trylock(&mutex) == 0;
}

void host_guard_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static cpl_status unlocked(cpl_status status)
{
    host_guard_unlock();
    return status;
}

static bool offers(const cpl_comm *comm, cpli_way way)
{
    host_guard_lock();
    bool has = real->offers(comm, way);
    host_guard_unlock();
    return has;
}

static cpl_status alloc(cpl_comm *comm, size_t bytes, void **out)
{
    host_guard_lock();
    return unlocked(real->alloc(comm, bytes, out));
}

static void free_memory(cpl_comm *comm, void *memory)
{
    host_guard_lock();
    real->free(comm, memory);
    host_guard_unlock();
}

static cpl_status reserve(cpl_comm *comm, cpli_transfer *transfer)
{
    host_guard_lock();
    return unlocked(real->reserve(comm, transfer));
}

static void release(cpl_comm *comm, cpli_transfer *transfer)
{
    host_guard_lock();
    real->release(comm, transfer);
    host_guard_unlock();
}

static cpl_status start(cpl_comm *comm, const cpli_transfer *transfer)
{
    host_guard_lock();
    return unlocked(real->start(comm, transfer));
}

static cpl_status finish(cpl_comm *comm, const cpli_transfer *transfer)
{
    host_guard_lock();
    return unlocked(real->finish(comm, transfer));
}

static cpl_status barrier(cpl_comm *comm)
{
    host_guard_lock();
    return unlocked(real->barrier(comm));
}

static cpl_status gather(cpl_comm *comm, const void *data, size_t bytes,
                         void *out)
{
    host_guard_lock();
    return unlocked(real->gather(comm, data, bytes, out));
}

static cpl_status sum(cpl_comm *comm, void *data, int64_t n, cpl_dtype dtype)
{
    host_guard_lock();
    return unlocked(real->sum(comm, data, n, dtype));
}

static cpl_status plain_exchange(cpl_comm *comm, const void *src,
                                 const size_t *to, void *dst,
                                 const size_t *from)
{
    host_guard_lock();
    return unlocked(real->plain_exchange(comm, src, to, dst, from));
}

void host_guard_comm(cpl_comm *comm)
{
    real = comm->ops;
    guarded = *real;
    guarded.offers = real->offers != NULL ? offers : NULL;
    guarded.alloc = real->alloc != NULL ? alloc : NULL;
    guarded.free = real->free != NULL ? free_memory : NULL;
    guarded.reserve = real->reserve != NULL ? reserve : NULL;
    guarded.release = real->release != NULL ? release : NULL;
    guarded.start = start;
    guarded.finish = finish;
    guarded.barrier = barrier;
    guarded.gather = gather;
    guarded.sum = sum;
    guarded.plain_exchange =
        real->plain_exchange != NULL ? plain_exchange : NULL;
    comm->ops = &guarded;
}
