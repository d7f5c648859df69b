/*
 * state.c: making Lua states, and calling functions so that a failure keeps
 * both its message and the place it came from.
 */
#include "state.h"

#include <lauxlib.h>
#include <lualib.h>

#include "modules.h"

static const char traceback_key[] = "cplab.traceback";

static const char search_path[] = CPLAB_ROOT
    "/lua/?.lua;" CPLAB_ROOT "/lua/?/init.lua;" CPLAB_ROOT
    "/bindings/?.lua;" CPLAB_BUILD "/lua/?.lua;" CPLAB_ROOT "/?.lua;";

lua_State *host_state_open(void)
{
    lua_State *L = luaL_newstate();
    if (L == NULL)
        return NULL;
    luaL_openlibs(L);
    lua_getglobal(L, "package");
    lua_pushstring(L, search_path);
    lua_getfield(L, -2, "path");
    lua_concat(L, 2);
    lua_setfield(L, -2, "path");
    lua_pop(L, 1);
    host_modules_install(L);
    return L;
}

/* Any error object as a string: itself, what its __tostring says, or its kind.
 */
static void push_message(lua_State *L)
{
    if (lua_isstring(L, 1)) {
        lua_pushvalue(L, 1);
        lua_tostring(L, -1);
    } else if (lua_isnil(L, 1)) {
        lua_pushliteral(L, "(error object is nil)");
    } else if (!luaL_callmeta(L, 1, "__tostring") || !lua_isstring(L, -1)) {
        lua_pushfstring(L, "(error object is a %s)", luaL_typename(L, 1));
    }
}

static int keep_traceback(lua_State *L)
{
    luaL_traceback(L, L, NULL, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, traceback_key);
    push_message(L);
    return 1;
}

int host_state_call(lua_State *L, int n_arguments, int n_results)
{
    int base = lua_gettop(L) - n_arguments;
    lua_pushstring(L, "");
    lua_setfield(L, LUA_REGISTRYINDEX, traceback_key);
    lua_pushcfunction(L, keep_traceback);
    lua_insert(L, base);
    int status = lua_pcall(L, n_arguments, n_results, base);
    lua_remove(L, base);
    if (status != 0)
        lua_getfield(L, LUA_REGISTRYINDEX, traceback_key);
    return status;
}
