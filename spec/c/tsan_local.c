/*
 * tsan_local.c: hammers the local transport without Lua: transfers, swaps,
 * sums, collectives, exchanges by every method, and every way to end, with 1 to
 * 8 threads. Built with CPLAB_SANITIZE=thread it proves that ranks never race;
 * built with address, that no rank touches memory that its owner gave up. Every
 * byte is checked.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/comm.h"

enum { MAX_RANKS = 8, PIECES = 3, MAX_PIECE = 700, ROUNDS = 12 };

static atomic_long n_passed;
static atomic_long n_failed;

static void check(bool ok, const char *what, const cpl_comm *comm)
{
    atomic_fetch_add(ok ? &n_passed : &n_failed, 1);
    if (!ok)
        fprintf(stderr, "failed: %s, rank %d of %d: %s\n", what,
                cpl_comm_rank(comm), cpl_comm_size(comm), cpl_last_error());
}

static void *take(size_t bytes)
{
    void *memory = calloc(bytes + 1, 1);
    if (memory == NULL)
        abort();
    return memory;
}

/* ---- running one function on all ranks ---- */

typedef void scenario(cpl_world *world, cpl_comm *comm, int round);

typedef struct job {
    scenario *run;
    cpl_world *world;
    int rank;
    int n_rounds;
} job;

static void *run_job(void *argument)
{
    const job *mine = argument;
    cpl_comm *comm = cpl_world_comm(mine->world, mine->rank);
    for (int round = 0; round < mine->n_rounds; round++)
        mine->run(mine->world, comm, round);
    cpl_world_leave(mine->world, mine->rank);
    return NULL;
}

/* `beside` (or NULL) runs in a thread of its own. */
static void run_beside(int n, double deadline_s, scenario *run, int n_rounds,
                       void *(*beside)(void *))
{
    cpl_world *world;
    pthread_t threads[MAX_RANKS];
    pthread_t other;
    job jobs[MAX_RANKS];
    if (cpl_world_create(n, deadline_s, &world) != CPL_OK)
        abort();
    for (int rank = 0; rank < n; rank++) {
        jobs[rank] = (job){run, world, rank, n_rounds};
        if (pthread_create(&threads[rank], NULL, run_job, &jobs[rank]) != 0)
            abort();
    }
    if (beside != NULL && pthread_create(&other, NULL, beside, world) != 0)
        abort();
    for (int rank = 0; rank < n; rank++)
        pthread_join(threads[rank], NULL);
    if (beside != NULL)
        pthread_join(other, NULL);
    cpl_world_destroy(world);
}

static void run_ranks(int n, double deadline_s, scenario *run, int n_rounds)
{
    run_beside(n, deadline_s, run, n_rounds, NULL);
}

/* ---- transfers ---- */

/* Elements of the k-th piece from one rank to another; 0: no such piece. */
static int64_t piece_length(int from, int to, int k, int round)
{
    uint64_t bits = cpl_random_bits((uint64_t)(round + 1),
                                    (uint64_t)((from * 64 + to) * 8 + k));
    return (int64_t)(bits % 3 == 0 ? 0 : bits / 3 % MAX_PIECE);
}

static int64_t slot_of(int peer, int k)
{
    return (int64_t)(peer * PIECES + k) * MAX_PIECE;
}

static int64_t value_of(int from, int to, int k, int64_t i, int round)
{
    return (((int64_t)round * 64 + from * 8 + to) * 8 + k) * 1000 + i;
}

typedef struct rows {
    int64_t *src;
    int64_t *dst;
    cpli_piece sends[MAX_RANKS * PIECES];
    cpli_piece receives[MAX_RANKS * PIECES];
    cpli_transfer transfer;
} rows;

