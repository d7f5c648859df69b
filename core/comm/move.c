/*
 * move.c: what happens to the bytes of a piece once both ends are in reach:
 * copy, add, swap. Used by every transport whose ranks share memory, and by
 * all of them for the pieces that a rank keeps.
 */
#include "comm.h"

#include <unistd.h>

/* Three of these stay in the first-level cache, so a swap reads and writes
 * each byte of memory once. */
enum { SWAP_BYTES = 8192 };

/* Where the system does not tell. */
enum { USUAL_CACHE_BYTES = 32 << 20 };

/* ---- copy ---- */

bool cpli_is_beyond_caches(int64_t bytes)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > (cache > 0 ? cache : USUAL_CACHE_BYTES);
}

void cpli_copy_bytes(void *dst, const void *src, size_t bytes, bool is_large)
{
    (void)is_large;
    memcpy(dst, src, bytes);
}

/* ---- add and swap ---- */

bool cpli_can_add(cpl_dtype dtype)
{
    return dtype != CPL_BF16;
}

static void add_f64(double *dst, const double *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += src[i];
}

static void add_f32(float *dst, const float *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += src[i];
}

/* Unsigned, because integers wrap around. */
static void add_i64(uint64_t *dst, const uint64_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += src[i];
}

static void add_i32(uint32_t *dst, const uint32_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += src[i];
}

void cpli_add_elements(cpl_dtype dtype, void *dst, const void *src, int64_t n)
{
    switch (dtype) {
    case CPL_F64:
        add_f64(dst, src, n);
        break;
    case CPL_F32:
        add_f32(dst, src, n);
        break;
    case CPL_I64:
        add_i64(dst, src, n);
        break;
    case CPL_I32:
        add_i32(dst, src, n);
        break;
    default:
        CPL_ASSERT(!"a dtype that cannot be added");
    }
}

void cpli_swap_bytes(void *a, void *b, size_t bytes)
{
    char buffer[SWAP_BYTES];
    char *p = a;
    char *q = b;
    while (bytes > 0) {
        size_t n = bytes < SWAP_BYTES ? bytes : SWAP_BYTES;
        memcpy(buffer, p, n);
        memcpy(p, q, n);
        memcpy(q, buffer, n);
        p += n;
        q += n;
        bytes -= n;
    }
}

void cpli_move_within(const cpli_transfer *transfer, const cpli_piece *piece)
{
    char *dst = (char *)transfer->dst + piece->offset;
    const char *src = (const char *)transfer->src + piece->peer_offset;
    size_t bytes = (size_t)piece->bytes;
    if (transfer->combine == CPLI_COPY)
        cpli_copy_bytes(dst, src, bytes, transfer->is_large);
    else if (transfer->combine == CPLI_ADD)
        cpli_add_elements(transfer->dtype, dst, src,
                          (int64_t)(bytes / cpl_dtype_bytes(transfer->dtype)));
    else if (piece->offset < piece->peer_offset)
        /* Listed from both ends; the lower one does it. */
        cpli_swap_bytes(dst, (char *)transfer->dst + piece->peer_offset, bytes);
}
