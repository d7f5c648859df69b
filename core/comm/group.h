/*
 * group.h: ranks that are processes: how one waits for another, and how the end
 * of one ends the waits of all. Processes share nothing, so each keeps its own
 * picture of the group and the others tell it their *news* in small messages:
 * that they failed, have left, or are out of everybody's memory. Every waiting
 * loop listens.
 *
 * All that a rank waits for is messages, so there is one wait: for a batch of
 * them.
 */
#ifndef CPLI_GROUP_H
#define CPLI_GROUP_H

#include "comm.h"
#include "processes.h"
#include "windows.h"
#include "wire.h"

/* What goes through a group's channel, by tag. */
enum {
    CPLI_TAG_CALL, /* in which collective a rank is */
    CPLI_TAG_DATA, /* of a gather or a sum */
    CPLI_TAG_PLAIN,
    CPLI_TAG_TRANSFERS, /* the first of CPLI_TAGS for what a sender sends, and
                           of as many for what the receiver answers */
    CPLI_TAGS = 4096    /* transfers of a pair until a tag comes again */
};

/* ---- batches ---- */

typedef struct cpli_ticket {
    cpli_request request;
    int64_t bytes; /* that must come; -1: any number */
    int peer;      /* CPLI_ANYBODY: all of them */
    bool is_receive;
    bool is_done;
} cpli_ticket;

/* Messages that are waited for together. */
typedef struct cpli_batch {
    cpli_ticket *tickets;
    int64_t n;
    int64_t n_done;   /* all before are done; some behind may be */
    const char *what; /* "transfer", or a collective */
    int64_t number;
    int64_t all_to_all; /* its number among these, if it is one */
} cpli_batch;

/* ---- news ---- */

typedef enum cpli_news_kind {
    CPLI_NEWS_FAILED,
    CPLI_NEWS_LEFT,
    CPLI_NEWS_OUT, /* the sender touches no memory of others any more */
    CPLI_N_NEWS
} cpli_news_kind;

typedef struct cpli_news {
    int64_t group;
    int64_t n_all_to_alls; /* that the sender has started */
    int32_t kind;
    char message[1004];
} cpli_news;

/* News on their way to the others, who may be slow to hear them. */
typedef struct cpli_telling {
    cpli_news news;
    cpli_request *requests; /* one a process */
    int n, n_done;
} cpli_telling;

/* More than the groups can use that not all ranks have come out of. */
enum { CPLI_TELLINGS = 16 };

/* Where a process hears the news of all groups, and tells its own; a receive is
 * always posted. */
typedef struct cpli_desk {
    cpli_channel channel;
    cpli_request request;
    cpli_news heard;
    cpli_telling tellings[CPLI_TELLINGS];
    unsigned n_told;
} cpli_desk;

/* ---- the group ---- */

/* In which collective a rank is; small data travel with it. */
typedef struct cpli_call {
    int64_t number;
    int64_t n;
    int32_t what;
    int32_t dtype;
    char data[1000];
} cpli_call;

typedef struct cpli_group cpli_group;

/* A started transfer. */
typedef struct cpli_crossing {
    const cpli_transfer *transfer; /* NULL: a free place */
    int64_t number;
    bool is_done; /* an earlier finish carried it out on the way */
    cpli_batch batch;
    int64_t *blocks;  /* of an all-to-all: four numbers a rank */
    int *ints;        /* the same for MPI */
    cpli_batch heads; /* of a pull, by sender */
    struct cpli_head_of_pull *heads_in; /* then as many that go out */
    char nothing;                       /* what an acknowledgement says */
} cpli_crossing;

struct cpli_group {
    cpl_comm comm; /* first: a comm of this transport is its group */
    cpli_processes *all;
    cpli_channel channel;
    cpli_desk *desk;
    int64_t number; /* of the group, among all that process 0 was in */
    double deadline_s;

    int failed_rank; /* the first that I heard of; -1: none */
    char message[1004];
    bool *has_left;      /* by rank */
    int64_t *left_after; /* by rank: so many all-to-alls */
    bool *is_out;        /* by rank */
    int n_left;
    bool is_withdrawn;
    bool has_told[CPLI_N_NEWS];

