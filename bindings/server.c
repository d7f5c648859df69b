/*
 * server.c: what processes other than 0 do: they wait for a job, run their rank
 * of it, and send back what it left.
 */
#include "base.h"
#include "devices.h"
#include "letter.h"
#include "processes.h"
#include "rank.h"

/* A wait without end, in pieces: mpirun ends who waits when process 0 dies. */
static const double patience_s = 3600;

static cpl_status next_letter(cpli_letter *out)
{
    bool came = false;
    while (!came)
        CPL_TRY(
            host_world.ops->receive(host_world.all, patience_s, out, &came));
    return CPL_OK;
}

static cpl_status send(int kind, const void *data, size_t bytes)
{
    return host_world.ops->send(host_world.all, 0, kind, data, bytes);
}

static cpl_status send_done(int64_t number, const host_outcome *left,
                            int failed_rank, const char *said)
{
    void *data;
    size_t bytes;
    CPL_TRY(letter_write_done(number, left, failed_rank, said, &data, &bytes));
    cpl_status status = send(LETTER_DONE, data, bytes);
    cpli_free(data);
    return status;
}

/* There is no group in which the rank could fail. */
static cpl_status send_no_group(int64_t number)
{
    host_outcome left = {0};
    CPL_TRY(cpli_text(&left.message, "%s", cpl_last_error()));
    cpl_status status = send_done(number, &left, host_world.rank, left.message);
    host_outcome_free(&left);
    return status;
}

static cpl_status run_rank(int64_t number, const host_job *job)
{
    const cpli_processes_ops *ops = host_world.ops;
    cpl_comm *comm;
    if (ops->join(host_world.all, job->n_ranks, job->deadline_s, &comm) !=
        CPL_OK)
        return send_no_group(number);
    host_rank rank = {.ops = &host_process_rank_ops,
                      .job = job,
                      .comm = comm,
                      .rank = host_world.rank};
    host_rank_run(&rank);
    cpl_status status =
        send_done(number, &rank.outcome, ops->failed(comm), ops->message(comm));
    host_outcome_free(&rank.outcome);
    host_devices_part(&job->device, rank.device_comm);
    ops->part(comm);
    return status;
}

/* Ready, and then process 0 says whether all are. */
static cpl_status serve(const cpli_letter *letter)
{
    int64_t number = letter_number(letter);
    CPL_TRY(send(LETTER_READY, &number, sizeof number));
    cpli_letter answer;
    CPL_TRY(next_letter(&answer));
    cpli_free(answer.data);
    if (answer.kind != LETTER_GO)
        return send_done(number, &(host_outcome){0}, -1, "");
    host_job job;
    letter_read_job(letter, &job);
    return run_rank(number, &job);
}

static cpl_status serve_all(void)
{
    for (;;) {
        cpli_letter letter;
        CPL_TRY(next_letter(&letter));
        cpl_status status = CPL_OK;
        if (letter.kind == LETTER_JOB)
            status = serve(&letter);
        cpli_free(letter.data);
        if (letter.kind == LETTER_STOP || status != CPL_OK)
            return status;
    }
}

int host_processes_serve(void)
{
    if (serve_all() != CPL_OK)
        host_processes_give_up(cpl_last_error());
    host_world.ops->close(host_world.all);
    return 0;
}
