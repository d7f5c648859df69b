/*
 * streams.cu: bugs in what the host orders: streams, events, graphs, copies.
 */
#include "planted.h"
#include <sched.h>

namespace
{

__global__ void copy_row(int *to, const int *from, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = from[i];
}

void read_before_sync(const bench &b, bool right)
{
    cudaMemcpyAsync(b.host, b.in, 4 * N, cudaMemcpyDeviceToHost, b.stream);
    if (right)
        cudaStreamSynchronize(b.stream);
    volatile int seen = b.host[3]; /* bug: read_before_sync */
    (void)seen;
    cudaStreamSynchronize(b.stream);
}

void write_before_sync(const bench &b, bool right)
{
    cudaMemcpyAsync(b.in, b.host, 4 * N, cudaMemcpyHostToDevice, b.stream);
    if (right)
        cudaStreamSynchronize(b.stream);
    b.host[5] = 5; /* bug: write_before_sync */
    cudaStreamSynchronize(b.stream);
}

void forgotten_event(const bench &b, bool right)
{
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    if (right) {
        cudaEventRecord(b.event, b.stream);
        cudaStreamWaitEvent(b.other, b.event, 0);
    }
    cudaMemsetAsync(b.out, 0, 4 * N, b.other);
    cudaStreamSynchronize(b.other);
    cudaStreamSynchronize(b.stream);
}

/* Two streams read; one then writes what the other may still be reading. That
 * the host saw what the other wrote is luck to the checker: it waited for
 * nothing. Here it makes sure that both have read before. */
void second_reader(const bench &b, bool right)
{
    volatile int *last = &b.host[N / 2 - 1];
    *last = -1;
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N / 2);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.other, b.host, b.in, N / 2);
    for (int i = 0; i < 1000000 && *last == -1; i++)
        sched_yield();
    if (right)
        cudaDeviceSynchronize();
    cudaMemsetAsync(b.in, 0, 4 * N, b.stream);
    cudaStreamSynchronize(b.other);
    cudaStreamSynchronize(b.stream);
}

/* The wait binds to the record before it: a later one does not count. */
void event_too_late(const bench &b, bool right)
{
    cudaEventRecord(b.event, b.stream);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    if (right)
        cudaEventRecord(b.event, b.stream);
    cudaStreamWaitEvent(b.other, b.event, 0);
    if (!right)
        cudaEventRecord(b.event, b.stream);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.other, b.out, b.in, N);
    cudaStreamSynchronize(b.other);
    cudaStreamSynchronize(b.stream);
}

/* Two branches of a graph that nothing orders. */
void forgotten_join(const bench &b, bool right)
{
    cudaGraph_t made;
    cudaGraphExec_t ready;
    cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(b.event, b.stream);
    cudaStreamWaitEvent(b.other, b.event, 0);
    cudaMemsetAsync(b.out, 0, 4 * N, b.other);
    cudaEventRecord(b.event, b.other);
    if (right)
        cudaStreamWaitEvent(b.stream, b.event, 0);
    CPLI_LAUNCH(copy_row, 1, 64, 0, b.stream, b.out, b.in, N);
    if (!right)
        cudaStreamWaitEvent(b.stream, b.event, 0);
    cudaStreamEndCapture(b.stream, &made);
    cudaGraphInstantiate(&ready, made, 0);
    cudaGraphLaunch(ready, b.stream);
    cudaStreamSynchronize(b.stream);
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(made);
}

} // namespace

const planted_case bugs_of_streams[] = {
    {"read_before_sync", read_before_sync, true},
    {"write_before_sync", write_before_sync, true},
    {"forgotten_event", forgotten_event, true},
    {"second_reader", second_reader, true},
    {"event_too_late", event_too_late, true},
    {"forgotten_join", forgotten_join, true},
    {nullptr, nullptr, false},
};