static rows *rows_create(const cpl_comm *comm, int round, cpli_combine combine)
{
    rows *r = take(sizeof *r);
    int rank = comm->rank;
    size_t n = (size_t)slot_of(comm->size, 0);
    r->src = take(n * sizeof *r->src);
    r->dst = take(n * sizeof *r->dst);
    int64_t n_sends = 0;
    int64_t n_receives = 0;
    for (int peer = 0; peer < comm->size; peer++)
        for (int k = 0; k < PIECES; k++) {
            int64_t out = piece_length(rank, peer, k, round);
            int64_t in = piece_length(peer, rank, k, round);
            for (int64_t i = 0; i < out; i++)
                r->src[slot_of(peer, k) + i] =
                    value_of(rank, peer, k, i, round);
            cpli_piece send = {peer, slot_of(peer, k) * 8, slot_of(rank, k) * 8,
                               out * 8};
            cpli_piece receive = {peer, slot_of(peer, k) * 8,
                                  slot_of(rank, k) * 8, in * 8};
            if (out > 0)
                r->sends[n_sends++] = send;
            if (in > 0)
                r->receives[n_receives++] = receive;
        }
    r->transfer = (cpli_transfer){.src = r->src,
                                  .dst = r->dst,
                                  .sends = r->sends,
                                  .receives = r->receives,
                                  .n_sends = n_sends,
                                  .n_receives = n_receives,
                                  .combine = combine,
                                  .dtype = CPL_I64};
    return r;
}

static void rows_destroy(rows *r)
{
    free(r->src);
    free(r->dst);
    free(r);
}

/* Whether dst holds `times` the values that were sent to this rank. */
static bool rows_are_right(const rows *r, const cpl_comm *comm, int round,
                           int64_t times)
{
    for (int peer = 0; peer < comm->size; peer++)
        for (int k = 0; k < PIECES; k++) {
            int64_t n = piece_length(peer, comm->rank, k, round);
            for (int64_t i = 0; i < MAX_PIECE; i++) {
                int64_t expected =
                    i < n ? times * value_of(peer, comm->rank, k, i, round) : 0;
                if (r->dst[slot_of(peer, k) + i] != expected)
                    return false;
            }
        }
    return true;
}

/* Two transfers in flight, finished in either order; the second adds. */
static void transfers(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    rows *a = rows_create(comm, round, CPLI_COPY);
    rows *b = rows_create(comm, round + 1000, CPLI_ADD);
    rows *first = round % 2 == 0 ? a : b;
    rows *second = round % 2 == 0 ? b : a;
    check(cpli_transfer_start(comm, &a->transfer) == CPL_OK, "start", comm);
    check(cpli_transfer_start(comm, &b->transfer) == CPL_OK, "start", comm);
    check(cpli_transfer_finish(comm, &first->transfer) == CPL_OK, "finish",
          comm);
    check(cpli_transfer_finish(comm, &second->transfer) == CPL_OK, "finish",
          comm);
    check(rows_are_right(a, comm, round, 1), "copied bytes", comm);
    check(rows_are_right(b, comm, round + 1000, 1), "added bytes", comm);
    check(cpli_transfer_start(comm, &b->transfer) == CPL_OK, "start", comm);
    check(cpli_transfer_finish(comm, &b->transfer) == CPL_OK, "finish", comm);
    check(rows_are_right(b, comm, round + 1000, 2), "bytes added twice", comm);
    rows_destroy(a);
    rows_destroy(b);
}

