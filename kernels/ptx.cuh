/*
 * ptx.cuh: every instruction that CUDA C++ has no word for, as an inline
 * function with its meaning on the host beside it. Source: the PTX ISA, "Data
 * Movement and Conversion Instructions: ld, st, cp.async, ldmatrix" and
 * "Warp-Level Matrix Instructions: mma.m16n8k16", "Floating Point: ex2".
 *
 * The fragments of mma.m16n8k16 in lane l, with g = l / 4 and t = l % 4; two
 * bf16 share a word, the one of the lower index in its lower half:
 *   A, 16 x 16  words 0..3 are (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8),
 *               each with the next column;
 *   B, 16 x 8   words 0, 1 are (2t, g) (2t + 8, g), each with the next row;
 *   C, 16 x 8   f32 0..3 are (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1).
 * So a C that is rounded to pairs is half an A, and ldmatrix loads an A, or two
 * Bs from rows that are B's columns (with .trans: from B's rows).
 */
#ifndef CPLI_PTX_CUH
#define CPLI_PTX_CUH

#include "device.cuh"

#ifdef __CUDACC__

/*
 * Reads and writes of device memory by data that passes once: it is kept out of
 * L1, and the compiler leaves their order as written, so that loads which stand
 * before a store are in flight together.
 */
template <class T> __device__ T cpli_load(const T *from);
template <class T> __device__ void cpli_store(T *to, T value);

#define CPLI_LOAD "ld.global.L1::no_allocate."
#define CPLI_STORE "st.global."

template <> __device__ __forceinline__ uint4 cpli_load(const uint4 *from)
{
    uint4 v;
    asm volatile(CPLI_LOAD "v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

template <> __device__ __forceinline__ uint2 cpli_load(const uint2 *from)
{
    uint2 v;
    asm volatile(CPLI_LOAD "v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(from)
                 : "memory");
    return v;
}

template <> __device__ __forceinline__ uint32_t cpli_load(const uint32_t *from)
{
    uint32_t v;
    asm volatile(CPLI_LOAD "u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

template <> __device__ __forceinline__ uint16_t cpli_load(const uint16_t *from)
{
    uint16_t v;
    asm volatile(CPLI_LOAD "u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
    return v;
}

template <> __device__ __forceinline__ uint8_t cpli_load(const uint8_t *from)
{
    uint32_t v;
    asm volatile(CPLI_LOAD "u8 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return (uint8_t)v;
}

template <> __device__ __forceinline__ void cpli_store(uint4 *to, uint4 v)
{
    asm volatile(CPLI_STORE "v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

template <> __device__ __forceinline__ void cpli_store(uint2 *to, uint2 v)
{
    asm volatile(CPLI_STORE "v2.u32 [%0], {%1, %2};"
                 :
                 : "l"(to), "r"(v.x), "r"(v.y)
                 : "memory");
}

template <> __device__ __forceinline__ void cpli_store(uint32_t *to, uint32_t v)
{
    asm volatile(CPLI_STORE "u32 [%0], %1;" : : "l"(to), "r"(v) : "memory");
}

template <> __device__ __forceinline__ void cpli_store(uint16_t *to, uint16_t v)
{
    asm volatile(CPLI_STORE "u16 [%0], %1;" : : "l"(to), "h"(v) : "memory");
}

template <> __device__ __forceinline__ void cpli_store(uint8_t *to, uint8_t v)
{
    asm volatile(CPLI_STORE "u8 [%0], %1;"
                 :
                 : "l"(to), "r"((uint32_t)v)
                 : "memory");
}

/* 2^x to about two units in the last place; results below 2^-126 are 0. */
__device__ __forceinline__ float cpli_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A hint that the 128 bytes around an address will be read soon. */
__device__ __forceinline__ void cpli_prefetch(const void *at)
{
    asm volatile("prefetch.global.L1 [%0];" : : "l"(at));
}

/* c += a b, products of bf16 and sums in f32. */
__device__ __forceinline__ void
cpli_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0),
                   "r"(b1));
}

/* Four matrices of 8 x 8 numbers of 16 bits out of shared memory: lane 8 i + r
 * says where row r of matrix i begins (a multiple of 16 bytes), and word i of
 * lane l becomes elements (l / 4, 2 (l % 4)) and the next of matrix i, or, with
 * _trans, of its transpose. */
__device__ __forceinline__ void cpli_ldmatrix(uint32_t (&to)[4],
                                              const void *row)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void cpli_ldmatrix_trans(uint32_t (&to)[4],
                                                    const void *row)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                 "{%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes of device memory to shared memory, both at multiples of 16, behind
 * the thread's back; they are there after a commit, a wait that leaves fewer
 * groups than were committed since, and a barrier for other threads. */
__device__ __forceinline__ void cpli_copy_async(void *shared, const void *from)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(at), "l"(from)
                 : "memory");
}

/* The same of 4 bytes. */
__device__ __forceinline__ void cpli_copy_async_word(void *shared,
                                                     const void *from)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"(at), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void cpli_copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

template <int GROUPS_LEFT>
__device__ __forceinline__ void cpli_copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(GROUPS_LEFT) : "memory");
}

#else

template <class T> inline T cpli_load(const T *from)
{
    return *from;
}

template <class T> inline void cpli_store(T *to, T value)
{
    *to = value;
}

inline void cpli_prefetch(const void *)
{
}

namespace emulation
{

CPLI_UNSEEN inline float bf16_half(uint32_t word, int half)
{
    const uint32_t bits = half == 0 ? word << 16 : word & 0xffff0000u;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

/* What a lane brings to mma.m16n8k16. */
struct mma_words {
    uint32_t a[4], b[2];
};

/* The product of two pairs. */
CPLI_UNSEEN inline float mma_pair(uint32_t x, uint32_t y)
{
    return bf16_half(x, 0) * bf16_half(y, 0) +
           bf16_half(x, 1) * bf16_half(y, 1);
}

CPLI_UNSEEN inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4],
                                 uint32_t b0, uint32_t b1, const char *file,
                                 int line)
{
    const mma_words mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const mma_words *all = static_cast<const mma_words *>(
        warp_exchange(0xffffffffu, &mine, sizeof mine, file, line));
    const mma_words *row = all + here->lane / 4 * 4;
    const mma_words *column = all + here->lane % 4 * 8;
    for (int w = 0; w < 8; w++) { /* pairs along the sum */
        const uint32_t *x = row[w % 4].a + w / 4 * 2;
        const uint32_t y[2] = {column[w % 4].b[w / 4],
                               column[4 + w % 4].b[w / 4]};
        for (int i = 0; i < 4; i++)
            c[i] += mma_pair(x[i / 2], y[i % 2]);
    }
}

/* Where the rows begin that the lanes of a warp name. */
CPLI_UNSEEN inline void matrix_rows(const char *(&rows)[32], const void *row,
                                    const char *file, int line)
{
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
        kernel_fault(cudaErrorMisalignedAddress,
                     "%s:%d: ldmatrix of a row at %p", file, line, row);
    std::memcpy(rows, warp_exchange(0xffffffffu, &row, sizeof row, file, line),
                sizeof rows);
}

} // namespace emulation

