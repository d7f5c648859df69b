/*
 * devices.h: ranks whose rows are on a device, as the host program sees them.
 * The plug-ins libcplab_cuda.so and libcplab_cuda_emulated.so fill this table;
 * they are opened by name when such a device is asked for.
 */
#ifndef CPLI_DEVICES_H
#define CPLI_DEVICES_H

#include "base.h"

/* Grows when this header, comm.h or world.h changes. */
enum { CPLI_DEVICES_VERSION = 7 };

typedef struct cpli_devices_ops {
    int version;
    const char *name; /* of the device: "cuda" */
    /* Local. Looks at the machine; never fails. */
    void (*look)(cpl_devices_found *out);
    /*
     * Collective over `host`, a group of threads or of processes: the comm of
     * the same ranks whose memory is on a device. `transport`: "direct" (ranks
     * that are threads reach each other's memory; several may share a device),
     * "nccl" (a device for each rank), or NULL (direct among threads, nccl
     * among processes). Errors: UNSUPPORTED (no device, too few, no NCCL),
     * MISMATCH (versions), SYSTEM, MEMORY.
     */
    cpl_status (*join)(cpl_comm *host, const char *transport, cpl_comm **out);
    /* Local, by the rank's thread when it has left `host`. It moves no rows any
     * more, and what it frees from here on is freed when nobody's device reads
     * it; `failed`: others may wait for it for ever. Its memory lives on. */
    void (*leave)(cpl_comm *comm, bool failed);
    /* Local, when all ranks of this process have left and nothing is alive that
     * lies in its memory. */
    void (*part)(cpl_comm *comm);
} cpli_devices_ops;

/* The one symbol of a plug-in. */
CPL_API cpl_status cpl_cuda_open(const cpli_devices_ops **out);

#endif