/* Every pair of ranks, and each rank with itself, swaps a block of odd size. */
static void swaps(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    enum { BLOCK = 20011 };
    char *data = take((size_t)comm->size * 2 * BLOCK);
    cpli_piece pieces[MAX_RANKS + 1];
    int64_t n = 0;
    int64_t bytes = 1 + round * BLOCK / ROUNDS;
    for (int peer = 0; peer < comm->size; peer++) {
        int64_t mine = peer * 2 * BLOCK;
        int64_t theirs = comm->rank * 2 * BLOCK;
        if (peer == comm->rank) {
            pieces[n++] = (cpli_piece){peer, mine, mine + BLOCK, bytes};
            pieces[n++] = (cpli_piece){peer, mine + BLOCK, mine, bytes};
        } else {
            pieces[n++] = (cpli_piece){peer, mine, theirs, bytes};
        }
        memset(data + mine, 1 + comm->rank * 8 + peer, (size_t)bytes);
    }
    cpli_transfer transfer = {.src = data,
                              .dst = data,
                              .sends = pieces,
                              .receives = pieces,
                              .n_sends = n,
                              .n_receives = n,
                              .combine = CPLI_SWAP};
    check(cpli_transfer_start(comm, &transfer) == CPL_OK, "start", comm);
    check(cpli_transfer_finish(comm, &transfer) == CPL_OK, "finish", comm);
    bool ok = true;
    for (int peer = 0; peer < comm->size; peer++) {
        bool is_self = peer == comm->rank;
        const char *block = data + (peer * 2 + (is_self ? 1 : 0)) * BLOCK;
        for (int64_t i = 0; i < bytes; i++)
            ok = ok && block[i] == 1 + peer * 8 + comm->rank;
        ok = ok && block[bytes] == 0;
    }
    check(ok, "swapped bytes", comm);
    free(data);
}

/* ---- collectives ---- */

