/*
 * The checker when it is off: every function of checker.h does nothing.
 */
#include "checker.h"

size_t cpli_check_guard(void)
{
    return 0;
}

void cpli_check_alloc(const void *, size_t, int)
{
}

void cpli_check_free(const void *)
{
}

cpli_check_op cpli_check_enqueue(const void *, const char *)
{
    return 0;
}

void cpli_check_event_record(const void *, const void *)
{
}

void cpli_check_event_wait(const void *, const void *)
{
}

void cpli_check_host_waited(const void *, const void *)
{
}

void cpli_check_stream_waits_all(const void *)
{
}

void cpli_check_stream_destroy(const void *)
{
}

void cpli_check_event_destroy(const void *)
{
}

void cpli_check_write(cpli_check_op, const void *, size_t)
{
}

void cpli_check_read(cpli_check_op, const void *, size_t, int)
{
}

void cpli_check_host_buffer(cpli_check_op, const void *, size_t, int)
{
}

void cpli_check_kernel_begin(cpli_check_op, const char *, const uint32_t[3],
                             const uint32_t[3])
{
}

void cpli_check_kernel_end(void)
{
}

void cpli_check_block_begin(int64_t)
{
}

void cpli_check_shared(const char *, const void *, size_t)
{
}

void cpli_check_run(const cpli_check_thread *)
{
}

void cpli_check_block_barrier(void)
{
}

void cpli_check_warp_barrier(int, uint32_t)
{
}

void cpli_check_access(const void *, size_t, cpli_check_access_kind,
                       const void *)
{
}

void cpli_check_async_copy(const void *, const void *, size_t, const void *)
{
}

void cpli_check_async_commit(void)
{
}

void cpli_check_async_wait(int)
{
}

void cpli_check_report(cpli_check_kind, const char *)
{
}

int cpli_check_n_reports(void)
{
    return 0;
}

const char *cpli_check_sentence(int)
{
    return "";
}

void cpli_check_reset(void)
{
}
