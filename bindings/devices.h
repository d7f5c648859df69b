/*
 * devices.h: ranks whose rows are on a device. A plug-in brings them, which is
 * opened when a device is asked for.
 */
#ifndef CPLAB_DEVICES_H
#define CPLAB_DEVICES_H

#include "run.h"

/* What cpl_host_use_device last said. */
host_device host_devices_chosen(void);

/* Collective, by the rank's thread: a comm whose memory is on the device, or
 * NULL where none was asked for. */
cpl_status host_devices_join(const host_device *device, cpl_comm *host,
                             cpl_comm **out);
/* By the rank's thread: it moves no rows any more. The others take NULL. */
void host_devices_leave(const host_device *device, cpl_comm *comm, bool failed);
/* When all ranks of this process have left. */
void host_devices_part(const host_device *device, cpl_comm *comm);

#endif
