/*
 * scheduler.cpp: runs the threads of a block. A fiber runs one CUDA thread
 * after another and is left only in a barrier or a warp operation, so a kernel
 * without them costs no switch at all.
 *
 * Nothing is promised of the order of threads, so three are offered: forward,
 * reverse and random. Threads that wait for what will never come, and barriers
 * that not all threads reach, end the launch with a sentence.
 */
#include <algorithm>
#include <atomic>
#include <cstdarg>

#include "scheduler.h"

namespace emulation
{

__thread thread_state *here = nullptr;

namespace
{

enum stage { running, ready, in_barrier, in_warp, done };

thread_local std::unique_ptr<machine> mine;

const char *file_name(const char *path)
{
    const char *slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The running thread, or the emulator itself (NULL), as the checker sees it. */
void tell_checker(const machine &m, const thread_state *t)
{
    if (t == nullptr) {
        cpli_check_run(nullptr);
        return;
    }
    cpli_check_thread now = {};
    now.block = static_cast<int64_t>(t->block_index);
    now.thread = t->index;
    now.stack_from = stack_low(t->fiber);
    now.stack_to = stack_high(t->fiber);
    now.own_from = m.own.data();
    now.own_to = m.own.data() + m.own.size();
    cpli_check_run(&now);
}

void to_scheduler(machine &m)
{
    here = nullptr;
    tell_checker(m, nullptr);
    switch_fiber(m.running, &m.scheduler);
}

void pause(machine &m, thread_state *t)
{
    to_scheduler(m);
    here = t;
    tell_checker(m, t);
}

void make_ready(machine &m, thread_state &t)
{
    t.stage = ready;
    m.ready.push_back(t.index);
}

void note_fault(machine &m, cudaError_t error, const std::string &text)
{
    char where[200] = "";
    if (here != nullptr)
        std::snprintf(where, sizeof where,
                      ", block (%u,%u,%u), thread (%u,%u,%u)", here->block.x,
                      here->block.y, here->block.z, here->thread.x,
                      here->thread.y, here->thread.z);
    m.failed = true;
    m.error = error;
    m.sentence = std::string("kernel ") + m.name + where + ": " + text;
}

[[noreturn]] void abandon(machine &m)
{
    to_scheduler(m);
    std::abort(); /* a fiber of a failed launch is not switched to again */
}

void report_divergence(machine &m, uint64_t block, const std::string &text)
{
    std::string sentence = "block " + std::to_string(block) + ": " + text;
    cpli_check_report(CPLI_CHECK_DIVERGENT, sentence.c_str());
    note_fault(m, cudaErrorLaunchFailure, text);
}

/* ---- the life of a thread ---- */

void check_exit(machine &m, thread_state *t)
{
    warp_state &warp = m.warps[static_cast<size_t>(t->warp)];
    warp.alive &= ~(1u << t->lane);
    if (m.at_barrier > 0)
        divergent("thread %d ends while %d threads wait in the barrier at "
                  "%s:%d",
                  t->index, m.at_barrier, file_name(m.barrier_file),
                  m.barrier_line);
    for (const auto &each : warp.meetings)
        if (each->arrived != 0 && (each->mask >> t->lane & 1) != 0)
            divergent("thread %d ends while its warp waits for it at %s:%d "
                      "(mask 0x%08x)",
                      t->index, file_name(each->file), each->line, each->mask);
}

void run_fresh_thread(machine &m)
{
    thread_state *t = &m.threads[m.turns[m.next_fresh++]];
    t->fiber = m.running;
    here = t;
    tell_checker(m, t);
    m.run(m.own.data());
    t->stage = done;
    m.live--;
    check_exit(m, t);
    here = nullptr;
    tell_checker(m, nullptr);
}

bool takes_fresh(machine &m)
{
    if (m.next_fresh == m.turns.size())
        return false;
    return m.order != order_kind::random || m.ready.empty() ||
           m.random.below(2) == 0;
}

void fiber_entry()
{
    arrive_in_fiber();
    for (;;) {
        machine &m = *mine;
        while (takes_fresh(m))
            run_fresh_thread(m);
        m.idle.push_back(m.running);
        to_scheduler(m);
    }
}

fiber *next_idle(machine &m)
{
    if (m.idle.empty()) {
        m.fibers.push_back(make_fiber(fiber_entry));
        return m.fibers.back();
    }
    fiber *next = m.idle.back();
    m.idle.pop_back();
    return next;
}

fiber *next_ready(machine &m)
{
    if (m.order == order_kind::random)
        std::swap(m.ready[m.random.below(m.ready.size())], m.ready.back());
    bool first = m.order == order_kind::forward;
    thread_state &t = m.threads[first ? m.ready.front() : m.ready.back()];
    if (first)
        m.ready.pop_front();
    else
        m.ready.pop_back();
    t.stage = running;
    return t.fiber;
}

/* ---- a block ---- */

void report_deadlock(machine &m)
{
    std::string text = "threads wait for what never comes:";
    size_t told = 0;
    if (m.at_barrier > 0)
        text += " " + std::to_string(m.at_barrier) + " in the barrier at " +
                file_name(m.barrier_file) + ":" +
                std::to_string(m.barrier_line);
    for (size_t w = 0; w < m.warps.size(); w++)
        for (const auto &each : m.warps[w].meetings) {
            if (each->arrived == 0 || told++ >= 4)
                continue;
            char part[200];
            std::snprintf(part, sizeof part,
                          " lanes 0x%08x of warp %zu at %s:%d (mask 0x%08x)",
                          each->arrived, w, file_name(each->file), each->line,
                          each->mask);
            text += part;
        }
    report_divergence(m, m.threads[0].block_index, text);
}

void begin_block(machine &m, const kernel_shape &shape, uint64_t index)
{
    dim3 grid = shape.grid, block = shape.block;
    uint3 place = {static_cast<unsigned>(index % grid.x),
                   static_cast<unsigned>(index / grid.x % grid.y),
                   static_cast<unsigned>(index / grid.x / grid.y)};
    for (auto &warp : m.warps) {
        warp.alive = 0;
        for (auto &each : warp.meetings)
            each->arrived = 0;
    }
    for (int i = 0; i < m.n_threads; i++) {
        unsigned u = static_cast<unsigned>(i);
        thread_state &t = m.threads[i];
        t = thread_state();
        t.thread = {u % block.x, u / block.x % block.y, u / block.x / block.y};
        t.block = place;
        t.block_size = block;
        t.grid_size = grid;
        t.index = i;
        t.lane = i % 32;
        t.warp = i / 32;
        t.block_index = index;
        m.warps[static_cast<size_t>(t.warp)].alive |= 1u << t.lane;
        m.turns[static_cast<size_t>(i)] =
            m.order == order_kind::reverse ? m.n_threads - 1 - i : i;
    }
    if (m.order == order_kind::random)
        for (size_t i = m.turns.size(); i > 1; i--)
            std::swap(m.turns[i - 1], m.turns[m.random.below(i)]);
    m.live = m.n_threads;
    m.at_barrier = 0;
    m.next_fresh = 0;
    m.ready.clear();
    cpli_check_block_begin(static_cast<int64_t>(index));
    begin_block_memory(m.memory);
}

void run_block(machine &m, const kernel_shape &shape, uint64_t index)
{
    begin_block(m, shape, index);
    while (m.live > 0 && !m.failed) {
        bool is_fresh = m.next_fresh < m.turns.size();
        if (!m.ready.empty() && (!is_fresh || !takes_fresh(m)))
            m.running = next_ready(m);
        else if (is_fresh)
            m.running = next_idle(m);
        else {
            report_deadlock(m);
            break;
        }
        switch_fiber(&m.scheduler, m.running);
    }
    if (!m.failed)
        return;
    m.idle = m.fibers;
    for (fiber *each : m.fibers)
        aim_fiber(each, fiber_entry);
}

} // namespace

machine::~machine()
{
    for (fiber *each : fibers)
        free_fiber(each);
}

machine &this_machine()
{
    if (!mine)
        mine.reset(new machine);
    return *mine;
}

void kernel_fault(cudaError_t error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::string text = sentence_of(format, arguments);
    va_end(arguments);
    note_fault(*mine, error, text);
    text.~basic_string(); /* the stack is abandoned, not unwound */
    abandon(*mine);
}

void divergent(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    std::string text = sentence_of(format, arguments);
    va_end(arguments);
    report_divergence(*mine, here->block_index, text);
    text.~basic_string();
    abandon(*mine);
}

/* ---- what kernels call ---- */

void block_barrier(const char *file, int line)
{
    machine &m = *mine;
    thread_state *t = here;
    if (m.live < m.n_threads)
        divergent("thread %d waits in the barrier at %s:%d, but %d threads "
                  "have ended",
                  t->index, file_name(file), line, m.n_threads - m.live);
    if (m.at_barrier > 0 &&
        (line != m.barrier_line || std::strcmp(file, m.barrier_file) != 0))
        divergent("thread %d waits in the barrier at %s:%d, others in the one "
                  "at %s:%d",
                  t->index, file_name(file), line, file_name(m.barrier_file),
                  m.barrier_line);
    m.barrier_file = file;
    m.barrier_line = line;
    m.at_barrier++;
    t->stage = in_barrier;
    if (m.at_barrier < m.live) {
        pause(m, t);
        return;
    }
    m.at_barrier = 0;
    cpli_check_block_barrier();
    for (int i = 0; i < m.n_threads; i++)
        if (m.threads[i].stage == in_barrier)
            make_ready(m, m.threads[i]);
    pause(m, t); /* the last one takes its turn as the others do */
}

namespace
{

meeting &meeting_of(warp_state &warp, uint32_t mask)
{
    for (const auto &each : warp.meetings)
        if (each->mask == mask)
            return *each;
    /* Masks that depend on data come and go: reuse one that nobody is in. The
     * values of the last two rounds may still be read. */
    if (warp.meetings.size() < 64) {
        warp.meetings.emplace_back(new meeting);
        warp.meetings.back()->mask = mask;
        return *warp.meetings.back();
    }
    for (const auto &each : warp.meetings)
        if (each->arrived == 0 && (each->mask & mask) == each->mask) {
            each->mask = mask;
            return *each;
        }
    kernel_fault(cudaErrorNotSupported,
                 "a warp uses more masks than the emulator follows");
}

void check_mask(const machine &m, const thread_state *t, uint32_t mask,
                const char *file, int line)
{
    uint32_t alive = m.warps[static_cast<size_t>(t->warp)].alive;
    if ((mask >> t->lane & 1) == 0)
        divergent("thread %d is not in its own mask 0x%08x at %s:%d", t->index,
                  mask, file_name(file), line);
    if ((mask & ~alive) != 0)
        divergent("mask 0x%08x at %s:%d names lanes 0x%08x, which have ended "
                  "or never were",
                  mask, file_name(file), line, mask & ~alive);
}

const void *meet(uint32_t mask, const void *value, size_t bytes, bool orders,
                 const char *file, int line)
{
    machine &m = *mine;
    thread_state *t = here;
    check_mask(m, t, mask, file, line);
    meeting &at = meeting_of(m.warps[static_cast<size_t>(t->warp)], mask);
    if (at.arrived != 0 && (line != at.line || bytes != at.bytes ||
                            std::strcmp(file, at.file) != 0))
        divergent("lane %d of warp %d is at %s:%d, others of its mask 0x%08x "
                  "at %s:%d",
                  t->lane, t->warp, file_name(file), line, mask,
                  file_name(at.file), at.line);
    at.file = file;
    at.line = line;
    at.bytes = bytes;
    unsigned char *values = at.values[at.round & 1];
    std::memcpy(values + static_cast<size_t>(t->lane) * bytes, value, bytes);
    at.arrived |= 1u << t->lane;
    if (at.arrived != mask) {
        t->stage = in_warp;
        pause(m, t);
        return values;
    }
    at.arrived = 0;
    at.round++;
    if (orders)
        cpli_check_warp_barrier(t->warp, mask);
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) != 0)
            make_ready(m, m.threads[t->warp * 32 + lane]);
    pause(m, t);
    return values;
}

} // namespace

