/*
 * modules.h: the Lua modules of this checkout, compiled once a process: every
 * rank of every run has a state of its own, and most of what a short one takes
 * would go into reading the same text again.
 */
#ifndef HOST_MODULES_H
#define HOST_MODULES_H

#include <lua.h>

/* Puts a loader before that of package.path, for modules below CPLAB_ROOT. */
void host_modules_install(lua_State *L);

#endif
