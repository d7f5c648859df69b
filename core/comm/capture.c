/*
 * capture.c: the work of all ranks of a group on their devices, kept and done
 * again. Where ranks reach each other's memory they have one graph together;
 * with NCCL, which knows its peers, each has its own.
 */
#include "comm.h"

struct cpl_capture {
    cpl_comm *comm; /* that carries */
    void *graph;
    bool is_open, is_ready;
    cpl_counters counted; /* when it was opened; since the end: in between */
};

static cpl_status begin(cpl_comm *comm)
{
    const cpli_device_ops *device = cpli_device_of(comm);
    if (comm->ops->capture != NULL)
        return comm->ops->capture->begin(comm);
    return cpl_comm_agree(comm, device->begin_capture(comm));
}

static cpl_status end(cpl_comm *comm, void **graph)
{
    const cpli_device_ops *device = cpli_device_of(comm);
    if (comm->ops->capture != NULL)
        return comm->ops->capture->end(comm, graph);
    return cpl_comm_agree(comm, device->end_capture(comm, graph));
}

cpl_status cpl_capture_begin(cpl_comm *comm, cpl_capture **out)
{
    cpl_comm *whole = cpli_comm_whole(comm);
    cpl_capture *capture = NULL;
    if (cpli_device_of(whole) == NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "capture: there is nothing to capture on the cpu");
    cpl_status status = cpl_comm_agree(whole, CPL_ALLOC(1, &capture));
    if (status == CPL_OK)
        status = begin(whole);
    if (status != CPL_OK) {
        cpli_free(capture);
        return status;
    }
    capture->comm = whole;
    capture->is_open = true;
    capture->counted = *cpl_counters_here();
    *out = capture;
    return CPL_OK;
}

/* now - before, of what a replay does again. */
static cpl_counters between(const cpl_counters *before, const cpl_counters *now)
{
    return (cpl_counters){
        .exchanges = now->exchanges - before->exchanges,
        .sent_bytes = now->sent_bytes - before->sent_bytes,
        .sent_messages = now->sent_messages - before->sent_messages,
        .state_bytes = now->state_bytes - before->state_bytes,
        .trace_checks = now->trace_checks - before->trace_checks};
}

cpl_status cpl_capture_end(cpl_capture *capture)
{
    if (!capture->is_open)
        return cpli_fail(CPL_INVALID, "capture: it has ended before");
    cpl_counters before = capture->counted;
    capture->counted = between(&before, cpl_counters_here());
    capture->is_open = false;
    CPL_TRY(end(capture->comm, &capture->graph));
    capture->is_ready = true;
    return CPL_OK;
}

cpl_status cpl_capture_fail(cpl_capture *capture, const char *why)
{
    const cpli_capture_ops *ops = capture->comm->ops->capture;
    if (ops != NULL)
        ops->stop(capture->comm, why);
    cpl_status status = cpl_capture_end(capture);
    if (ops != NULL)
        ops->stop(capture->comm, NULL);
    capture->is_ready = false;
    return status;
}

static void count(const cpl_counters *more)
{
    cpl_counters *counters = cpl_counters_here();
    counters->exchanges += more->exchanges;
    counters->sent_bytes += more->sent_bytes;
    counters->sent_messages += more->sent_messages;
    counters->state_bytes += more->state_bytes;
    counters->trace_checks += more->trace_checks;
}

static cpl_status replay(const cpl_capture *capture,
                         const cpl_counters *counted)
{
    cpl_comm *comm = capture->comm;
    if (!capture->is_ready)
        return cpli_fail(CPL_INVALID, "capture: it did not end well");
    count(counted);
    if (comm->ops->capture != NULL)
        return comm->ops->capture->replay(comm, capture->graph);
    return cpli_device_of(comm)->launch(comm, capture->graph);
}

cpl_status cpl_capture_replay(cpl_capture *capture)
{
    return replay(capture, &capture->counted);
}

cpl_status cpl_capture_replay_as(cpl_capture *capture,
                                 const cpl_rehearsal *rehearsal)
{
    return replay(capture, &rehearsal->counted);
}

void cpl_capture_destroy(cpl_capture *capture)
{
    if (capture == NULL)
        return;
    if (capture->is_open)
        cpl_capture_end(capture);
    if (capture->graph != NULL)
        cpli_device_of(capture->comm)->drop(capture->comm, capture->graph);
    cpli_free(capture);
}
