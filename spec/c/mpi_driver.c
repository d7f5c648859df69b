/*
 * mpi_driver.c: exercises the MPI transport without Lua. Links no MPI: opens
 * the plug-in as the host program does. Run it under mpirun:
 *
 *     mpirun -n 4 bin/mpi_driver SCENARIO
 *
 * Every byte that moves is checked. Process 0 prints one line for what it saw;
 * the exit status is 0 if all checks of all processes held. The scenarios that
 * end badly on purpose are at the end of the table.
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/processes.h"

enum { MAX_RANKS = 16, MAX_PIECES = 400 };

static const cpli_processes_ops *mpi;
static cpli_processes *all;
static long n_passed;
static long n_failed;

static void check(bool ok, const char *what)
{
    n_passed += ok;
    n_failed += !ok;
    if (!ok)
        fprintf(stderr, "failed: %s, process %d of %d: %s\n", what,
                mpi->rank(all), mpi->size(all), cpl_last_error());
}

static void check_ok(cpl_status status, const char *what)
{
    check(status == CPL_OK, what);
}

static void nap(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
    nanosleep(&time, NULL);
}

/* A reproducible number below n, the same on all ranks. */
static int64_t draw(uint64_t key, int64_t i, int64_t n)
{
    return (int64_t)(cpl_random_bits(key, (uint64_t)i) % (uint64_t)n);
}

/* ---- transfers whose every byte is known ---- */

typedef struct trial {
    cpl_comm *comm;
    uint64_t key;
    int64_t pieces; /* of a pair, at most */
    int64_t unit;   /* sizes and offsets are multiples of it */
    bool in_windows;
    cpli_transfer transfer;
    cpli_piece sends[MAX_PIECES];
    cpli_piece receives[MAX_PIECES];
    void *src;
    void *dst;
    size_t src_bytes;
    size_t dst_bytes;
} trial;

static int32_t source_word(const trial *t, int rank, int64_t offset)
{
    return (int32_t)(cpl_random_bits(t->key + (uint64_t)rank + 1,
                                     (uint64_t)offset / 4) >>
                     40);
}

/* The size of piece i between two ranks; 0: there is none. A rank in four has
 * nothing for anybody, a pair in three has nothing for each other. */
static int64_t piece_bytes(const trial *t, int from, int to, int64_t i)
{
    int64_t pair = ((int64_t)from * MAX_RANKS + to) * MAX_RANKS;
    if (draw(t->key, 1000000 + from, 4) == 0 ||
        draw(t->key, 2000000 + pair, 3) == 0)
        return 0;
    if (draw(t->key, 3000000 + pair, t->pieces + 1) < i)
        return 0;
    return t->unit * draw(t->key, pair * 64 + i, 300);
}

/* Lists the pieces of all pairs; every rank keeps its own. */
static void list_pieces(trial *t)
{
    int n = t->comm->size;
    int mine = t->comm->rank;
    int64_t in[MAX_RANKS] = {0};
    for (int from = 0; from < n; from++) {
        int64_t out = 0;
        for (int to = 0; to < n; to++)
            for (int64_t i = 0; i < t->pieces; i++) {
                int64_t bytes = piece_bytes(t, from, to, i);
                if (bytes == 0)
                    continue;
                if (from == mine)
                    t->sends[t->transfer.n_sends++] =
                        (cpli_piece){to, out, in[to], bytes};
                if (to == mine)
                    t->receives[t->transfer.n_receives++] =
                        (cpli_piece){from, in[to], out, bytes};
                out += bytes + t->unit;
                in[to] += bytes + t->unit;
            }
        if (from == mine)
            t->src_bytes = (size_t)out;
    }
    t->dst_bytes = (size_t)in[mine];
}

static void *take(trial *t, size_t bytes)
{
    void *memory = NULL;
    cpl_comm *whose = t->in_windows ? t->comm : cpl_comm_self();
    if (cpli_comm_alloc(whose, bytes, &memory) != CPL_OK)
        abort();
    return memory;
}

