/*
 * cuda_send.c: what a host tells its device without waiting: lists that are
 * others in each step. The bytes go into an envelope, pinned memory that is
 * read when the stream comes to it, so that what was sent may change at once;
 * an envelope that has been read is used again. There are as many as were ever
 * on their way: a stream takes so many launches, and then CUDA itself makes
 * the host wait.
 */
#include "cuda_rank.h"

enum { LEAST_ROOM = 256 }; /* of an envelope, in bytes */

/* The head of memory that is pinned until the device is closed: freeing it
 * waits for all devices, and one of them may wait for what this rank is to send
 * later. */
typedef struct cpli_pinned {
    struct cpli_pinned *next;
    int64_t zero; /* padding */
} cpli_pinned;

/* Its own head; the bytes follow. */
typedef struct cpli_envelope {
    struct cpli_envelope *next;
    size_t room;
    cudaEvent_t read;
    bool is_away;
} cpli_envelope;

cpl_status cpli_cuda_pin(cpli_cuda *device, size_t bytes, void **out)
{
    cpli_pinned *made = NULL;
    CPL_TRY(cpli_cuda_check(
        device, cudaMallocHost((void **)&made, sizeof *made + bytes),
        "taking pinned memory"));
    made->next = device->pinned;
    device->pinned = made;
    *out = made + 1;
    return CPL_OK;
}

void cpli_cuda_drop_pinned(cpli_cuda *device)
{
    for (cpli_envelope *one = device->envelopes; one != NULL; one = one->next)
        cudaEventDestroy(one->read);
    for (cpli_pinned *next, *one = device->pinned; one != NULL; one = next) {
        next = one->next;
        cudaFreeHost(one);
    }
    device->envelopes = NULL;
    device->pinned = NULL;
}

static cpl_status make_envelope(cpli_cuda *device, size_t bytes,
                                cpli_envelope **out)
{
    size_t room = LEAST_ROOM;
    cudaEvent_t event;
    while (room < bytes)
        room *= 2;
    CPL_TRY(cpli_cuda_check(
        device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
        "making an event"));
    cpl_status status =
        cpli_cuda_pin(device, sizeof **out + room, (void **)out);
    if (status != CPL_OK) {
        cudaEventDestroy(event);
        return status;
    }
    **out =
        (cpli_envelope){.next = device->envelopes, .room = room, .read = event};
    device->envelopes = *out;
    return CPL_OK;
}

static cpl_status look_after(cpli_cuda *device, cpli_envelope *one)
{
    if (!one->is_away)
        return CPL_OK;
    cudaError_t error = cudaEventQuery(one->read);
    one->is_away = error == cudaErrorNotReady;
    if (!one->is_away)
        return cpli_cuda_check(device, error, "a list");
    cudaGetLastError();
    return CPL_OK;
}

/* The smallest one that is here and large enough. */
static cpl_status take_envelope(cpli_cuda *device, size_t bytes,
                                cpli_envelope **out)
{
    *out = NULL;
    for (cpli_envelope *one = device->envelopes; one != NULL; one = one->next) {
        CPL_TRY(look_after(device, one));
        if (!one->is_away && one->room >= bytes &&
            (*out == NULL || one->room < (*out)->room))
            *out = one;
    }
    return *out != NULL ? CPL_OK : make_envelope(device, bytes, out);
}

cpl_status cpli_cuda_send(cpl_comm *comm, void *to, const void *from,
                          size_t bytes)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    cpli_envelope *envelope;
    if (bytes == 0)
        return CPL_OK;
    if (device->is_capturing)
        return cpli_fail(CPL_UNSUPPORTED,
                         "%s %d: a list that is another one in each step, in a "
                         "capture: replays would read what it is now",
                         cpli_cuda_name, device->number);
    CPL_TRY(take_envelope(device, bytes, &envelope));
    memcpy(envelope + 1, from, bytes);
    CPL_TRY(
        cpli_cuda_check(device,
                        cudaMemcpyAsync(to, envelope + 1, bytes,
                                        cudaMemcpyHostToDevice, device->stream),
                        "a list"));
    envelope->is_away = true;
    return cpli_cuda_check(
        device, cudaEventRecord(envelope->read, device->stream), "a list");
}
