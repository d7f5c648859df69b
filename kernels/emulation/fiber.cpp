/*
 * fiber.cpp: stacks, the switch between them, and illegal accesses, for x86-64.
 * A switch saves what a called function must keep (System V ABI): swapcontext
 * would also ask the kernel for the signal mask, 30 times the cost.
 */
#include <csignal>
#include <cstdlib>
#include <new>

#include <sys/mman.h>
#include <ucontext.h>

#include "scheduler.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" void cpli_emulation_switch(void **left_at, void *to)
    __attribute__((visibility("hidden")));
asm(R"(
.text
.globl cpli_emulation_switch
.hidden cpli_emulation_switch
.type cpli_emulation_switch, @function
cpli_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cpli_emulation_switch, .-cpli_emulation_switch
)");

namespace emulation
{

namespace
{

#ifdef __SANITIZE_ADDRESS__
constexpr size_t stack_bytes = 256 << 10;
#else
constexpr size_t stack_bytes = 64 << 10;
#endif
/* Below each stack: as much that cannot be touched, more than a page, since a
 * frame may skip one. */
constexpr size_t guard_bytes = stack_bytes;

#ifdef __SANITIZE_ADDRESS__
/* The worker's own stack, known when the first fiber was switched to. */
thread_local const void *worker_stack = nullptr;
thread_local size_t worker_bytes = 0;
#endif

} // namespace

fiber *make_fiber(void (*entry)())
{
    fiber *made = new fiber;
    void *map = mmap(nullptr, guard_bytes + stack_bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        throw std::bad_alloc();
    made->stack = static_cast<char *>(map) + guard_bytes;
    if (mprotect(made->stack, stack_bytes, PROT_READ | PROT_WRITE) != 0)
        throw std::bad_alloc();
    aim_fiber(made, entry);
    return made;
}

void free_fiber(fiber *old)
{
    munmap(old->stack - guard_bytes, guard_bytes + stack_bytes);
    delete old;
}

void aim_fiber(fiber *f, void (*entry)())
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(f->stack, stack_bytes);
    f->sanitizer = nullptr;
#endif
    /* As if `entry` had been called: six registers, where the switch returns
     * to, and a return address that is never used. */
    void **top = reinterpret_cast<void **>(f->stack + stack_bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    f->left_at = top;
}

void switch_fiber(fiber *from, fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->sanitizer,
                                   to->stack ? to->stack : worker_stack,
                                   to->stack ? stack_bytes : worker_bytes);
#endif
    cpli_emulation_switch(&from->left_at, to->left_at);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from->sanitizer, nullptr, nullptr);
#endif
}

void arrive_in_fiber()
{
#ifdef __SANITIZE_ADDRESS__
    const void *bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (worker_stack == nullptr) {
        worker_stack = bottom;
        worker_bytes = bytes;
    }
#endif
}

const char *stack_low(const fiber *f)
{
    return f->stack;
}

const char *stack_high(const fiber *f)
{
    return f->stack + stack_bytes;
}

namespace
{

/* Where the signal was, until the fiber has landed. */
thread_local const void *illegal_at = nullptr;
thread_local bool illegal_by_alignment = false;
thread_local bool illegal_by_stack = false;

struct sigaction before_us[2];

[[noreturn]] void land()
{
    if (illegal_by_stack)
        kernel_fault(cudaErrorLaunchFailure,
                     "the thread needs more stack than the emulator's %zu "
                     "bytes",
                     stack_bytes);
    if (illegal_by_alignment)
        kernel_fault(cudaErrorMisalignedAddress,
                     "an access of 16 bytes is misaligned, or its address is "
                     "none at all");
    kernel_fault(cudaErrorIllegalAddress, "illegal access to address %p",
                 illegal_at);
}

void on_signal(int number, siginfo_t *info, void *context)
{
    if (here == nullptr) {
        /* Not a kernel's: as if we had never been asked. */
        sigaction(number, &before_us[number == SIGBUS], nullptr);
        return;
    }
    ucontext_t *at = static_cast<ucontext_t *>(context);
    illegal_at = info->si_addr;
    illegal_by_alignment = info->si_code == SI_KERNEL;
    auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    auto bottom = reinterpret_cast<uintptr_t>(here->fiber->stack);
    illegal_by_stack = address < bottom && address >= bottom - guard_bytes;
    /* The fiber goes on in land(), below what the kernel has on its stack; if
     * that is full, on top of it: the kernel is not gone back to. */
    auto stack = static_cast<uintptr_t>(at->uc_mcontext.gregs[REG_RSP]);
    if (illegal_by_stack)
        stack = bottom + stack_bytes;
    stack = ((stack - 256) & ~uintptr_t{15}) - 8;
    at->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(stack);
    at->uc_mcontext.gregs[REG_RIP] =
        static_cast<greg_t>(reinterpret_cast<uintptr_t>(land));
}

/* Where a worker handles signals: its fiber's stack may be full. */
struct signal_stack {
    std::unique_ptr<char[]> memory;

    signal_stack()
    {
        stack_t now = {};
        sigaltstack(nullptr, &now);
        if ((now.ss_flags & SS_DISABLE) == 0)
            return; /* somebody else's will do */
        memory.reset(new char[stack_bytes]);
        now = {};
        now.ss_sp = memory.get();
        now.ss_size = stack_bytes;
        sigaltstack(&now, nullptr);
    }

    ~signal_stack()
    {
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        if (memory)
            sigaltstack(&none, nullptr);
    }
};

} // namespace

void catch_illegal_accesses()
{
    thread_local signal_stack stack;
    static_cast<void>(stack);
    static const bool done = [] {
        struct sigaction ours = {};
        ours.sa_sigaction = on_signal;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        sigaction(SIGSEGV, &ours, &before_us[0]);
        sigaction(SIGBUS, &ours, &before_us[1]);
        return true;
    }();
    static_cast<void>(done);
}

} // namespace emulation
