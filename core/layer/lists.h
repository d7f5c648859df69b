/*
 * lists.h: lists of integers that kernels read - spans, blocks, positions, row
 * indices. The host makes them when something is prepared, or, of sequences
 * that go on, in each step. Where kernels work in a device's memory each list
 * has a copy there; on the host the list itself is what they read. All of it
 * goes with the owner.
 */
#ifndef CPLI_LISTS_H
#define CPLI_LISTS_H

#include "base.h"
#include "comm/comm.h"

typedef struct cpli_lists {
    cpl_comm *comm; /* whose memory kernels work in */
    void **here;    /* blocks of the host */
    int64_t n_here;
    void **copies; /* blocks of the device */
    int64_t n_copies;
} cpli_lists;

/* Local. A zeroed list on the host. Errors: MEMORY. */
cpl_status cpli_list_make(cpli_lists *lists, size_t n, size_t size, void **out);
/* Typed spelling: CPLI_LIST_MAKE(lists, n, &array). */
#define CPLI_LIST_MAKE(lists, n, out) \
    cpli_list_make(lists, (size_t)(n), sizeof(**(out)), (void **)(out))

/* Local. Where kernels find a list of the host, which must stay as it is and
 * outlive the lists. Errors: MEMORY, SYSTEM (what the device says). */
cpl_status cpli_list_send(cpli_lists *lists, const void *list, size_t bytes,
                          void **out);
/* Typed spelling: CPLI_LIST_SEND(lists, array, n, &there). */
#define CPLI_LIST_SEND(lists, list, n, out) \
    cpli_list_send(lists, list, (size_t)(n) * sizeof(**(out)), (void **)(out))

/* A list with room (cpli_room): n entries of `size` bytes, and from there on,
 * up to `room` of them, copies of the entry `beyond`, which says nothing. */
typedef struct cpli_padded {
    const void *list;
    size_t n, room, size;
    const void *beyond;
} cpli_padded;

/* Local. As cpli_list_send; kernels find all `room` entries. Without a mould
 * room is n. Errors: MEMORY, SYSTEM (what the device says). */
cpl_status cpli_list_pad(cpli_lists *lists, cpli_padded what, void **out);
/* Typed spelling: CPLI_LIST_PAD(lists, array, n, room, &beyond, &there). */
#define CPLI_LIST_PAD(lists, list, n, room, beyond, out)           \
    cpli_list_pad(lists,                                           \
                  (cpli_padded){list, (size_t)(n), (size_t)(room), \
                                sizeof(**(out)), beyond},          \
                  (void **)(out))

/*
 * A list that is another one in each step: room for it, and the list itself
 * whenever it has changed. Kernels that come later read it as it is then, those
 * that came before as it was; nobody waits. resend: the first bytes of it.
 * Errors: as above, and UNSUPPORTED (in a capture: replays would read what it
 * is now).
 */
cpl_status cpli_list_room(cpli_lists *lists, const void *list, size_t bytes,
                          void **out);
cpl_status cpli_list_resend(const cpli_lists *lists, void *there,
                            const void *list, size_t bytes);
/* Typed spellings. */
#define CPLI_LIST_ROOM(lists, list, n, out) \
    cpli_list_room(lists, list, (size_t)(n) * sizeof(**(out)), (void **)(out))
#define CPLI_LIST_RESEND(lists, there, list, n) \
    cpli_list_resend(lists, there, list, (size_t)(n) * sizeof(*(list)))

void cpli_lists_free(cpli_lists *lists);

#endif
