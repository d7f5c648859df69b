/*
 * host.h: what the host program adds to the core: running a Lua function on
 * ranks, which are threads of this process, or processes where mpirun started
 * several. Part of the declarations that Lua sees.
 */
#ifndef CPLAB_HOST_H
#define CPLAB_HOST_H

#include "cuda.h"
#include "kernels.h"

/* What became of the ranks of one run. Texts are owned by the result. */
typedef struct cpl_host_run cpl_host_run;

/*
 * Under mpirun, how many processes it started (a run takes the first n_ranks
 * of them), and which of them this one is. Else 0: ranks are threads.
 */
CPL_API int cpl_host_n_processes(void);
CPL_API int cpl_host_process(void);
/* Whether this build has what ranks that are processes need. */
CPL_API bool cpl_host_has_mpi(void);

/*
 * Says where the rows of ranks are in runs from now on: "cpu", or on a device,
 * "cuda" or "cuda-emulated"; and how ranks reach each other there: "direct"
 * (threads read each other's memory), "nccl" (each has a device of its own), or
 * NULL (direct for threads, nccl for processes). Opens the plug-in of the
 * device, which may not be there. Errors, and nothing changes: INVALID (no such
 * name), UNSUPPORTED (this build or machine has none: the sentence says what is
 * missing), MISMATCH (plug-in or driver of another version).
 */
CPL_API cpl_status cpl_host_use_device(const char *device,
                                       const char *transport);
/* What there is of a device's kind, as for cpl_host_use_device. */
CPL_API cpl_status cpl_host_look(const char *device, cpl_devices_found *out);
/*
 * Local. A comm whose memory is on `device`, for work of this thread alone: its
 * rank's where that has its rows there, else a group of one, which is made when
 * the thread first asks and lives as long as the thread; "cpu": the group of
 * one of the host. Errors as for cpl_host_use_device, and MEMORY, SYSTEM.
 */
CPL_API cpl_status cpl_host_device_here(const char *device, cpl_comm **out);

/*
 * Runs n_ranks ranks, each with a Lua state of its own (the host's paths,
 * `print` and io.write to stderr, no os.exit), and in each calls
 *     require(module)(comm, payload)  -- comm: a `cpl_comm *` cdata
 * which must return a string. Waits for all of them. A rank that raises fails
 * the group: the others end with ABORTED, and failed_rank / message tell who
 * failed first and why (with a traceback). Every wait inside has the deadline.
 * Errors: INVALID (also more ranks than processes, or called by a rank that is
 * one), MEMORY, SYSTEM (a thread could not be made, or a process that the run
 * needs does not answer); a rank's own failure is not an error of the call.
 *
 * A rank that has not returned one more deadline after a failure (at least 2 s)
 * is given up: the message of the run says so after that of the first failure,
 * and what that rank's thread uses (its state, the group) is never freed. The
 * program must then end with cpl_host_exit; until then a process that was given
 * up is missing.
 */
CPL_API cpl_status cpl_host_run_ranks(int n_ranks, double deadline_s,
                                      const char *module, const char *payload,
                                      size_t payload_bytes, cpl_host_run **out);
CPL_API void cpl_host_run_destroy(cpl_host_run *run);
/* -1: none failed. */
CPL_API int cpl_host_failed_rank(const cpl_host_run *run);
/* Whether a rank of the run was given up; of any run of this process. */
CPL_API bool cpl_host_is_stuck(const cpl_host_run *run);
CPL_API bool cpl_host_has_stuck(void);
/* Ends the process, and all others under mpirun, with everything written, but
 * with nothing torn down under the feet of a rank that still runs. */
CPL_API void cpl_host_exit(int status);
/* The failed rank's message and its traceback, apart; "" if none failed. */
CPL_API const char *cpl_host_message(const cpl_host_run *run);
CPL_API const char *cpl_host_traceback(const cpl_host_run *run);
/* The string that `rank` returned (may hold zero bytes), or NULL. */
CPL_API const char *cpl_host_result(const cpl_host_run *run, int rank,
                                    size_t *bytes);

/*
 * A store of named bytes of this process, shared by all ranks that are its
 * threads: what one case computed as a reference can be read by the next. get
 * returns NULL where there is nothing; what it returns stays until clear. put
 * keeps the first value of a name and copies it.
 */
CPL_API cpl_status cpl_store_put(const char *name, const void *data,
                                 size_t bytes);
CPL_API const void *cpl_store_get(const char *name, size_t *bytes);
CPL_API void cpl_store_clear(void); /* only while no rank runs */
/* Collective. Where ranks are processes: all of them then have what the store
 * of rank 0 holds under names that begin with `prefix`, the same on all ranks.
 * Errors: MEMORY, and those of the group. */
CPL_API cpl_status cpl_store_share(cpl_comm *comm, const char *prefix);

/* Which kernels the matrix library runs, "SkylakeX". */
CPL_API const char *cpl_host_blas_core(void);

/* Whether file descriptor fd is a terminal. */
CPL_API bool cpl_host_is_terminal(int fd);

#endif
