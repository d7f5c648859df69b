/*
 * graph.cpp: capture and replay. A graph is a list of operations and, for each,
 * the earlier ones that it waits for; events inside a capture become such
 * edges. A replay is one operation of its stream, which carries out the nodes
 * one after another in an order that the edges allow: the one of the capture,
 * the opposite, or a random one, so that a forgotten event shows.
 *
 * Arguments were copied when the operation was captured: what changes between
 * replays must lie in memory, as in CUDA.
 */
#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "emulator.h"
#include "stream.h"

namespace emulation
{

struct graph {
    std::vector<node> nodes;
};

struct capture {
    std::shared_ptr<graph> made = std::make_shared<graph>();
    stream *origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    bool valid = true, ended = false;
};

namespace
{

struct executable {
    graph what;
    std::mutex running; /* two launches of one do not overlap */
};

/* Captures that have not ended; guarded by capture_lock(). */
std::vector<capture_pointer> &captures()
{
    static auto *list = new std::vector<capture_pointer>;
    return *list;
}

template <class Handle, class T> struct registry {
    std::mutex lock;
    std::map<Handle, std::shared_ptr<T>> live;

    Handle add(std::shared_ptr<T> made)
    {
        Handle handle = reinterpret_cast<Handle>(made.get());
        std::lock_guard<std::mutex> hold(lock);
        live[handle] = std::move(made);
        return handle;
    }

    std::shared_ptr<T> find(Handle handle)
    {
        std::lock_guard<std::mutex> hold(lock);
        auto found = live.find(handle);
        return found == live.end() ? nullptr : found->second;
    }

    bool remove(Handle handle)
    {
        std::lock_guard<std::mutex> hold(lock);
        return live.erase(handle) == 1;
    }
};

registry<cudaGraph_t, graph> &graphs()
{
    static auto *all = new registry<cudaGraph_t, graph>;
    return *all;
}

registry<cudaGraphExec_t, executable> &executables()
{
    static auto *all = new registry<cudaGraphExec_t, executable>;
    return *all;
}

std::vector<size_t> merged(std::vector<size_t> a, const std::vector<size_t> &b)
{
    a.insert(a.end(), b.begin(), b.end());
    std::sort(a.begin(), a.end());
    a.erase(std::unique(a.begin(), a.end()), a.end());
    return a;
}

/* Every node must lie before what the first stream waits for at the end. */
bool is_joined(const graph &g, std::vector<size_t> reached)
{
    std::vector<bool> seen(g.nodes.size(), false);
    while (!reached.empty()) {
        size_t i = reached.back();
        reached.pop_back();
        if (seen[i])
            continue;
        seen[i] = true;
        reached.insert(reached.end(), g.nodes[i].after.begin(),
                       g.nodes[i].after.end());
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
}

/* An order that the edges allow. */
std::vector<size_t> order_of(const graph &g, uint64_t salt)
{
    settings now = current_settings();
    dice random{scramble(now.order_seed) + salt};
    std::vector<size_t> order, free;
    std::vector<size_t> n_before(g.nodes.size());
    std::vector<std::vector<size_t>> then(g.nodes.size());
    for (size_t i = 0; i < g.nodes.size(); i++) {
        n_before[i] = g.nodes[i].after.size();
        for (size_t before : g.nodes[i].after)
            then[before].push_back(i);
        if (n_before[i] == 0)
            free.push_back(i);
    }
    while (!free.empty()) {
        auto next = now.order == order_kind::forward
                        ? std::min_element(free.begin(), free.end())
                    : now.order == order_kind::reverse
                        ? std::max_element(free.begin(), free.end())
                        : free.begin() + static_cast<std::ptrdiff_t>(
                                             random.below(free.size()));
        size_t i = *next;
        free.erase(next);
        order.push_back(i);
        for (size_t after : then[i])
            if (--n_before[after] == 0)
                free.push_back(after);
    }
    return order;
}

/* To the checker each node is an operation of a stream of its own, bound to
 * others by the edges; its ids by node. */
std::vector<cpli_check_op> tell_checker(const graph &g, const stream *on)
{
    std::vector<cpli_check_op> ids;
    cpli_check_event_record(&g, on);
    for (const node &each : g.nodes) {
        cpli_check_event_wait(&each, &g);
        for (size_t before : each.after)
            cpli_check_event_wait(&each, &g.nodes[before]);
        ids.push_back(cpli_check_enqueue(&each, each.what.what.c_str()));
        cpli_check_event_record(&each, &each);
    }
    for (const node &each : g.nodes)
        cpli_check_event_wait(on, &each);
    return ids;
}

void replay(executable &x, int device, const std::vector<cpli_check_op> &ids,
            uint64_t salt)
{
    std::lock_guard<std::mutex> hold(x.running);
    for (size_t i : order_of(x.what, salt)) {
        dawdle(salt * 1000 + i);
        const operation &what = x.what.nodes[i].what;
        if (what.always || fault_of(device) == cudaSuccess)
            what.run(ids[i]);
    }
}

cudaError_t end_of(const capture_pointer &c, const stream_pointer &s,
                   const std::vector<size_t> &reached)
{
    if (!c->valid)
        return fail(cudaErrorStreamCaptureInvalidated,
                    "cudaStreamEndCapture: an error before ended the capture");
    if (!is_joined(*c->made, reached))
        return fail(cudaErrorStreamCaptureUnjoined,
                    "cudaStreamEndCapture: work of another stream was captured "
                    "that stream %d of device %d does not wait for",
                    static_cast<int>(s->number), s->device);
    return cudaSuccess;
}

} // namespace

std::mutex &capture_lock()
{
    static std::mutex *mutex = new std::mutex;
    return *mutex;
}

bool is_active(const capture_place &place)
{
    return place.in && place.in->valid && !place.in->ended;
}

void add_node(capture_place &place, operation what)
{
    auto &nodes = place.in->made->nodes;
    nodes.push_back({std::move(what), place.after});
    place.after = {nodes.size() - 1};
}

cudaError_t join(capture_place &to, const capture_place &from)
{
    if (from.in->ended)
        return fail(cudaErrorCapturedEvent,
                    "cudaStreamWaitEvent: the event was recorded in a capture "
                    "that has ended");
    if (to.in && to.in != from.in) {
        invalidate(to);
        invalidate(from);
        return fail(cudaErrorStreamCaptureMerge,
                    "cudaStreamWaitEvent: stream and event belong to two "
                    "captures");
    }
    to.in = from.in;
    to.after = merged(to.after, from.after);
    return cudaSuccess;
}

void invalidate(const capture_place &place)
{
    if (place.in)
        place.in->valid = false;
}

cudaError_t forbid_capture(const char *function)
{
    cudaStreamCaptureMode mine = cudaStreamCaptureModeGlobal;
    cudaThreadExchangeStreamCaptureMode(&mine);
    cudaStreamCaptureMode restored = mine;
    cudaThreadExchangeStreamCaptureMode(&restored);
    std::lock_guard<std::mutex> hold(capture_lock());
    if (mine == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    for (const auto &each : captures()) {
        bool own = each->thread == std::this_thread::get_id();
        if (each->mode == cudaStreamCaptureModeRelaxed)
            continue;
        if (!own && (each->mode != cudaStreamCaptureModeGlobal ||
                     mine != cudaStreamCaptureModeGlobal))
            continue;
        each->valid = false;
        return fail(cudaErrorStreamCaptureUnsupported,
                    "%s: %s thread captures a graph", function,
                    own ? "this" : "another");
    }
    return cudaSuccess;
}

} // namespace emulation

using namespace emulation;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    std::swap(*mode, current);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t on, cudaStreamCaptureMode mode)
{
    if (cudaError_t error = enter())
        return error;
    stream_pointer s = find_stream(on);
    if (!s)
        return fail(cudaErrorInvalidResourceHandle,
                    "cudaStreamBeginCapture: no such stream");
    std::lock_guard<std::mutex> hold(capture_lock());
    if (s->is_default)
        return fail(cudaErrorStreamCaptureUnsupported,
                    "cudaStreamBeginCapture: the default stream cannot be "
                    "captured");
    if (s->captured.in)
        return fail(cudaErrorIllegalState,
                    "cudaStreamBeginCapture: the stream captures already");
    auto made = std::make_shared<capture>();
    made->origin = s.get();
    made->mode = mode;
    made->thread = std::this_thread::get_id();
    s->captured = {made, {}};
    captures().push_back(made);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t on, cudaGraph_t *out)
{
    if (cudaError_t error = enter())
        return error;
    stream_pointer s = find_stream(on);
    if (!s)
        return fail(cudaErrorInvalidResourceHandle,
                    "cudaStreamEndCapture: no such stream");
    *out = nullptr;
    capture_pointer c;
    cudaError_t error = cudaSuccess;
    {
        std::lock_guard<std::mutex> hold(capture_lock());
        c = s->captured.in;
        if (!c)
            return fail(cudaErrorIllegalState,
                        "cudaStreamEndCapture: the stream captures nothing");
        if (c->origin != s.get())
            return fail(cudaErrorStreamCaptureUnmatched,
                        "cudaStreamEndCapture: the capture began in another "
                        "stream");
        if (c->mode != cudaStreamCaptureModeRelaxed &&
            c->thread != std::this_thread::get_id())
            return fail(cudaErrorStreamCaptureWrongThread,
                        "cudaStreamEndCapture: the capture began in another "
                        "thread");
        error = end_of(c, s, s->captured.after);
        c->ended = true;
        captures().erase(std::find(captures().begin(), captures().end(), c));
    }
    release_streams(c);
    if (error != cudaSuccess)
        return error;
    *out = graphs().add(c->made);
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t on,
                                  cudaStreamCaptureStatus *status)
{
    stream_pointer s = find_stream(on);
    if (!s)
        return fail(cudaErrorInvalidResourceHandle,
                    "cudaStreamIsCapturing: no such stream");
    std::lock_guard<std::mutex> hold(capture_lock());
    *status = !s->captured.in          ? cudaStreamCaptureStatusNone
              : is_active(s->captured) ? cudaStreamCaptureStatusActive
                                       : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes,
                              size_t *n)
{
    std::shared_ptr<graph> g = graphs().find(handle);
    if (!g || n == nullptr)
        return fail(cudaErrorInvalidValue, "cudaGraphGetNodes: no such graph");
    for (size_t i = 0; nodes != nullptr && i < *n; i++)
        nodes[i] = i < g->nodes.size()
                       ? reinterpret_cast<cudaGraphNode_t>(&g->nodes[i])
                       : nullptr;
    if (nodes == nullptr || *n > g->nodes.size())
        *n = g->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t handle,
                                 unsigned long long)
{
    if (cudaError_t error = enter())
        return error;
    std::shared_ptr<graph> g = graphs().find(handle);
    if (!g || out == nullptr)
        return fail(cudaErrorInvalidValue,
                    "cudaGraphInstantiate: no such graph");
    auto made = std::make_shared<executable>();
    made->what = *g;
    *out = executables().add(made);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out,
                                          cudaGraph_t handle,
                                          unsigned long long flags)
{
    return cudaGraphInstantiate(out, handle, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t on)
{
    if (!executables().find(handle) || !find_stream(on))
        return fail(cudaErrorInvalidValue,
                    "cudaGraphUpload: no such graph or stream");
    return enter();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t on)
{
    if (cudaError_t error = enter())
        return error;
    std::shared_ptr<executable> x = executables().find(handle);
    stream_pointer s = find_stream(on);
    if (!x || !s)
        return fail(cudaErrorInvalidValue, "cudaGraphLaunch: no such %s",
                    x ? "stream" : "executable graph");
    {
        std::lock_guard<std::mutex> hold(capture_lock());
        if (s->captured.in) {
            invalidate(s->captured);
            return fail(cudaErrorNotSupported,
                        "cudaGraphLaunch: graphs within graphs are not "
                        "emulated");
        }
    }
    static std::atomic<uint64_t> n_launches{0};
    uint64_t salt = n_launches++;
    int device = s->device;
    count(counter::graph_launches);
    std::vector<cpli_check_op> ids = tell_checker(x->what, s.get());
    return enqueue(
        s,
        {"graph", [=](cpli_check_op) { replay(*x, device, ids, salt); }, true});
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle)
{
    if (!graphs().remove(handle))
        return fail(cudaErrorInvalidValue, "cudaGraphDestroy: no such graph");
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle)
{
    if (!executables().remove(handle))
        return fail(cudaErrorInvalidValue,
                    "cudaGraphExecDestroy: no such executable graph");
    return cudaSuccess;
}
