/*
 * Which operation comes before which: vector clocks over streams.
 *
 * The host is stream 0 and one timeline, however many threads call: what one
 * of them has waited for counts as seen by all. That can miss a bug in how
 * host threads meet; it never invents one.
 */
#include "checker_parts.h"
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>

namespace checker
{
namespace
{

typedef std::vector<uint32_t> clock_vector; /* by slot; short: zeros */

struct operation {
    uint32_t slot;
    uint32_t index; /* in its slot, from 1 */
    clock_vector before;
    std::string what;
};

struct buffer {
    cpli_check_op op;
    const char *from;
    const char *to;
    bool writes;
};

std::mutex ordering;
std::deque<operation> operations(1);  /* [0]: no operation */
std::vector<clock_vector> streams(1); /* by slot; [0] is the host */
std::map<const void *, uint32_t> slots;
std::vector<uint32_t> free_slots;
std::map<const void *, clock_vector> events;
std::vector<buffer> buffers;
std::atomic<int> n_buffers;

void join(clock_vector &into, const clock_vector &from)
{
    if (into.size() < from.size())
        into.resize(from.size());
    for (size_t i = 0; i < from.size(); i++)
        into[i] = std::max(into[i], from[i]);
}

bool covers(const clock_vector &clock, cpli_check_op op)
{
    const operation &o = operations[op];
    return o.slot < clock.size() && clock[o.slot] >= o.index;
}

/* A stream that comes after one that was destroyed continues its timeline:
 * clocks do not grow with the number of streams ever made. */
uint32_t slot_of(const void *stream)
{
    auto found = slots.find(stream);
    if (found != slots.end())
        return found->second;
    uint32_t slot = (uint32_t)streams.size();
    if (free_slots.empty()) {
        streams.emplace_back();
    } else {
        slot = free_slots.back();
        free_slots.pop_back();
    }
    slots[stream] = slot;
    return slot;
}

cpli_check_op append(uint32_t slot, const char *what)
{
    clock_vector &clock = streams[slot];
    join(clock, streams[0]);
    if (clock.size() <= slot)
        clock.resize(slot + 1);
    clock[slot]++;
    operations.push_back({slot, clock[slot], clock, what});
    return (cpli_check_op)(operations.size() - 1);
}

void forget_finished_buffers()
{
    buffers.erase(std::remove_if(
                      buffers.begin(), buffers.end(),
                      [](const buffer &b) { return covers(streams[0], b.op); }),
                  buffers.end());
    n_buffers = (int)buffers.size();
}

} // namespace

bool comes_before(cpli_check_op a, cpli_check_op b)
{
    if (a == b)
        return true;
    /* Clocks of operations never change, so answers may be kept. Only called
     * by whoever holds `judging`. */
    static struct {
        cpli_check_op a, b;
        bool yes;
    } kept[64];
    auto &k = kept[(a ^ b * 31u) % 64];
    if (k.a == a && k.b == b)
        return k.yes;
    std::lock_guard<std::mutex> lock(ordering);
    k.a = a;
    k.b = b;
    k.yes = covers(operations[b].before, a);
    return k.yes;
}

cpli_check_op host_operation()
{
    std::lock_guard<std::mutex> lock(ordering);
    return append(0, "the host");
}

std::string operation_name(cpli_check_op op)
{
    std::lock_guard<std::mutex> lock(ordering);
    const operation &o = operations[op];
    if (o.slot == 0)
        return o.what;
    return o.what + " on stream " + std::to_string(o.slot);
}

bool buffer_in_use(const char *at, size_t bytes, bool write, cpli_check_op *op)
{
    if (n_buffers.load(std::memory_order_relaxed) == 0)
        return false;
    std::lock_guard<std::mutex> lock(ordering);
    for (const buffer &b : buffers)
        if (at < b.to && at + bytes > b.from && (write || b.writes)) {
            *op = b.op;
            return true;
        }
    return false;
}

} // namespace checker

using namespace checker;

cpli_check_op cpli_check_enqueue(const void *stream, const char *what)
{
    std::lock_guard<std::mutex> lock(ordering);
    return append(slot_of(stream), what);
}

void cpli_check_event_record(const void *event, const void *stream)
{
    std::lock_guard<std::mutex> lock(ordering);
    clock_vector &clock = events[event];
    clock = streams[slot_of(stream)];
    join(clock, streams[0]);
}

void cpli_check_event_wait(const void *stream, const void *event)
{
    std::lock_guard<std::mutex> lock(ordering);
    auto found = events.find(event);
    if (found != events.end())
        join(streams[slot_of(stream)], found->second);
}

void cpli_check_host_waited(const void *stream, const void *event)
{
    std::lock_guard<std::mutex> lock(ordering);
    if (event != nullptr) {
        auto found = events.find(event);
        if (found != events.end())
            join(streams[0], found->second);
    } else if (stream != nullptr) {
        join(streams[0], clock_vector(streams[slot_of(stream)]));
    } else {
        for (size_t i = 1; i < streams.size(); i++)
            join(streams[0], streams[i]);
    }
    forget_finished_buffers();
}

void cpli_check_stream_waits_all(const void *stream)
{
    std::lock_guard<std::mutex> lock(ordering);
    uint32_t slot = slot_of(stream);
    for (size_t i = 0; i < streams.size(); i++)
        if (i != slot)
            join(streams[slot], streams[i]);
}

void cpli_check_stream_destroy(const void *stream)
{
    std::lock_guard<std::mutex> lock(ordering);
    auto found = slots.find(stream);
    if (found == slots.end())
        return;
    free_slots.push_back(found->second);
    slots.erase(found);
}

void cpli_check_event_destroy(const void *event)
{
    std::lock_guard<std::mutex> lock(ordering);
    events.erase(event);
}

void cpli_check_host_buffer(cpli_check_op op, const void *at, size_t bytes,
                            int writes)
{
    if (op == 0 || bytes == 0)
        return;
    std::lock_guard<std::mutex> lock(ordering);
    const char *from = static_cast<const char *>(at);
    buffers.push_back({op, from, from + bytes, writes != 0});
    n_buffers = (int)buffers.size();
}