static void sums(cpl_comm *comm, int round)
{
    int64_t n = (int64_t[]){0, 1, 7, 1021, 5000}[round % 5];
    double *x = take((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = cpl_random_normal((uint64_t)comm->rank + 1, (uint64_t)i);
    check(cpl_comm_sum(comm, x, n, CPL_F64) == CPL_OK, "sum", comm);
    bool ok = true;
    for (int64_t i = 0; i < n; i++) {
        double expected = cpl_random_normal(1, (uint64_t)i);
        for (int rank = 1; rank < comm->size; rank++)
            expected += cpl_random_normal((uint64_t)rank + 1, (uint64_t)i);
        ok = ok && memcmp(&x[i], &expected, sizeof expected) == 0;
    }
    check(ok, "the bits of a sum in rank order", comm);
    free(x);
}

static void collectives(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    int64_t all[MAX_RANKS] = {0};
    int64_t mine = comm->rank * 100 + round;
    check(cpl_comm_barrier(comm) == CPL_OK, "barrier", comm);
    check(cpl_comm_gather(comm, &mine, sizeof mine, all) == CPL_OK, "gather",
          comm);
    bool ok = true;
    for (int rank = 0; rank < comm->size; rank++)
        ok = ok && all[rank] == rank * 100 + round;
    check(ok, "gathered values", comm);
    sums(comm, round);
    double most = comm->rank == round % comm->size ? 5 : -comm->rank;
    check(cpl_comm_max(comm, &most, 1) == CPL_OK && most == 5, "max", comm);
    bool fails = round % 3 == 0 && comm->rank == round % comm->size;
    cpl_status agreed = cpl_comm_agree(comm, fails ? CPL_MEMORY : CPL_OK);
    check(agreed == (round % 3 == 0 ? CPL_MEMORY : CPL_OK), "agree", comm);
}

/* ---- exchanges ---- */

enum { WIDTH = 3 };

/* By bits: the ways that a rank's transport offers, and those it took. */
static _Thread_local unsigned offered, taken;
static _Thread_local const cpli_comm_ops *real;

static bool offers(const cpl_comm *comm, cpli_way way)
{
    (void)comm;
    return (offered >> way & 1) != 0;
}

static cpl_status start(cpl_comm *comm, const cpli_transfer *transfer)
{
    taken |= 1u << transfer->way;
    return real->start(comm, transfer);
}

/* A partition's rows on this rank: each element tells position and column. */
typedef struct shard {
    cpl_layout *layout;
    int64_t n;
    int64_t *positions;
} shard;

static shard shard_create(const cpl_comm *comm, const cpl_stream *stream,
                          const char *kind, int tp)
{
    shard s = {0};
    cpl_layout_options options = {.cp = comm->size / tp, .tp = tp, .block = 2};
    check(cpl_layout_create(kind, stream, &options, &s.layout) == CPL_OK, kind,
          comm);
    cpl_layout_n_local(s.layout, comm->rank, &s.n);
    s.positions = take((size_t)s.n * sizeof *s.positions);
    cpl_layout_positions(s.layout, comm->rank, s.positions);
    return s;
}

static void shard_destroy(shard *s)
{
    cpl_layout_destroy(s->layout);
    free(s->positions);
}

static cpl_tensor *tensor_create(int64_t n, const int64_t *positions)
{
    cpl_tensor *tensor;
    int64_t shape[] = {n, WIDTH};
    if (cpl_tensor_create(CPL_I64, 2, shape, NULL, &tensor) != CPL_OK)
        abort();
    int64_t *data = tensor->data;
    for (int64_t i = 0; positions != NULL && i < n * WIDTH; i++)
        data[i] = positions[i / WIDTH] * WIDTH + i % WIDTH;
    return tensor;
}

static bool holds(const cpl_tensor *tensor, const shard *s, int64_t times)
{
    const int64_t *data = tensor->data;
    for (int64_t i = 0; i < s->n * WIDTH; i++)
        if (data[i] != times * (s->positions[i / WIDTH] * WIDTH + i % WIDTH))
            return false;
    return true;
}

/* Two plans in flight, there and back, in place, and added once more. */
static void execute(cpl_comm *comm, const shard *from, const shard *to,
                    cpl_plan *const *plans)
{
    cpl_tensor *x = tensor_create(from->n, from->positions);
    cpl_tensor *y[2] = {tensor_create(to->n, NULL), tensor_create(to->n, NULL)};
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && cpl_plan_start(plans[i], x, y[i]) == CPL_OK;
    for (int i = 0; i < 2; i++)
        ok = ok && cpl_plan_finish(plans[1 - i]) == CPL_OK;
    check(ok && holds(y[0], to, 1) && holds(y[1], to, 1), "two plans", comm);
    ok = cpl_plan_start_adjoint(plans[0], y[0], x, true) == CPL_OK &&
         cpl_plan_finish(plans[0]) == CPL_OK;
    check(ok && holds(x, from, 2), "an adjoint that adds", comm);
    ok = cpl_plan_start(plans[1], x, x) == CPL_OK &&
         cpl_plan_finish(plans[1]) == CPL_OK;
    check(ok && holds(x, to, 2), "in place", comm);
    ok = cpl_plan_start_adjoint(plans[1], x, x, false) == CPL_OK &&
         cpl_plan_finish(plans[1]) == CPL_OK;
    check(ok && holds(x, from, 2), "an adjoint in place", comm);
    cpl_tensor_destroy(x);
    cpl_tensor_destroy(y[0]);
    cpl_tensor_destroy(y[1]);
}

static cpli_way way_of(const char *method)
{
    if (strcmp(method, "copy") == 0)
        return CPLI_PULL;
    return strcmp(method, "alltoallv") == 0 ? CPLI_ALLTOALL : CPLI_MESSAGES;
}

static void exchange_by(cpl_comm *comm, const char *method, int round)
{
    static const char *const kinds[] = {"contiguous", "mirror", "zigzag",
                                        "striped"};
    int tp = strcmp(method, "composed") == 0 ? 2 : 1;
    int64_t unit = 2 * comm->size * tp;
    int64_t cu[] = {0, 2 * unit, 2 * unit, 5 * unit};
    cpl_stream *stream;
    cpl_route *route;
    cpl_plan *plans[2] = {NULL, NULL};
    if (cpl_stream_thd(cu, NULL, 3, &stream) != CPL_OK)
        abort();
    shard from = shard_create(comm, stream, kinds[round % 4], tp);
    shard to = shard_create(comm, stream, kinds[(round / 4 + 1) % 4], tp);
    if (cpl_route_create(from.layout, to.layout, &route) != CPL_OK)
        abort();
    bool expected = offers(comm, way_of(method));
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok && expected == (cpl_plan_create(route, comm, CPL_I64, WIDTH,
                                                method, &plans[i]) == CPL_OK);
    check(ok, method, comm);
    if (ok && expected) {
        const char *used = cpl_plan_method(plans[0]);
        check(offers(comm, way_of(used)), "auto", comm);
        taken = 0;
        execute(comm, &from, &to, plans);
        check(strcmp(used, "composed") == 0 ||
                  (taken & ~(1u << way_of(used))) == 0,
              "its way, and no other", comm);
    } else {
        check(strstr(cpl_last_error(), "does not offer here") != NULL, "why",
              comm);
    }
    cpl_plan_destroy(plans[0]);
    cpl_plan_destroy(plans[1]);
    cpl_route_destroy(route);
    shard_destroy(&from);
    shard_destroy(&to);
    cpl_stream_destroy(stream);
}

/* Every method, over all that a transport may offer. */
static void exchanges(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    static const char *const methods[] = {"copy",      "direct",   "packed",
                                          "alltoallv", "composed", "auto"};
    cpli_comm_ops some = *comm->ops;
    real = comm->ops;
    some.offers = offers;
    some.start = start;
    offered = round % 3 == 1   ? 1u << CPLI_MESSAGES | 1u << CPLI_ALLTOALL
              : round % 3 == 2 ? 1u << CPLI_MESSAGES
                               : ~0u;
    comm->ops = &some;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i], "composed") != 0 || comm->size % 2 == 0)
            exchange_by(comm, methods[i], round);
    comm->ops = real;
}

