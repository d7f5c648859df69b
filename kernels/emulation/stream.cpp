/*
 * stream.cpp: streams as CUDA has them. The default stream of a device is
 * CUDA's legacy one: it waits for all streams that were not made non-blocking,
 * and they wait for it.
 */
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>

#include "emulator.h"
#include "stream.h"

namespace emulation
{

namespace
{

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

/* All that live; the default ones, one a device, stand in a list. */
std::map<cudaStream_t, stream_pointer> &streams()
{
    static auto *map = new std::map<cudaStream_t, stream_pointer>;
    return *map;
}

std::vector<stream_pointer> &default_streams()
{
    static auto *list = new std::vector<stream_pointer>;
    return *list;
}

stream_pointer new_stream(int device, unsigned flags, int priority)
{
    static std::atomic<uint64_t> n_streams{0};
    auto made = std::make_shared<stream>();
    made->device = device;
    made->flags = flags;
    made->priority = priority;
    made->number = n_streams++;
    return made;
}

stream_pointer default_stream(int device)
{
    std::lock_guard<std::mutex> hold(lock());
    for (const auto &each : default_streams())
        if (each->device == device)
            return each;
    default_streams().push_back(new_stream(device, cudaStreamDefault, 0));
    default_streams().back()->is_default = true;
    return default_streams().back();
}

std::vector<stream_pointer> streams_of(int device)
{
    std::vector<stream_pointer> list;
    std::lock_guard<std::mutex> hold(lock());
    for (const auto &each : streams())
        if (each.second->device == device)
            list.push_back(each.second);
    for (const auto &each : default_streams())
        if (each->device == device)
            list.push_back(each);
    return list;
}

void work(stream *s)
{
    std::unique_lock<std::mutex> hold(s->lock);
    for (;;) {
        s->changed.wait(hold, [s] { return s->ends || !s->queue.empty(); });
        if (s->queue.empty())
            return;
        queued next = std::move(s->queue.front());
        s->queue.pop_front();
        uint64_t salt = (s->number << 32) + s->n_done;
        hold.unlock();
        dawdle(salt);
        if (next.what.always || fault_of(s->device) == cudaSuccess)
            next.what.run(next.id);
        next.what = operation(); /* what it holds goes before it is done */
        hold.lock();
        s->n_done++;
        s->changed.notify_all();
    }
}

uint64_t pushed(stream &s)
{
    std::lock_guard<std::mutex> hold(s.lock);
    return s.n_pushed;
}

/* The order between the default stream and the others of its device. */
void order_with_default(const stream_pointer &to)
{
    if ((to->flags & cudaStreamNonBlocking) != 0)
        return;
    for (const auto &other : streams_of(to->device)) {
        uint64_t n = pushed(*other);
        if (other == to || n == 0 || to->is_default == other->is_default ||
            (other->flags & cudaStreamNonBlocking) != 0)
            continue;
        operation wait = {"wait for the default stream",
                          [other, n](cpli_check_op) { wait_for(*other, n); },
                          true};
        cpli_check_event_record(other.get(), other.get());
        cpli_check_event_wait(to.get(), other.get());
        push(to, std::move(wait));
    }
}

void end_stream(const stream_pointer &s)
{
    {
        std::lock_guard<std::mutex> hold(s->lock);
        s->ends = true;
        s->changed.notify_all();
    }
    if (s->worker.joinable())
        s->worker.join();
    cpli_check_stream_destroy(s.get());
}

cudaError_t no_such_stream(const char *function)
{
    return fail(cudaErrorInvalidResourceHandle, "%s: no such stream", function);
}

/* The stream, if this thread may wait for it now. */
cudaError_t find_to_wait(cudaStream_t handle, const char *function,
                         stream_pointer *out)
{
    if (cudaError_t error = enter())
        return error;
    *out = find_stream(handle);
    if (!*out)
        return no_such_stream(function);
    std::lock_guard<std::mutex> hold(capture_lock());
    if (!is_active((*out)->captured))
        return cudaSuccess;
    invalidate((*out)->captured);
    return fail(cudaErrorStreamCaptureUnsupported,
                "%s: the stream captures a graph", function);
}

} // namespace

void dawdle(uint64_t salt)
{
    settings now = current_settings();
    if (now.delay_us == 0)
        return;
    uint64_t us = scramble(now.delay_seed + scramble(salt)) % now.delay_us;
    std::this_thread::sleep_for(std::chrono::microseconds(us));
}

stream_pointer find_stream(cudaStream_t handle)
{
    if (handle == nullptr || handle == cudaStreamLegacy)
        return default_stream(current_device());
    std::lock_guard<std::mutex> hold(lock());
    auto found = streams().find(handle);
    return found == streams().end() ? nullptr : found->second;
}

int device_of(const stream_pointer &s)
{
    return s->device;
}

void release_streams(const capture_pointer &ended)
{
    std::lock_guard<std::mutex> hold(lock());
    std::lock_guard<std::mutex> hold_captures(capture_lock());
    for (const auto &each : streams())
        if (each.second->captured.in == ended)
            each.second->captured = capture_place();
}

void wait_for(stream &s, uint64_t n)
{
    std::unique_lock<std::mutex> hold(s.lock);
    s.changed.wait(hold, [&] { return s.n_done >= n; });
}

cpli_check_op push(const stream_pointer &to, operation what)
{
    std::lock_guard<std::mutex> hold(to->lock);
    cpli_check_op id = cpli_check_enqueue(to.get(), what.what.c_str());
    to->queue.push_back({std::move(what), id});
    to->n_pushed++;
    if (!to->worker.joinable())
        to->worker = std::thread(work, to.get());
    to->changed.notify_all();
    return id;
}

cudaError_t enqueue(const stream_pointer &to, operation what, cpli_check_op *id)
{
    {
        std::lock_guard<std::mutex> hold(capture_lock());
        if (to->captured.in) {
            if (!is_active(to->captured))
                return fail(cudaErrorStreamCaptureInvalidated,
                            "%s: an error before ended the capture",
                            what.what.c_str());
            add_node(to->captured, std::move(what));
            if (id != nullptr)
                *id = 0;
            return cudaSuccess;
        }
    }
    if (to->is_default)
        if (cudaError_t error = forbid_capture("work on the default stream"))
            return error;
    order_with_default(to);
    cpli_check_op made = push(to, std::move(what));
    if (id != nullptr)
        *id = made;
    return cudaSuccess;
}

void wait_for_device(int device)
{
    count(counter::host_syncs);
    for (const auto &each : streams_of(device))
        wait_for(*each, pushed(*each));
}

} // namespace emulation

