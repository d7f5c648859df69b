/*
 * store.c: named bytes of this process, shared by all ranks: what one case
 * computed as a reference, the next one reads. A short list under a mutex.
 */
#include <pthread.h>

#include "base.h"
#include "host.h"

typedef struct entry {
    struct entry *next;
    char *name;
    void *data;
    size_t bytes;
} entry;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;

/* Under the mutex. */
static entry *find(const char *name)
{
    entry *e = entries;
    while (e != NULL && strcmp(e->name, name) != 0)
        e = e->next;
    return e;
}

static void entry_destroy(entry *e)
{
    cpli_free(e->name);
    cpli_free(e->data);
    cpli_free(e);
}

static cpl_status entry_create(const char *name, const void *data, size_t bytes,
                               entry **out)
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
    memcpy(e->data, data, bytes);
    e->bytes = bytes;
    *out = e;
    return CPL_OK;
}

cpl_status cpl_store_put(const char *name, const void *data, size_t bytes)
{
    entry *e;
    CPL_TRY(entry_create(name, data, bytes, &e));
    pthread_mutex_lock(&mutex);
    bool is_new = find(name) == NULL;
    if (is_new) {
        e->next = entries;
        entries = e;
    }
    pthread_mutex_unlock(&mutex);
    if (!is_new)
        entry_destroy(e);
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
