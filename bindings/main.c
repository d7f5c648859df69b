/*
 * main.c: the host program. It runs one Lua script, the controller; the
 * script's ranks are made by run.c. Under mpirun the script runs in process 0,
 * and the other processes serve it.
 *
 *     cplab-host SCRIPT [ARGUMENTS...]
 *
 * Exit status: what the script gives to os.exit, 0 where it returns, 1 where
 * it raises, 2 without a script, 3 where Lua or MPI cannot start.
 */
#define _POSIX_C_SOURCE 200809L
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "blas.h"
#include "host.h"
#include "processes.h"
#include "state.h"

bool cpl_host_is_terminal(int fd)
{
    return isatty(fd) == 1;
}

/* arg[0] is the script, as the stand-alone interpreter has it. */
static void set_arguments(lua_State *L, int argc, char **argv)
{
    lua_createtable(L, argc, 0);
    for (int i = 0; i < argc; i++) {
        lua_pushstring(L, argv[i]);
        lua_rawseti(L, -2, i - 1);
    }
    lua_setglobal(L, "arg");
}

static int run_script(lua_State *L, int argc, char **argv)
{
    if (luaL_loadfile(L, argv[1]) != 0) {
        fprintf(stderr, "cplab-host: %s\n", lua_tostring(L, -1));
        return 1;
    }
    for (int i = 2; i < argc; i++)
        lua_pushstring(L, argv[i]);
    if (host_state_call(L, argc - 2, 0) != 0) {
        fprintf(stderr, "cplab-host: %s\n%s\n", lua_tostring(L, -2),
                lua_tostring(L, -1));
        return 1;
    }
    return 0;
}

static int run_controller(int argc, char **argv)
{
    lua_State *L = host_state_open();
    if (L == NULL) {
        fprintf(stderr, "cplab-host: no memory for a Lua state\n");
        return 3;
    }
    set_arguments(L, argc, argv);
    int status = run_script(L, argc, argv);
    if (cpl_host_has_stuck())
        cpl_host_exit(status);
    lua_close(L);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: cplab-host SCRIPT [ARGUMENTS...]\n");
        return 2;
    }
    host_blas_restart(argv);
    cpl_kernels_one_thread();
    if (host_processes_are_asked_for()) {
        if (!host_processes_open())
            return 3;
        if (cpl_host_process() != 0)
            return host_processes_serve();
        host_processes_end_at_exit();
    }
    return run_controller(argc, argv);
}