using namespace emulation;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags,
                                         int priority)
{
    if (cudaError_t error = enter())
        return error;
    if (out == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0)
        return fail(cudaErrorInvalidValue, "a stream with flags %u", flags);
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    priority = std::min(least, std::max(greatest, priority));
    auto made = new_stream(current_device(), flags, priority);
    *out = reinterpret_cast<cudaStream_t>(made.get());
    std::lock_guard<std::mutex> hold(lock());
    streams()[*out] = made;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

/* Waits for what the stream still has to do, which CUDA does not: whoever
 * leans on that is wrong in both. */
cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    stream_pointer s;
    if (handle != nullptr) {
        std::lock_guard<std::mutex> hold(lock());
        auto found = streams().find(handle);
        if (found != streams().end()) {
            s = found->second;
            streams().erase(found);
        }
    }
    if (!s)
        return no_such_stream("cudaStreamDestroy");
    end_stream(s);
    return enter();
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    stream_pointer s;
    if (cudaError_t error = find_to_wait(handle, "cudaStreamSynchronize", &s))
        return error;
    count(counter::host_syncs);
    if (s->is_default)
        for (const auto &each : streams_of(s->device))
            if ((each->flags & cudaStreamNonBlocking) == 0)
                wait_for(*each, pushed(*each));
    wait_for(*s, pushed(*s));
    cpli_check_host_waited(s.get(), nullptr);
    return fault_of(s->device) == cudaSuccess
               ? cudaSuccess
               : fail(fault_of(s->device), "%s", "the stream's device faults");
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    stream_pointer s;
    if (cudaError_t error = find_to_wait(handle, "cudaStreamQuery", &s))
        return error;
    {
        std::lock_guard<std::mutex> hold(s->lock);
        if (s->n_done < s->n_pushed)
            return fail(cudaErrorNotReady, "there is work left");
    }
    cpli_check_host_waited(s.get(), nullptr);
    return fault_of(s->device);
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    stream_pointer s = find_stream(handle);
    if (!s)
        return no_such_stream("cudaStreamGetFlags");
    *flags = s->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    stream_pointer s = find_stream(handle);
    if (!s)
        return no_such_stream("cudaStreamGetPriority");
    *priority = s->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *device)
{
    stream_pointer s = find_stream(handle);
    if (!s)
        return no_such_stream("cudaStreamGetDevice");
    *device = s->device;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function,
                               void *data)
{
    if (cudaError_t error = enter())
        return error;
    stream_pointer s = find_stream(handle);
    if (!s)
        return no_such_stream("cudaLaunchHostFunc");
    if (function == nullptr)
        return fail(cudaErrorInvalidValue, "cudaLaunchHostFunc: no function");
    return enqueue(s, {"host function", [=](cpli_check_op) {
                           in_host_function = true;
                           function(data);
                           in_host_function = false;
                       }});
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (cudaError_t error = enter())
        return error;
    if (cudaError_t error = forbid_capture("cudaDeviceSynchronize"))
        return error;
    wait_for_device(current_device());
    cpli_check_host_waited(nullptr, nullptr);
    return enter();
}
