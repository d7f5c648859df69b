/*
 * shared.cpp: the shared memory of a block, and cp.async. What a block before
 * left there is gone: fresh variables hold 0xCB. A copy by cp.async lands as
 * late as a wait allows, and its source is read then; until it lands its target
 * holds 0xCC, so that a missing wait is a wrong result.
 */
#include "scheduler.h"

namespace emulation
{

namespace
{

constexpr size_t most_shared = 227 << 10; /* of a block, on sm_90 */
constexpr size_t room = 1 << 20;          /* with the checker's guards */
constexpr size_t alignment = 128;

char *add_variable(machine &m, const char *name, const void *key, size_t bytes)
{
    block_memory &memory = m.memory;
    size_t guard = cpli_check_guard();
    if (memory.bytes.empty())
        memory.bytes.resize(room + alignment);
    uintptr_t from = reinterpret_cast<uintptr_t>(memory.bytes.data()) +
                     memory.with_guards + guard;
    from = (from + alignment - 1) / alignment * alignment;
    char *at = reinterpret_cast<char *>(from);
    size_t to = static_cast<size_t>(at - memory.bytes.data()) + bytes + guard;
    memory.used += (bytes + 15) / 16 * 16;
    if (memory.used > most_shared || to > memory.bytes.size())
        kernel_fault(cudaErrorLaunchFailure,
                     "a block needs %zu bytes of shared memory, more than %zu",
                     memory.used, most_shared);
    memory.with_guards = to;
    memory.variables.push_back({key, at, bytes});
    std::memset(at, 0xCB, bytes);
    cpli_check_shared(name, at, bytes);
    return at;
}

char *variable(const char *name, const void *key, size_t bytes)
{
    machine &m = this_machine();
    for (const auto &each : m.memory.variables)
        if (each.key == key)
            return each.at;
    return add_variable(m, name, key, bytes);
}

async_state &async_of_thread()
{
    machine &m = this_machine();
    if (m.memory.async.empty())
        m.memory.async.resize(static_cast<size_t>(m.n_threads));
    return m.memory.async[static_cast<size_t>(here->index)];
}

} // namespace

void begin_block_memory(block_memory &memory)
{
    memory.used = memory.with_guards = 0;
    memory.variables.clear();
    memory.async.clear();
}

void *shared_variable(const char *name, const void *key, size_t bytes)
{
    return variable(name, key, bytes);
}

void *dynamic_shared(void)
{
    size_t bytes = this_machine().memory.dynamic_bytes;
    if (bytes == 0)
        kernel_fault(cudaErrorLaunchFailure,
                     "it uses dynamic shared memory, but was launched with "
                     "none");
    return variable("dynamic", nullptr, bytes);
}

void copy_async(void *shared, const void *global, size_t bytes)
{
    if ((reinterpret_cast<uintptr_t>(shared) |
         reinterpret_cast<uintptr_t>(global)) %
            bytes !=
        0)
        kernel_fault(cudaErrorMisalignedAddress,
                     "cp.async of %zu bytes to %p from %p", bytes, shared,
                     global);
    cpli_check_async_copy(shared, global, bytes, __builtin_return_address(0));
    async_of_thread().open.push_back({shared, global, bytes});
    std::memset(shared, 0xCC, bytes);
}

void copy_async_commit(void)
{
    async_state &mine = async_of_thread();
    mine.groups.push_back(std::move(mine.open));
    mine.open.clear();
    cpli_check_async_commit();
}

void copy_async_wait(int groups_left)
{
    async_state &mine = async_of_thread();
    while (static_cast<int>(mine.groups.size()) > groups_left) {
        for (const async_copy &each : mine.groups.front())
            std::memcpy(each.to, each.from, each.bytes);
        mine.groups.pop_front();
    }
    cpli_check_async_wait(groups_left);
}

} // namespace emulation