void warp_barrier(uint32_t mask, const char *file, int line)
{
    char nothing = 0;
    meet(mask, &nothing, 1, true, file, line);
}

const void *warp_exchange(uint32_t mask, const void *value, size_t bytes,
                          const char *file, int line)
{
    if (bytes > 64)
        kernel_fault(cudaErrorNotSupported,
                     "%s:%d: a lane gives %zu bytes, more than 64",
                     file_name(file), line, bytes);
    return meet(mask, value, bytes, false, file, line);
}

/* ---- a launch ---- */

cudaError_t run_kernel(const char *name, const kernel_shape &shape,
                       void (*run)(void *), const void *arguments,
                       size_t arguments_bytes, std::string *sentence)
{
    machine &m = this_machine();
    settings now = current_settings();
    static std::atomic<uint64_t> n_launches{0};
    size_t n = size_t{shape.block.x} * shape.block.y * shape.block.z;
    size_t room = (arguments_bytes + 15) / 16 * 16;
    uint64_t n_blocks = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
    m.name = name;
    m.run = run;
    m.own.resize(room + n * sizeof(thread_state));
    std::memcpy(m.own.data(), arguments, arguments_bytes);
    m.threads = reinterpret_cast<thread_state *>(m.own.data() + room);
    m.n_threads = static_cast<int>(n);
    m.turns.resize(n);
    m.warps.resize((n + 31) / 32);
    m.order = now.order;
    m.random.state = scramble(now.order_seed) + n_launches++;
    m.memory.dynamic_bytes = shape.shared_bytes;
    m.failed = false;
    catch_illegal_accesses();
    std::vector<uint32_t> blocks(m.order == order_kind::random ? n_blocks : 0);
    for (size_t i = 0; i < blocks.size(); i++) {
        size_t j = m.random.below(i + 1);
        blocks[i] = blocks[j];
        blocks[j] = static_cast<uint32_t>(i);
    }
    for (uint64_t i = 0; i < n_blocks && !m.failed; i++)
        run_block(m, shape,
                  m.order == order_kind::random    ? blocks[i]
                  : m.order == order_kind::reverse ? n_blocks - 1 - i
                                                   : i);
    if (!m.failed)
        return cudaSuccess;
    *sentence = m.sentence;
    return m.error;
}

} // namespace emulation
