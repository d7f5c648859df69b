/*
 * event.cpp: events. A wait binds to the last record before it, as in CUDA; an
 * event that was recorded in a capture is a place in its graph.
 */
#include <chrono>
#include <condition_variable>
#include <map>

#include "emulator.h"
#include "stream.h"

namespace emulation
{

namespace
{

struct event {
    unsigned flags = 0;
    int device = 0;
    std::mutex lock;
    std::condition_variable changed;
    uint64_t n_recorded = 0, n_done = 0;
    std::chrono::steady_clock::time_point when;
    capture_place captured; /* guarded by capture_lock() */
};

using event_pointer = std::shared_ptr<event>;

std::mutex &lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

std::map<cudaEvent_t, event_pointer> &events()
{
    static auto *map = new std::map<cudaEvent_t, event_pointer>;
    return *map;
}

event_pointer find_event(cudaEvent_t handle)
{
    std::lock_guard<std::mutex> hold(lock());
    auto found = events().find(handle);
    return found == events().end() ? nullptr : found->second;
}

cudaError_t no_such_event(const char *function)
{
    return fail(cudaErrorInvalidResourceHandle, "%s: no such event", function);
}

/* The event, if this thread may ask for it or wait for it now. */
cudaError_t find_to_wait(cudaEvent_t handle, const char *function,
                         event_pointer *out)
{
    if (cudaError_t error = enter())
        return error;
    *out = find_event(handle);
    if (!*out)
        return no_such_event(function);
    if (cudaError_t error = forbid_capture(function))
        return error;
    std::lock_guard<std::mutex> hold(capture_lock());
    if (!(*out)->captured.in)
        return cudaSuccess;
    return fail(cudaErrorCapturedEvent,
                "%s: the event was last recorded in a capture", function);
}

void complete(event &e, uint64_t n)
{
    std::lock_guard<std::mutex> hold(e.lock);
    e.n_done = n;
    e.when = std::chrono::steady_clock::now();
    e.changed.notify_all();
}

void await(event &e, uint64_t n)
{
    std::unique_lock<std::mutex> hold(e.lock);
    e.changed.wait(hold, [&] { return e.n_done >= n; });
}

/* In a capture the event becomes the place that the stream has reached. */
bool record_in_capture(event &e, stream &s)
{
    std::lock_guard<std::mutex> hold(capture_lock());
    e.captured = capture_place();
    if (!s.captured.in)
        return false;
    e.captured = s.captured;
    return true;
}

/* Whether the wait was one of a capture; then *error is what became of it. */
bool wait_in_capture(event &e, stream &s, cudaError_t *error)
{
    std::lock_guard<std::mutex> hold(capture_lock());
    if (!e.captured.in && !s.captured.in)
        return false;
    if (!e.captured.in) {
        invalidate(s.captured);
        *error = fail(cudaErrorStreamCaptureIsolation,
                      "cudaStreamWaitEvent: the stream captures, the event was "
                      "recorded outside");
        return true;
    }
    *error = join(s.captured, e.captured);
    return true;
}

} // namespace

} // namespace emulation

using namespace emulation;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    if (out == nullptr ||
        (flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming}))
        return fail(cudaErrorInvalidValue, "an event with flags %u", flags);
    auto made = std::make_shared<event>();
    made->flags = flags;
    made->device = current_device();
    *out = reinterpret_cast<cudaEvent_t>(made.get());
    std::lock_guard<std::mutex> hold(lock());
    events()[*out] = made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    {
        std::lock_guard<std::mutex> hold(lock());
        auto found = events().find(handle);
        if (found != events().end()) {
            cpli_check_event_destroy(handle);
            events().erase(found);
            return cudaSuccess;
        }
    }
    return no_such_event("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on)
{
    if (cudaError_t error = enter())
        return error;
    event_pointer e = find_event(handle);
    stream_pointer s = find_stream(on);
    if (!e || !s)
        return fail(cudaErrorInvalidResourceHandle,
                    "cudaEventRecord: no such %s", e ? "stream" : "event");
    if (e->device != s->device)
        return fail(cudaErrorInvalidResourceHandle,
                    "cudaEventRecord: an event of device %d, a stream of "
                    "device %d",
                    e->device, s->device);
    if (record_in_capture(*e, *s))
        return cudaSuccess;
    uint64_t n = 0;
    {
        std::lock_guard<std::mutex> hold(e->lock);
        n = ++e->n_recorded;
    }
    cpli_check_event_record(handle, s.get());
    return enqueue(
        s, {"event record", [e, n](cpli_check_op) { complete(*e, n); }, true});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle,
                                unsigned flags)
{
    if (cudaError_t error = enter())
        return error;
    event_pointer e = find_event(handle);
    stream_pointer s = find_stream(on);
    if (!e || !s)
        return fail(cudaErrorInvalidResourceHandle,
                    "cudaStreamWaitEvent: no such %s", e ? "stream" : "event");
    if (flags != cudaEventWaitDefault)
        return fail(cudaErrorInvalidValue, "cudaStreamWaitEvent: flags %u",
                    flags);
    cudaError_t error = cudaSuccess;
    if (wait_in_capture(*e, *s, &error))
        return error;
    uint64_t n = 0;
    {
        std::lock_guard<std::mutex> hold(e->lock);
        n = e->n_recorded;
    }
    if (n == 0)
        return cudaSuccess; /* never recorded: nothing to wait for */
    cpli_check_event_wait(s.get(), handle);
    return enqueue(
        s, {"event wait", [e, n](cpli_check_op) { await(*e, n); }, true});
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    event_pointer e;
    if (cudaError_t error = find_to_wait(handle, "cudaEventSynchronize", &e))
        return error;
    count(counter::host_syncs);
    std::unique_lock<std::mutex> hold(e->lock);
    uint64_t n = e->n_recorded;
    hold.unlock();
    await(*e, n);
    cpli_check_host_waited(nullptr, handle);
    return fault_of(e->device);
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    event_pointer e;
    if (cudaError_t error = find_to_wait(handle, "cudaEventQuery", &e))
        return error;
    {
        std::lock_guard<std::mutex> hold(e->lock);
        if (e->n_done < e->n_recorded)
            return fail(cudaErrorNotReady, "there is work left");
    }
    cpli_check_host_waited(nullptr, handle);
    return fault_of(e->device);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    event_pointer a, b;
    if (cudaError_t error = find_to_wait(from, "cudaEventElapsedTime", &a))
        return error;
    if (cudaError_t error = find_to_wait(to, "cudaEventElapsedTime", &b))
        return error;
    std::chrono::steady_clock::time_point when[2];
    const event_pointer both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        event &e = *both[i];
        std::lock_guard<std::mutex> hold(e.lock);
        if ((e.flags & cudaEventDisableTiming) != 0 || e.n_recorded == 0)
            return fail(cudaErrorInvalidResourceHandle,
                        "cudaEventElapsedTime: the %s event %s",
                        i == 0 ? "first" : "second",
                        e.n_recorded == 0 ? "was never recorded"
                                          : "has no timing");
        if (e.n_done < e.n_recorded)
            return fail(cudaErrorNotReady, "there is work left");
        when[i] = e.when;
    }
    *ms = std::chrono::duration<float, std::milli>(when[1] - when[0]).count();
    return cudaSuccess;
}
