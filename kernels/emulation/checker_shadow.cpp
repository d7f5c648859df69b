/*
 * What is known about each byte of device and shared memory.
 *
 * Memory is cut into lines of 16 bytes. A line has one cell for all of its
 * bytes as long as they are used together, and is split (8, 4, 2, 1 bytes)
 * when a smaller access comes: 128-bit kernels stay fast and byte tails exact.
 */
#include "checker_parts.h"
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <sys/mman.h>

namespace checker
{

std::mutex judging;

/* Cells of one region, in arrays of 1, 2, 4, 8 or 16. They live as long as
 * the region does; arrays that a split leaves behind are used again. */
struct arena {
    std::vector<std::unique_ptr<cell[]>> slabs;
    std::vector<cell *> idle[LOG_LINE + 1];
    size_t used = 0;
    size_t size = 0;

    cell *take(unsigned log_n)
    {
        size_t n = (size_t)1 << log_n;
        cell *c;
        if (!idle[log_n].empty()) {
            c = idle[log_n].back();
            idle[log_n].pop_back();
        } else {
            if (used + n > size) {
                size = std::min<size_t>(std::max<size_t>(2 * size, 64), 4096);
                slabs.emplace_back(new cell[size]);
                used = 0;
            }
            c = &slabs.back()[used];
            used += n;
        }
        std::memset(c, 0, n * sizeof *c);
        return c;
    }
};

namespace
{

std::map<const char *, region> regions;     /* device memory, by start */
std::map<const char *, region> shared_pool; /* ever used, by start */
std::vector<region *> shared;               /* of the running block */
region *last_found;
std::deque<std::pair<const char *, const char *>> freed;
enum { N_FREED = 256 };
std::deque<std::vector<note>> lists;
std::vector<uint32_t> idle_lists;

/* A bit for each 64 KiB of the address space that device memory lies in: the
 * host asks it at each of its accesses, without a lock. Guards keep all else
 * out of these 64 KiB. */
enum { LOG_PIECE = 16, LOG_SPACE = 47 };
std::atomic<uint8_t> *const pieces = static_cast<std::atomic<uint8_t> *>(mmap(
    nullptr, (size_t)1 << (LOG_SPACE - LOG_PIECE - 3), PROT_READ | PROT_WRITE,
    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

void mark_pieces(const region &r, bool is_device)
{
    uintptr_t last = ((uintptr_t)r.to - 1) >> LOG_PIECE;
    for (uintptr_t i = (uintptr_t)r.from >> LOG_PIECE; i <= last; i++) {
        uint8_t bit = (uint8_t)(1u << i % 8);
        if (is_device)
            pieces[i / 8] |= bit;
        else
            pieces[i / 8] &= (uint8_t)~bit;
    }
}

bool holds(const region &r, const char *at)
{
    return at >= r.from && at < r.to;
}

size_t n_lines(const region &r)
{
    uintptr_t first = (uintptr_t)r.from / LINE;
    return ((uintptr_t)r.to + LINE - 1) / LINE - first + 1;
}

/* Fills `r`. Lines start at multiples of 16, whatever the region does. */
void open_region(region *r, const char *from, size_t bytes)
{
    r->from = from;
    r->to = from + bytes;
    r->life = 1;
    void *lines =
        mmap(nullptr, n_lines(*r) * sizeof(line), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (lines == MAP_FAILED)
        throw std::bad_alloc();
    r->lines = static_cast<line *>(lines);
    r->cells = new arena;
}

void close_region(region *r)
{
    munmap(r->lines, n_lines(*r) * sizeof(line));
    delete r->cells;
}

/* Gives the line cells of `1 << log_unit` bytes; it had larger ones. */
void split(region *r, line *l, unsigned log_unit)
{
    unsigned n_old = 1u << (LOG_LINE - l->log_unit);
    unsigned times = 1u << (l->log_unit - log_unit);
    cell *cells = r->cells->take(LOG_LINE - log_unit);
    for (unsigned i = 0; i < n_old; i++)
        for (unsigned j = 0; j < times; j++) {
            cell *c = &cells[i * times + j];
            *c = l->cells[i];
            if (c->more != 0) {
                c->more = 0;
                std::vector<note> copy = more_reads(&l->cells[i]);
                more_reads(c) = copy;
            }
        }
    for (unsigned i = 0; i < n_old; i++)
        drop_more(&l->cells[i]);
    r->cells->idle[LOG_LINE - l->log_unit].push_back(l->cells);
    l->cells = cells;
    l->log_unit = (uint8_t)log_unit;
}

unsigned log_of(size_t power_of_two)
{
    return (unsigned)__builtin_ctzll(power_of_two);
}

} // namespace

region *find_region(const char *at)
{
    for (region *r : shared)
        if (holds(*r, at))
            return r;
    if (last_found != nullptr && holds(*last_found, at))
        return last_found;
    auto next = regions.upper_bound(at);
    if (next == regions.begin())
        return nullptr;
    region *r = &std::prev(next)->second;
    if (!holds(*r, at))
        return nullptr;
    last_found = r;
    return r;
}

region *near_region(const char *at)
{
    const ptrdiff_t guard = (ptrdiff_t)cpli_check_guard();
    region *best = nullptr;
    ptrdiff_t least = guard + 1;
    auto try_one = [&](region *r) {
        if (r->device < 0) /* the heap around it is somebody else's */
            return;
        ptrdiff_t distance = at < r->from ? r->from - at : at - r->to + 1;
        if (distance < least) {
            best = r;
            least = distance;
        }
    };
    for (region *r : shared)
        try_one(r);
    auto next = regions.upper_bound(at);
    if (next != regions.end())
        try_one(&next->second);
    if (next != regions.begin())
        try_one(&std::prev(next)->second);
    return best;
}

void add_region(const char *from, size_t bytes, int device)
{
    drop_region(from);
    region r = {};
    r.device = device;
    open_region(&r, from, bytes);
    regions[from] = r;
    freed.erase(
        std::remove_if(freed.begin(), freed.end(),
                       [&](const std::pair<const char *, const char *> &old) {
                           return old.first < r.to && old.second > r.from;
                       }),
        freed.end());
    if (device >= 0)
        mark_pieces(r, true);
}

void drop_region(const char *from)
{
    auto found = regions.find(from);
    if (found == regions.end())
        return;
    if (found->second.device >= 0)
        freed.emplace_back(from, found->second.to);
    if (freed.size() > N_FREED)
        freed.pop_front();
    if (found->second.device >= 0)
        mark_pieces(found->second, false);
    close_region(&found->second);
    regions.erase(found);
    last_found = nullptr;
}

/* The next block meets the same arrays: its lines start another life. */
void add_shared(const char *name, const char *from, size_t bytes)
{
    region *r = &shared_pool[from];
    if (r->lines == nullptr || r->to != from + bytes) {
        if (r->lines != nullptr)
            close_region(r);
        open_region(r, from, bytes);
    }
    r->life++;
    r->name = name;
    shared.push_back(r);
}

void drop_shared()
{
    shared.clear();
}

bool was_freed(const char *at)
{
    for (auto &range : freed)
        if (at >= range.first && at < range.second)
            return true;
    return false;
}

bool maybe_device(const char *at)
{
    uintptr_t i = (uintptr_t)at >> LOG_PIECE;
    return i >> (LOG_SPACE - LOG_PIECE) == 0 &&
           (pieces[i / 8].load(std::memory_order_relaxed) >> i % 8 & 1) != 0;
}

line *line_of(region *r, const char *at, size_t unit)
{
    line *l = &r->lines[(uintptr_t)at / LINE - (uintptr_t)r->from / LINE];
    if (l->life != r->life) {
        l->initialised = r->device < 0 ? 0xffff : 0;
        l->life = r->life;
        if (l->cells != nullptr) {
            unsigned log_n = LOG_LINE - l->log_unit;
            for (unsigned i = 0; i < 1u << log_n; i++)
                drop_more(&l->cells[i]);
            std::memset(l->cells, 0, sizeof(cell) << log_n);
        }
    }
    unsigned log_unit = log_of(unit);
    if (l->cells == nullptr) {
        l->cells = r->cells->take(LOG_LINE - log_unit);
        l->log_unit = (uint8_t)log_unit;
    } else if (l->log_unit > log_unit) {
        split(r, l, log_unit);
    }
    return l;
}

void merge_line(region *r, line *l)
{
    if (l->log_unit == LOG_LINE)
        return;
    cell *one = r->cells->take(0);
    *one = l->cells[0];
    one->more = 0;
    for (unsigned i = 0; i < 1u << (LOG_LINE - l->log_unit); i++)
        drop_more(&l->cells[i]);
    r->cells->idle[LOG_LINE - l->log_unit].push_back(l->cells);
    l->cells = one;
    l->log_unit = LOG_LINE;
}

std::vector<note> &more_reads(cell *c)
{
    if (c->more == 0) {
        if (idle_lists.empty()) {
            lists.emplace_back();
            idle_lists.push_back((uint32_t)lists.size());
        }
        c->more = idle_lists.back();
        idle_lists.pop_back();
    }
    return lists[c->more - 1];
}

void drop_more(cell *c)
{
    if (c->more == 0)
        return;
    lists[c->more - 1].clear();
    idle_lists.push_back(c->more);
    c->more = 0;
}

} // namespace checker

using namespace checker;

/* More than a row of any kernel in the specs; see `pieces`. */
size_t cpli_check_guard(void)
{
    return (size_t)1 << LOG_PIECE;
}

void cpli_check_alloc(const void *at, size_t bytes, int device)
{
    if (at == nullptr || bytes == 0)
        return;
    std::lock_guard<std::mutex> lock(judging);
    add_region(static_cast<const char *>(at), bytes, device);
}

void cpli_check_free(const void *at)
{
    std::lock_guard<std::mutex> lock(judging);
    drop_region(static_cast<const char *>(at));
}