static void give(trial *t, void *memory)
{
    cpli_comm_free(t->in_windows ? t->comm : cpl_comm_self(), memory);
}

static trial *begin_trial(cpl_comm *comm, uint64_t key, cpli_way way,
                          cpli_combine combine, bool in_windows)
{
    trial *t = calloc(1, sizeof *t);
    t->comm = comm;
    t->key = cpl_random_key(key, "trial");
    t->pieces = way == CPLI_ALLTOALL ? 1 : 3;
    t->unit = 4 + 4 * draw(t->key, 0, 40);
    t->in_windows = in_windows;
    list_pieces(t);
    t->src = take(t, t->src_bytes);
    t->dst = take(t, t->dst_bytes);
    for (size_t i = 0; i < t->src_bytes / 4; i++)
        ((int32_t *)t->src)[i] = source_word(t, comm->rank, (int64_t)i * 4);
    for (size_t i = 0; i < t->dst_bytes / 4; i++)
        ((int32_t *)t->dst)[i] = (int32_t)i;
    t->transfer.src = t->src;
    t->transfer.dst = t->dst;
    t->transfer.sends = t->sends;
    t->transfer.receives = t->receives;
    t->transfer.way = way;
    t->transfer.combine = combine;
    t->transfer.dtype = CPL_I32;
    check_ok(cpli_transfer_reserve(comm, &t->transfer), "reserve");
    return t;
}

static bool is_right(const trial *t)
{
    const int32_t *dst = t->dst;
    int64_t expected = 0; /* the next word that no piece has reached yet */
    for (int64_t i = 0; i < t->transfer.n_receives; i++) {
        const cpli_piece *piece = &t->receives[i];
        for (; expected < piece->offset / 4; expected++)
            if (dst[expected] != (int32_t)expected)
                return false;
        for (; expected < (piece->offset + piece->bytes) / 4; expected++) {
            int32_t word =
                source_word(t, piece->peer,
                            piece->peer_offset + expected * 4 - piece->offset);
            if (t->transfer.combine == CPLI_ADD)
                word += (int32_t)expected;
            if (dst[expected] != word)
                return false;
        }
    }
    for (; expected < (int64_t)t->dst_bytes / 4; expected++)
        if (dst[expected] != (int32_t)expected)
            return false;
    return true;
}

static void end_trial(trial *t)
{
    give(t, t->src);
    give(t, t->dst);
    free(t);
}

static void try_once(cpl_comm *comm, uint64_t key, cpli_way way,
                     cpli_combine combine, bool in_windows)
{
    trial *t = begin_trial(comm, key, way, combine, in_windows);
    check_ok(cpli_transfer_start(comm, &t->transfer), "start");
    check_ok(cpli_transfer_finish(comm, &t->transfer), "finish");
    check(is_right(t), "the bytes of a transfer");
    end_trial(t);
}

/* Several in flight, of all ways, finished in an order of their own. */
static void try_in_flight(cpl_comm *comm, uint64_t key, bool reversed)
{
    enum { N = 12 };
    trial *trials[N];
    bool pulls = cpli_comm_offers(comm, CPLI_PULL);
    for (int i = 0; i < N; i++) {
        cpli_way way = i % 3 == 0 && pulls ? CPLI_PULL
                       : i % 3 == 1        ? CPLI_ALLTOALL
                                           : CPLI_MESSAGES;
        trials[i] =
            begin_trial(comm, key + (uint64_t)i, way, CPLI_COPY, i % 2 == 0);
        check_ok(cpli_transfer_start(comm, &trials[i]->transfer), "start");
    }
    for (int i = 0; i < N; i++) {
        trial *t = trials[reversed ? N - 1 - i : (i * 5 + comm->rank) % N];
        check_ok(cpli_transfer_finish(comm, &t->transfer), "finish");
        check(is_right(t), "the bytes of a transfer in flight");
    }
    for (int i = 0; i < N; i++)
        end_trial(trials[i]);
}

