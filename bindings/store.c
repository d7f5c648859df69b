/*
 * store.c: named bytes of this process, shared by all ranks: what one case
 * computed as a reference, the next one reads. A list under a mutex: names may
 * be thousands and begin alike, so hashes are compared first.
 * Where ranks are processes, rank 0's entries are sent to those who lack them.
 */
#include <pthread.h>

#include "base.h"
#include "comm/comm.h"
#include "host.h"

typedef struct entry {
    struct entry *next;
    uint64_t hash; /* of the name */
    char *name;
    void *data;
    size_t bytes;
} entry;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;

static uint64_t hash_of(const char *name)
{
    return cpl_hash(0, name, strlen(name));
}

/* Under the mutex. */
static entry *find(const char *name)
{
    const uint64_t hash = hash_of(name);
    entry *e = entries;
    while (e != NULL && (e->hash != hash || strcmp(e->name, name) != 0))
        e = e->next;
    return e;
}

static void entry_destroy(entry *e)
{
    cpli_free(e->name);
    cpli_free(e->data);
    cpli_free(e);
}

/* With zeroed data. */
static cpl_status entry_create(const char *name, size_t bytes, entry **out)
{
    entry *e;
    CPL_TRY(CPL_ALLOC(1, &e));
    cpl_status status = cpli_text(&e->name, "%s", name);
    if (status == CPL_OK)
        status = cpli_alloc(bytes, 1, &e->data);
    if (status != CPL_OK) {
        entry_destroy(e);
        return status;
    }
    e->hash = hash_of(name);
    e->bytes = bytes;
    *out = e;
    return CPL_OK;
}

/* The store has it now, or another of this name was first. */
static void keep(entry *e)
{
    pthread_mutex_lock(&mutex);
    bool is_new = find(e->name) == NULL;
    if (is_new) {
        e->next = entries;
        entries = e;
    }
    pthread_mutex_unlock(&mutex);
    if (!is_new)
        entry_destroy(e);
}

cpl_status cpl_store_put(const char *name, const void *data, size_t bytes)
{
    entry *e;
    CPL_TRY(entry_create(name, bytes, &e));
    memcpy(e->data, data, bytes);
    keep(e);
    return CPL_OK;
}

const void *cpl_store_get(const char *name, size_t *bytes)
{
    pthread_mutex_lock(&mutex);
    const entry *e = find(name);
    pthread_mutex_unlock(&mutex);
    if (e == NULL)
        return NULL;
    *bytes = e->bytes;
    return e->data;
}

void cpl_store_clear(void)
{
    pthread_mutex_lock(&mutex);
    entry *e = entries;
    entries = NULL;
    pthread_mutex_unlock(&mutex);
    while (e != NULL) {
        entry *next = e->next;
        entry_destroy(e);
        e = next;
    }
}

/* ---- sharing between processes ---- */

/* An entry as rank 0 announces it; its name follows in the list of names. */
typedef struct title {
    uint64_t bytes;
    uint64_t name_bytes; /* with the zero behind it */
} title;

/* What rank 0 has to tell, in the order in which it will send it. */
typedef struct contents {
    int64_t n;
    int64_t names_bytes;
    title *titles;
    char *names;
    double *lacking; /* 1 where any rank lacks the entry */
} contents;

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static void count(const char *prefix, contents *out)
{
    for (const entry *e = entries; e != NULL; e = e->next)
        if (has_prefix(e->name, prefix)) {
            out->n++;
            out->names_bytes += (int64_t)strlen(e->name) + 1;
        }
}

static void list(const char *prefix, contents *out)
{
    char *name = out->names;
    title *at = out->titles;
    for (const entry *e = entries; e != NULL; e = e->next)
        if (has_prefix(e->name, prefix)) {
            *at = (title){e->bytes, strlen(e->name) + 1};
            memcpy(name, e->name, at->name_bytes);
            name += at++->name_bytes;
        }
}

static cpl_status take_room(contents *all)
{
    CPL_TRY(CPL_ALLOC(all->n, &all->titles));
    CPL_TRY(CPL_ALLOC(all->n, &all->lacking));
    return CPL_ALLOC(all->names_bytes, &all->names);
}

/* Collective. Every rank learns what rank 0 has, and what somebody lacks. */
static cpl_status announce(cpl_comm *comm, const char *prefix, contents *all)
{
    if (comm->rank == 0)
        count(prefix, all);
    int64_t sizes[] = {all->n, all->names_bytes};
    CPL_TRY(cpl_comm_broadcast(comm, sizes, sizeof sizes, 0));
    all->n = sizes[0];
    all->names_bytes = sizes[1];
    CPL_TRY(cpl_comm_agree(comm, take_room(all)));
    if (comm->rank == 0)
        list(prefix, all);
    CPL_TRY(cpl_comm_broadcast(comm, all->titles,
                               (size_t)all->n * sizeof *all->titles, 0));
    CPL_TRY(cpl_comm_broadcast(comm, all->names, (size_t)all->names_bytes, 0));
    const char *name = all->names;
    for (int64_t i = 0; i < all->n; name += all->titles[i++].name_bytes)
        all->lacking[i] = find(name) == NULL ? 1 : 0;
    return cpl_comm_max(comm, all->lacking, all->n);
}

/* Collective. Who has it takes it, too, and drops it. */
static cpl_status send(cpl_comm *comm, const char *name, size_t bytes)
{
    entry *e = NULL;
    cpl_status status = entry_create(name, bytes, &e);
    const entry *mine = find(name);
    CPL_TRY_GO(cpl_comm_agree(comm, status), fail);
    if (comm->rank == 0)
        memcpy(e->data, mine->data, bytes);
    CPL_TRY_GO(cpl_comm_broadcast(comm, e->data, bytes, 0), fail);
    keep(e);
    return CPL_OK;
fail:
    if (e != NULL)
        entry_destroy(e);
    return status;
}

static cpl_status send_lacking(cpl_comm *comm, const contents *all)
{
    const char *name = all->names;
    for (int64_t i = 0; i < all->n; name += all->titles[i++].name_bytes)
        if (all->lacking[i] > 0)
            CPL_TRY(send(comm, name, all->titles[i].bytes));
    return CPL_OK;
}

cpl_status cpl_store_share(cpl_comm *comm, const char *prefix)
{
    if (comm->ops->is_one_process)
        return CPL_OK;
    contents all = {0};
    cpl_status status = announce(comm, prefix, &all);
    if (status == CPL_OK)
        status = send_lacking(comm, &all);
    cpli_free(all.names);
    cpli_free(all.lacking);
    cpli_free(all.titles);
    return status;
}
