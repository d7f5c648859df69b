/*
 * base.h: what every file of the core leans on. Errors with one sentence,
 * counted memory, small integer helpers. Knows nothing of cplab's nouns.
 */
#ifndef CPLI_BASE_H
#define CPLI_BASE_H

#include <assert.h>
#include <stdarg.h>
#include <string.h>

#include "cplab.h"

/* Records the thread's sentence (printf style) and returns `status`. Only the
 * function that first knows calls it; callers pass the status on. Exported,
 * like the memory below, for the host program. */
CPL_API cpl_status cpli_fail(cpl_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define CPL_TRY(expression)                   \
    do {                                      \
        cpl_status try_status = (expression); \
        if (try_status != CPL_OK)             \
            return try_status;                \
    } while (0)

/* Sets the local `status` and jumps to the label. */
#define CPL_TRY_GO(expression, label) \
    do {                              \
        status = (expression);        \
        if (status != CPL_OK)         \
            goto label;               \
    } while (0)

/* Our own mistakes; wrong arguments from outside are statuses. */
#define CPL_ASSERT(condition) assert(condition)

/* Counted memory, 64-byte aligned. cpli_alloc zeroes; n * size is checked for
 * overflow. Both write *out only on success; n = 0 gives a valid block. */
CPL_API cpl_status cpli_alloc(size_t n, size_t size, void **out);
/* Keeps the contents; *block may be NULL. New bytes are not zeroed. */
CPL_API cpl_status cpli_realloc(void **block, size_t n, size_t size);
CPL_API void cpli_free(void *block); /* = cpl_free */

/* The same accounting for blocks that a transport takes from elsewhere;
 * counting one fails where cpli_alloc would be made to fail. */
CPL_API cpl_status cpli_count_block(size_t bytes);
CPL_API void cpli_uncount_blocks(int64_t blocks, int64_t bytes);

/* Whether the machine has as much, whatever it promises. Errors: MEMORY. */
CPL_API cpl_status cpli_ask_for(size_t bytes);
/* Writes zeroes into memory that nobody has touched yet. Errors: MEMORY (it is
 * not there, after all). */
CPL_API cpl_status cpli_zero(void *memory, size_t bytes);

/* Typed spelling: CPL_ALLOC(n, &array). */
#define CPL_ALLOC(n, out) \
    cpli_alloc((size_t)(n), sizeof(**(out)), (void **)(out))

/* A heap copy of a printf-style text. */
CPL_API cpl_status cpli_text(char **out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* bf16 by its bits: the nearest one, and to even; a NaN stays a NaN. */
float cpli_from_bf16(uint16_t bits);
uint16_t cpli_to_bf16(float x);

static inline int64_t cpli_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t cpli_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t cpli_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