inline float cpli_exp2(float x)
{
    const float y = std::exp2(x);
    return y < 0x1p-126f ? 0 : y; /* a NaN stays one */
}

inline void cpli_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                          uint32_t b1, CPLI_SITE)
{
    emulation::mma_bf16(c, a, b0, b1, site_file, site_line);
}

inline void cpli_ldmatrix(uint32_t (&to)[4], const void *row, CPLI_SITE)
{
    const char *rows[32];
    emulation::matrix_rows(rows, row, site_file, site_line);
    const int lane = emulation::here->lane;
    for (int i = 0; i < 4; i++)
        std::memcpy(&to[i], rows[8 * i + lane / 4] + lane % 4 * 4, 4);
}

inline void cpli_ldmatrix_trans(uint32_t (&to)[4], const void *row, CPLI_SITE)
{
    const char *rows[32];
    emulation::matrix_rows(rows, row, site_file, site_line);
    const int lane = emulation::here->lane;
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++)
            std::memcpy(&pair[j], rows[8 * i + lane % 4 * 2 + j] + lane / 4 * 2,
                        2);
        std::memcpy(&to[i], pair, 4);
    }
}

inline void cpli_copy_async(void *shared, const void *from)
{
    emulation::copy_async(shared, from, 16);
}

inline void cpli_copy_async_word(void *shared, const void *from)
{
    emulation::copy_async(shared, from, 4);
}

inline void cpli_copy_async_commit(void)
{
    emulation::copy_async_commit();
}

template <int GROUPS_LEFT> inline void cpli_copy_async_wait()
{
    emulation::copy_async_wait(GROUPS_LEFT);
}

#endif

#endif
