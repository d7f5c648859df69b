/*
 * letter.c: letters as bytes: a head of numbers, then the texts one behind the
 * other, each with a zero behind it.
 */
#include "letter.h"

#include "base.h"

typedef struct job_head {
    int64_t number;
    int64_t n_ranks;
    double deadline_s;
    host_device device;
    int64_t module_bytes, payload_bytes;
} job_head;

enum { RESULT, MESSAGE, TRACEBACK, SAID, N_TEXTS };

typedef struct done_head {
    int64_t number;
    int64_t failed_rank;
    int64_t bytes[N_TEXTS]; /* -1: there is no such text */
} done_head;

int64_t letter_number(const cpli_letter *letter)
{
    int64_t number = -1;
    if (letter->bytes >= sizeof number)
        memcpy(&number, letter->data, sizeof number);
    return number;
}

/* Puts a text where `at` points, and returns what follows. */
static char *put(char *at, const char *text, int64_t bytes)
{
    if (bytes < 0)
        return at;
    memcpy(at, text, (size_t)bytes);
    at[bytes] = '\0';
    return at + bytes + 1;
}

cpl_status letter_write_job(int64_t number, const host_job *job, void **out,
                            size_t *bytes)
{
    job_head head = {.number = number,
                     .n_ranks = job->n_ranks,
                     .deadline_s = job->deadline_s,
                     .device = job->device,
                     .module_bytes = (int64_t)strlen(job->module),
                     .payload_bytes = (int64_t)job->payload_bytes};
    size_t texts = strlen(job->module) + 1 + job->payload_bytes + 1;
    char *data;
    CPL_TRY(CPL_ALLOC(sizeof head + texts, &data));
    memcpy(data, &head, sizeof head);
    put(put(data + sizeof head, job->module, head.module_bytes), job->payload,
        head.payload_bytes);
    *out = data;
    *bytes = sizeof head + texts;
    return CPL_OK;
}

void letter_read_job(const cpli_letter *letter, host_job *out)
{
    job_head head;
    memcpy(&head, letter->data, sizeof head);
    const char *module = (const char *)letter->data + sizeof head;
    *out = (host_job){.n_ranks = (int)head.n_ranks,
                      .deadline_s = head.deadline_s,
                      .device = head.device,
                      .module = module,
                      .payload = module + head.module_bytes + 1,
                      .payload_bytes = (size_t)head.payload_bytes};
}

static int64_t length_of(const char *text)
{
    return text != NULL ? (int64_t)strlen(text) : -1;
}

cpl_status letter_write_done(int64_t number, const host_outcome *left,
                             int failed_rank, const char *said, void **out,
                             size_t *bytes)
{
    const char *texts[N_TEXTS] = {left->result, left->message, left->traceback,
                                  said};
    done_head head = {.number = number, .failed_rank = failed_rank};
    size_t total = sizeof head;
    for (int i = 0; i < N_TEXTS; i++) {
        head.bytes[i] = i == RESULT && texts[i] != NULL
                            ? (int64_t)left->result_bytes
                            : length_of(texts[i]);
        total += (size_t)(head.bytes[i] + 1);
    }
    char *data;
    CPL_TRY(CPL_ALLOC(total, &data));
    memcpy(data, &head, sizeof head);
    char *at = data + sizeof head;
    for (int i = 0; i < N_TEXTS; i++)
        at = put(at, texts[i], head.bytes[i]);
    *out = data;
    *bytes = total;
    return CPL_OK;
}

/* A copy of the text, or nothing where it has -1 bytes. */
static cpl_status copy(const char *text, int64_t bytes, char **out)
{
    if (bytes < 0)
        return CPL_OK;
    CPL_TRY(CPL_ALLOC(bytes + 1, out));
    memcpy(*out, text, (size_t)bytes);
    return CPL_OK;
}

cpl_status letter_read_done(const cpli_letter *letter, host_outcome *out,
                            int *failed_rank, const char **said)
{
    done_head head;
    memcpy(&head, letter->data, sizeof head);
    const char *texts[N_TEXTS];
    const char *at = (const char *)letter->data + sizeof head;
    for (int i = 0; i < N_TEXTS; i++) {
        texts[i] = at;
        at += head.bytes[i] + 1;
    }
    host_outcome left = {.result_bytes =
                             (size_t)cpli_max(head.bytes[RESULT], 0)};
    char **copies[] = {&left.result, &left.message, &left.traceback};
    cpl_status status = CPL_OK;
    for (int i = RESULT; i <= TRACEBACK && status == CPL_OK; i++)
        status = copy(texts[i], head.bytes[i], copies[i]);
    if (status != CPL_OK) {
        host_outcome_free(&left);
        return status;
    }
    *out = left;
    *failed_rank = (int)head.failed_rank;
    *said = head.bytes[SAID] >= 0 ? texts[SAID] : "";
    return CPL_OK;
}
