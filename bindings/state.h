/*
 * state.h: Lua states as the host makes them, and errors with message and
 * traceback apart. Shared by the controller (main.c) and the ranks (rank.c).
 */
#ifndef CPLAB_STATE_H
#define CPLAB_STATE_H

#include <lua.h>

/* A state with the standard libraries, whose package.path begins with the
 * folders of this build. NULL: out of memory. */
lua_State *host_state_open(void);

/*
 * Calls the function under n_arguments arguments on top of the stack, as
 * lua_pcall does. On failure (not 0) the stack holds the message, and above it
 * the traceback, in place of function and arguments.
 */
int host_state_call(lua_State *L, int n_arguments, int n_results);

#endif
