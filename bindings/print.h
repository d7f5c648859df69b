/* print.h: `print`, `io.write` and `os.exit` as a rank has them. */
#ifndef CPLAB_PRINT_H
#define CPLAB_PRINT_H

#include <lua.h>

/* Makes print, io.write and io.stdout write to stderr, each line whole and with
 * "[rank] " before it, and os.exit raise: a rank cannot end the process. */
void host_restrain_rank(lua_State *L, int rank);

/* Writes the line that io.write has begun and nobody ended. */
void host_flush_rank(lua_State *L, int rank);

#endif
