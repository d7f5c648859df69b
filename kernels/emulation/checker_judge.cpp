/*
 * The rules: one access against what is known about its bytes.
 */
#include "checker_parts.h"
#include <algorithm>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

namespace checker
{
namespace
{

/* The running thread as a note, and what it may rely on. */
struct actor {
    note me;
    uint32_t block;          /* of the grid */
    uint32_t warp;           /* of the block */
    const lane_clock *clock; /* NULL: no kernel */
};

actor running_thread(const access &a)
{
    uint32_t index = (uint32_t)running->thread;
    actor t = {};
    t.block = (uint32_t)running->block;
    t.warp = index / 32;
    t.clock = &now.clocks[index];
    t.me.op = now.op;
    t.me.thread = t.block * now.n_threads + index;
    t.me.barriers = now.barriers;
    t.me.stamp = now.stamps[index];
    t.me.lanes = 1u << index % 32;
    t.me.pc = a.pc;
    t.me.atomic = a.atomic;
    t.me.pending = a.pending;
    return t;
}

actor whole_operation(cpli_check_op op)
{
    actor t = {};
    t.me.op = op;
    t.me.reach = WHOLE;
    return t;
}

/* Whether all that the note stands for happened before what `t` does now. */
bool ordered(const note &n, const actor &t)
{
    if (n.op != t.me.op)
        return comes_before(n.op, t.me.op);
    if (n.reach == WHOLE || t.me.reach == WHOLE)
        return true;
    if (n.reach == BLOCKS || n.thread / now.n_threads != t.block)
        return false;
    if (n.barriers != t.me.barriers)
        return true;
    if (n.reach == WARPS || n.thread % now.n_threads / 32 != t.warp)
        return false;
    for (uint32_t left = n.lanes & ~t.me.lanes; left != 0; left &= left - 1)
        if (t.clock->seen[__builtin_ctz(left)] < n.stamp)
            return false;
    return true;
}

/* One of the threads of an unordered note that is not ordered before `t`. */
uint32_t culprit(const note &n, const actor &t)
{
    uint32_t index = n.thread % now.n_threads;
    if (n.reach == WARPS)
        return index / 32 != t.warp ? n.thread : n.other;
    if (n.reach == BLOCKS)
        return n.thread / now.n_threads != t.block ? n.thread : n.other;
    for (uint32_t left = n.lanes & ~t.me.lanes; left != 0; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        if (t.clock->seen[lane] < n.stamp)
            return n.thread - index % 32 + lane;
    }
    return n.thread;
}

void find_race(const region *r, const access &a, const actor &t, const note &n,
               bool wrote)
{
    finding f = {CPLI_CHECK_NO_EVENT, a, r, t.me, n, wrote};
    if (n.op == t.me.op) {
        f.against.thread = culprit(n, t);
        uint32_t index = f.against.thread % now.n_threads;
        if (f.against.thread / now.n_threads != t.block)
            f.kind = CPLI_CHECK_TWO_BLOCKS;
        else if (index / 32 != t.warp)
            f.kind = CPLI_CHECK_BLOCK_BARRIER;
        else
            f.kind = CPLI_CHECK_WARP_BARRIER;
    }
    add_finding(f);
}

/* Notes a read of `t` beside those that nothing orders before it. */
void note_read(cell *c, const actor &t)
{
    note *n = &c->read;
    bool merged = false;
    auto absorb = [&](note &old) {
        if (ordered(old, t))
            return false;
        if (merged || old.op != t.me.op)
            return true;
        if (old.reach == BLOCKS || old.thread / now.n_threads != t.block) {
            if (old.reach != BLOCKS) {
                old.reach = BLOCKS;
                old.other = t.me.thread;
            }
            merged = true;
        } else if (old.reach == WARPS ||
                   old.thread % now.n_threads / 32 != t.warp) {
            if (old.reach != WARPS) {
                old.reach = WARPS;
                old.other = t.me.thread;
            }
            merged = true;
        } else if (old.stamp == t.me.stamp) {
            old.lanes |= t.me.lanes;
            merged = true;
        }
        return true;
    };
    if (n->op == 0 || (c->more == 0 && !absorb(*n))) {
        *n = t.me;
        return;
    }
    if (c->more == 0) {
        if (!merged)
            more_reads(c).push_back(t.me);
        return;
    }
    std::vector<note> &more = more_reads(c);
    more.push_back(*n);
    more.erase(std::remove_if(more.begin(), more.end(),
                              [&](note &old) { return !absorb(old); }),
               more.end());
    if (!merged)
        more.push_back(t.me);
    *n = more.back();
    more.pop_back();
    if (more.empty())
        drop_more(c);
}

void judge_cell(const region *r, cell *c, const access &a, const actor &t)
{
    note &w = c->write;
    if (w.op != 0) {
        bool both_atomic = a.atomic && w.atomic;
        if (w.pending && w.op == t.me.op && t.clock != nullptr) {
            add_finding({CPLI_CHECK_WRONG_WAIT, a, r, t.me, w, true});
            w.pending = false;
        } else if (!both_atomic && !ordered(w, t)) {
            find_race(r, a, t, w, true);
        }
    }
    if (!a.writes) {
        if (!a.atomic)
            note_read(c, t);
        return;
    }
    if (c->read.op != 0) {
        if (!ordered(c->read, t))
            find_race(r, a, t, c->read, false);
        if (c->more != 0)
            for (const note &n : more_reads(c))
                if (!ordered(n, t))
                    find_race(r, a, t, n, false);
        drop_more(c);
        c->read.op = 0;
    }
    w = t.me;
}

/* Whether bytes were read that nobody ever wrote: how many. */
int judge_line(region *r, const char *at, size_t bytes, const access &a,
               const actor &t)
{
    size_t offset = (uintptr_t)at % LINE;
    size_t unit = (offset | bytes | LINE) & (~(offset | bytes | LINE) + 1);
    line *l = line_of(r, at, unit);
    unsigned mask = ((1u << bytes) - 1) << offset;
    unsigned missing = a.reads ? mask & ~(unsigned)l->initialised : 0;
    l->initialised = (uint16_t)(l->initialised | mask);
    size_t first = offset >> l->log_unit;
    size_t last = (offset + bytes - 1) >> l->log_unit;
    for (size_t i = first; i <= last; i++)
        judge_cell(r, &l->cells[i], a, t);
    if (bytes == LINE && a.writes)
        merge_line(r, l);
    return missing == 0 ? 0 : __builtin_popcount(missing);
}

size_t judge_lines(region *r, const access &a, const actor &t)
{
    const char *end = std::min(a.at + a.bytes, r->to);
    size_t unwritten = 0;
    for (const char *at = a.at; at < end;) {
        size_t n =
            std::min<size_t>(LINE - (uintptr_t)at % LINE, (size_t)(end - at));
        unwritten += (size_t)judge_line(r, at, n, a, t);
        at += n;
    }
    return unwritten;
}

/* ---- addresses that are no memory of a kernel ---- */

struct span {
    uintptr_t from, to;
};

int add_module(dl_phdr_info *info, size_t, void *spans)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            static_cast<std::vector<span> *>(spans)->push_back(
                {from, from + info->dlpi_phdr[i].p_memsz});
        }
    return 0;
}

