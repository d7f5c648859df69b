/*
 * ptx.cuh: every instruction that CUDA C++ has no word for, as an inline
 * function with its meaning on the host beside it. Source: the PTX ISA,
 * "Data Movement and Conversion Instructions: ld, st".
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

#else

template <class T> inline T cpli_load(const T *from)
{
    return *from;
}

template <class T> inline void cpli_store(T *to, T value)
{
    *to = value;
}

#endif

#endif