static void try_transfers(cpl_comm *comm)
{
    bool pulls = cpli_comm_offers(comm, CPLI_PULL);
    for (uint64_t key = 0; key < 24; key++) {
        bool in_windows = key % 2 == 1;
        try_once(comm, key, CPLI_MESSAGES, CPLI_COPY, in_windows);
        try_once(comm, key, CPLI_ALLTOALL, CPLI_COPY, in_windows);
        if (pulls) {
            try_once(comm, key, CPLI_PULL, CPLI_COPY, in_windows);
            try_once(comm, key, CPLI_PULL, CPLI_ADD, in_windows);
        }
    }
    try_in_flight(comm, 100, true);
    try_in_flight(comm, 200, false);
}

/* ---- collectives ---- */

static double addend(int rank, int64_t i)
{
    return cpl_random_normal(cpl_random_key(7, "sum") + (uint64_t)rank,
                             (uint64_t)i);
}

static void try_sum(cpl_comm *comm, int64_t n)
{
    double *data = calloc((size_t)n + 1, sizeof *data);
    bool right = true;
    for (int64_t i = 0; i < n; i++)
        data[i] = addend(comm->rank, i);
    check_ok(cpl_comm_sum(comm, data, n, CPL_F64), "sum");
    for (int64_t i = 0; i < n; i++) {
        double expected = addend(0, i);
        for (int rank = 1; rank < comm->size; rank++)
            expected += addend(rank, i);
        right = right && data[i] == expected;
    }
    check(right, "the bits of a sum");
    free(data);
}

static void try_gather(cpl_comm *comm, size_t bytes)
{
    uint8_t *mine = calloc(bytes + 1, 1);
    uint8_t *out = calloc(bytes * (size_t)comm->size + 1, 1);
    bool right = true;
    for (size_t i = 0; i < bytes; i++)
        mine[i] = (uint8_t)(i * 7 + (size_t)comm->rank);
    check_ok(cpl_comm_gather(comm, mine, bytes, out), "gather");
    for (size_t i = 0; i < bytes * (size_t)comm->size; i++)
        right = right && out[i] == (uint8_t)(i % bytes * 7 + i / bytes);
    check(right, "the bytes of a gather");
    free(mine);
    free(out);
}

static void try_broadcast(cpl_comm *comm, int root)
{
    int64_t data[1000];
    bool right = true;
    for (int64_t i = 0; i < 1000; i++)
        data[i] = comm->rank == root ? i * i : -1;
    check_ok(cpl_comm_broadcast(comm, data, sizeof data, root), "broadcast");
    for (int64_t i = 0; i < 1000; i++)
        right = right && data[i] == i * i;
    check(right, "the bytes of a broadcast");
}

static void try_collectives(cpl_comm *comm)
{
    static const int64_t sizes[] = {0, 1, 3, 125, 126, 1001, 400001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        try_sum(comm, sizes[i]);
        try_gather(comm, (size_t)sizes[i]);
        check_ok(cpl_comm_barrier(comm), "barrier");
    }
    for (int root = 0; root < comm->size; root++)
        try_broadcast(comm, root);
    check(cpl_comm_agree(comm, CPL_OK) == CPL_OK, "agreeing");
}

/* What cpl_comm_plain_exchange promises. */
static void try_plain(cpl_comm *comm)
{
    size_t to[MAX_RANKS] = {0}, from[MAX_RANKS] = {0};
    int32_t src[MAX_RANKS * MAX_RANKS], dst[MAX_RANKS * MAX_RANKS];
    int n = 0;
    bool right = true;
    for (int rank = 0; rank < comm->size; rank++)
        for (int i = 0; rank != comm->rank && i < (comm->rank + rank) % 5;
             i++) {
            src[n++] = comm->rank * 100 + rank;
            to[rank] = from[rank] += sizeof *src;
        }
    check_ok(cpl_comm_plain_exchange(comm, src, to, dst, from), "plain");
    n = 0;
    for (int rank = 0; rank < comm->size; rank++)
        for (int i = 0; rank != comm->rank && i < (comm->rank + rank) % 5; i++)
            right = right && dst[n++] == rank * 100 + comm->rank;
    check(right, "the bytes of a plain exchange");
}

