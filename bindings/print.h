/* print.h: `print` and `os.exit` as a rank has them. */
#ifndef CPLAB_PRINT_H
#define CPLAB_PRINT_H

#include <lua.h>

/* Makes print write to stderr, each line whole and with "[rank] " before it,
 * and os.exit raise: a rank cannot end the process. */
void host_restrain_rank(lua_State *L, int rank);

#endif
