/*
 * Findings, and the sentences made from them.
 *
 * A finding is worded at once, but for its source lines: those are looked up
 * (addr2line, once for all) when somebody asks. What differs only in block,
 * thread or address is one report, with the number of times.
 */
#include "checker_parts.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <set>

namespace checker
{
namespace
{

const char *const names[CPLI_CHECK_N_KINDS] = {
    "out of bounds",        "missing block barrier",
    "missing warp barrier", "two blocks one row",
    "uninitialised read",   "misaligned access",
    "wrong wait",           "forgotten event",
    "host pointer",         "device pointer on the host",
    "divergent barrier",
};

/* Stand in sentences for the source lines of the two accesses. */
const char *const HERE = "\1";
const char *const THERE = "\2";

struct report {
    cpli_check_kind kind;
    std::string subject; /* kernel or operation */
    int32_t pc, other_pc;
    std::string sentence;
    int times;
};

/* Never destroyed: the end of the process still reads them. */
struct store {
    std::mutex lock;
    std::vector<report> reports;
    std::map<int32_t, std::string> lines; /* by pc */
    std::set<std::string> texts; /* given out: any thread may hold them */
    size_t n_read = 0;
};
store &all = *new store;

std::string number(uint64_t n)
{
    return std::to_string(n);
}

/* "5", or "(1, 2, 0)" where the grid or the block has more than x. */
std::string place(uint32_t index, const uint32_t size[3])
{
    if (size[1] == 1 && size[2] == 1)
        return number(index);
    return "(" + number(index % size[0]) + ", " +
           number(index / size[0] % size[1]) + ", " +
           number(index / size[0] / size[1]) + ")";
}

std::string block_of(const note &n)
{
    return "block " + place(n.thread / now.n_threads, now.grid);
}

std::string thread_of(const note &n)
{
    return "thread " + place(n.thread % now.n_threads, now.block);
}

std::string name_of(const note &n)
{
    if (n.op == 0)
        return "the host";
    return n.reach == WHOLE ? operation_name(n.op) : "kernel " + now.name;
}

/* What a report is about: findings of one subject and one line are one. */
std::string subject_of(const finding &f)
{
    if (f.kind != CPLI_CHECK_NO_EVENT)
        return name_of(f.by);
    auto both = std::minmax(f.by.op, f.against.op);
    return operation_name(both.first) + " and " + operation_name(both.second);
}

std::string actor_of(const note &n)
{
    if (n.op == 0 || n.reach == WHOLE)
        return name_of(n);
    return name_of(n) + ", " + block_of(n) + ", " + thread_of(n);
}

std::string bytes_of(size_t n)
{
    return number(n) + (n == 1 ? " byte" : " bytes");
}

std::string region_name(const region &r)
{
    if (r.name != nullptr)
        return std::string("shared memory ") + r.name;
    if (r.device < 0)
        return "mapped host memory";
    return "device memory";
}

/* "4 bytes of shared memory tile (from byte 508 of 512)" */
std::string object_of(const finding &f)
{
    std::string what = bytes_of(f.what.bytes) + " of ";
    if (f.where == nullptr)
        return what + "host memory";
    return what + region_name(*f.where) + " (from byte " +
           number((size_t)(f.what.at - f.where->from)) + " of " +
           number((size_t)(f.where->to - f.where->from)) + ")";
}

std::string at_line(int32_t pc, const char *mark)
{
    return pc == 0 ? "" : std::string(" at ") + mark;
}

std::string verb_of(const access &a)
{
    return a.reads && a.writes ? " updates "
           : a.writes          ? " writes "
                               : " reads ";
}

/* "kernel k, block 0, thread 3 reads 4 bytes of ... at k.cu:12" */
std::string clause(const finding &f)
{
    return actor_of(f.by) + verb_of(f.what) + object_of(f) +
           at_line(f.by.pc, HERE);
}

/* An access that no region holds: where it lies, by the nearest one. */
std::string beyond(const finding &f)
{
    const access &a = f.what;
    std::string head = actor_of(f.by) + verb_of(a) + bytes_of(a.bytes) +
                       at_line(f.by.pc, HERE);
    if (f.where == nullptr)
        return head + (f.freed ? " in device memory that was freed"
                               : " where there is no memory at all");
    const region &r = *f.where;
    std::string whole =
        region_name(r) + ", which has " + bytes_of((size_t)(r.to - r.from));
    if (a.at < r.from)
        return head + ", from " + bytes_of((size_t)(r.from - a.at)) +
               " before the start of " + whole;
    return head + ", from byte " + number((size_t)(a.at - r.from)) + " of " +
           whole;
}

std::string against(const finding &f)
{
    const char *verb = f.against_wrote ? " wrote" : " read";
    std::string line = at_line(f.against.pc, THERE);
    switch (f.kind) {
    case CPLI_CHECK_BLOCK_BARRIER:
        return "; " + thread_of(f.against) + verb + " them" + line +
               ", and no __syncthreads lies between";
    case CPLI_CHECK_WARP_BARRIER:
        return "; " + thread_of(f.against) + " of its warp" + verb + " them" +
               line + ", and no __syncwarp lies between";
    case CPLI_CHECK_TWO_BLOCKS:
        return "; " + block_of(f.against) + ", " + thread_of(f.against) + verb +
               " them" + line + ", and nothing orders two blocks";
    case CPLI_CHECK_WRONG_WAIT:
        if (f.by.op == 0)
            return "; " + operation_name(f.against.op) +
                   " uses them until the host has waited for it";
        return "; the cp.async of " + thread_of(f.against) + line +
               " fills them, and that thread has not waited for it";
    default:
        return "";
    }
}

/* Which of the two came second is luck, so both sides are told alike and in
 * the order in which the host enqueued them. */
std::string unordered(const finding &f)
{
    std::string by = operation_name(f.by.op) +
                     (f.what.writes ? " writes" : " reads") +
                     at_line(f.by.pc, HERE);
    std::string against = operation_name(f.against.op) +
                          (f.against_wrote ? " writes" : " reads") +
                          at_line(f.against.pc, THERE);
    bool swapped = f.by.op > f.against.op;
    return (swapped ? against : by) + " and " + (swapped ? by : against) +
           " the same bytes of " + region_name(*f.where) + " (of " +
           bytes_of((size_t)(f.where->to - f.where->from)) +
           "), and no event or other wait orders the two";
}

std::string wording(const finding &f)
{
    std::string name = std::string(names[f.kind]) + ": ";
    switch (f.kind) {
    case CPLI_CHECK_OUT_OF_BOUNDS:
        return name + beyond(f);
    case CPLI_CHECK_UNINITIALISED:
        return name + clause(f) + ", " +
               (f.n_unwritten < f.what.bytes ? number(f.n_unwritten) + " of "
                                             : "") +
               "which nobody has written";
    case CPLI_CHECK_MISALIGNED:
        return name + clause(f) + ", at an address that is not a multiple of " +
               number(f.what.bytes);
    case CPLI_CHECK_NO_EVENT:
        return name + unordered(f);
    default:
        return name + clause(f) + against(f);
    }
}

bool same_place(const report &r, const std::string &subject, int32_t pc,
                int32_t other_pc)
{
    return r.subject == subject && ((r.pc == pc && r.other_pc == other_pc) ||
                                    (r.pc == other_pc && r.other_pc == pc));
}

/* Where both two lanes and two warps meet at the same lines, a block barrier
 * is what is missing. */
bool says_more(const report &n, const report &known)
{
    return n.kind == CPLI_CHECK_BLOCK_BARRIER &&
           known.kind == CPLI_CHECK_WARP_BARRIER;
}

report *find_same(const report &n)
{
    for (report &r : all.reports)
        if (same_place(r, n.subject, n.pc, n.other_pc) &&
            (r.kind == n.kind || says_more(n, r) || says_more(r, n)))
            return &r;
    return nullptr;
}

/* Who read too early may have found nothing there: the race says it all. */
void drop_explained(const finding &race, const std::string &subject)
{
    int32_t pc = race.what.writes ? race.against.pc : race.by.pc;
    auto explained = [&](const report &r) {
        return r.kind == CPLI_CHECK_UNINITIALISED && r.pc == pc &&
               r.subject == subject;
    };
    all.reports.erase(
        std::remove_if(all.reports.begin(), all.reports.end(), explained),
        all.reports.end());
}

bool is_race(cpli_check_kind kind)
{
    return kind == CPLI_CHECK_BLOCK_BARRIER || kind == CPLI_CHECK_WARP_BARRIER;
}

/* The same where the race was found first, by other threads. */
bool is_explained(const report &n)
{
    return n.kind == CPLI_CHECK_UNINITIALISED &&
           std::any_of(all.reports.begin(), all.reports.end(),
                       [&](const report &r) {
                           return is_race(r.kind) && r.subject == n.subject &&
                                  (r.pc == n.pc || r.other_pc == n.pc);
                       });
}

/* ---- source lines ---- */

std::string last_part(const std::string &path)
{
    return path.substr(path.rfind('/') + 1);
}

/* Of the functions that were inlined into each other at one address, the
 * kernel's own line says more than that of a wrapper around an intrinsic. */
std::string best_of(const std::vector<std::string> &frames)
{
    for (const std::string &f : frames)
        if (f.find(".cu:") != std::string::npos)
            return f;
    return frames.empty() ? "an unknown line" : frames[0];
}

/* addr2line answers each address with itself (-a) and one line a frame. */
void read_lines(FILE *answers, const std::vector<int32_t> &pcs)
{
    char text[4096];
    size_t n = 0; /* addresses seen */
    std::vector<std::string> frames;
    auto finish = [&] {
        if (n > 0 && n <= pcs.size())
            all.lines[pcs[n - 1]] = best_of(frames);
        frames.clear();
    };
    while (std::fgets(text, sizeof text, answers) != nullptr) {
        text[std::strcspn(text, "\n")] = '\0';
        if (std::strncmp(text, "0x", 2) == 0) {
            finish();
            n++;
        } else {
            std::string line = last_part(text);
            frames.push_back(line.substr(0, line.find(" (disc")));
        }
    }
    finish();
}

/* All code that is judged lies in one module: that of this function. */
void find_lines()
{
    std::vector<int32_t> pcs;
    for (const report &r : all.reports)
        for (int32_t pc : {r.pc, r.other_pc})
            if (pc != 0 && all.lines.count(pc) == 0)
                pcs.push_back(pc);
    Dl_info module;
    if (pcs.empty() ||
        dladdr(reinterpret_cast<void *>(&find_lines), &module) == 0)
        return;
    std::string command = "addr2line -a -i -e '";
    command += module.dli_fname;
    command += "'";
    for (int32_t pc : pcs) {
        char word[32];
        /* One less: the call, not what comes after it. */
        std::snprintf(
            word, sizeof word, " 0x%zx",
            (size_t)(address_of(pc) - 1 - (uintptr_t)module.dli_fbase));
        command += word;
        all.lines[pc] = "an unknown line";
    }
    FILE *answers = popen((command + " 2>/dev/null").c_str(), "r");
    if (answers == nullptr)
        return;
    read_lines(answers, pcs);
    pclose(answers);
}

std::string finished(const report &r)
{
    std::string text = r.sentence;
    for (auto mark :
         {std::make_pair(HERE, r.pc), std::make_pair(THERE, r.other_pc)}) {
        size_t at = text.find(mark.first);
        if (at != std::string::npos)
            text.replace(at, 1, all.lines[mark.second]);
    }
    if (r.times > 1 && r.kind != CPLI_CHECK_NO_EVENT)
        text += " (" + number((uint64_t)r.times) + " times)";
    return text;
}

/* What nobody asked for must not be lost: the process fails. */
struct at_end {
    ~at_end()
    {
        if (all.n_read >= all.reports.size())
            return;
        find_lines();
        for (size_t i = all.n_read; i < all.reports.size(); i++)
            std::fprintf(stderr, "checker: %s\n",
                         finished(all.reports[i]).c_str());
        std::_Exit(1);
    }
} at_end;

} // namespace

int32_t pc_of(const void *pc)
{
    if (pc == nullptr)
        return 0;
    return (int32_t)((intptr_t)pc - (intptr_t)&find_lines);
}

uintptr_t address_of(int32_t pc)
{
    return (uintptr_t)((intptr_t)&find_lines + pc);
}

void add_finding(const finding &f)
{
    report r = {f.kind, subject_of(f), f.by.pc, f.against.pc, "", 1};
    std::lock_guard<std::mutex> lock(all.lock);
    report *known = find_same(r);
    if (known != nullptr)
        known->times++;
    if (known == nullptr && is_race(f.kind))
        drop_explained(f, r.subject);
    if (known == nullptr && is_explained(r))
        return;
    if (known != nullptr && !says_more(r, *known))
        return; /* most findings end here, before any words are made */
    r.sentence = wording(f);
    if (known == nullptr)
        all.reports.push_back(r);
    else
        *known = {r.kind,     r.subject,  r.pc,
                  r.other_pc, r.sentence, known->times};
}

} // namespace checker

using namespace checker;

void cpli_check_report(cpli_check_kind kind, const char *sentence)
{
    std::lock_guard<std::mutex> lock(all.lock);
    report r = {kind, "kernel " + now.name + ": " + sentence, 0, 0, "", 1};
    r.sentence = std::string(names[kind]) + ": " + r.subject;
    report *known = find_same(r);
    if (known != nullptr)
        known->times++;
    else
        all.reports.push_back(r);
}

int cpli_check_n_reports(void)
{
    std::lock_guard<std::mutex> lock(all.lock);
    return (int)all.reports.size();
}

const char *cpli_check_sentence(int i)
{
    std::lock_guard<std::mutex> lock(all.lock);
    if (i < 0 || (size_t)i >= all.reports.size())
        return "";
    find_lines();
    all.n_read = all.reports.size(); /* who reads one knows of all */
    return all.texts.insert(finished(all.reports[(size_t)i])).first->c_str();
}

void cpli_check_reset(void)
{
    std::lock_guard<std::mutex> lock(all.lock);
    all.reports.clear();
    all.n_read = 0;
}