/* ---- jobs ---- */

typedef void job(cpl_comm *comm);

/* Runs a job on the first n processes. */
static void run_job(int n, double deadline_s, job *run)
{
    cpl_comm *comm;
    if (mpi->rank(all) >= n)
        return;
    cpl_status status = mpi->join(all, n, deadline_s, &comm);
    check_ok(status, "join");
    if (status != CPL_OK)
        return;
    run(comm);
    mpi->leave(comm);
    mpi->part(comm);
}

static void whole_job(cpl_comm *comm)
{
    check(strcmp(cpl_comm_transport(comm), "mpi") == 0, "its name");
    try_collectives(comm);
    try_transfers(comm);
    try_plain(comm);
    check(mpi->failed(comm) == -1 && mpi->message(comm)[0] == '\0',
          "nobody failed");
}

/* ---- letters ---- */

static void expect_letter(int from, int kind, size_t bytes)
{
    cpli_letter letter = {0};
    bool came = false;
    bool right = true;
    check_ok(mpi->receive(all, 20, &letter, &came), "receive");
    check(came && letter.kind == kind && letter.bytes == bytes &&
              (from < 0 || letter.from == from),
          "a letter");
    for (size_t i = 0; came && i < letter.bytes; i++)
        right = right && ((uint8_t *)letter.data)[i] ==
                             (uint8_t)(i * 3 + (size_t)letter.from);
    check(right, "the bytes of a letter");
    cpl_free(letter.data);
}

static void post(int to, int kind, size_t bytes)
{
    uint8_t *data = calloc(bytes + 1, 1);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 3 + (size_t)mpi->rank(all));
    check_ok(mpi->send(all, to, kind, data, bytes), "send");
    free(data);
}

/* Process 0 sends each process three letters, which sends them back. */
static void try_letters(void)
{
    static const size_t sizes[] = {0, 5000, 3000001};
    int mine = mpi->rank(all);
    for (int rank = 1; mine == 0 && rank < mpi->size(all); rank++)
        for (int i = 0; i < 3; i++)
            post(rank, i, sizes[i]);
    for (int i = 0; mine > 0 && i < 3; i++) {
        expect_letter(0, i, sizes[i]);
        post(0, 3, 17);
    }
    for (int i = 0; mine == 0 && i < 3 * (mpi->size(all) - 1); i++)
        expect_letter(-1, 3, 17);
    cpli_letter letter;
    bool came = true;
    check(mpi->receive(all, 0.01, &letter, &came) == CPL_OK && !came,
          "no letter");
}

/* ---- scenarios ---- */

static void all_is_well(void)
{
    try_letters();
    for (int n = 1; n <= mpi->size(all); n++)
        run_job(n, 20, whole_job);
    run_job(mpi->size(all), 20, whole_job);
}

/* What the job that ends badly should say, on every rank but the first. */
static const char *expected;
static int culprit;

static void expect_end(cpl_comm *comm, cpl_status status)
{
    check(status != CPL_OK, "a call in a group that failed");
    check(mpi->failed(comm) >= 0, "the group knows that it failed");
    if (culprit >= 0)
        check(mpi->failed(comm) == culprit, "who failed first");
    check(strstr(mpi->message(comm), expected) != NULL, mpi->message(comm));
    check(cpl_comm_barrier(comm) == CPL_ABORTED, "a call after the failure");
}

/* Two ranks exchange without end, so that others find them in a transfer. */
static cpl_status exchange_until_it_fails(cpl_comm *comm)
{
    cpl_status status = CPL_OK;
    for (uint64_t key = 0; status == CPL_OK; key++) {
        trial *t = begin_trial(comm, key, CPLI_MESSAGES, CPLI_COPY, false);
        status = cpli_transfer_start(comm, &t->transfer);
        if (status == CPL_OK)
            status = cpli_transfer_finish(comm, &t->transfer);
        if (status == CPL_OK)
            status = cpl_comm_barrier(comm);
        end_trial(t);
    }
    return status;
}

