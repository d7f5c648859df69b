/*
 * print.c: what a rank may do to its surroundings. Results go to stdout and
 * are the controller's, so ranks print to stderr.
 */
#define _POSIX_C_SOURCE 200809L
#include "print.h"

#include <lauxlib.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What the functions here know: all of them the prefix; io.write and io.output
 * also those that they replace, the file that gets what goes to stdout, and
 * what the rank sees as io.stdout. */
enum { PREFIX = 1, WRITE, OUTPUT, REAL, STDOUT, N_UPVALUES = STDOUT };

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
    const char *prefix = lua_tostring(L, lua_upvalueindex(PREFIX));
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

/* Where a line that io.write has begun waits for its end. */
static const char begun_key[] = "cplab.begun";

/* What a method `write` of a file does, of a function the arguments from
 * `first` on: whole lines go out, the rest waits. */
static void write_lines(lua_State *L, int first)
{
    const char *prefix = lua_tostring(L, lua_upvalueindex(PREFIX));
    int n = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, begun_key);
    for (int i = first; i <= n; i++) {
        luaL_checkstring(L, i);
        lua_pushvalue(L, i);
    }
    lua_concat(L, lua_gettop(L) - n);
    size_t bytes;
    const char *text = lua_tolstring(L, -1, &bytes);
    size_t whole = bytes;
    while (whole > 0 && text[whole - 1] != '\n')
        whole--;
    lua_pushlstring(L, text + whole, bytes - whole);
    lua_setfield(L, LUA_REGISTRYINDEX, begun_key);
    if (whole == 0)
        return;
    luaL_Buffer lines;
    luaL_buffinit(L, &lines);
    luaL_addstring(&lines, prefix);
    add_lines(&lines, text, whole - 1, prefix);
    luaL_addchar(&lines, '\n');
    luaL_pushresult(&lines);
    text = lua_tolstring(L, -1, &bytes);
    fwrite(text, 1, bytes, stderr);
}

/* Calls a function with all arguments of the running one. */
static int forward(lua_State *L, int function)
{
    lua_pushvalue(L, function);
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

/* A rank may have sent its output to a file: then that is where it goes. */
static int io_write(lua_State *L)
{
    lua_pushvalue(L, lua_upvalueindex(OUTPUT));
    lua_call(L, 0, 1);
    bool is_stdout = lua_rawequal(L, -1, lua_upvalueindex(REAL));
    lua_pop(L, 1);
    if (!is_stdout)
        return forward(L, lua_upvalueindex(WRITE));
    write_lines(L, 1);
    lua_pushboolean(L, 1);
    return 1;
}

static int stdout_write(lua_State *L)
{
    write_lines(L, 2);
    lua_pushboolean(L, 1);
    return 1;
}

static int io_output(lua_State *L)
{
    if (lua_rawequal(L, 1, lua_upvalueindex(STDOUT))) {
        lua_pushvalue(L, lua_upvalueindex(REAL));
        lua_replace(L, 1);
    }
    return forward(L, lua_upvalueindex(OUTPUT));
}

/* flush, setvbuf, close: a line is written when it is complete. */
static int do_nothing(lua_State *L)
{
    lua_pushboolean(L, 1);
    return 1;
}

static int stdout_name(lua_State *L)
{
    lua_pushliteral(L, "file (stdout of a rank)");
    return 1;
}

/* Pushes what stands for io.stdout; the prefix is on top, and stays. */
static void push_stdout(lua_State *L)
{
    static const char *const quiet[] = {"flush", "setvbuf", "close"};
    lua_newtable(L);
    lua_pushvalue(L, -2);
    lua_pushcclosure(L, stdout_write, 1);
    lua_setfield(L, -2, "write");
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++) {
        lua_pushcfunction(L, do_nothing);
        lua_setfield(L, -2, quiet[i]);
    }
    lua_newtable(L);
    lua_pushcfunction(L, stdout_name);
    lua_setfield(L, -2, "__tostring");
    lua_setmetatable(L, -2);
}

/* Pops the prefix. */
static void restrain_io(lua_State *L)
{
    lua_pushliteral(L, "");
    lua_setfield(L, LUA_REGISTRYINDEX, begun_key);
    lua_getglobal(L, "io");
    int io = lua_gettop(L);
    lua_getfield(L, io, "output");
    lua_getfield(L, io, "stderr");
    lua_call(L, 1, 0); /* io.output():write() is a way to stdout, too */
    lua_pushvalue(L, io - 1);
    lua_getfield(L, io, "write");
    lua_getfield(L, io, "output");
    lua_getfield(L, io, "stderr");
    lua_pushvalue(L, io - 1);
    push_stdout(L);
    lua_remove(L, -2);
    lua_pushvalue(L, -1);
    lua_setfield(L, io, "stdout");
    for (int i = 1; i <= N_UPVALUES; i++)
        lua_pushvalue(L, io + i);
    lua_pushcclosure(L, io_write, N_UPVALUES);
    lua_setfield(L, io, "write");
    lua_pushcclosure(L, io_output, N_UPVALUES);
    lua_setfield(L, io, "output");
    lua_settop(L, io - 2);
}

void host_flush_rank(lua_State *L, int rank)
{
    lua_getfield(L, LUA_REGISTRYINDEX, begun_key);
    size_t bytes;
    const char *text = lua_tolstring(L, -1, &bytes);
    if (text != NULL && bytes > 0) {
        flockfile(stderr);
        fprintf(stderr, "[%d] ", rank);
        fwrite(text, 1, bytes, stderr);
        fputc('\n', stderr);
        funlockfile(stderr);
    }
    lua_pop(L, 1);
}

static int refuse_exit(lua_State *L)
{
    return luaL_error(L, "os.exit: a rank cannot end the process; raise an "
                         "error, or return");
}

void host_restrain_rank(lua_State *L, int rank)
{
    lua_pushfstring(L, "[%d] ", rank);
    lua_pushvalue(L, -1);
    restrain_io(L);
    lua_pushcclosure(L, print, 1);
    lua_setglobal(L, "print");
    lua_getglobal(L, "os");
    lua_pushcfunction(L, refuse_exit);
    lua_setfield(L, -2, "exit");
    lua_pop(L, 1);
}
