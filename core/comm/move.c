/*
 * move.c: what happens to the bytes of a piece once both ends are in reach:
 * copy, add, swap. Used by every transport whose ranks share memory, and by
 * all of them for the pieces that a rank keeps.
 */
#include "comm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    LINE_BYTES = 64,
    STREAMED_BYTES = 1024, /* shorter copies are mostly heads and tails */
    AHEAD_BYTES = 2048     /* that are read before they are needed */
};

/* ---- copy ---- */

#if defined(__x86_64__)

/* A line that goes to memory without being read into the caches first. */
__attribute__((target("avx2"))) static inline void stream_line(char *dst,
                                                               const char *src)
{
    __m256i low = _mm256_loadu_si256((const __m256i *)src);
    __m256i high = _mm256_loadu_si256((const __m256i *)(src + 32));
    _mm256_stream_si256((__m256i *)dst, low);
    _mm256_stream_si256((__m256i *)(dst + 32), high);
}

/* Whole lines. The processor by itself reads ahead to the end of a page. */
__attribute__((target("avx2"))) static void
stream_lines(char *dst, const char *src, size_t bytes)
{
    size_t i = 0;
    for (; i + AHEAD_BYTES < bytes; i += LINE_BYTES) {
        __builtin_prefetch(src + i + AHEAD_BYTES);
        stream_line(dst + i, src + i);
    }
    for (; i < bytes; i += LINE_BYTES)
        stream_line(dst + i, src + i);
}

static bool can_stream(void)
{
    return __builtin_cpu_supports("avx2");
}

void cpli_copy_fence(void)
{
    _mm_sfence();
}

#else

static void stream_lines(char *dst, const char *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

static bool can_stream(void)
{
    return false;
}

void cpli_copy_fence(void)
{
}

#endif

void cpli_fetch_ahead(const void *src, int64_t bytes)
{
    for (int64_t i = 0; i < cpli_min(bytes, AHEAD_BYTES); i += LINE_BYTES)
        __builtin_prefetch((const char *)src + i);
}

void cpli_copy_bytes(void *dst, const void *src, size_t bytes, bool is_large)
{
    if (!is_large || bytes < STREAMED_BYTES || !can_stream()) {
        memcpy(dst, src, bytes);
        return;
    }
    size_t head = -(uintptr_t)dst % LINE_BYTES;
    size_t lines = (bytes - head) / LINE_BYTES * LINE_BYTES;
    size_t tail = bytes - head - lines;
    char *to = (char *)dst + head;
    const char *from = (const char *)src + head;
    memcpy(dst, src, head);
    stream_lines(to, from, lines);
    memcpy(to + lines, from + lines, tail);
}

/* ---- add and swap ---- */

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

/* The sum is f32's, rounded. */
static void add_bf16(uint16_t *dst, const uint16_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = cpli_to_bf16(cpli_from_bf16(dst[i]) + cpli_from_bf16(src[i]));
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
    case CPL_BF16:
        add_bf16(dst, src, n);
        break;
    case CPL_N_DTYPES:
        CPL_ASSERT(!"no dtype");
    }
}

/* A line of each is read before either is written, all in registers. */
void cpli_swap_bytes(void *a, void *b, size_t bytes)
{
    char *p = a;
    char *q = b;
    char x[LINE_BYTES];
    char y[LINE_BYTES];
    for (; bytes >= LINE_BYTES; bytes -= LINE_BYTES) {
        memcpy(x, p, LINE_BYTES);
        memcpy(y, q, LINE_BYTES);
        memcpy(p, y, LINE_BYTES);
        memcpy(q, x, LINE_BYTES);
        p += LINE_BYTES;
        q += LINE_BYTES;
    }
    for (size_t i = 0; i < bytes; i++) {
        char byte = p[i];
        p[i] = q[i];
        q[i] = byte;
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

/* Two partners share a swap: the lower rank does the first half. */
cpli_range cpli_swap_share(const cpli_piece *piece, int rank)
{
    int64_t half = piece->bytes / 2 / 64 * 64;
    if (rank < piece->peer)
        return (cpli_range){0, half};
    return (cpli_range){half, piece->bytes};
}

void cpli_move_between(const cpli_transfer *mine, const cpli_piece *piece,
                       void *theirs, int rank)
{
    char *dst = (char *)mine->dst + piece->offset;
    char *src = theirs;
    cpli_range share = cpli_swap_share(piece, rank);
    if (mine->combine == CPLI_COPY)
        cpli_copy_bytes(dst, src, (size_t)piece->bytes, mine->is_large);
    else if (mine->combine == CPLI_ADD)
        cpli_add_elements(mine->dtype, dst, src,
                          piece->bytes / (int64_t)cpl_dtype_bytes(mine->dtype));
    else
        cpli_swap_bytes(dst + share.begin, src + share.begin,
                        (size_t)(share.end - share.begin));
}
