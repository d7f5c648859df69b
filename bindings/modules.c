/*
 * modules.c: a table of compiled modules that all states of the process share.
 * An entry is good while its file has the same time and size. Its memory is the
 * states', as what LuaJIT takes: it is not counted, and never given back.
 */
#define _POSIX_C_SOURCE 200809L
#include "modules.h"

#include <lauxlib.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct entry {
    struct entry *next;
    struct timespec time; /* of the file */
    off_t size;
    char *code;
    size_t bytes;
    char path[];
} entry;

static entry *entries;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards entries */

static bool is_of(const entry *one, const char *path, const struct stat *file)
{
    return one->size == file->st_size &&
           one->time.tv_sec == file->st_mtim.tv_sec &&
           one->time.tv_nsec == file->st_mtim.tv_nsec &&
           strcmp(one->path, path) == 0;
}

/* Entries stay what and where they are. */
static const entry *find(const char *path, const struct stat *file)
{
    pthread_mutex_lock(&mutex);
    const entry *one = entries;
    pthread_mutex_unlock(&mutex);
    while (one != NULL && !is_of(one, path, file))
        one = one->next;
    return one;
}

static int append(lua_State *L, const void *part, size_t bytes, void *to)
{
    entry *one = to;
    char *code = realloc(one->code, one->bytes + bytes);
    (void)L;
    if (code == NULL)
        return 1;
    memcpy(code + one->bytes, part, bytes);
    one->code = code;
    one->bytes += bytes;
    return 0;
}

/* Keeps the function at the top of the stack; without memory it is not kept. */
static void keep(lua_State *L, const char *path, const struct stat *file)
{
    entry *one = calloc(1, sizeof *one + strlen(path) + 1);
    if (one == NULL)
        return;
    memcpy(one->path, path, strlen(path) + 1);
    one->time = file->st_mtim;
    one->size = file->st_size;
    if (lua_dump(L, append, one) != 0) {
        free(one->code);
        free(one);
        return;
    }
    pthread_mutex_lock(&mutex);
    one->next = entries;
    entries = one;
    pthread_mutex_unlock(&mutex);
}

/* The path of a module of ours, or NULL. */
static const char *path_of(lua_State *L, const char *name)
{
    static const char root[] = CPLAB_ROOT "/";
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "searchpath");
    lua_pushstring(L, name);
    lua_getfield(L, -3, "path");
    lua_call(L, 2, 1);
    const char *path = lua_tostring(L, -1); /* stays on the stack */
    bool is_ours = path != NULL && strncmp(path, root, sizeof root - 1) == 0;
    return is_ours ? path : NULL;
}

/* Where it finds nothing the next loader does, or says what is wrong. */
static int load(lua_State *L)
{
    struct stat file;
    const char *path = path_of(L, luaL_checkstring(L, 1));
    if (path == NULL || stat(path, &file) != 0)
        return 0;
    const entry *one = find(path, &file);
    if (one != NULL)
        return luaL_loadbuffer(L, one->code, one->bytes, path) == 0 ? 1 : 0;
    if (luaL_loadfile(L, path) != 0)
        return 0;
    keep(L, path, &file);
    return 1;
}

void host_modules_install(lua_State *L)
{
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaders");
    for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushcfunction(L, load);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}
