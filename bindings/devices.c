/*
 * devices.c: opening the plug-ins of devices, and the ranks' way into them and
 * out. A machine without a device, or a build without a plug-in, is no
 * accident: one sentence says what is missing.
 */
#define _GNU_SOURCE /* readlink */
#include "devices.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base.h"
#include "comm/devices.h"

/* By host_device.kind. */
static const char *const kinds[] = {"cpu", "cuda", "cuda-emulated"};
static const char *const files[] = {NULL, "libcplab_cuda.so",
                                    "libcplab_cuda_emulated.so"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };
/* By host_device.transport. */
static const char *const transports[] = {NULL, "direct", "nccl"};
enum { N_TRANSPORTS = sizeof transports / sizeof *transports };

/* Set to anything, the emulated devices are those whose accesses are checked;
 * they come with what specs need. */
#define CHECK "CPLAB_CUDA_CHECK"

static const cpli_devices_ops *opened[N_KINDS];
static host_device chosen;

host_device host_devices_chosen(void)
{
    return chosen;
}

/* ---- opening ---- */

static int number_of(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (names[i] == name ||
            (names[i] != NULL && name != NULL && strcmp(names[i], name) == 0))
            return i;
    return -1;
}

static const char *file_of(int kind)
{
    bool is_emulated = strcmp(kinds[kind], "cuda-emulated") == 0;
    return is_emulated && getenv(CHECK) != NULL ? "libcplab_cuda_checked.so"
                                                : files[kind];
}

/* Beside this program. */
static void path_of(int kind, char *path, size_t room)
{
    char program[PATH_MAX] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        program[0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(path, room, "%s/%s", program, file_of(kind));
}

typedef cpl_status plug_in_door(const cpli_devices_ops **out);

static cpl_status load(int kind, const cpli_devices_ops **out)
{
    char path[PATH_MAX + 64];
    path_of(kind, path, sizeof path);
    if (access(path, F_OK) != 0)
        return cpli_fail(CPL_UNSUPPORTED,
                         "device %s: this build is without it: CUDA's compiler "
                         "nvcc was not there when it was made",
                         kinds[kind]);
    void *plug_in = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plug_in == NULL)
        return cpli_fail(CPL_SYSTEM, "device %s: cannot open its plug-in: %s",
                         kinds[kind], dlerror());
    plug_in_door *door;
    const cpli_devices_ops *ops = NULL;
    *(void **)&door = dlsym(plug_in, "cpl_cuda_open");
    if (door != NULL)
        CPL_TRY(door(&ops));
    int version = ops != NULL ? ops->version : 0;
    if (version != CPLI_DEVICES_VERSION)
        return cpli_fail(CPL_MISMATCH,
                         "device %s: the plug-in has version %d, this program "
                         "wants %d: build both again",
                         kinds[kind], version, CPLI_DEVICES_VERSION);
    *out = ops;
    return CPL_OK;
}

static cpl_status open_kind(int kind)
{
    if (kind == 0 || opened[kind] != NULL)
        return CPL_OK;
    return load(kind, &opened[kind]);
}

static cpl_status kind_named(const char *name, int *out)
{
    *out = number_of(kinds, N_KINDS, name);
    if (*out >= 0)
        return CPL_OK;
    return cpli_fail(CPL_INVALID,
                     "device %s: there is no such device; there are: cpu cuda "
                     "cuda-emulated",
                     name);
}

cpl_status cpl_host_look(const char *device, cpl_devices_found *out)
{
    int kind;
    CPL_TRY(kind_named(device, &kind));
    CPL_TRY(open_kind(kind));
    if (kind == 0)
        *out = (cpl_devices_found){0};
    else
        opened[kind]->look(out);
    return CPL_OK;
}

cpl_status cpl_host_use_device(const char *device, const char *transport)
{
    host_device wanted;
    cpl_devices_found found;
    CPL_TRY(kind_named(device, &wanted.kind));
    wanted.transport = number_of(transports, N_TRANSPORTS, transport);
    if (wanted.transport < 0)
        return cpli_fail(CPL_INVALID,
                         "device %s: no transport \"%s\"; there are: direct "
                         "nccl",
                         device, transport);
    CPL_TRY(cpl_host_look(device, &found));
    if (wanted.kind != 0 && found.n_devices == 0)
        return cpli_fail(CPL_UNSUPPORTED, "%s", found.problem);
    chosen = wanted;
    return CPL_OK;
}

/* ---- ranks ---- */

/* Of this thread: its rank's comm on a device, or the group of one that it
 * made, which has a world of its own. By kind. */
typedef struct place {
    cpl_comm *comm;
    cpl_world *world; /* NULL: the comm is its rank's */
} place;
static _Thread_local place places[N_KINDS];

cpl_status host_devices_join(const host_device *device, cpl_comm *host,
                             cpl_comm **out)
{
    if (device->kind == 0)
        return CPL_OK;
    /* All agree on whether all can. */
    CPL_TRY(cpl_comm_agree(host, open_kind(device->kind)));
    CPL_TRY(
        opened[device->kind]->join(host, transports[device->transport], out));
    places[device->kind].comm = *out;
    return CPL_OK;
}

void host_devices_leave(const host_device *device, cpl_comm *comm, bool failed)
{
    places[device->kind] = (place){0};
    if (comm != NULL)
        opened[device->kind]->leave(comm, failed);
}

void host_devices_part(const host_device *device, cpl_comm *comm)
{
    if (comm != NULL)
        opened[device->kind]->part(comm);
}

/* ---- a thread alone ---- */

static void leave_alone(int kind)
{
    place *here = &places[kind];
    if (here->world == NULL)
        return;
    opened[kind]->leave(here->comm, false);
    opened[kind]->part(here->comm);
    cpl_world_destroy(here->world);
    *here = (place){0};
}

static pthread_key_t at_end_of_thread;

static void end_thread(void *any)
{
    (void)any;
    for (int kind = 1; kind < N_KINDS; kind++)
        leave_alone(kind);
}

static void make_key(void)
{
    pthread_key_create(&at_end_of_thread, end_thread);
}

/* Nobody is waited for in a group of one: any deadline will do. */
static cpl_status join_alone(int kind)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    place *here = &places[kind];
    pthread_once(&once, make_key);
    CPL_TRY(cpl_world_create(1, 1, &here->world));
    cpl_status status = opened[kind]->join(cpl_world_comm(here->world, 0),
                                           "direct", &here->comm);
    if (status == CPL_OK && pthread_setspecific(at_end_of_thread, places) == 0)
        return CPL_OK;
    if (status == CPL_OK)
        leave_alone(kind);
    else
        cpl_world_destroy(here->world);
    *here = (place){0};
    return status != CPL_OK
               ? status
               : cpli_fail(CPL_MEMORY, "device %s: no memory", kinds[kind]);
}

cpl_status cpl_host_device_here(const char *device, cpl_comm **out)
{
    int kind;
    CPL_TRY(kind_named(device, &kind));
    CPL_TRY(open_kind(kind));
    if (kind != 0 && places[kind].comm == NULL)
        CPL_TRY(join_alone(kind));
    *out = kind != 0 ? places[kind].comm : cpl_comm_self();
    return CPL_OK;
}