static void fail_job(cpl_comm *comm)
{
    if (comm->rank == culprit) {
        nap(0.1);
        mpi->fail(comm, "a planted error");
        expect_end(comm, CPL_ABORTED);
        return;
    }
    expect_end(comm, exchange_until_it_fails(comm));
}

static void a_rank_fails(void)
{
    int n = mpi->size(all);
    expected = "a planted error";
    for (int i = 0; i < 6; i++) {
        culprit = i % n;
        run_job(n, 20, fail_job);
        run_job(n, 20, whole_job);
    }
}

static void leave_job(cpl_comm *comm)
{
    if (comm->rank == culprit)
        return;
    culprit = -1;
    expect_end(comm, cpl_comm_barrier(comm));
}

static void a_rank_leaves(void)
{
    int n = mpi->size(all);
    expected = "has returned: the ranks made different collective calls";
    culprit = n - 1;
    double since = cpl_clock();
    run_job(n, 20, leave_job);
    check(cpl_clock() - since < 5, "a rank that has left is no wait");
    run_job(n, 20, whole_job);
}

static void mismatch_job(cpl_comm *comm)
{
    double data[2] = {0};
    if (comm->rank == 0)
        expect_end(comm, cpl_comm_barrier(comm));
    else
        expect_end(comm, cpl_comm_sum(comm, data, 2, CPL_F64));
}

static void size_job(cpl_comm *comm)
{
    static int64_t from[] = {80, 40, 20000, 4000000};
    static int64_t to[] = {40, 80, 40000, 2000000};
    static int turn;
    char *memory = calloc(8000000, 1);
    cpli_piece piece = {.peer = 1 - comm->rank};
    cpli_transfer transfer = {.src = memory,
                              .dst = memory,
                              .sends = &piece,
                              .receives = &piece,
                              .way = CPLI_MESSAGES};
    transfer.n_sends = comm->rank == 0;
    transfer.n_receives = comm->rank == 1;
    piece.bytes = comm->rank == 0 ? from[turn % 4] : to[turn % 4];
    turn++;
    cpl_status status = cpli_transfer_start(comm, &transfer);
    if (status == CPL_OK)
        status = cpli_transfer_finish(comm, &transfer);
    if (status == CPL_OK)
        status = cpl_comm_barrier(comm);
    expect_end(comm, status);
    free(memory);
}

static void the_ranks_differ(void)
{
    expected = "mpi: rank 0 is in a barrier of 0 f64, rank 1 in a sum of 2 "
               "f64: the ranks made different collective calls";
    culprit = -1;
    run_job(mpi->size(all), 20, mismatch_job);
    expected = "mpi: rank 1 expects other pieces in transfer 1 than rank 0 "
               "sends: the ranks made different collective calls";
    culprit = 1;
    for (int i = 0; i < 4; i++)
        run_job(2, 20, size_job);
    run_job(mpi->size(all), 20, whole_job);
}

static void never_job(cpl_comm *comm)
{
    if (comm->rank == 0) {
        nap(1.5);
        expect_end(comm, cpl_comm_barrier(comm));
        return;
    }
    double cpu = cpl_thread_clock();
    double since = cpl_clock();
    expect_end(comm, cpl_comm_barrier(comm));
    check(cpl_clock() - since > 0.9, "the deadline is waited for");
    check(cpl_thread_clock() - cpu < 0.3, "who waits sleeps");
}

static void a_rank_never_comes(void)
{
    expected = " s for rank 0 in barrier 1";
    culprit = -1;
    run_job(mpi->size(all), 1, never_job);
    run_job(mpi->size(all), 20, whole_job);
}

