/*
 * nccl.cpp: NCCL for ranks that are threads of this process, over emulated
 * streams. It judges what NCCL leaves undefined: counts that do not match and
 * peers that never come end in a sentence, not in wrong bytes or a hang. A
 * group becomes one operation of its stream (clique.cpp).
 */
#include <algorithm>
#include <atomic>
#include <cstring>

#include "clique.h"

namespace emulation
{

namespace
{

/* What one group does on one communicator and stream. */
struct group {
    ncclComm *comm;
    stream_pointer on;
    std::vector<send_or_receive> parts;
};

struct joining {
    ncclComm_t *out;
};

thread_local int group_depth = 0;
thread_local std::vector<group> groups;
thread_local std::vector<joining> joins;
thread_local ncclResult_t group_error = ncclSuccess;

std::string &last_text()
{
    thread_local std::string text;
    return text;
}

ncclResult_t refuse(ncclResult_t result, const char *format, ...)
    CPLI_SENTENCE(2, 3);

ncclResult_t refuse(ncclResult_t result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    last_text() = sentence_of(format, arguments);
    va_end(arguments);
    if (group_depth > 0)
        group_error = result;
    return result;
}

/* ---- groups, on the caller's thread ---- */

ncclResult_t await_joins()
{
    ncclResult_t result = ncclSuccess;
    for (const joining &each : joins) {
        ncclComm *comm = *each.out;
        clique &c = *comm->in;
        std::unique_lock<std::mutex> hold(c.lock);
        bool all = await(*comm, hold, [&] { return c.n_joined == c.n; });
        ncclResult_t mine = c.joined;
        if (!all || c.n_joined < c.n)
            mine = refuse(ncclSystemError,
                          "rank %d waits for %d of %d ranks to join",
                          comm->rank, c.n - c.n_joined, c.n);
        else if (mine != ncclSuccess)
            refuse(mine,
                   "Duplicate GPU detected: rank %d is on device %d, as "
                   "another rank is",
                   comm->rank, comm->device);
        hold.unlock();
        if (mine != ncclSuccess) {
            *each.out = nullptr;
            delete comm;
            result = mine;
        }
    }
    joins.clear();
    return result;
}

ncclResult_t end_group()
{
    ncclResult_t result = await_joins();
    if (group_error != ncclSuccess)
        result = group_error;
    std::vector<group> all = std::move(groups);
    groups.clear();
    group_error = ncclSuccess;
    if (result != ncclSuccess)
        return result;
    for (const group &each : all) {
        ncclComm comm = *each.comm;
        auto parts = each.parts;
        cudaError_t error =
            enqueue(each.on, {"NCCL", [comm, parts](cpli_check_op op) {
                                  run_group(comm, parts, op);
                              }});
        if (error != cudaSuccess)
            return refuse(ncclUnhandledCudaError, "%s",
                          cudaGetErrorString(error));
    }
    return ncclSuccess;
}

/* Is it memory that this communicator's device can reach, to its end? */
bool is_reachable(const ncclComm *comm, const void *at, size_t bytes)
{
    memory_place place = find_memory(at);
    return bytes == 0 ||
           (place.kind == memory_kind::pinned && place.left >= bytes) ||
           (place.kind == memory_kind::device && place.left >= bytes &&
            place.device == comm->device);
}

ncclResult_t add_part(ncclComm_t comm, cudaStream_t on,
                      const send_or_receive &part)
{
    const char *name = part.sends ? "ncclSend" : "ncclRecv";
    if (comm == nullptr)
        return refuse(ncclInvalidArgument, "%s: no communicator", name);
    if (part.peer < 0 || part.peer >= comm->in->n)
        return refuse(ncclInvalidArgument, "%s: peer %d of %d ranks", name,
                      part.peer, comm->in->n);
    if (size_of(part.type) == 0)
        return refuse(ncclInvalidArgument, "%s: type %d", name,
                      static_cast<int>(part.type));
    if (!is_reachable(comm, part.at, part.count * size_of(part.type)))
        return refuse(ncclInvalidArgument,
                      "%s: %zu elements at %p are not in memory of device %d",
                      name, part.count, static_cast<void *>(part.at),
                      comm->device);
    stream_pointer to = find_stream(on);
    if (!to || device_of(to) != comm->device)
        return refuse(ncclUnhandledCudaError,
                      "%s: the stream is not of the communicator's device %d",
                      name, comm->device);
    for (group &each : groups)
        if (each.comm == comm && each.on == to) {
            each.parts.push_back(part);
            return ncclSuccess;
        }
    groups.push_back({comm, to, {part}});
    return ncclSuccess;
}

/* Outside a group, a call is a group of its own. */
template <class F> ncclResult_t in_group(F fill)
{
    group_depth++;
    ncclResult_t result = fill();
    if (result != ncclSuccess)
        group_error = result;
    group_depth--;
    if (group_depth > 0)
        return result;
    ncclResult_t ended = end_group();
    return result != ncclSuccess ? result : ended;
}

char *bytes_of(const void *at)
{
    return static_cast<char *>(const_cast<void *>(at));
}

/* ---- communicators ---- */

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

/* Cliques that wait for ranks, by their unique id. */
std::map<std::string, clique_pointer> &waiting()
{
    static auto *map = new std::map<std::string, clique_pointer>;
    return *map;
}

clique_pointer clique_of(const ncclUniqueId &id, int n)
{
    std::lock_guard<std::mutex> hold(lock());
    clique_pointer &c = waiting()[std::string(id.internal, sizeof id.internal)];
    if (!c) {
        c = std::make_shared<clique>();
        c->n = n;
        c->devices.assign(static_cast<size_t>(n), -1);
    }
    return c;
}

void forget_clique(const ncclUniqueId &id)
{
    std::lock_guard<std::mutex> hold(lock());
    waiting().erase(std::string(id.internal, sizeof id.internal));
}

bool has_twins(std::vector<int> devices)
{
    std::sort(devices.begin(), devices.end());
    return std::adjacent_find(devices.begin(), devices.end()) != devices.end();
}

ncclResult_t join_clique(ncclComm_t *out, int n, const ncclUniqueId &id,
                         int rank)
{
    if (out == nullptr || n < 1 || rank < 0 || rank >= n)
        return refuse(ncclInvalidArgument, "rank %d of %d", rank, n);
    *out = nullptr;
    if (cudaError_t error = enter())
        return refuse(ncclUnhandledCudaError, "%s", cudaGetErrorString(error));
    clique_pointer c = clique_of(id, n);
    std::unique_lock<std::mutex> hold(c->lock);
    int &device = c->devices[static_cast<size_t>(rank) % c->devices.size()];
    if (c->n != n || device >= 0)
        return refuse(ncclInvalidArgument,
                      "rank %d of %d: the communicator has %d ranks, and this "
                      "one %s",
                      rank, n, c->n, device >= 0 ? "joined" : "has not joined");
    device = current_device();
    if (++c->n_joined == n) {
        c->joined = has_twins(c->devices) ? ncclInvalidUsage : ncclSuccess;
        forget_clique(id);
    }
    c->changed.notify_all();
    *out = new ncclComm{c, rank, device};
    joins.push_back({out});
    return ncclSuccess;
}

} // namespace

} // namespace emulation

