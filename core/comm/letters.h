/*
 * letters.h: bytes from one process to another, outside all groups. A letter is
 * a header and a body, in parts; the sender keeps a copy until it is away.
 */
#ifndef CPLI_LETTERS_H
#define CPLI_LETTERS_H

#include "processes.h"
#include "wire.h"

typedef struct cpli_parcel cpli_parcel; /* a letter on its way */

typedef struct cpli_head {
    int64_t kind;
    int64_t bytes;
} cpli_head;

typedef struct cpli_letters {
    cpli_channel channel;
    cpli_parcel *outgoing;
    cpli_parcel *incoming; /* NULL: none of which the header has come */
    cpli_head head;        /* a receive for it is posted while `expects` */
    cpli_request head_request;
    bool expects;
} cpli_letters;

cpl_status cpli_letters_send(cpli_letters *letters, int to, int kind,
                             const void *data, size_t bytes);
/* Looks once. `came` is false while a letter is not all there. */
cpl_status cpli_letters_look(cpli_letters *letters, cpli_letter *out,
                             bool *came);
/* Frees what is away; whether all is. */
bool cpli_letters_reap(cpli_letters *letters);
/* Frees all that is left. */
void cpli_letters_destroy(cpli_letters *letters);

#endif