/* ---- endings ---- */

/* Exchanges until it fails, and frees its rows at once, as a rank that unwinds
 * does. */
static cpl_status exchange_until_failure(cpl_comm *comm)
{
    cpl_status status = CPL_OK;
    for (int round = 0; status == CPL_OK; round++) {
        rows *r = rows_create(comm, round, CPLI_COPY);
        status = cpli_transfer_start(comm, &r->transfer);
        if (status == CPL_OK)
            status = cpli_transfer_finish(comm, &r->transfer);
        if (status == CPL_OK && round % 4 == 3) {
            double x = 1;
            status = cpl_comm_sum(comm, &x, 1, CPL_F64);
        }
        rows_destroy(r);
    }
    return status;
}

/* The last rank fails in the middle, with a transfer in flight. */
static void aborted(cpl_world *world, cpl_comm *comm, int round)
{
    if (comm->rank < comm->size - 1) {
        check(exchange_until_failure(comm) == CPL_ABORTED, "aborted", comm);
        check(strstr(cpl_last_error(), "boom") != NULL, "its message", comm);
        return;
    }
    rows *r = rows_create(comm, round, CPLI_COPY);
    cpli_transfer_start(comm, &r->transfer);
    cpl_world_abort(world, comm->rank, "boom");
    rows_destroy(r);
    check(cpl_world_aborted(world) == comm->rank, "who aborted", comm);
    check(strcmp(cpl_world_message(world), "boom") == 0, "why", comm);
}

/* The last rank returns early: nobody waits for the deadline of a minute. */
static void returned(cpl_world *world, cpl_comm *comm, int round)
{
    (void)round;
    if (comm->rank == comm->size - 1)
        return;
    double since = cpl_clock();
    cpl_status status = cpl_comm_barrier(comm);
    check(status == CPL_MISMATCH || status == CPL_ABORTED, "returned", comm);
    check(strstr(cpl_last_error(), "has returned") != NULL, "why", comm);
    check(cpl_clock() - since < 30, "at once", comm);
    check(cpl_world_aborted(world) >= 0, "the world ended", comm);
}

