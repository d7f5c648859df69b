/*
 * letter.h: what process 0 and the others write to each other about a job.
 *
 *     process 0            process r
 *     JOB            ->
 *                    <-    READY       it waits for nothing else any more
 *     GO, when all are      (or STAY: not all came)
 *     both join the group and run their rank
 *                    <-    DONE        what the rank left; nothing after STAY
 *     STOP           ->                ends the process
 *
 * Each but STOP begins with the number of its job: a rank that was given up may
 * still answer. Both ends are the same program on like machines, so numbers
 * travel as they lie in memory.
 */
#ifndef CPLAB_LETTER_H
#define CPLAB_LETTER_H

#include "comm/processes.h"
#include "run.h"

enum {
    LETTER_JOB,
    LETTER_READY,
    LETTER_GO,
    LETTER_STAY,
    LETTER_DONE,
    LETTER_STOP
};

/* What fits into the longest letter beside its other parts. */
static const size_t letter_max_bytes = ((size_t)1 << 31) - (1 << 20);

/* The number with which every letter but STOP begins; -1: it has none. */
int64_t letter_number(const cpli_letter *letter);

/* Their bytes are the caller's, freed with cpl_free. Errors: MEMORY. */
cpl_status letter_write_job(int64_t number, const host_job *job, void **out,
                            size_t *bytes);
/* failed_rank, said: who failed first as the rank's group knows it, or -1. */
cpl_status letter_write_done(int64_t number, const host_outcome *left,
                             int failed_rank, const char *said, void **out,
                             size_t *bytes);

/* The job's texts lie in the letter. */
void letter_read_job(const cpli_letter *letter, host_job *out);
/* The outcome's texts are copies; said lies in the letter. Errors: MEMORY. */
cpl_status letter_read_done(const cpli_letter *letter, host_outcome *out,
                            int *failed_rank, const char **said);

#endif
