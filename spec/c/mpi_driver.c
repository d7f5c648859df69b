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
#include "mpi_pace.h"

#include <signal.h>
#include <unistd.h>

/* ---- transfers ---- */

static void try_once(cpl_comm *comm, uint64_t key, cpli_way way,
                     cpli_combine combine, bool in_windows)
{
    trial *t = begin_trial(comm, key, way, combine, in_windows);
    cpl_memory_stats before, after;
    cpl_memory(&before);
    check_ok(cpli_transfer_start(comm, &t->transfer), "start");
    check_ok(cpli_transfer_finish(comm, &t->transfer), "finish");
    cpl_memory(&after);
    check(is_right(t), "the bytes of a transfer");
    check(before.n_allocations == after.n_allocations, "no memory is taken");
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
            try_once(comm, key, CPLI_PULL, CPLI_SWAP, in_windows);
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
        right = right && bytes > 0 &&
                out[i] == (uint8_t)(i % bytes * 7 + i / bytes);
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

/* Where the first block of 8 MiB would lie. */
static void *place_of_large(cpl_comm *comm)
{
    void *memory = NULL;
    check_ok(cpli_comm_alloc(comm, 8 << 20, &memory), "memory");
    cpli_comm_free(comm, memory);
    return memory;
}

/* Blocks of the transport's memory, taken and given back in any order. */
static void try_memory(cpl_comm *comm)
{
    enum { N = 64, ROUNDS = 1000 };
    uint8_t *blocks[N] = {0};
    size_t sizes[N] = {0};
    bool right = true;
    cpl_memory_stats before, after;
    const void *place = place_of_large(comm);
    cpl_memory(&before);
    for (int64_t i = 0; i < ROUNDS + N; i++) {
        int64_t at = i < ROUNDS ? draw(11, i, N) : i - ROUNDS;
        for (size_t j = 0; j < sizes[at]; j++)
            right = right && blocks[at][j] == (uint8_t)at + 1;
        cpli_comm_free(comm, blocks[at]);
        blocks[at] = NULL;
        sizes[at] = 0;
        if (i >= ROUNDS || draw(12, i, 3) == 0)
            continue;
        sizes[at] = (size_t)draw(13, i, 100000);
        check_ok(cpli_comm_alloc(comm, sizes[at], (void **)&blocks[at]),
                 "memory");
        right = right && (uintptr_t)blocks[at] % 64 == 0;
        for (size_t j = 0; j < sizes[at]; j++)
            right = right && blocks[at][j] == 0;
        memset(blocks[at], (int)at + 1, sizes[at]);
    }
    check(right, "blocks are zeroed, aligned and nobody else's");
    cpl_memory(&after);
    check(before.live_bytes == after.live_bytes &&
              before.live_blocks == after.live_blocks,
          "what is given back is counted out");
    check(place_of_large(comm) == place, "free neighbours become one block");
}

static void try_no_memory(cpl_comm *comm)
{
    void *memory = &memory;
    cpl_memory_fail_after(0);
    check(cpli_comm_alloc(comm, 64, &memory) == CPL_MEMORY, "no memory");
    cpl_memory_fail_after(-1);
    check(cpli_comm_alloc(comm, SIZE_MAX / 8, &memory) == CPL_MEMORY &&
              memory == (void *)&memory,
          "more than there is");
    check_ok(cpli_comm_alloc(comm, 100 << 20, &memory), "a large block");
    check(((char *)memory)[(100 << 20) - 1] == 0, "its last byte");
    if (comm->rank == 0)
        cpli_comm_free(comm, memory); /* the others': freed with the group */
}

static void whole_job(cpl_comm *comm)
{
    check(strcmp(cpl_comm_transport(comm), "mpi") == 0, "its name");
    try_collectives(comm);
    try_transfers(comm);
    try_plain(comm);
    try_memory(comm);
    try_no_memory(comm);
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
    int n = mpi->size(all);
    try_letters();
    run_job(n, 20, whole_job);
    run_job(1, 20, whole_job);
    run_job((n + 1) / 2, 20, whole_job);
    run_job(n, 20, whole_job);
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

/* Exchanges by all ways without end, so that a failure meets transfers. */
static cpl_status exchange_until_it_fails(cpl_comm *comm)
{
    cpl_status status = CPL_OK;
    for (uint64_t key = 0; status == CPL_OK; key++) {
        cpli_way way = (cpli_way)(key % 3);
        if (!cpli_comm_offers(comm, way))
            way = CPLI_MESSAGES;
        trial *t = begin_trial(comm, key, way, CPLI_COPY, key % 2 == 0);
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
        run_job(n, 20, all_fail_job);
    }
}

static void leave_job(cpl_comm *comm)
{
    if (comm->rank == culprit)
        return;
    culprit = -1;
    expect_end(comm, cpl_comm_barrier(comm));
}

/* One word between all pairs, in one buffer: src is dst. */
static cpl_status exchange_words(cpl_comm *comm)
{
    int64_t words[2 * MAX_RANKS] = {0};
    cpli_piece sends[MAX_RANKS], receives[MAX_RANKS];
    int64_t in = (int64_t)sizeof words / 2;
    for (int peer = 0; peer < comm->size; peer++) {
        words[peer] = comm->rank * 100 + peer;
        sends[peer] = (cpli_piece){peer, peer * 8, in + comm->rank * 8, 8};
        receives[peer] = (cpli_piece){peer, in + peer * 8, comm->rank * 8, 8};
    }
    cpli_transfer transfer = {.src = words,
                              .dst = words,
                              .sends = sends,
                              .receives = receives,
                              .n_sends = comm->size,
                              .n_receives = comm->size,
                              .way = CPLI_ALLTOALL};
    CPL_TRY(cpli_transfer_start(comm, &transfer));
    CPL_TRY(cpli_transfer_finish(comm, &transfer));
    for (int peer = 0; peer < comm->size; peer++)
        check(words[MAX_RANKS + peer] == peer * 100 + comm->rank, "a word");
    return CPL_OK;
}

/* The last one leaves before the third all-to-all. Who is slow may hear of it
 * in the second already. */
static void leave_all_to_all_job(cpl_comm *comm)
{
    int n = comm->rank == comm->size - 1 ? 2 : 3;
    cpl_status status = CPL_OK;
    for (int i = 0; i < n && status == CPL_OK; i++)
        status = exchange_words(comm);
    if (n == 3)
        expect_end(comm, status);
}

/* The first comes late, so that some leave before others are done. */
static void late_job(cpl_comm *comm)
{
    if (comm->rank == 0)
        nap(0.1);
    check_ok(exchange_words(comm), "all-to-all");
}

static void a_rank_leaves(void)
{
    int n = mpi->size(all);
    expected = "has returned: the ranks made different collective calls";
    culprit = n - 1;
    double since = cpl_clock();
    run_job(n, 20, leave_job);
    culprit = -1;
    run_job(n, 20, leave_all_to_all_job);
    run_job(n, 20, late_job); /* some leave before others are done */
    run_job(n, 20, late_messages_job);
    run_job(n, 20, late_block_job);
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

static cpli_way size_way;

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
                              .way = size_way};
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
    for (int i = 0; i < 8; i++) {
        size_way = i < 4 ? CPLI_MESSAGES : CPLI_PULL;
        run_job(2, 20, size_job);
    }
    run_job(mpi->size(all), 20, whole_job);
}

static void empty_job(cpl_comm *comm)
{
    (void)comm;
}

/* Joins with no memory on one rank: all fail or none. */
static void a_join_fails(void)
{
    int n = mpi->size(all);
    cpl_status status = CPL_MEMORY;
    int n_tries = 0;
    for (; status == CPL_MEMORY && n_tries < 500; n_tries++) {
        cpl_comm *comm = NULL;
        if (mpi->rank(all) == n - 1)
            cpl_memory_fail_after(n_tries);
        status = mpi->join(all, n, 20, &comm);
        cpl_memory_fail_after(-1);
        check((status == CPL_OK) == (comm != NULL), "out only on success");
        if (status == CPL_OK) {
            check_ok(cpl_comm_barrier(comm), "barrier");
            mpi->leave(comm);
            mpi->part(comm);
        }
    }
    check(status == CPL_OK && n_tries > 5, "memory runs out at many places");
    run_job(n, 20, whole_job);
    cpl_comm *comm = NULL;
    check(mpi->join(all, n + 1, 20, &comm) == CPL_INVALID, "too many");
    run_job(n, 20, empty_job);
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

/* A piece of 3 GiB by every way: needs 6 GiB of memory, so no spec has it. */
static void large_job(cpl_comm *comm)
{
    static const size_t bytes = (size_t)3 << 30;
    bool is_sender = comm->rank == 0;
    cpli_piece piece = {.peer = 1 - comm->rank, .bytes = (int64_t)bytes};
    cpli_transfer transfer = {.sends = &piece, .receives = &piece};
    void *memory = NULL;
    check_ok(cpli_comm_alloc(comm, bytes, &memory), "memory");
    uint64_t *words = memory;
    transfer.src = transfer.dst = memory;
    transfer.n_sends = is_sender;
    transfer.n_receives = !is_sender;
    for (int way = CPLI_PULL; way <= CPLI_ALLTOALL; way++) {
        bool right = true;
        transfer.way = (cpli_way)way;
        for (size_t i = 0; i < bytes / 8; i++)
            words[i] = is_sender ? i * 31 + (uint64_t)way : 0;
        check_ok(cpl_comm_barrier(comm), "barrier");
        double since = cpl_clock();
        check_ok(cpli_transfer_reserve(comm, &transfer), "reserve");
        check_ok(cpli_transfer_start(comm, &transfer), "start");
        check_ok(cpli_transfer_finish(comm, &transfer), "finish");
        double seconds = cpl_clock() - since;
        for (size_t i = 0; i < bytes / 8; i++)
            right = right && words[i] == i * 31 + (uint64_t)way;
        check(right, "all words of a large piece");
        if (is_sender)
            printf("3 GiB by way %d: %.2f s\n", way, seconds);
    }
}

static void large_pieces(void)
{
    run_job(2, 60, large_job);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"well", all_is_well},         {"fails", a_rank_fails},
    {"leaves", a_rank_leaves},     {"differ", the_ranks_differ},
    {"never", a_rank_never_comes}, {"memory", a_join_fails},
    {"large", large_pieces},       {"dies", a_rank_dies},
    {"aborts", one_aborts},
};

int main(int n, char **arguments)
{
    const char *name = n > 1 ? arguments[1] : "";
    open_plug_in(arguments[0]);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(name, scenarios[i].name) == 0)
            scenarios[i].run();
    return end();
}