    int64_t n_met;
    cpli_call *calls; /* by rank */
    cpli_batch meeting;
    cpli_request *plain; /* room for two a rank */
    char *sums;          /* scratch: what others have of my slice */

    cpli_crossing crossings[CPLI_IN_FLIGHT];
    int64_t crossing_tickets; /* room for in each */
    int64_t n_started;
    int64_t n_all_to_alls; /* of these */
    uint32_t *n_to;        /* by rank: transfers started that send to it */
    uint32_t *n_from;

    bool pulls; /* all ranks reach each other's memory */
    cpli_windows windows;
    cpli_neighbour *neighbours; /* by rank */
};

/* Waits until all messages of the batch are done. On failure the whole group
 * has failed, and I am withdrawn. MISMATCH: who I wait for has left, or sent
 * another size than I expected. */
cpl_status cpli_group_wait(cpli_group *me, cpli_batch *batch);

/* OK; or ABORTED with the sentence of the rank that failed, and I am withdrawn.
 */
cpl_status cpli_group_alive(cpli_group *me);

/* Fails the whole group with my sentence (printf style): gives `status`, or
 * ABORTED if I heard of another failure before. */
cpl_status cpli_group_fail(cpli_group *me, cpl_status status,
                           const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failure that has its sentence in cpl_last_error. */
cpl_status cpli_group_fail_with(cpli_group *me, cpl_status status);

/* The same because pieces of a batch from `peer` are not what I expect. */
cpl_status cpli_group_fail_sizes(cpli_group *me, const cpli_batch *batch,
                                 int peer);

/* Starts a message and puts its tickets into the batch, which has room for
 * them: one a part. */
cpl_status cpli_group_send(cpli_group *me, cpli_batch *batch, int peer, int tag,
                           const void *data, size_t bytes);
cpl_status cpli_group_receive(cpli_group *me, cpli_batch *batch, int peer,
                              int tag, void *data, size_t bytes);

/* The tickets that `bytes` bytes need. */
static inline int64_t cpli_parts(size_t bytes)
{
    return (int64_t)((bytes + CPLI_PART_BYTES - 1) / CPLI_PART_BYTES);
}

/* Reads the news that have come. */
void cpli_group_listen(cpli_group *me);
void cpli_group_tell(cpli_group *me, cpli_news_kind kind);
/* Whether news are away. */
bool cpli_told(cpli_telling *telling);
/* Nobody comes into my memory any more, nor I into others': waits a while for
 * those who may be in it. */
void cpli_group_withdraw(cpli_group *me);

/* See cpli_comm_ops. */
cpl_status cpli_group_watch(cpl_comm *comm, double waited_s, const char *doing);

/* The operations of the transport, by file. */
cpl_status cpli_group_barrier(cpl_comm *comm);
cpl_status cpli_group_gather(cpl_comm *comm, const void *data, size_t bytes,
                             void *out);
cpl_status cpli_group_sum(cpl_comm *comm, void *data, int64_t n,
                          cpl_dtype dtype);
/* The scratch that a sum needs in a group of `size`. */
size_t cpli_group_sums_bytes(int size);
cpl_status cpli_group_plain(cpl_comm *comm, const void *src, const size_t *to,
                            void *dst, const size_t *from);
cpl_status cpli_crossing_reserve(cpl_comm *comm, cpli_transfer *transfer);
cpl_status cpli_crossing_start(cpl_comm *comm, const cpli_transfer *transfer);
cpl_status cpli_crossing_finish(cpl_comm *comm, const cpli_transfer *transfer);

/* Pulls: started like any transfer, then carried out in the order of starts. */
cpl_status cpli_pull_start(cpli_group *me, cpli_crossing *crossing);
cpl_status cpli_pull_until(cpli_group *me, int64_t number);
/* The room that the heads of a transfer need in a group of `size`. */
size_t cpli_pull_heads_bytes(int size);

#endif