/* Constants of the program, which __constant__ memory is here. */
bool in_program(const char *at)
{
    static std::vector<span> spans;
    auto inside = [&] {
        for (const span &s : spans)
            if ((uintptr_t)at >= s.from && (uintptr_t)at < s.to)
                return true;
        return false;
    };
    if (inside())
        return true;
    spans.clear();
    dl_iterate_phdr(add_module, &spans);
    return inside();
}

bool is_mapped(const char *at)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char answer;
    void *base = reinterpret_cast<void *>((uintptr_t)at / page * page);
    return mincore(base, 1, &answer) == 0;
}

/* Guards are never judged as host memory, and unmapped memory is nobody's. */
void judge_stranger(const access &a, const actor &t)
{
    region *r = near_region(a.at);
    if (r == nullptr && !a.writes && in_program(a.at))
        return;
    finding f = {CPLI_CHECK_OUT_OF_BOUNDS, a, r, t.me};
    f.freed = was_freed(a.at);
    if (f.freed)
        f.where = nullptr;
    else if (r == nullptr && is_mapped(a.at))
        f.kind = CPLI_CHECK_HOST_POINTER;
    add_finding(f);
}

/* ---- the host ---- */

void judge_host(const access &a)
{
    note me = {};
    me.pc = a.pc;
    if (maybe_device(a.at)) {
        std::lock_guard<std::mutex> lock(judging);
        region *r = find_region(a.at);
        if (r != nullptr && r->name == nullptr && r->device >= 0) {
            note me = {};
            me.pc = a.pc;
            add_finding({CPLI_CHECK_DEVICE_POINTER, a, r, me});
            return;
        }
    }
    finding f = {CPLI_CHECK_WRONG_WAIT, a, nullptr, me};
    if (!buffer_in_use(a.at, a.bytes, a.writes, &f.against.op))
        return;
    f.against.reach = WHOLE;
    std::lock_guard<std::mutex> lock(judging);
    add_finding(f);
}

