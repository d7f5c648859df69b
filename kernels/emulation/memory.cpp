/*
 * memory.cpp: device memory, and host memory that devices can reach. Fresh
 * memory holds 0xCD. Behind every allocation lies a page that cannot be
 * touched, and freed memory is gone, so that many illegal accesses are seen
 * without the checker; with it, the checker's guards lie there instead.
 */
#include <cstring>
#include <deque>
#include <map>

#include <sys/mman.h>
#include <unistd.h>

#include "emulator.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace emulation
{

namespace
{

constexpr size_t alignment = 256; /* of cudaMalloc */

constexpr size_t most_freed = 256; /* allocations whose addresses are kept */

struct allocation {
    memory_kind kind;
    int device; /* -1: the host's */
    size_t bytes;
    char *map; /* NULL: registered memory, the user's own */
    size_t map_bytes;
};

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

std::map<char *, allocation> &allocations()
{
    static auto *map = new std::map<char *, allocation>;
    return *map;
}

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t used_bytes(int device)
{
    size_t used = 0;
    for (const auto &each : allocations())
        if (each.second.kind == memory_kind::device &&
            each.second.device == device)
            used += round_up(each.second.bytes, alignment);
    return used;
}

/* Ends where its last page ends, so that what follows is caught. */
char *map_memory(size_t bytes, allocation *made)
{
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t guard = round_up(cpli_check_guard(), page);
    size_t inner = round_up(round_up(bytes, alignment), page);
    size_t behind = guard != 0 ? guard : page;
    made->map_bytes = guard + inner + behind;
    void *map = mmap(nullptr, made->map_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return nullptr;
    made->map = static_cast<char *>(map);
    if (guard == 0)
        mprotect(made->map + inner, behind, PROT_NONE);
    char *at = made->map + guard + inner - round_up(bytes, alignment);
    std::memset(at, 0xCD, round_up(bytes, alignment));
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(at + bytes, round_up(bytes, alignment) - bytes);
#endif
    return at;
}

/* Gives the pages back, but keeps their addresses from others for a while: an
 * access to what was freed must meet nothing. Under the lock. */
void unmap(char *at, const allocation &old)
{
    static auto *freed = new std::deque<allocation>;
    cpli_check_free(at);
    if (old.map == nullptr)
        return;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(at, round_up(old.bytes, alignment));
#endif
    mmap(old.map, old.map_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    freed->push_back(old);
    if (freed->size() <= most_freed)
        return;
    munmap(freed->front().map, freed->front().map_bytes);
    freed->pop_front();
}

cudaError_t allocate(void **out, size_t bytes, memory_kind kind, int device)
{
    allocation made = {kind, device, bytes, nullptr, 0};
    char *at = map_memory(bytes, &made);
    if (at == nullptr)
        return fail(cudaErrorMemoryAllocation, "no memory for %zu bytes",
                    bytes);
    std::lock_guard<std::mutex> hold(lock());
    allocations()[at] = made;
    cpli_check_alloc(at, bytes, device);
    *out = at;
    count(counter::allocations);
    return cudaSuccess;
}

/* Ends the allocation that begins at `at`, if it is one of that kind. */
bool end_allocation(void *at, memory_kind kind, bool mapped)
{
    std::lock_guard<std::mutex> hold(lock());
    auto found = allocations().find(static_cast<char *>(at));
    if (found == allocations().end() || found->second.kind != kind ||
        (found->second.map != nullptr) != mapped)
        return false;
    unmap(found->first, found->second);
    allocations().erase(found);
    return true;
}

} // namespace

memory_place find_memory(const void *at)
{
    memory_place place;
    char *p = static_cast<char *>(const_cast<void *>(at));
    std::lock_guard<std::mutex> hold(lock());
    auto next = allocations().upper_bound(p);
    if (next == allocations().begin())
        return place;
    --next;
    size_t offset = static_cast<size_t>(p - next->first);
    if (offset >= next->second.bytes)
        return place;
    place.kind = next->second.kind;
    place.device = next->second.device;
    place.base = next->first;
    place.bytes = next->second.bytes;
    place.left = place.bytes - offset;
    return place;
}

void free_memory_of(int device)
{
    std::lock_guard<std::mutex> hold(lock());
    for (auto each = allocations().begin(); each != allocations().end();) {
        if (each->second.device == device) {
            unmap(each->first, each->second);
            each = allocations().erase(each);
        } else
            ++each;
    }
}

} // namespace emulation

using namespace emulation;

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = forbid_capture("cudaMalloc"))
        return error;
    if (out == nullptr)
        return fail(cudaErrorInvalidValue, "cudaMalloc: nowhere to answer");
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    int device = current_device();
    size_t limit = current_settings().memory, used = 0;
    {
        std::lock_guard<std::mutex> hold(lock());
        used = used_bytes(device);
    }
    if (bytes > limit || used + round_up(bytes, alignment) > limit)
        return fail(cudaErrorMemoryAllocation,
                    "cudaMalloc: %zu bytes, but device %d has %zu bytes of "
                    "which %zu are used",
                    bytes, device, limit, used);
    return allocate(out, bytes, memory_kind::device, device);
}