using namespace emulation;

ncclResult_t ncclGetVersion(int *version)
{
    int set = current_settings().nccl;
    *version = set != 0 ? set : NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<uint64_t> n_ids{1};
    uint64_t number = n_ids++;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId id, int rank)
{
    return in_group([&] { return join_clique(out, n, id, rank); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id,
                                    int rank, ncclConfig_t *)
{
    return ncclCommInitRank(out, n, id, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t *out, int n, const int *devices)
{
    std::vector<int> all;
    for (int i = 0; i < n; i++)
        all.push_back(devices ? devices[i] : i);
    if (has_twins(all))
        return refuse(ncclInvalidUsage,
                      "a device stands twice in the list of ncclCommInitAll");
    int before = current_device();
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclResult_t result = in_group([&] {
        for (int i = 0; i < n; i++) {
            if (cudaSetDevice(all[static_cast<size_t>(i)]) != cudaSuccess)
                return refuse(ncclUnhandledCudaError, "device %d",
                              all[static_cast<size_t>(i)]);
            if (ncclResult_t error = join_clique(&out[i], n, id, i))
                return error;
        }
        return ncclSuccess;
    });
    cudaSetDevice(before);
    return result;
}

ncclResult_t ncclCommFinalize(ncclComm_t)
{
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm != nullptr)
        wait_for_device(comm->device);
    delete comm;
    return ncclSuccess;
}

/* The others are not told: they wait until they abort, too. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    {
        std::lock_guard<std::mutex> hold(comm->in->lock);
        comm->in->aborted.insert(comm->rank);
        comm->in->changed.notify_all();
    }
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *n)
{
    *n = comm->in->n;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    std::lock_guard<std::mutex> hold(comm->in->lock);
    bool is_lost = comm->in->broken || !current_settings().network;
    *error = is_lost ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart()
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (group_depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    group_depth--;
    return group_depth > 0 ? ncclSuccess : end_group();
}

ncclResult_t ncclSend(const void *at, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t on)
{
    return in_group([&] {
        return add_part(comm, on, {true, bytes_of(at), count, type, peer});
    });
}

ncclResult_t ncclRecv(void *at, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t on)
{
    return in_group([&] {
        return add_part(comm, on, {false, bytes_of(at), count, type, peer});
    });
}

ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count,
                          ncclDataType_t type, ncclComm_t comm, cudaStream_t on)
{
    size_t bytes = count * size_of(type);
    return in_group([&] {
        for (int peer = 0; peer < comm->in->n; peer++) {
            size_t at = static_cast<size_t>(peer) * bytes;
            if (ncclResult_t error = add_part(
                    comm, on, {true, bytes_of(from) + at, count, type, peer}))
                return error;
            if (ncclResult_t error = add_part(
                    comm, on, {false, bytes_of(to) + at, count, type, peer}))
                return error;
        }
        return ncclSuccess;
    });
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t on)
{
    size_t bytes = count * size_of(type);
    return in_group([&] {
        for (int peer = 0; peer < comm->in->n; peer++) {
            size_t at = static_cast<size_t>(peer) * bytes;
            if (ncclResult_t error = add_part(
                    comm, on, {true, bytes_of(from), count, type, peer}))
                return error;
            if (ncclResult_t error = add_part(
                    comm, on, {false, bytes_of(to) + at, count, type, peer}))
                return error;
        }
        return ncclSuccess;
    });
}

/* ---- memory ---- */

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    return cudaMalloc(out, (bytes + 4095) / 4096 * 4096) == cudaSuccess
               ? ncclSuccess
               : refuse(ncclUnhandledCudaError, "ncclMemAlloc: %zu bytes",
                        bytes);
}

ncclResult_t ncclMemFree(void *at)
{
    return cudaFree(at) == cudaSuccess
               ? ncclSuccess
               : refuse(ncclUnhandledCudaError, "ncclMemFree: %p", at);
}

ncclResult_t ncclCommRegister(const ncclComm_t, void *, size_t, void **handle)
{
    *handle = nullptr;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void *)
{
    return ncclSuccess;
}

/* As NCCL without symmetric memory: success, and *window stays untouched. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *at, size_t bytes,
                                    ncclWindow_t *, int)
{
    if (reinterpret_cast<uintptr_t>(at) % 4096 != 0)
        return refuse(ncclInvalidArgument,
                      "ncclCommWindowRegister: %p is no multiple of 4096", at);
    if (!is_reachable(comm, at, bytes))
        return refuse(ncclInvalidArgument,
                      "ncclCommWindowRegister: %zu bytes at %p are not in "
                      "memory of device %d",
                      bytes, at, comm->device);
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t)
{
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "operation in progress"};
    size_t i = static_cast<size_t>(result);
    return i < sizeof texts / sizeof *texts ? texts[i] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_text().c_str();
}
