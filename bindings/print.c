/*
 * print.c: what a rank may do to its surroundings. Results go to stdout and
 * are the controller's, so ranks print to stderr.
 */
#include "print.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

/* Adds text, and the prefix after each line break in it. */
static void add_lines(luaL_Buffer *out, const char *text, size_t bytes,
                      const char *prefix)
{
    for (size_t i = 0; i < bytes; i++) {
        luaL_addchar(out, text[i]);
        if (text[i] == '\n')
            luaL_addstring(out, prefix);
    }
}

static int print(lua_State *L)
{
    const char *prefix = lua_tostring(L, lua_upvalueindex(1));
    int n = lua_gettop(L);
    lua_getglobal(L, "tostring");
    for (int i = 1; i <= n; i++) {
        lua_pushvalue(L, n + 1);
        lua_pushvalue(L, i);
        lua_call(L, 1, 1);
        if (lua_tostring(L, -1) == NULL)
            return luaL_error(L, "'tostring' must return a string to 'print'");
        lua_replace(L, i);
    }
    luaL_Buffer line;
    luaL_buffinit(L, &line);
    luaL_addstring(&line, prefix);
    for (int i = 1; i <= n; i++) {
        size_t bytes;
        const char *text = lua_tolstring(L, i, &bytes);
        if (i > 1)
            luaL_addchar(&line, '\t');
        add_lines(&line, text, bytes, prefix);
    }
    luaL_addchar(&line, '\n');
    luaL_pushresult(&line);
    size_t bytes;
    const char *text = lua_tolstring(L, -1, &bytes);
    fwrite(text, 1, bytes, stderr); /* one write: lines never mix */
    return 0;
}

static int refuse_exit(lua_State *L)
{
    return luaL_error(L, "os.exit: a rank cannot end the process; raise an "
                         "error, or return");
}

void host_restrain_rank(lua_State *L, int rank)
{
    lua_pushfstring(L, "[%d] ", rank);
    lua_pushcclosure(L, print, 1);
    lua_setglobal(L, "print");
    lua_getglobal(L, "os");
    lua_pushcfunction(L, refuse_exit);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
}