/* Waits for the memory's device, as CUDA does. */
cudaError_t cudaFree(void *at)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = forbid_capture("cudaFree"))
        return error;
    if (at == nullptr)
        return cudaSuccess;
    memory_place place = find_memory(at);
    if (place.kind != memory_kind::device || place.base != at)
        return fail(cudaErrorInvalidValue,
                    "cudaFree: no device memory begins at %p", at);
    wait_for_device(place.device);
    cpli_check_host_waited(nullptr, nullptr);
    end_allocation(at, memory_kind::device, true);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    if (cudaError_t error = enter())
        return error;
    std::lock_guard<std::mutex> hold(lock());
    size_t limit = current_settings().memory;
    size_t used = used_bytes(current_device());
    *total_bytes = limit;
    *free_bytes = used < limit ? limit - used : 0;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = forbid_capture("cudaHostAlloc"))
        return error;
    if (out == nullptr)
        return fail(cudaErrorInvalidValue, "cudaHostAlloc: nowhere to answer");
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    return allocate(out, bytes, memory_kind::pinned, -1);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *at)
{
    if (cudaError_t error = enter())
        return error;
    if (at == nullptr)
        return cudaSuccess;
    memory_place place = find_memory(at);
    if (place.kind != memory_kind::pinned || place.base != at)
        return fail(cudaErrorInvalidValue,
                    "cudaFreeHost: no pinned memory begins at %p", at);
    for (int device = 0; device < current_settings().devices; device++)
        wait_for_device(device);
    cpli_check_host_waited(nullptr, nullptr);
    if (!end_allocation(at, memory_kind::pinned, true))
        return fail(cudaErrorInvalidValue,
                    "cudaFreeHost: %p was registered, not allocated", at);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned)
{
    if (cudaError_t error = enter())
        return error;
    if (at == nullptr || bytes == 0)
        return fail(cudaErrorInvalidValue, "cudaHostRegister: no memory");
    if (find_memory(at).kind != memory_kind::unknown ||
        find_memory(static_cast<char *>(at) + bytes - 1).kind !=
            memory_kind::unknown)
        return fail(cudaErrorHostMemoryAlreadyRegistered,
                    "cudaHostRegister: %p is known already", at);
    std::lock_guard<std::mutex> hold(lock());
    allocations()[static_cast<char *>(at)] = {memory_kind::pinned, -1, bytes,
                                              nullptr, 0};
    cpli_check_alloc(at, bytes, -1);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    if (cudaError_t error = enter())
        return error;
    if (!end_allocation(at, memory_kind::pinned, false))
        return fail(cudaErrorHostMemoryNotRegistered,
                    "cudaHostUnregister: %p was not registered", at);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *at, unsigned)
{
    if (cudaError_t error = enter())
        return error;
    if (find_memory(at).kind != memory_kind::pinned)
        return fail(cudaErrorInvalidValue,
                    "cudaHostGetDevicePointer: %p is not pinned", at);
    *out = at;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *at)
{
    if (cudaError_t error = enter())
        return error;
    memory_place place = find_memory(at);
    *out = cudaPointerAttributes();
    out->type = place.kind == memory_kind::device ? cudaMemoryTypeDevice
                : place.kind == memory_kind::pinned
                    ? cudaMemoryTypeHost
                    : cudaMemoryTypeUnregistered;
    out->device = place.kind == memory_kind::device   ? place.device
                  : place.kind == memory_kind::pinned ? current_device()
                                                      : cudaInvalidDeviceId;
    if (place.kind != memory_kind::unknown)
        out->devicePointer = const_cast<void *>(at);
    if (place.kind != memory_kind::device)
        out->hostPointer = const_cast<void *>(at);
    return cudaSuccess;
}
