/*
 * processes.c: how this program becomes one of several processes, and how they
 * end together.
 */
#define _GNU_SOURCE /* on_exit, process_vm_readv */
#include "processes.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base.h"
#include "guard.h"
#include "letter.h"
#include "rank.h"

enum { SET_UP_IS_BROKEN = 3 };

host_processes host_world;

int cpl_host_n_processes(void)
{
    return host_world.ops != NULL ? host_world.size : 0;
}

int cpl_host_process(void)
{
    return host_world.rank;
}

/* ---- opening ---- */

bool host_processes_are_asked_for(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL ||
           getenv("PMIX_RANK") != NULL;
}

/* This process's number as the environment has it, before MPI is there. */
static int rank_by_environment(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    if (text == NULL)
        text = getenv("PMIX_RANK");
    return text != NULL ? atoi(text) : 0;
}

/* Whether a process may read another's memory, as Open MPI wants to. */
static bool may_read_peers(void)
{
    char from = 1;
    char to = 0;
    struct iovec mine = {&to, 1};
    struct iovec other = {&from, 1};
    return process_vm_readv(getpid(), &mine, 1, &other, 1, 0) == 1;
}

static bool is_one_node(void)
{
    const char *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *all = getenv("OMPI_COMM_WORLD_SIZE");
    return here != NULL && all != NULL && strcmp(here, all) == 0;
}

/* What Open MPI is told before it starts, unless the user told it. It would
 * print a page where one sentence says it: of a crash (whose signal the
 * launcher names), of parts that it lacks. On one node only two of its parts
 * are of use, and looking for others takes most of its start. */
static void advise(void)
{
    setenv("OMPI_MCA_opal_signal", "", 0);
    setenv("OMPI_MCA_btl_base_warn_component_unused", "0", 0);
    if (!may_read_peers())
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    if (is_one_node()) {
        setenv("OMPI_MCA_pml", "ob1", 0);
        setenv("OMPI_MCA_btl", "self,vader", 0);
    }
}

/* The folder of this program, where the plug-in lies, too. */
static void plug_in_path(char *path, size_t room)
{
    char program[PATH_MAX] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        program[0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL)
        *slash = '\0';
    snprintf(path, room, "%s/libcplab_mpi.so", program);
}

bool cpl_host_has_mpi(void)
{
    char path[PATH_MAX + 32];
    plug_in_path(path, sizeof path);
    return access(path, F_OK) == 0;
}

typedef const cpli_processes_ops *plug_in_entry(void);

static cpl_status load(const cpli_processes_ops **out)
{
    char path[PATH_MAX + 32];
    plug_in_path(path, sizeof path);
    if (!cpl_host_has_mpi())
        return cpli_fail(CPL_UNSUPPORTED,
                         "mpirun started this, but the build has no MPI: "
                         "install libopenmpi-dev and openmpi-bin");
    void *plug_in = dlopen(path, RTLD_NOW);
    if (plug_in == NULL)
        return cpli_fail(CPL_SYSTEM, "cannot open the MPI plug-in: %s",
                         dlerror());
    plug_in_entry *entry;
    *(void **)&entry = dlsym(plug_in, "cpli_mpi_processes");
    const cpli_processes_ops *ops = entry != NULL ? entry() : NULL;
    int version = ops != NULL ? ops->version : 0;
    if (version != CPLI_PROCESSES_VERSION)
        return cpli_fail(CPL_MISMATCH,
                         "the MPI plug-in has version %d, this program wants "
                         "%d: build both again",
                         version, CPLI_PROCESSES_VERSION);
    *out = ops;
    return CPL_OK;
}

static cpl_status open_world(void)
{
    host_processes world = {0};
    CPL_TRY(load(&world.ops));
    CPL_TRY(world.ops->open(&world.all));
    world.rank = world.ops->rank(world.all);
    world.size = world.ops->size(world.all);
    host_world = world;
    return CPL_OK;
}

bool host_processes_open(void)
{
    advise();
    if (open_world() == CPL_OK)
        return true;
    /* mpirun ends all as soon as one has ended: the one that speaks is first.
     */
    if (rank_by_environment() == 0)
        fprintf(stderr, "cplab: %s\n", cpl_last_error());
    else
        sleep(2);
    return false;
}

/* ---- ending ---- */

static void end_all(int status, void *unused)
{
    (void)unused;
    const host_processes *world = &host_world;
    /* mpirun takes a second or two to end the others where one process simply
     * returns another status than 0. */
    if (status != 0 || cpl_host_has_stuck())
        world->ops->abort(world->all, status);
    for (int process = 1; process < world->size; process++)
        if (world->ops->send(world->all, process, LETTER_STOP, NULL, 0) !=
            CPL_OK)
            host_processes_give_up(cpl_last_error());
    world->ops->close(world->all);
}

void host_processes_end_at_exit(void)
{
    on_exit(end_all, NULL);
}

void host_processes_give_up(const char *sentence)
{
    fprintf(stderr, "cplab: process %d: %s\n", host_world.rank, sentence);
    host_world.ops->abort(host_world.all, SET_UP_IS_BROKEN);
}

void cpl_host_exit(int status)
{
    fflush(NULL);
    if (host_world.ops != NULL)
        host_world.ops->abort(host_world.all, status);
    _exit(status);
}

/* ---- a rank of a group of processes ---- */

static void fail(const host_rank *self, const char *message)
{
    host_guard_lock();
    host_world.ops->fail(self->comm, message);
    host_guard_unlock();
}

static void leave(const host_rank *self)
{
    host_guard_lock();
    host_world.ops->leave(self->comm);
    host_guard_unlock();
}

const host_rank_ops host_process_rank_ops = {
    .fail = fail, .leave = leave, .max_result = letter_max_bytes};
