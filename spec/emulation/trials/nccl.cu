/*
 * nccl.cu: the double of NCCL, with ranks that are threads.
 */
#include <functional>
#include <mutex>
#include <thread>

#include <nccl.h>

#include "trial.h"

namespace
{

const int n_ranks = 4;

std::mutex printing;

void say_result(const char *word, int rank, ncclResult_t result)
{
    std::lock_guard<std::mutex> hold(printing);
    std::printf("%s %d: %s", word, rank, ncclGetErrorString(result));
    if (result != ncclSuccess)
        std::printf(": %s", ncclGetLastError(nullptr));
    std::printf("\n");
}

#define MUST_NCCL(call)                     \
    do {                                    \
        if (ncclResult_t result = (call)) { \
            say_result(#call, -1, result);  \
            std::exit(1);                   \
        }                                   \
    } while (false)

struct member {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
};

/* A thread for each rank, on a device of its own or all on device 0. */
void on_ranks(int n, bool same_device,
              const std::function<void(int rank, ncclUniqueId)> &run)
{
    ncclUniqueId id;
    MUST_NCCL(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < n; rank++)
        threads.emplace_back([=] {
            MUST(cudaSetDevice(same_device ? 0 : rank));
            run(rank, id);
        });
    for (std::thread &each : threads)
        each.join();
}

void as_members(int n, const std::function<void(const member &)> &run)
{
    on_ranks(n, false, [&](int rank, ncclUniqueId id) {
        member me = {rank, nullptr, new_stream()};
        MUST_NCCL(ncclCommInitRank(&me.comm, n, id, rank));
        run(me);
        MUST(cudaStreamDestroy(me.stream));
        MUST_NCCL(ncclCommDestroy(me.comm));
    });
}

/* What rank `from` sends to `to`: (from + 1) * (to + 2) elements of a number.
 */
int count_of(int from, int to)
{
    return (from + 1) * (to + 2) % 7;
}

int number_of(int from, int to, int round)
{
    return 100 * from + 10 * to + round;
}

struct buffers {
    int *out, *in;

    buffers()
        : out(on_device<int>(8 * n_ranks)), in(on_device<int>(8 * n_ranks))
    {
    }

    void fill(const member &me, int round)
    {
        std::vector<int> all(8 * n_ranks);
        for (int to = 0; to < n_ranks; to++)
            for (int i = 0; i < 8; i++)
                all[static_cast<size_t>(8 * to + i)] =
                    number_of(me.rank, to, round);
        MUST(cudaMemcpyAsync(out, all.data(), all.size() * 4,
                             cudaMemcpyHostToDevice, me.stream));
        MUST(cudaMemsetAsync(in, 0, all.size() * 4, me.stream));
        MUST(cudaStreamSynchronize(me.stream));
    }

    int wrong(const member &me, int round)
    {
        std::vector<int> seen = on_host(in, 8 * n_ranks);
        int n = 0;
        for (int from = 0; from < n_ranks; from++)
            for (int i = 0; i < 8; i++)
                n += seen[static_cast<size_t>(8 * from + i)] !=
                     (i < count_of(from, me.rank)
                          ? number_of(from, me.rank, round)
                          : 0);
        return n;
    }
};

/* `change` is added to the count that rank 2 sends to rank 1. */
void exchange(const member &me, const buffers &with, int change)
{
    MUST_NCCL(ncclGroupStart());
    for (int peer = 0; peer < n_ranks; peer++) {
        int more = me.rank == 2 && peer == 1 ? change : 0;
        MUST_NCCL(ncclSend(with.out + 8 * peer,
                           static_cast<size_t>(count_of(me.rank, peer) + more),
                           ncclInt32, peer, me.comm, me.stream));
        MUST_NCCL(ncclRecv(with.in + 8 * peer,
                           static_cast<size_t>(count_of(peer, me.rank)),
                           ncclInt32, peer, me.comm, me.stream));
    }
    MUST_NCCL(ncclGroupEnd());
}

void add_wrong(int n, int *wrong)
{
    std::lock_guard<std::mutex> hold(printing);
    *wrong += n;
}

} // namespace

TRIAL(nccl_exchange)
{
    int wrong = 0;
    as_members(n_ranks, [&](const member &me) {
        buffers with;
        for (int round = 0; round < 5; round++) {
            with.fill(me, round);
            exchange(me, with, 0);
            add_wrong(with.wrong(me, round), &wrong);
        }
    });
    std::printf("%d wrong\n", wrong);
}

TRIAL(nccl_exchange_in_a_graph)
{
    int wrong = 0;
    as_members(n_ranks, [&](const member &me) {
        buffers with;
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        MUST(cudaStreamBeginCapture(me.stream,
                                    cudaStreamCaptureModeThreadLocal));
        exchange(me, with, 0);
        MUST(cudaStreamEndCapture(me.stream, &graph));
        MUST(cudaGraphInstantiate(&ready, graph, 0));
        for (int round = 0; round < 3; round++) {
            with.fill(me, round);
            MUST(cudaGraphLaunch(ready, me.stream));
            add_wrong(with.wrong(me, round), &wrong);
        }
        MUST(cudaGraphExecDestroy(ready));
        MUST(cudaGraphDestroy(graph));
    });
    std::printf("%d wrong\n", wrong);
}

TRIAL(nccl_collectives)
{
    int wrong = 0;
    as_members(n_ranks, [&](const member &me) {
        int *out = on_device<int>(n_ranks), *in = on_device<int>(n_ranks);
        std::vector<int> mine;
        for (int to = 0; to < n_ranks; to++)
            mine.push_back(number_of(me.rank, to, 0));
        MUST(cudaMemcpy(out, mine.data(), 4 * n_ranks, cudaMemcpyDefault));
        MUST_NCCL(ncclAlltoAll(out, in, 1, ncclInt32, me.comm, me.stream));
        std::vector<int> all = on_host(in, n_ranks);
        for (int from = 0; from < n_ranks; from++)
            add_wrong(all[static_cast<size_t>(from)] !=
                          number_of(from, me.rank, 0),
                      &wrong);
        MUST_NCCL(ncclAllGather(out, in, 1, ncclInt32, me.comm, me.stream));
        all = on_host(in, n_ranks);
        for (int from = 0; from < n_ranks; from++)
            add_wrong(all[static_cast<size_t>(from)] != number_of(from, 0, 0),
                      &wrong);
    });
    std::printf("%d wrong\n", wrong);
}

TRIAL(nccl_counts_differ)
{
    on_ranks(n_ranks, false, [](int rank, ncclUniqueId id) {
        member me = {rank, nullptr, new_stream()};
        MUST_NCCL(ncclCommInitRank(&me.comm, n_ranks, id, rank));
        buffers with;
        with.fill(me, 0);
        exchange(me, with, 1);
        cudaError_t error = cudaStreamSynchronize(me.stream);
        ncclResult_t async;
        MUST_NCCL(ncclCommGetAsyncError(me.comm, &async));
        MUST_NCCL(ncclCommDestroy(me.comm));
        std::lock_guard<std::mutex> hold(printing);
        std::printf("rank %d: %s, %s\n", rank, cudaGetErrorName(error),
                    ncclGetErrorString(async));
    });
}

TRIAL(nccl_peer_never_comes)
{
    on_ranks(2, false, [](int rank, ncclUniqueId id) {
        member me = {rank, nullptr, new_stream()};
        MUST_NCCL(ncclCommInitRank(&me.comm, 2, id, rank));
        int *at = on_device<int>(4);
        if (rank == 0)
            MUST_NCCL(ncclRecv(at, 4, ncclInt32, 1, me.comm, me.stream));
        cudaError_t error = cudaStreamSynchronize(me.stream);
        MUST_NCCL(ncclCommDestroy(me.comm));
        std::lock_guard<std::mutex> hold(printing);
        std::printf("rank %d: %s\n", rank, cudaGetErrorName(error));
    });
}

/* Who aborts a communicator frees its device, which stays as it was. */
TRIAL(nccl_abort)
{
    on_ranks(2, false, [](int rank, ncclUniqueId id) {
        member me = {rank, nullptr, new_stream()};
        MUST_NCCL(ncclCommInitRank(&me.comm, 2, id, rank));
        int *at = on_device<int>(4);
        if (rank == 0)
            MUST_NCCL(ncclRecv(at, 4, ncclInt32, 1, me.comm, me.stream));
        MUST_NCCL(ncclCommAbort(me.comm));
        cudaError_t error = cudaStreamSynchronize(me.stream);
        std::lock_guard<std::mutex> hold(printing);
        std::printf("rank %d: %s\n", rank, cudaGetErrorName(error));
    });
}

/* It does not free the others': they abort for themselves, or wait. */
TRIAL(nccl_abort_alone)
{
    on_ranks(2, false, [](int rank, ncclUniqueId id) {
        member me = {rank, nullptr, new_stream()};
        MUST_NCCL(ncclCommInitRank(&me.comm, 2, id, rank));
        int *at = on_device<int>(4);
        if (rank == 0)
            MUST_NCCL(ncclRecv(at, 4, ncclInt32, 1, me.comm, me.stream));
        else
            MUST_NCCL(ncclCommAbort(me.comm));
        cudaError_t error = cudaStreamSynchronize(me.stream);
        std::lock_guard<std::mutex> hold(printing);
        std::printf("rank %d: %s\n", rank, cudaGetErrorName(error));
    });
}

TRIAL(nccl_one_device)
{
    on_ranks(2, true, [](int rank, ncclUniqueId id) {
        ncclComm_t comm;
        say_result("init", rank, ncclCommInitRank(&comm, 2, id, rank));
    });
    ncclComm_t comms[3];
    const int devices[3] = {0, 1, 0};
    say_result("init all", 3, ncclCommInitAll(comms, 3, devices));
    say_result("init all", 2, ncclCommInitAll(comms, 2, devices));
    for (int rank = 0; rank < 2; rank++)
        MUST_NCCL(ncclCommDestroy(comms[rank]));
}

/* Several ranks of one thread, as ncclCommInitAll has them. */
TRIAL(nccl_one_thread)
{
    ncclComm_t comms[2];
    cudaStream_t streams[2];
    int *at[2];
    MUST_NCCL(ncclCommInitAll(comms, 2, nullptr));
    for (int rank = 0; rank < 2; rank++) {
        MUST(cudaSetDevice(rank));
        streams[rank] = new_stream();
        at[rank] = on_device<int>(1);
        MUST(cudaMemset(at[rank], rank + 1, 4));
        MUST(cudaStreamSynchronize(nullptr));
    }
    MUST_NCCL(ncclGroupStart());
    MUST_NCCL(ncclSend(at[0], 1, ncclInt32, 1, comms[0], streams[0]));
    MUST_NCCL(ncclRecv(at[1], 1, ncclInt32, 0, comms[1], streams[1]));
    MUST_NCCL(ncclGroupEnd());
    std::printf("%08x\n", static_cast<unsigned>(on_host(at[1], 1)[0]));
    for (int rank = 0; rank < 2; rank++)
        MUST_NCCL(ncclCommDestroy(comms[rank]));
}

TRIAL(nccl_refuses)
{
    ncclUniqueId id;
    ncclComm_t comm;
    int version = 0, host = 0;
    MUST_NCCL(ncclGetVersion(&version));
    std::printf("header: %d\n", version == NCCL_VERSION_CODE);
    MUST_NCCL(ncclGetUniqueId(&id));
    say_result("rank", 1, ncclCommInitRank(&comm, 1, id, 1));
    MUST_NCCL(ncclCommInitRank(&comm, 1, id, 0));
    cudaStream_t stream = new_stream();
    int *at = on_device<int>(4);
    say_result("peer", 1, ncclSend(at, 4, ncclInt32, 1, comm, stream));
    say_result("host", 0, ncclSend(&host, 1, ncclInt32, 0, comm, stream));
    say_result("long", 0, ncclSend(at, 5, ncclInt32, 0, comm, stream));
    say_result("group", 0, ncclGroupEnd());
    MUST_NCCL(ncclGroupStart());
    ncclSend(at, 4, ncclInt32, 1, comm, stream);
    say_result("end", 0, ncclGroupEnd());
    MUST(cudaSetDevice(1));
    say_result("stream", 0, ncclSend(at, 4, ncclInt32, 0, comm, new_stream()));
    say_result("memory", 0,
               ncclSend(on_device<int>(4), 4, ncclInt32, 0, comm, stream));
    MUST(cudaSetDevice(0));
    tell("sync", cudaStreamSynchronize(stream));
    MUST_NCCL(ncclCommDestroy(comm));
}

TRIAL(nccl_without_a_driver)
{
    ncclUniqueId id;
    ncclComm_t comm;
    say_result("id", 0, ncclGetUniqueId(&id));
    say_result("init", 0, ncclCommInitRank(&comm, 1, id, 0));
    MUST_NCCL(ncclCommDestroy(comm));
}
