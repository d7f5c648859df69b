/*
 * memory.c: counted memory. Every block has a header of one cache line that
 * keeps its size, so that live bytes, the peak and leaks are known exactly;
 * a spec can make the n-th allocation fail.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base.h"

enum { HEADER_BYTES = 64 };

static atomic_llong live_blocks;
static atomic_llong live_bytes;
static atomic_llong peak_bytes;
static atomic_llong n_allocations;
static _Thread_local int64_t allocations_left = -1;

static void account(int64_t blocks, int64_t bytes)
{
    atomic_fetch_add(&live_blocks, blocks);
    long long now = atomic_fetch_add(&live_bytes, bytes) + bytes;
    long long peak = atomic_load(&peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, now))
        continue;
}

static bool allowed(void)
{
    if (allocations_left == 0)
        return false;
    if (allocations_left > 0)
        allocations_left--;
    return true;
}

static cpl_status take(size_t n, size_t size, void **out)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) ||
        bytes > SIZE_MAX / 2 - HEADER_BYTES)
        return cpli_fail(CPL_MEMORY, "memory: %zu items of %zu bytes", n, size);
    CPL_TRY(cpli_ask_for(bytes));
    size_t rounded = (bytes + HEADER_BYTES + 63) / 64 * 64;
    char *block = allowed() ? aligned_alloc(64, rounded) : NULL;
    if (block == NULL)
        return cpli_fail(CPL_MEMORY, "memory: no %zu bytes left", bytes);
    *(size_t *)block = bytes;
    atomic_fetch_add(&n_allocations, 1);
    account(1, (int64_t)bytes);
    *out = block + HEADER_BYTES;
    return CPL_OK;
}

cpl_status cpli_count_block(size_t bytes)
{
    if (!allowed())
        return cpli_fail(CPL_MEMORY, "memory: no %zu bytes left", bytes);
    atomic_fetch_add(&n_allocations, 1);
    account(1, (int64_t)bytes);
    return CPL_OK;
}

void cpli_uncount_blocks(int64_t blocks, int64_t bytes)
{
    account(-blocks, -bytes);
}

static size_t bytes_of(const void *block)
{
    return *(const size_t *)((const char *)block - HEADER_BYTES);
}

cpl_status cpli_alloc(size_t n, size_t size, void **out)
{
    void *block = NULL;
    CPL_TRY(take(n, size, &block));
    cpl_status status = cpli_zero(block, n * size);
    if (status != CPL_OK) {
        cpli_free(block);
        return status;
    }
    *out = block;
    return CPL_OK;
}

cpl_status cpli_realloc(void **block, size_t n, size_t size)
{
    void *grown = NULL;
    CPL_TRY(take(n, size, &grown));
    if (*block != NULL) {
        size_t old = bytes_of(*block);
        memcpy(grown, *block, old < n * size ? old : n * size);
        cpli_free(*block);
    }
    *block = grown;
    return CPL_OK;
}

void cpli_free(void *block)
{
    if (block == NULL)
        return;
    account(-1, -(int64_t)bytes_of(block));
    free((char *)block - HEADER_BYTES);
}

void cpl_free(void *memory)
{
    cpli_free(memory);
}

cpl_status cpli_text(char **out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0)
        return cpli_fail(CPL_INVALID, "memory: bad format \"%s\"", format);
    char *text;
    CPL_TRY(CPL_ALLOC(length + 1, &text));
    va_start(arguments, format);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    *out = text;
    return CPL_OK;
}

void cpl_memory(cpl_memory_stats *out)
{
    out->live_blocks = atomic_load(&live_blocks);
    out->live_bytes = atomic_load(&live_bytes);
    out->peak_bytes = atomic_load(&peak_bytes);
    out->n_allocations = atomic_load(&n_allocations);
}

void cpl_memory_reset_peak(void)
{
    atomic_store(&peak_bytes, atomic_load(&live_bytes));
}

void cpl_memory_fail_after(int64_t n)
{
    allocations_left = n;
}
