/*
 * letters.c: see letters.h. One letter comes in at a time: its header says how
 * much will follow, and from whom.
 */
#include "letters.h"

enum { TAG_HEAD, TAG_BODY };

struct cpli_parcel {
    cpli_parcel *next;
    int peer;
    cpli_head head;
    char *body;
    int64_t n; /* requests; of the first n_done nothing is left to do */
    int64_t n_done;
    cpli_request requests[];
};

static size_t n_parts(size_t bytes)
{
    return (bytes + CPLI_PART_BYTES - 1) / CPLI_PART_BYTES;
}

static cpl_status create(int peer, cpli_head head, cpli_parcel **out)
{
    cpli_parcel *parcel;
    size_t bytes = (size_t)head.bytes;
    size_t n = 1 + n_parts(bytes);
    CPL_TRY(cpli_alloc(sizeof *parcel + n * sizeof(cpli_request), 1,
                       (void **)&parcel));
    cpl_status status = CPL_ALLOC(bytes, &parcel->body);
    if (status != CPL_OK) {
        cpli_free(parcel);
        return status;
    }
    parcel->peer = peer;
    parcel->head = head;
    *out = parcel;
    return CPL_OK;
}

static void destroy(cpli_parcel *parcel)
{
    if (parcel != NULL)
        cpli_free(parcel->body);
    cpli_free(parcel);
}

typedef cpl_status start_part(const cpli_channel *channel, cpli_parcel *parcel,
                              char *data, size_t bytes);

static cpl_status send_part(const cpli_channel *channel, cpli_parcel *parcel,
                            char *data, size_t bytes)
{
    return cpli_wire_send(channel, parcel->peer, TAG_BODY, data, bytes,
                          &parcel->requests[parcel->n]);
}

static cpl_status receive_part(const cpli_channel *channel, cpli_parcel *parcel,
                               char *data, size_t bytes)
{
    return cpli_wire_receive(channel, parcel->peer, TAG_BODY, data, bytes,
                             &parcel->requests[parcel->n]);
}

static cpl_status start_body(const cpli_channel *channel, cpli_parcel *parcel,
                             start_part *start)
{
    size_t bytes = (size_t)parcel->head.bytes;
    for (size_t i = 0; i < bytes; i += CPLI_PART_BYTES) {
        size_t left = bytes - i;
        CPL_TRY(start(channel, parcel, parcel->body + i,
                      left < CPLI_PART_BYTES ? left : CPLI_PART_BYTES));
        parcel->n++;
    }
    return CPL_OK;
}

/* Looks whether all that was started for a parcel is done. */
static cpl_status look_at(cpli_parcel *parcel, bool *done)
{
    *done = true;
    while (parcel->n_done < parcel->n && *done) {
        cpli_arrival arrival;
        CPL_TRY(
            cpli_wire_test(&parcel->requests[parcel->n_done], done, &arrival));
        parcel->n_done += *done;
    }
    return CPL_OK;
}

/* ---- out ---- */

bool cpli_letters_reap(cpli_letters *letters)
{
    cpli_parcel **at = &letters->outgoing;
    while (*at != NULL) {
        cpli_parcel *parcel = *at;
        bool done = false;
        if (look_at(parcel, &done) == CPL_OK && !done) {
            at = &parcel->next;
            continue;
        }
        *at = parcel->next;
        destroy(parcel);
    }
    return letters->outgoing == NULL;
}

cpl_status cpli_letters_send(cpli_letters *letters, int to, int kind,
                             const void *data, size_t bytes)
{
    cpli_parcel *parcel;
    cpli_head head = {.kind = kind, .bytes = (int64_t)bytes};
    cpli_letters_reap(letters);
    CPL_TRY(create(to, head, &parcel));
    if (bytes > 0)
        memcpy(parcel->body, data, bytes);
    cpl_status status =
        cpli_wire_send(&letters->channel, to, TAG_HEAD, &parcel->head,
                       sizeof parcel->head, &parcel->requests[0]);
    if (status != CPL_OK) {
        destroy(parcel);
        return status;
    }
    parcel->n = 1;
    parcel->next = letters->outgoing;
    letters->outgoing = parcel;
    return start_body(&letters->channel, parcel, send_part);
}

/* ---- in ---- */

static cpl_status expect(cpli_letters *letters)
{
    if (letters->expects)
        return CPL_OK;
    CPL_TRY(cpli_wire_receive(&letters->channel, CPLI_ANYBODY, TAG_HEAD,
                              &letters->head, sizeof letters->head,
                              &letters->head_request));
    letters->expects = true;
    return CPL_OK;
}

/* Makes ready for the body of a letter whose header has come. */
static cpl_status begin(cpli_letters *letters, int from)
{
    cpli_parcel *parcel;
    letters->expects = false;
    CPL_TRY(create(from, letters->head, &parcel));
    letters->incoming = parcel;
    return start_body(&letters->channel, parcel, receive_part);
}

static cpl_status look_for_head(cpli_letters *letters)
{
    bool came = false;
    cpli_arrival arrival;
    CPL_TRY(expect(letters));
    CPL_TRY(cpli_wire_test(&letters->head_request, &came, &arrival));
    return came ? begin(letters, arrival.from) : CPL_OK;
}

cpl_status cpli_letters_look(cpli_letters *letters, cpli_letter *out,
                             bool *came)
{
    bool done = false;
    cpli_letters_reap(letters);
    *came = false;
    if (letters->incoming == NULL)
        CPL_TRY(look_for_head(letters));
    cpli_parcel *parcel = letters->incoming;
    if (parcel == NULL)
        return CPL_OK;
    CPL_TRY(look_at(parcel, &done));
    if (!done)
        return CPL_OK;
    *out = (cpli_letter){.from = parcel->peer,
                         .kind = (int)parcel->head.kind,
                         .data = parcel->body,
                         .bytes = (size_t)parcel->head.bytes};
    *came = true;
    letters->incoming = NULL;
    cpli_free(parcel);
    return CPL_OK;
}

void cpli_letters_destroy(cpli_letters *letters)
{
    if (letters->expects)
        cpli_wire_cancel(&letters->head_request);
    while (letters->outgoing != NULL) {
        cpli_parcel *parcel = letters->outgoing;
        letters->outgoing = parcel->next;
        destroy(parcel);
    }
    destroy(letters->incoming);
}
