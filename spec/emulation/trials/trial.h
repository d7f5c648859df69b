/*
 * trial.h: small programs on the emulator, each with a name. emulation_trial
 * NAME runs one and prints what it saw; a spec reads the lines.
 */
#ifndef SPEC_EMULATION_TRIAL_H
#define SPEC_EMULATION_TRIAL_H

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "device.cuh"
#include "emulation/emulation.h"

struct trial {
    const char *name;
    void (*run)();
    const trial *next;
    static const trial *first;

    trial(const char *name_, void (*run_)())
        : name(name_), run(run_), next(first)
    {
        first = this;
    }
};

#define TRIAL(name)                               \
    static void name();                           \
    static const trial name##_trial(#name, name); \
    static void name()

/* A call that has to work. */
#define MUST(call)                                                      \
    do {                                                                \
        if (cudaError_t error = (call)) {                               \
            std::printf("%s: %s: %s\n", #call, cudaGetErrorName(error), \
                        cpl_emulation_why());                           \
            std::exit(1);                                               \
        }                                                               \
    } while (false)

/* Prints a word and what became of the call. */
inline void tell(const char *word, cudaError_t error)
{
    std::printf("%s: %s", word, cudaGetErrorName(error));
    if (error != cudaSuccess)
        std::printf(": %s", cpl_emulation_why());
    std::printf("\n");
}

inline cudaStream_t new_stream()
{
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

inline cudaEvent_t new_event()
{
    cudaEvent_t event;
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

/* Device memory of n elements, not set. */
template <class T> T *on_device(size_t n)
{
    void *at;
    MUST(cudaMalloc(&at, n * sizeof(T)));
    return static_cast<T *>(at);
}

template <class T> std::vector<T> on_host(const T *at, size_t n)
{
    std::vector<T> copy(n);
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(copy.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
}

template <class T> void say(const char *word, const std::vector<T> &values)
{
    std::printf("%s:", word);
    for (T each : values)
        std::printf(" %lld", static_cast<long long>(each));
    std::printf("\n");
}

#endif
