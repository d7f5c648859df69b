/*
 * What the files of the checker share. See checker.h for what it is.
 *
 *     checker.cpp          the hooks of memory, kernels, threads and barriers
 *     checker_order.cpp    which operation of which stream comes before which
 *     checker_shadow.cpp   what is known about each byte of memory
 *     checker_judge.cpp    the rules: one access against what is known
 *     checker_report.cpp   findings, and the sentences made from them
 *     checker_tsan.cpp     the compiler's callbacks
 *
 * The idea: each piece of memory keeps a note of its last write and of the
 * reads since then. A note says who (operation, block, thread) and when (how
 * many barriers that thread had passed); an access that finds a note which
 * nothing orders before it is a race, whatever order the emulator ran in.
 */
#ifndef CPLI_CHECKER_PARTS_H
#define CPLI_CHECKER_PARTS_H

#include "checker.h"
#include <mutex>
#include <string>
#include <vector>

namespace checker
{

/* Guards all but checker_order.cpp, which has a lock of its own: streams go on
 * being filled while a kernel runs. Held from kernel_begin to kernel_end. */
extern std::mutex judging;

/* ---- notes ---- */

enum scope : uint8_t {
    LANES,  /* `lanes` of one warp, all with the same stamp */
    WARPS,  /* `thread` and `other` are of two warps of one block */
    BLOCKS, /* ... of two blocks */
    WHOLE   /* not a kernel: the whole operation, no threads */
};

struct note {
    cpli_check_op op; /* 0: nobody */
    uint32_t thread;  /* linear in the grid: block * threads + thread */
    uint32_t other;
    uint32_t barriers; /* block barriers passed */
    uint32_t stamp;    /* of the last warp barrier taken part in */
    uint32_t lanes;
    int32_t pc; /* see pc_of; 0: unknown */
    scope reach;
    bool atomic;
    bool pending; /* a cp.async that nobody has waited for */
};

/* Program counters are kept as distances from a function of this module. */
int32_t pc_of(const void *pc);
uintptr_t address_of(int32_t pc);

/* ---- memory ---- */

struct cell {
    note write;
    note read;
    uint32_t more; /* list of further reads: 1 + index; 0: none */
};

/* 16 bytes of memory: cells[i] is about bytes [i << log_unit, ...). */
struct line {
    cell *cells; /* NULL: untouched */
    uint32_t life;
    uint16_t initialised; /* a bit a byte */
    uint8_t log_unit;
};
enum { LINE = 16, LOG_LINE = 4 };

struct region {
    const char *from;
    const char *to;
    const char *name; /* of a shared variable; NULL: device or host memory */
    int device;       /* -1: host memory that kernels may use */
    uint32_t life;    /* lines of another life are untouched */
    line *lines;
    struct arena *cells;
};

/* The region that holds `at`, or NULL. Shared ones are the running block's. */
region *find_region(const char *at);
/* The device or shared memory that is nearest to `at`, within its guard. */
region *near_region(const char *at);
void add_region(const char *from, size_t bytes, int device);
void drop_region(const char *from);
void add_shared(const char *name, const char *from, size_t bytes);
void drop_shared();
/* Whether `at` was device memory once and is not now. */
bool was_freed(const char *at);
/* Whether `at` is in device memory or just beside it. Takes no lock. */
bool maybe_device(const char *at);
/* The line of `at`, alive, with cells no larger than `unit` bytes. */
line *line_of(region *r, const char *at, size_t unit);
/* All cells of the line are the same from here on: one will do. */
void merge_line(region *r, line *l);
std::vector<note> &more_reads(cell *c);
void drop_more(cell *c);

/* ---- order of operations ---- */

bool comes_before(cpli_check_op a, cpli_check_op b);
cpli_check_op host_operation();
/* "copy on stream 2" */
std::string operation_name(cpli_check_op op);
/* Whether host memory at [at, at + bytes) belongs to an operation that the
 * host has not waited for; `*op` says which. Cheap when there is none. */
bool buffer_in_use(const char *at, size_t bytes, bool write, cpli_check_op *op);

/* ---- the running kernel ---- */

struct copy_async {
    const char *to;
    const char *from;
    size_t bytes;
    int32_t pc;
};

struct async_queue { /* of one thread */
    std::vector<copy_async> open;
    std::vector<std::vector<copy_async>> groups;
};

struct lane_clock {
    uint32_t seen[32]; /* [i]: what lane i did up to this stamp comes before */
};

struct kernel {
    cpli_check_op op;
    std::string name;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t n_threads; /* of a block */
    uint32_t barriers;
    bool clocks_used;
    std::vector<uint32_t> stamps;      /* by thread */
    std::vector<uint32_t> warp_clocks; /* by warp */
    std::vector<lane_clock> clocks;    /* by thread */
    std::vector<async_queue> queues;   /* by thread, on demand */
};
extern kernel now;
extern thread_local const cpli_check_thread *running
    __attribute__((tls_model("initial-exec")));

/* ---- judging ---- */

struct access {
    const char *at;
    size_t bytes;
    bool reads;
    bool writes;
    bool atomic;
    bool aligned; /* the size of the access is the alignment that it needs */
    bool pending;
    int32_t pc;
};

/* An access by the running thread, or by the host when none runs. */
void judge(const access &a);
/* An access by an operation that is not a kernel, from inside `r`. Whether it
 * should `complain` of bytes that nobody has written. */
void judge_operation(cpli_check_op op, region *r, const access &a,
                     bool complain);
/* The copy has landed: the running thread's write, as of now. */
void land(const copy_async &copy);

/* ---- findings ---- */

struct finding {
    cpli_check_kind kind;
    access what;
    const region *where; /* or the nearest one; or NULL */
    note by;
    note against = {}; /* op 0: nobody */
    bool against_wrote = false;
    size_t n_unwritten = 0; /* bytes, of an uninitialised read */
    bool freed = false;     /* out of bounds, where memory was once */
};
void add_finding(const finding &f);

} // namespace checker

#endif