/* Thread-local variables of the emulator, which lie below the pointer. */
bool is_thread_local(const char *at)
{
    const char *self = static_cast<const char *>(__builtin_thread_pointer());
    return at < self + 4096 && at >= self - 65536;
}

bool within(const void *at, const void *from, const void *to)
{
    return at >= from && at < to;
}

} // namespace

void judge(const access &a)
{
    if (running == nullptr) {
        judge_host(a);
        return;
    }
    if (within(a.at, running->stack_from, running->stack_to) ||
        within(a.at, running->own_from, running->own_to) ||
        is_thread_local(a.at))
        return;
    actor t = running_thread(a);
    region *r = find_region(a.at);
    if (r == nullptr) {
        judge_stranger(a, t);
        return;
    }
    if (a.at + a.bytes > r->to)
        add_finding({CPLI_CHECK_OUT_OF_BOUNDS, a, r, t.me});
    if (a.aligned && (uintptr_t)a.at % a.bytes != 0)
        add_finding({CPLI_CHECK_MISALIGNED, a, r, t.me});
    finding f = {CPLI_CHECK_UNINITIALISED, a, r, t.me};
    f.n_unwritten = judge_lines(r, a, t);
    if (f.n_unwritten > 0)
        add_finding(f);
}

void judge_operation(cpli_check_op op, region *r, const access &a,
                     bool complain)
{
    actor t = whole_operation(op);
    if (a.at + a.bytes > r->to)
        add_finding({CPLI_CHECK_OUT_OF_BOUNDS, a, r, t.me});
    finding f = {CPLI_CHECK_UNINITIALISED, a, r, t.me};
    f.n_unwritten = judge_lines(r, a, t);
    if (f.n_unwritten > 0 && complain)
        add_finding(f);
}

void land(const copy_async &copy)
{
    access a = {copy.to, copy.bytes, false, true, false, false, false, copy.pc};
    actor t = running_thread(a);
    region *r = find_region(copy.to);
    if (r == nullptr)
        return;
    for (size_t i = 0; i < copy.bytes && copy.to + i < r->to;) {
        const char *at = copy.to + i;
        line *l = line_of(r, at, LINE);
        cell *c = &l->cells[(uintptr_t)at % LINE >> l->log_unit];
        if (c->write.pending && c->write.thread == t.me.thread)
            c->write = t.me;
        i += (size_t)1 << l->log_unit;
    }
}

} // namespace checker
