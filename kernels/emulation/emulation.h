/*
 * emulation.h: what a spec may ask of the emulator, beside CUDA's functions.
 * C11; exported, so that LuaJIT finds it in the emulated plug-in.
 */
#ifndef CPLI_EMULATION_EMULATION_H
#define CPLI_EMULATION_EMULATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CPL_EMULATION __attribute__((visibility("default")))

/*
 * order     forward, reverse, random or random:SEED: the order of the blocks
 *           of a launch, of the threads of a block, and of the nodes of a graph
 *           that wait for nothing
 * delay     US or US:SEED: at most so many microseconds before each operation
 *           of a stream
 * devices   how many there are, 0 to 64
 * memory    bytes of each, with K, M or G behind
 * driver    its version; 0: none
 * nccl      the version that NCCL says; 0: that of its header
 * cublas    1: there is cuBLAS, for ranks that join from then on
 * peers     0: no device reaches another's memory
 * quiet     1: the fault of a device is not printed on standard error
 * patience  seconds that a rank of NCCL waits for a peer
 * network   0: what NCCL sends does not come, and it says so when it is asked
 *
 * Returns 0, or -1 for an unknown name or a wrong value. Set `devices` before
 * the first use. The environment sets the same: CPLAB_CUDA_ORDER and so on.
 */
CPL_EMULATION int cpl_emulation_set(const char *name, const char *value);

/* Why this thread's last cuda* function failed, or what the fault of its
 * device is; "" without either. Valid until the thread's next call. */
CPL_EMULATION const char *cpl_emulation_why(void);

/* How often since the start: "launches", "host_syncs" (calls in which the host
 * waits for a device), "allocations", "copies" (and memsets), "graph_launches".
 * UINT64_MAX for any other word. */
CPL_EMULATION uint64_t cpl_emulation_count(const char *what);

/* All devices forget their faults: for specs that plant many in one process. */
CPL_EMULATION void cpl_emulation_forgive(void);

#ifdef __cplusplus
}
#endif

#endif
