/*
 * graphs.cu: capture and replay on the emulator.
 */
#include <thread>

#include "trial.h"

namespace
{

__global__ void add(int *at, const int *from, int value)
{
    *at += *from + value;
}

cudaGraphExec_t end_capture(cudaStream_t s)
{
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    MUST(cudaStreamEndCapture(s, &graph));
    MUST(cudaGraphInstantiate(&ready, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return ready;
}

void begin(cudaStream_t s,
           cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
{
    MUST(cudaStreamBeginCapture(s, mode));
}

} // namespace

/* Arguments are those of the capture, memory is that of the replay. */
TRIAL(replay)
{
    cudaStream_t s = new_stream();
    int *at = on_device<int>(1), *from = on_device<int>(1), value = 100;
    MUST(cudaMemset(at, 0, 4));
    MUST(cudaMemset(from, 0, 4));
    MUST(cudaStreamSynchronize(nullptr));
    begin(s);
    MUST(CPLI_LAUNCH(add, 1, 1, 0, s, at, from, value));
    cudaGraphExec_t graph = end_capture(s);
    say("captured", on_host(at, 1));
    value = 100000;
    for (int replay = 0; replay < 3; replay++) {
        MUST(cudaMemcpyAsync(from, &replay, 4, cudaMemcpyHostToDevice, s));
        MUST(cudaGraphLaunch(graph, s));
        MUST(cudaStreamSynchronize(s));
        say("replayed", on_host(at, 1));
    }
    MUST(cudaGraphExecDestroy(graph));
    tell("destroyed", cudaGraphLaunch(graph, s));
    std::printf("%d launches\n",
                static_cast<int>(cpl_emulation_count("graph_launches")));
}

/* Two branches; the second reads what the first wrote, by an event or not. */
static void run_branches(bool with_event, bool with_join)
{
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork = new_event(), written = new_event(), read = new_event();
    int *at = on_device<int>(1), *copy = on_device<int>(1);
    begin(a);
    MUST(cudaEventRecord(fork, a));
    MUST(cudaStreamWaitEvent(b, fork, 0));
    MUST(cudaMemsetAsync(at, 1, 4, a));
    MUST(cudaEventRecord(written, a));
    if (with_event)
        MUST(cudaStreamWaitEvent(b, written, 0));
    MUST(cudaMemcpyAsync(copy, at, 4, cudaMemcpyDeviceToDevice, b));
    MUST(cudaEventRecord(read, b));
    if (with_join)
        MUST(cudaStreamWaitEvent(a, read, 0));
    if (!with_join) {
        cudaGraph_t graph;
        tell("end", cudaStreamEndCapture(a, &graph));
        std::printf("%d\n", graph == nullptr);
        cudaStreamCaptureStatus status;
        MUST(cudaStreamIsCapturing(b, &status));
        std::printf("b captures: %d\n", status != cudaStreamCaptureStatusNone);
        return;
    }
    cudaGraphExec_t graph = end_capture(a);
    MUST(cudaGraphLaunch(graph, a));
    std::printf("%08x\n", static_cast<unsigned>(on_host(copy, 1)[0]));
}

TRIAL(branches)
{
    run_branches(true, true);
}

TRIAL(branches_without_an_event)
{
    run_branches(false, true);
}

TRIAL(branch_not_joined)
{
    run_branches(true, false);
}

TRIAL(capture_refuses)
{
    cudaStream_t s = new_stream(), other = new_stream();
    cudaEvent_t outside = new_event(), inside = new_event();
    cudaGraph_t graph;
    void *at;
    MUST(cudaEventRecord(outside, other));
    tell("not begun", cudaStreamEndCapture(s, &graph));
    begin(s);
    tell("begun", cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    tell("malloc", cudaMalloc(&at, 8));
    tell("end", cudaStreamEndCapture(s, &graph));
    begin(s);
    tell("synchronize", cudaStreamSynchronize(s));
    tell("end", cudaStreamEndCapture(s, &graph));
    begin(s);
    tell("event from outside", cudaStreamWaitEvent(s, outside, 0));
    tell("end", cudaStreamEndCapture(s, &graph));
    begin(s);
    MUST(cudaEventRecord(inside, s));
    MUST(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    tell("merge", cudaStreamWaitEvent(other, inside, 0));
    tell("end", cudaStreamEndCapture(s, &graph));
    tell("end", cudaStreamEndCapture(other, &graph));
    tell("captured event", cudaEventSynchronize(inside));
    tell("default stream",
         cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
    begin(s, cudaStreamCaptureModeRelaxed);
    tell("relaxed", cudaMalloc(&at, 8));
    tell("end", cudaStreamEndCapture(s, &graph));
}

/* What one thread captures, another may forbid itself or not notice. */
template <cudaStreamCaptureMode MODE> void allocate_meanwhile()
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    begin(s, MODE);
    std::thread([] {
        void *at;
        tell("another thread", cudaMalloc(&at, 8));
    }).join();
    tell("end", cudaStreamEndCapture(s, &graph));
}

TRIAL(threads_and_global_capture)
{
    allocate_meanwhile<cudaStreamCaptureModeGlobal>();
}

TRIAL(threads_and_local_capture)
{
    allocate_meanwhile<cudaStreamCaptureModeThreadLocal>();
}
