/*
 * scheduler.h: the machine that runs the threads of one block, as fiber.cpp,
 * scheduler.cpp and shared.cpp share it. Every thread that runs kernels (the
 * worker of a stream) has one.
 */
#ifndef CPLI_EMULATION_SCHEDULER_H
#define CPLI_EMULATION_SCHEDULER_H

#include <deque>
#include <string>
#include <vector>

#include "cuda_on_host.h"
#include "emulator.h"

namespace emulation
{

/* ---- fibers: a stack, and where it was left ---- */

struct fiber {
    void *left_at = nullptr;
    char *stack = nullptr; /* NULL: the stack of the worker itself */
    void *sanitizer = nullptr;
};

fiber *make_fiber(void (*entry)());
void free_fiber(fiber *);
/* Forgets what it did: it begins with `entry` when it is next switched to. */
void aim_fiber(fiber *, void (*entry)());
void switch_fiber(fiber *from, fiber *to);
/* The first thing that an entry does. */
void arrive_in_fiber();
const char *stack_low(const fiber *);
const char *stack_high(const fiber *);
/* From here on an illegal access of a kernel is a fault of its device. */
void catch_illegal_accesses();

/* ---- shared memory and cp.async of one block ---- */

struct shared_variable_place {
    const void *key; /* NULL: the dynamic array */
    char *at;
    size_t bytes;
};

struct async_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct async_state { /* of one thread */
    std::vector<async_copy> open;
    std::deque<std::vector<async_copy>> groups;
};

struct block_memory {
    std::vector<char> bytes;
    size_t used = 0, with_guards = 0;
    size_t dynamic_bytes = 0;
    std::vector<shared_variable_place> variables;
    std::vector<async_state> async; /* by thread; empty: nothing copied */
};

void begin_block_memory(block_memory &);

/* ---- the machine ---- */

/* Lanes of a warp that wait for each other, known by their mask. Two sets of
 * values: a lane may read the last ones while others bring the next. */
struct meeting {
    uint32_t mask = 0, arrived = 0;
    unsigned round = 0;
    size_t bytes = 0;
    const char *file = nullptr;
    int line = 0;
    alignas(16) unsigned char values[2][32 * 64];
};

struct warp_state {
    uint32_t alive = 0;
    std::vector<std::unique_ptr<meeting>> meetings;
};

struct machine {
    /* the launch */
    const char *name = "";
    void (*run)(void *) = nullptr;
    std::vector<char> own; /* arguments, then the threads' states */
    thread_state *threads = nullptr;
    int n_threads = 0;
    order_kind order = order_kind::forward;
    dice random{1};

    /* the block */
    int live = 0, at_barrier = 0;
    size_t next_fresh = 0;
    std::vector<int> turns; /* in which order fresh threads begin */
    std::deque<int> ready;
    std::vector<warp_state> warps;
    const char *barrier_file = nullptr;
    int barrier_line = 0;
    block_memory memory;

    /* fibers */
    fiber scheduler;
    fiber *running = nullptr;
    std::vector<fiber *> fibers, idle;

    /* what ended the launch */
    bool failed = false;
    cudaError_t error = cudaSuccess;
    std::string sentence;

    ~machine();
};

machine &this_machine();

/* As kernel_fault, for what the checker calls a divergent barrier. */
[[noreturn]] void divergent(const char *format, ...) CPLI_SENTENCE(1, 2);

} // namespace emulation

#endif
