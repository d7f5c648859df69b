/*
 * mpi_speed.c: what the MPI transport costs: the latency of its collectives,
 * the CPU time of a rank that waits, and how fast large pieces go by each way,
 * in ratio to what one would write by hand. For people; no spec depends on
 * times.
 *
 *     mpirun -n 4 bin/mpi_speed
 */
#define _POSIX_C_SOURCE 200809L
#include "mpi_open.h"

static void measure_waiting(void)
{
    if (mpi->rank(all) == 0) {
        nap(2);
        for (int rank = 1; rank < mpi->size(all); rank++)
            check_ok(mpi->send(all, rank, 1, &rank, sizeof rank), "send");
        return;
    }
    double cpu = cpl_thread_clock();
    cpli_letter letter = {0};
    bool came = false;
    check(mpi->receive(all, 20, &letter, &came) == CPL_OK && came, "a letter");
    cpl_free(letter.data);
    printf("process %d: %.1f %% CPU in a wait of 2 s for a letter\n",
           mpi->rank(all), 50 * (cpl_thread_clock() - cpu));
}

/* The time of a transfer of 64 bytes to the next rank and from the last. */
static double time_small(cpl_comm *comm, cpli_way way)
{
    enum { N = 5000, BYTES = 64 };
    int n = comm->size;
    cpli_piece to = {.peer = (comm->rank + 1) % n, .bytes = BYTES};
    cpli_piece from = {.peer = (comm->rank + n - 1) % n, .bytes = BYTES};
    void *memory = NULL;
    check_ok(cpli_comm_alloc(comm, 2 * BYTES, &memory), "memory");
    cpli_transfer transfer = {.src = memory,
                              .dst = (char *)memory + BYTES,
                              .sends = &to,
                              .receives = &from,
                              .n_sends = 1,
                              .n_receives = 1,
                              .way = way};
    check_ok(cpl_comm_barrier(comm), "barrier");
    double since = cpl_clock();
    for (int i = 0; i < N; i++) {
        check_ok(cpli_transfer_start(comm, &transfer), "start");
        check_ok(cpli_transfer_finish(comm, &transfer), "finish");
    }
    double seconds = (cpl_clock() - since) / N;
    cpli_comm_free(comm, memory);
    return seconds;
}

static void latency_job(cpl_comm *comm)
{
    static const char *const ways[] = {"pull", "messages", "all-to-all"};
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
    for (int way = CPLI_PULL; way <= CPLI_ALLTOALL; way++) {
        double seconds = time_small(comm, (cpli_way)way);
        if (comm->rank == 0)
            printf("64 bytes by %s: %.2f us\n", ways[way], 1e6 * seconds);
    }
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

/* ---- speed ---- */

enum { SPEED_BYTES = 64 << 20, SPEED_ROUNDS = 25 };

typedef struct race {
    cpl_comm *comm;
    cpli_transfer transfer;
    cpli_piece sends[MAX_RANKS], receives[MAX_RANKS];
    size_t counts[MAX_RANKS];
    double seconds[4][SPEED_ROUNDS];
} race;

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_once(race *r, int contestant)
{
    size_t bytes = (size_t)SPEED_BYTES * (size_t)(r->comm->size - 1);
    if (contestant == 0) {
        cpl_comm_plain_exchange(r->comm, r->transfer.src, r->counts,
                                r->transfer.dst, r->counts);
    } else if (contestant == 1) {
        memcpy(r->transfer.dst, r->transfer.src, bytes);
    } else {
        r->transfer.way = contestant == 2 ? CPLI_MESSAGES : CPLI_PULL;
        check_ok(cpli_transfer_start(r->comm, &r->transfer), "start");
        check_ok(cpli_transfer_finish(r->comm, &r->transfer), "finish");
    }
}

/* 64 MiB between all pairs, in turn by every means. */
static void race_job(cpl_comm *comm)
{
    static const char *const who[] = {"plain", "memcpy", "messages", "pull"};
    race *r = calloc(1, sizeof *r);
    size_t bytes = (size_t)SPEED_BYTES * (size_t)(comm->size - 1);
    r->comm = comm;
    for (int peer = 0, n = 0; peer < comm->size; peer++) {
        if (peer == comm->rank)
            continue;
        int64_t theirs = comm->rank - (comm->rank > peer);
        r->sends[n] = r->receives[n] = (cpli_piece){
            peer, (int64_t)n * SPEED_BYTES, theirs * SPEED_BYTES, SPEED_BYTES};
        r->counts[peer] = SPEED_BYTES;
        r->transfer.n_sends = r->transfer.n_receives = ++n;
    }
    r->transfer.sends = r->sends;
    r->transfer.receives = r->receives;
    void *src = NULL, *dst = NULL;
    check_ok(cpli_comm_alloc(comm, bytes, &src), "memory");
    check_ok(cpli_comm_alloc(comm, bytes, &dst), "memory");
    r->transfer.src = src;
    r->transfer.dst = dst;
    for (int round = -1; round < SPEED_ROUNDS; round++)
        for (int i = 0; i < 4; i++) {
            cpl_comm_barrier(comm);
            double since = cpl_clock();
            run_once(r, i);
            double seconds = cpl_clock() - since;
            check_ok(cpl_comm_max(comm, &seconds, 1), "max");
            if (round >= 0)
                r->seconds[i][round] = seconds;
        }
    for (int i = 0; i < 4; i++)
        qsort(r->seconds[i], SPEED_ROUNDS, sizeof(double), by_size);
    for (int i = 0; i < 4 && comm->rank == 0; i++)
        printf("%-8s %8.2f ms (%.2f..%.2f), %5.2f GB/s a rank, %.2f of plain\n",
               who[i], 1e3 * r->seconds[i][SPEED_ROUNDS / 2],
               1e3 * r->seconds[i][0], 1e3 * r->seconds[i][SPEED_ROUNDS - 1],
               1e-9 * (double)bytes / r->seconds[i][SPEED_ROUNDS / 2],
               r->seconds[0][SPEED_ROUNDS / 2] /
                   r->seconds[i][SPEED_ROUNDS / 2]);
    free(r);
}

static void measure_speed(void)
{
    run_job(mpi->size(all), 20, race_job);
}

int main(int n, char **arguments)
{
    (void)n;
    open_plug_in(arguments[0]);
    measure_latency();
    measure_speed();
    return end();
}
