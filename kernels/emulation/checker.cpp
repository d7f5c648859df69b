/*
 * What the emulator tells: memory that operations touch, kernels, threads and
 * their barriers. See checker.h.
 */
#include "checker_parts.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace checker
{

kernel now;
thread_local const cpli_check_thread *running
    __attribute__((tls_model("initial-exec")));

namespace
{

thread_local cpli_check_thread described
    __attribute__((tls_model("initial-exec")));

void touch(cpli_check_op op, const void *at, size_t bytes, bool write,
           bool complain)
{
    if (bytes == 0)
        return;
    if (op == 0)
        op = host_operation();
    const char *from = static_cast<const char *>(at);
    access a = {from, bytes, !write, write, false, false, false, 0};
    std::lock_guard<std::mutex> lock(judging);
    region *r = find_region(from);
    if (r != nullptr)
        judge_operation(op, r, a, complain);
    else if (maybe_device(from)) {
        note by = {};
        by.op = op;
        by.reach = WHOLE;
        finding f = {CPLI_CHECK_OUT_OF_BOUNDS, a, near_region(from), by};
        f.freed = was_freed(from);
        if (f.freed)
            f.where = nullptr;
        add_finding(f);
    }
}

} // namespace
} // namespace checker

using namespace checker;

void cpli_check_write(cpli_check_op op, const void *at, size_t bytes)
{
    touch(op, at, bytes, true, false);
}

void cpli_check_read(cpli_check_op op, const void *at, size_t bytes, int leaves)
{
    touch(op, at, bytes, false, leaves != 0);
}

void cpli_check_kernel_begin(cpli_check_op op, const char *name,
                             const uint32_t grid[3], const uint32_t block[3])
{
    if (op == 0)
        op = host_operation();
    judging.lock();
    now.op = op;
    now.name = name;
    std::copy(grid, grid + 3, now.grid);
    std::copy(block, block + 3, now.block);
    now.n_threads = block[0] * block[1] * block[2];
    uint32_t n_warps = (now.n_threads + 31) / 32;
    now.stamps.resize(now.n_threads);
    now.warp_clocks.resize(n_warps);
    now.clocks.resize(now.n_threads);
    now.queues.resize(now.n_threads);
    now.clocks_used = true;
}

void cpli_check_kernel_end(void)
{
    running = nullptr;
    drop_shared();
    judging.unlock();
}

void cpli_check_block_begin(int64_t)
{
    drop_shared();
    now.barriers = 0;
    for (async_queue &q : now.queues) {
        q.open.clear();
        q.groups.clear();
    }
    if (!now.clocks_used)
        return;
    /* Stamps start at 1 and what was seen at 0: nothing is ordered yet. */
    std::fill(now.stamps.begin(), now.stamps.end(), 1);
    std::fill(now.warp_clocks.begin(), now.warp_clocks.end(), 1);
    std::memset(now.clocks.data(), 0, now.clocks.size() * sizeof now.clocks[0]);
    now.clocks_used = false;
}

void cpli_check_shared(const char *name, const void *at, size_t bytes)
{
    if (bytes > 0)
        add_shared(name, static_cast<const char *>(at), bytes);
}

void cpli_check_run(const cpli_check_thread *thread)
{
    if (thread != nullptr)
        described = *thread;
    running = thread == nullptr ? nullptr : &described;
}

void cpli_check_block_barrier(void)
{
    now.barriers++;
}

/* What any lane of the mask did or saw so far, all of them have seen. */
void cpli_check_warp_barrier(int warp, uint32_t mask)
{
    uint32_t first = (uint32_t)warp * 32;
    lane_clock joined = {};
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        const lane_clock &theirs = now.clocks[first + lane];
        for (int i = 0; i < 32; i++)
            joined.seen[i] = std::max(joined.seen[i], theirs.seen[i]);
        joined.seen[lane] =
            std::max(joined.seen[lane], now.stamps[first + lane]);
    }
    uint32_t stamp = ++now.warp_clocks[(uint32_t)warp];
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        now.clocks[first + lane] = joined;
        now.stamps[first + lane] = stamp;
    }
    now.clocks_used = true;
}

void cpli_check_access(const void *at, size_t bytes,
                       cpli_check_access_kind kind, const void *pc)
{
    judge({static_cast<const char *>(at), bytes, kind != CPLI_CHECK_WRITE,
           kind != CPLI_CHECK_READ, kind == CPLI_CHECK_ATOMIC,
           (bytes & (bytes - 1)) == 0 && bytes <= LINE, false, pc_of(pc)});
}

void cpli_check_async_copy(const void *to, const void *from, size_t bytes,
                           const void *pc)
{
    cpli_check_access(from, bytes, CPLI_CHECK_READ, pc);
    judge({static_cast<const char *>(to), bytes, false, true, false, true, true,
           pc_of(pc)});
    now.queues[(size_t)running->thread].open.push_back(
        {static_cast<const char *>(to), static_cast<const char *>(from), bytes,
         pc_of(pc)});
}

void cpli_check_async_commit(void)
{
    async_queue &q = now.queues[(size_t)running->thread];
    q.groups.push_back(std::move(q.open));
    q.open.clear();
}

void cpli_check_async_wait(int left)
{
    async_queue &q = now.queues[(size_t)running->thread];
    size_t n = q.groups.size() - std::min(q.groups.size(), (size_t)left);
    for (size_t i = 0; i < n; i++)
        for (const copy_async &copy : q.groups[i])
            land(copy);
    q.groups.erase(q.groups.begin(), q.groups.begin() + (ptrdiff_t)n);
}