static void sum_until_failure(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    (void)round;
    enum { N = 3000 };
    double x[N] = {0};
    cpl_status status = CPL_OK;
    while (status == CPL_OK)
        status = cpl_comm_sum(comm, x, N, CPL_F64);
    check(status == CPL_ABORTED, "aborted from outside", comm);
}

/* Somebody else declares that the last rank failed, at any moment of a sum:
 * ranks that are in each other's memory must all get out. */
static void *abort_last(void *argument)
{
    cpl_world *world = argument;
    static atomic_int calls;
    int n = atomic_fetch_add(&calls, 1);
    for (int i = 0; i < n * 37 % 400; i++)
        sched_yield();
    const cpl_comm *first = cpl_world_comm(world, 0);
    cpl_world_abort(world, cpl_comm_size(first) - 1, "from outside");
    return NULL;
}

static atomic_int n_late;

/* The last rank neither comes nor returns. */
static void late(cpl_world *world, cpl_comm *comm, int round)
{
    (void)round;
    if (comm->rank == comm->size - 1) {
        while (atomic_load(&n_late) < comm->size - 1)
            sched_yield();
        return;
    }
    cpl_status status = cpl_comm_barrier(comm);
    check(status == CPL_DEADLINE || status == CPL_ABORTED, "late", comm);
    check(strstr(cpl_last_error(), "s for rank") != NULL, "who waited", comm);
    check(strstr(cpl_world_message(world), "does not wait") != NULL,
          "what the late rank does", comm);
    atomic_fetch_add(&n_late, 1);
}

/* The ranks call different collectives. */
static void mixed(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    (void)round;
    double x = 1;
    cpl_status status = comm->rank == 0 ? cpl_comm_barrier(comm)
                                        : cpl_comm_sum(comm, &x, 1, CPL_F64);
    check(status == CPL_MISMATCH || status == CPL_ABORTED, "mixed", comm);
    check(strstr(cpl_last_error(), "in a barrier") != NULL, "why", comm);
    check(x == 1, "the untouched addend", comm);
}

/* The ranks disagree about the size of a piece. */
static void misfit(cpl_world *world, cpl_comm *comm, int round)
{
    (void)world;
    (void)round;
    char src[16] = "0123456789abcde";
    char dst[16] = {0};
    int64_t bytes = comm->rank == 0 ? 8 : 9;
    int peer = 1 - comm->rank;
    cpli_piece piece = {peer, 0, 0, bytes};
    cpli_transfer transfer = {.src = src,
                              .dst = dst,
                              .sends = &piece,
                              .receives = &piece,
                              .n_sends = 1,
                              .n_receives = 1};
    cpl_status status = cpli_transfer_start(comm, &transfer);
    if (status == CPL_OK)
        status = cpli_transfer_finish(comm, &transfer);
    check(status == CPL_MISMATCH || status == CPL_ABORTED, "misfit", comm);
    check(dst[0] == 0, "the untouched target", comm);
}

int main(void)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        run_ranks(n, 60, transfers, ROUNDS);
        run_ranks(n, 60, swaps, ROUNDS);
        run_ranks(n, 60, collectives, ROUNDS);
        run_ranks(n, 60, exchanges, ROUNDS);
        for (int round = 0; n > 1 && round < ROUNDS; round++) {
            run_ranks(n, 60, aborted, 1);
            run_ranks(n, 60, returned, 1);
            run_ranks(n, 60, mixed, 1);
            run_beside(n, 60, sum_until_failure, 1, abort_last);
        }
        if (n > 1) {
            atomic_store(&n_late, 0);
            run_ranks(n, 0.05, late, 1);
        }
    }
    run_ranks(2, 60, misfit, 1);
    cpl_memory_stats memory;
    cpl_memory(&memory);
    atomic_fetch_add(memory.live_blocks == 0 ? &n_passed : &n_failed, 1);
    printf("%ld passed, %ld failed\n", atomic_load(&n_passed),
           atomic_load(&n_failed));
    return atomic_load(&n_failed) == 0 ? 0 : 1;
}
