/*
 * mpi_pace.h: for mpi_driver.c: jobs whose ranks do not go at the same pace, so
 * that news of an end come while others are still at work.
 */
#ifndef MPI_PACE_H
#define MPI_PACE_H

#include "mpi_trial.h"

/* Sends a word to `to` by a way that all ranks take; -1: to nobody. */
static void send_words(cpl_comm *comm, cpli_way way, int to)
{
    int64_t word = comm->rank;
    int64_t words[MAX_RANKS] = {0};
    cpli_piece send = {.peer = to, .bytes = 8};
    cpli_piece receives[MAX_RANKS];
    cpli_transfer transfer = {.src = &word,
                              .dst = words,
                              .sends = &send,
                              .n_sends = to >= 0,
                              .receives = receives,
                              .way = way};
    int last = comm->size - 1;
    int first = way == CPLI_ALLTOALL ? 0 : 1;
    int end = way == CPLI_ALLTOALL ? 1 : comm->size;
    bool receives_here = comm->rank == (way == CPLI_ALLTOALL ? last : 0);
    for (int peer = first; receives_here && peer < end; peer++)
        receives[transfer.n_receives++] =
            (cpli_piece){.peer = peer, .offset = peer * 8, .bytes = 8};
    check_ok(cpli_transfer_start(comm, &transfer), "start");
    check_ok(cpli_transfer_finish(comm, &transfer), "finish");
    for (int peer = first; receives_here && peer < end; peer++)
        check(words[peer] == peer, "a word");
}

/* Rank 0 waits for rank 1, who is late; what the others sent has come, and they
 * have left. */
static void late_messages_job(cpl_comm *comm)
{
    if (comm->rank == 1)
        nap(0.2);
    send_words(comm, CPLI_MESSAGES, comm->rank > 0 ? 0 : -1);
}

/* An all-to-all in which rank 0 is late and has something for the last rank
 * alone: it is over for the others, who leave, long before. */
static void late_block_job(cpl_comm *comm)
{
    if (comm->size < 2)
        return;
    if (comm->rank == 0)
        nap(0.2);
    send_words(comm, CPLI_ALLTOALL, comm->rank == 0 ? comm->size - 1 : -1);
}

/* All fail at once: whom a rank heard of first stays the one that failed. */
static void all_fail_job(cpl_comm *comm)
{
    char own[32];
    snprintf(own, sizeof own, "rank %d says so", comm->rank);
    cpl_comm_barrier(comm); /* some may have failed before all are through */
    mpi->fail(comm, own);
    int first = mpi->failed(comm);
    snprintf(own, sizeof own, "rank %d says so", first);
    nap(0.05);
    check(mpi->failed(comm) == first, "the first failure stays");
    check(strcmp(mpi->message(comm), own) == 0, "and its sentence");
}

#endif
