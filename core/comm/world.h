/*
 * world.h: ranks that are threads of one process: their places, how they wait
 * for each other, and how the end of one ends the waits of all.
 *
 * A member's mutex guards what it waits on. Nobody holds two of these mutexes
 * at once. A member *pins* another while it reads or writes the other's rows;
 * a member that fails or leaves is *withdrawn* first, which waits for the last
 * pin: so no rank ever touches memory that its owner has given up.
 */
#ifndef CPLI_WORLD_H
#define CPLI_WORLD_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm.h"

/* What one rank has for another: places in the sender's table of transfers in
 * flight, in the order of their starts. Guarded by the receiver. */
typedef struct cpli_box {
    uint8_t places[CPLI_IN_FLIGHT];
    uint32_t posted;
    uint32_t taken; /* the receiver's own, as is the next */
    bool is_served; /* in the transfer that it carries out */
} cpli_box;

/* A started transfer. `done` without having been finished: an earlier finish
 * of a later transfer carried it out on the way. */
typedef struct cpli_flight {
    const cpli_transfer *transfer; /* NULL: a free place */
    int64_t number;
    bool done;
    bool moves; /* by the mover */
} cpli_flight;

/* What a member waits for, for the report of a deadline. */
typedef struct cpli_wait {
    const char *what; /* "transfer", or a collective; NULL: it does not wait */
    int64_t number;
    int peer; /* -1: all of them */
    double since;
} cpli_wait;

/* Whether what a member waits for from `peer` has come; under its mutex. */
typedef struct cpli_member cpli_member;
typedef bool cpli_ready(const cpli_member *me, int peer);

/* A member's part in a meeting of all; two meetings may overlap. */
typedef struct cpli_notice {
    const char *what; /* "barrier" */
    int64_t n;
    cpl_dtype dtype;
    void *data;
} cpli_notice;

/* A flight of another member, whose pieces I take. */
typedef struct cpli_source {
    const cpli_member *member;
    const cpli_transfer *transfer;
    int place;
    const cpli_piece *pieces; /* its sends to me, one for each of mine */
} cpli_source;

/*
 * How rows move that are not in the host's memory (cuda.c). Members meet on the
 * host as ever, and this puts work into the order of the member's device:
 * nothing here waits for one.
 */
typedef struct cpli_mover {
    /* At start: from here on others may take what src holds. */
    cpl_status (*begin)(cpli_member *me, const cpli_transfer *mine, int place);
    /* The receives first .. end - 1 of mine, all from one other member. */
    cpl_status (*meet)(cpli_member *me, const cpli_transfer *mine,
                       cpli_range receives, const cpli_source *from);
    /* After all of these: moves every piece, own ones too. */
    cpl_status (*move)(cpli_member *me, const cpli_transfer *mine);
    /* `peer` has taken what it takes of mine: my later work comes after. */
    cpl_status (*settle)(cpli_member *me, const cpli_member *peer);
} cpli_mover;

struct cpli_member {
    cpl_comm comm; /* first: a comm of this transport is its member */
    cpl_world *world;
    const cpli_mover *mover; /* NULL: rows are in the host's memory */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    cpli_box *boxes;    /* by sender; guarded */
    uint32_t *consumed; /* by receiver: transfers taken from me; guarded */
    uint32_t *settled;  /* by receiver: of these, the ones I know of */
    int pins;           /* members in my memory; guarded */
    bool withdrawn;     /* guarded */
    cpli_wait wait;     /* guarded */
    cpli_ready *ready;  /* of wait, while it sleeps; else NULL; guarded */
    cpli_flight flights[CPLI_IN_FLIGHT];
    int64_t n_started;
    atomic_llong n_met; /* meetings that it came to */
    cpli_notice notices[2];
    atomic_bool left;
    /* It carries out nothing and goes to the next meeting; if it is missed,
     * because somebody waits for it before that, it fails with its reason. */
    atomic_bool stopped, missed;
    const char *why;
};

struct cpl_world {
    int n;
    double deadline_s;
    cpli_member *members;
    cpli_box *boxes;
    uint32_t *counts;
    pthread_mutex_t mutex; /* guards n_present and the first failure */
    int n_present;
    atomic_llong n_meetings; /* complete ones */
    atomic_int failed_rank;
    char message[1024];
};

/* The operations of the transport (local.c); exported for the plug-in, as are
 * those of meeting and failing. */
CPL_API extern const cpli_comm_ops cpli_local_ops;

/* From here on I carry out nothing and go to the next meeting: if somebody
 * waits for me before that, I fail the world with `why`, which lives until I go
 * on: NULL. */
CPL_API void cpli_member_stop(cpli_member *me, const char *why);

/* Closes the member's memory to others, and waits until the last is out. */
void cpli_member_withdraw(cpli_member *member);

/* OK; or ABORTED with the sentence of the rank that failed, and I am withdrawn.
 */
CPL_API cpl_status cpli_member_alive(cpli_member *me);

/* Waits until `ready(me, peer)` holds. On failure I am withdrawn. MISMATCH: who
 * I wait for has left. */
cpl_status cpli_member_wait(cpli_member *me, cpli_ready *ready, cpli_wait wait);

/* Under its mutex, when something has changed: wakes the member if that is what
 * it sleeps for, since being woken for nothing takes a core from who copies. */
void cpli_member_notify(cpli_member *member);

/* Enters the memory of `peer`; false: it is closed. Then leave what else you
 * are in, before you fail with cpli_member_lost: failing waits for others to
 * leave my memory, and they may wait for me. */
bool cpli_member_pin(cpli_member *me, int peer);
/* Leaves it; with `consumed` the peer learns that I took its transfer. */
void cpli_member_unpin(cpli_member *me, int peer, bool consumed);
/* Why the memory of `peer` is closed; `what` and `number` as in cpli_wait. */
cpl_status cpli_member_lost(cpli_member *me, int peer, const char *what,
                            int64_t number);

/* Fails the whole world with my sentence (printf style): gives `status`, or
 * ABORTED if another rank came first. */
CPL_API cpl_status cpli_member_fail(cpli_member *me, cpl_status status,
                                    const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Meets all other members: returns when all have come, each with a notice that
 * equals mine but for its data. MISMATCH: they differ. */
CPL_API cpl_status cpli_member_meet(cpli_member *me, cpli_notice notice);
/* The data of a member's notice in the last meeting. */
CPL_API void *cpli_member_notice(const cpli_member *me, int rank);

#endif
