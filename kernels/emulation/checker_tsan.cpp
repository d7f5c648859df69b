/*
 * What the compiler calls in code that was built with -fsanitize=thread, in
 * place of libtsan: every access is judged, and atomics are carried out. The
 * names and their meaning are those of GCC 12 and clang 14.
 *
 * A volatile access counts as an atomic one, as PTX defines ld.volatile.
 */
#include "checker_parts.h"
#include <cstring>

using checker::judge;
using checker::pc_of;

#define PC __builtin_return_address(0)
#define SEEN extern "C" __attribute__((visibility("hidden")))

static inline void see(const void *at, size_t bytes, bool write, bool atomic,
                       bool aligned, const void *pc)
{
    judge({static_cast<const char *>(at), bytes, !write, write, atomic, aligned,
           false, pc_of(pc)});
}

static inline void see_update(const volatile void *at, size_t bytes,
                              const void *pc)
{
    judge({static_cast<const char *>(const_cast<const void *>(at)), bytes, true,
           true, true, true, false, pc_of(pc)});
}

SEEN void __tsan_init(void)
{
}

SEEN void __tsan_func_entry(void *)
{
}

SEEN void __tsan_func_exit(void)
{
}

SEEN void __tsan_vptr_update(void **, void *)
{
}

SEEN void __tsan_vptr_read(void **)
{
}

/* An "unaligned" access is one whose type demands less than its size. */
#define ACCESSES(bytes)                                        \
    SEEN void __tsan_read##bytes(void *at)                     \
    {                                                          \
        see(at, bytes, false, false, true, PC);                \
    }                                                          \
    SEEN void __tsan_write##bytes(void *at)                    \
    {                                                          \
        see(at, bytes, true, false, true, PC);                 \
    }                                                          \
    SEEN void __tsan_unaligned_read##bytes(void *at)           \
    {                                                          \
        see(at, bytes, false, false, false, PC);               \
    }                                                          \
    SEEN void __tsan_unaligned_write##bytes(void *at)          \
    {                                                          \
        see(at, bytes, true, false, false, PC);                \
    }                                                          \
    SEEN void __tsan_volatile_read##bytes(void *at)            \
    {                                                          \
        see(at, bytes, false, true, true, PC);                 \
    }                                                          \
    SEEN void __tsan_volatile_write##bytes(void *at)           \
    {                                                          \
        see(at, bytes, true, true, true, PC);                  \
    }                                                          \
    SEEN void __tsan_unaligned_volatile_read##bytes(void *at)  \
    {                                                          \
        see(at, bytes, false, true, false, PC);                \
    }                                                          \
    SEEN void __tsan_unaligned_volatile_write##bytes(void *at) \
    {                                                          \
        see(at, bytes, true, true, false, PC);                 \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
#undef ACCESSES

SEEN void __tsan_read_range(void *at, size_t bytes)
{
    see(at, bytes, false, false, false, PC);
}

SEEN void __tsan_write_range(void *at, size_t bytes)
{
    see(at, bytes, true, false, false, PC);
}

SEEN void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    see(from, bytes, false, false, false, PC);
    see(to, bytes, true, false, false, PC);
    return std::memcpy(to, from, bytes);
}

SEEN void *__tsan_memmove(void *to, const void *from, size_t bytes)
{
    see(from, bytes, false, false, false, PC);
    see(to, bytes, true, false, false, PC);
    return std::memmove(to, from, bytes);
}

SEEN void *__tsan_memset(void *to, int value, size_t bytes)
{
    see(to, bytes, true, false, false, PC);
    return std::memset(to, value, bytes);
}

#define UPDATE(bits, type, name)                                               \
    SEEN type __tsan_atomic##bits##_##name(volatile type *at, type value, int) \
    {                                                                          \
        see_update(at, sizeof value, PC);                                      \
        return __atomic_##name(at, value, __ATOMIC_SEQ_CST);                   \
    }

/* `exchange` is __atomic_exchange_n; the others are named as they are. */
#define ATOMICS(bits, type)                                                   \
    SEEN type __tsan_atomic##bits##_load(const volatile type *at, int)        \
    {                                                                         \
        see(const_cast<const type *>(at), sizeof *at, false, true, true, PC); \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                         \
    }                                                                         \
    SEEN void __tsan_atomic##bits##_store(volatile type *at, type value, int) \
    {                                                                         \
        see(const_cast<const type *>(at), sizeof *at, true, true, true, PC);  \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                        \
    }                                                                         \
    SEEN type __tsan_atomic##bits##_exchange(volatile type *at, type value,   \
                                             int)                             \
    {                                                                         \
        see_update(at, sizeof value, PC);                                     \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);              \
    }                                                                         \
    UPDATE(bits, type, fetch_add)                                             \
    UPDATE(bits, type, fetch_sub)                                             \
    UPDATE(bits, type, fetch_and)                                             \
    UPDATE(bits, type, fetch_or)                                              \
    UPDATE(bits, type, fetch_xor)                                             \
    UPDATE(bits, type, fetch_nand)                                            \
    COMPARE(bits, type, strong)                                               \
    COMPARE(bits, type, weak)

#define COMPARE(bits, type, strength)                                        \
    SEEN int __tsan_atomic##bits##_compare_exchange_##strength(              \
        volatile type *at, type *expected, type value, int, int)             \
    {                                                                        \
        see_update(at, sizeof value, PC);                                    \
        return __atomic_compare_exchange_n(                                  \
            at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }

ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

SEEN void __tsan_atomic_thread_fence(int)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

SEEN void __tsan_atomic_signal_fence(int)
{
}