static void die_job(cpl_comm *comm)
{
    if (comm->rank == comm->size - 1)
        kill(getpid(), SIGKILL);
    exchange_until_it_fails(comm);
}

static void a_rank_dies(void)
{
    run_job(mpi->size(all), 20, die_job);
}

static void one_aborts(void)
{
    printf("flushed by process %d\n", mpi->rank(all));
    if (mpi->rank(all) == mpi->size(all) - 1)
        mpi->abort(all, 5);
    run_job(mpi->size(all), 20, whole_job); /* never complete */
}

static void measure_waiting(void)
{
    if (mpi->rank(all) == 0) {
        nap(2);
        for (int rank = 1; rank < mpi->size(all); rank++)
            post(rank, 1, 8);
        return;
    }
    double cpu = cpl_thread_clock();
    expect_letter(0, 1, 8);
    printf("process %d: %.1f %% CPU in a wait of 2 s for a letter\n",
           mpi->rank(all), 50 * (cpl_thread_clock() - cpu));
}

static void latency_job(cpl_comm *comm)
{
    enum { N = 20000 };
    double data = 1;
    for (int i = 0; i < N / 10; i++)
        cpl_comm_barrier(comm);
    double since = cpl_clock();
    for (int i = 0; i < N; i++)
        cpl_comm_barrier(comm);
    double barrier = cpl_clock() - since;
    since = cpl_clock();
    for (int i = 0; i < N; i++)
        cpl_comm_sum(comm, &data, 1, CPL_F64);
    if (comm->rank == 0)
        printf("%d ranks: barrier %.2f us, sum of 1 %.2f us\n", comm->size,
               1e6 * barrier / N, 1e6 * (cpl_clock() - since) / N);
    check_ok(cpl_comm_barrier(comm), "barrier");
    if (comm->rank == 0)
        nap(2);
    double cpu = cpl_thread_clock();
    check_ok(cpl_comm_barrier(comm), "barrier");
    if (comm->rank != 0)
        printf("rank %d: %.1f %% CPU in a wait of 2 s for a rank\n", comm->rank,
               50 * (cpl_thread_clock() - cpu));
}

static void measure_latency(void)
{
    measure_waiting();
    run_job(mpi->size(all), 20, latency_job);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"well", all_is_well},         {"fails", a_rank_fails},
    {"leaves", a_rank_leaves},     {"differ", the_ranks_differ},
    {"never", a_rank_never_comes}, {"latency", measure_latency},
    {"dies", a_rank_dies},         {"aborts", one_aborts},
};

static void open_plug_in(const char *program)
{
    char path[4096];
    const char *slash = strrchr(program, '/');
    int length = slash == NULL ? 0 : (int)(slash - program) + 1;
    snprintf(path, sizeof path, "%.*slibcplab_mpi.so", length, program);
    void *plug_in = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plug_in == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    const cpli_processes_ops *(*find)(void);
    *(void **)&find = dlsym(plug_in, "cpli_mpi_processes");
    mpi = find();
}

int main(int n, char **arguments)
{
    open_plug_in(arguments[0]);
    if (mpi->version != CPLI_PROCESSES_VERSION || mpi->open(&all) != CPL_OK) {
        fprintf(stderr, "%s\n", cpl_last_error());
        return 3;
    }
    size_t n_scenarios = sizeof scenarios / sizeof scenarios[0];
    for (size_t i = 0; i < n_scenarios; i++)
        if (n > 1 && strcmp(arguments[1], scenarios[i].name) == 0)
            scenarios[i].run();
    bool is_first = mpi->rank(all) == 0;
    mpi->close(all);
    cpl_memory_stats memory;
    cpl_memory(&memory);
    if (memory.live_blocks != 0)
        fprintf(stderr, "failed: %lld blocks of %lld bytes left\n",
                (long long)memory.live_blocks, (long long)memory.live_bytes);
    if (is_first)
        printf("%ld checks passed\n", n_passed);
    return n_failed > 0 || memory.live_blocks != 0;
}
