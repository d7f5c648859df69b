/*
 * cuda_trace.c: positions that travel with rows on a device. A comparison is a
 * kernel in the rank's order of work, which adds to one record in the device's
 * memory; the host reads the record when the step is over. So a traced step
 * waits for nothing: the runs go to the device once, from pinned memory, and
 * stay there for the next comparison with the same runs.
 */
#include "cuda_rank.h"

/* Lists that are kept; a step with as many layouts and views was never seen. */
enum { MOST_LISTS = 256 };

/* A comparison is numbered by its check and its label. */
enum { MOST_LABELS = 1 << 16 };

/* Runs, and behind them the sums of their lengths. */
typedef struct list {
    uint64_t hash;
    int64_t n_runs, room;
    cpl_run *here; /* pinned: it may still be on its way */
    cpl_run *there;
    bool is_free;     /* another may take its place */
    bool is_captured; /* a graph reads it in every replay: it stays */
} list;

/* What is said of a wrong row beside its numbers. */
typedef struct label {
    int rank;
    char *who;
} label;

/* The record on the host, pinned. */
typedef struct slate {
    cpl_cuda_wrong clean; /* what it is set to */
    cpl_cuda_wrong read;
} slate;

typedef struct cpli_traces {
    list lists[MOST_LISTS];
    int n_lists;
    label *labels;
    int64_t n_labels, room;
    slate *slate;
    cpl_cuda_wrong *wrong; /* device */
} cpli_traces;

/* ---- keeping ---- */

void cpli_cuda_drop_traces(cpli_cuda *device)
{
    cpli_traces *traces = device->traces;
    if (traces == NULL)
        return;
    for (int i = 0; i < traces->n_lists; i++)
        cpli_cuda_give(device, traces->lists[i].there);
    cpli_cuda_give(device, traces->wrong);
    for (int64_t i = 0; i < traces->n_labels; i++)
        cpli_free(traces->labels[i].who);
    cpli_free(traces->labels);
    cpli_free(traces);
    device->traces = NULL;
}

static cpl_status copy(cpli_cuda *device, void *to, const void *from,
                       size_t bytes)
{
    return cpli_cuda_check(
        device,
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->stream),
        "a trace");
}

/* Nothing is wrong yet. */
static cpl_status wipe(cpli_cuda *device)
{
    cpli_traces *traces = device->traces;
    return copy(device, traces->wrong, &traces->slate->clean,
                sizeof *traces->wrong);
}

static cpl_status begin(cpli_cuda *device)
{
    cpli_traces *traces;
    if (device->traces != NULL)
        return CPL_OK;
    CPL_TRY(CPL_ALLOC(1, &device->traces));
    traces = device->traces;
    cpl_status status =
        cpli_cuda_pin(device, sizeof *traces->slate, (void **)&traces->slate);
    if (status == CPL_OK)
        status = cpli_cuda_take_new(device, sizeof *traces->wrong,
                                    (void **)&traces->wrong);
    if (status == CPL_OK) {
        traces->slate->clean = (cpl_cuda_wrong)CPL_CUDA_NONE_WRONG;
        status = wipe(device);
    }
    if (status != CPL_OK)
        cpli_cuda_drop_traces(device);
    return status;
}

/* ---- runs ---- */

static const int64_t *ends_of(const list *one)
{
    return (const int64_t *)(one->there + one->n_runs);
}

static void write_list(const list *one, const cpl_run *runs)
{
    int64_t *ends = (int64_t *)(one->here + one->n_runs);
    int64_t end = 0;
    memcpy(one->here, runs, (size_t)one->n_runs * sizeof *runs);
    for (int64_t i = 0; i < one->n_runs; i++) {
        end += runs[i].length;
        ends[i] = end;
    }
}

static list *find_list(cpli_traces *traces, const cpl_run *runs, int64_t n_runs,
                       uint64_t hash)
{
    size_t bytes = (size_t)n_runs * sizeof *runs;
    for (int i = 0; i < traces->n_lists; i++) {
        list *one = &traces->lists[i];
        if (!one->is_free && one->hash == hash && one->n_runs == n_runs &&
            memcmp(one->here, runs, bytes) == 0)
            return one;
    }
    return NULL;
}

static size_t bytes_of(int64_t n_runs)
{
    return (size_t)n_runs * (sizeof(cpl_run) + sizeof(int64_t));
}

static cpl_status make_room_for(cpli_cuda *device, int64_t n_runs, list *one)
{
    int64_t room = 8;
    cpl_run *there;
    if (one->room >= n_runs)
        return CPL_OK;
    while (room < n_runs)
        room *= 2;
    CPL_TRY(cpli_cuda_take_new(device, bytes_of(room), (void **)&there));
    cpl_status status =
        cpli_cuda_pin(device, bytes_of(room), (void **)&one->here);
    if (status != CPL_OK) {
        cpli_cuda_give(device, there);
        return status;
    }
    cpli_cuda_give(device, one->there);
    one->there = there;
    one->room = room;
    return CPL_OK;
}

/* A free one; of several, one with room enough. */
static list *find_free(cpli_traces *traces, int64_t n_runs)
{
    list *found = NULL;
    for (int i = 0; i < traces->n_lists; i++) {
        list *one = &traces->lists[i];
        if (one->is_free && (found == NULL || found->room < n_runs))
            found = one;
    }
    return found;
}

static cpl_status find_place(cpli_cuda *device, int64_t n_runs, list **out)
{
    cpli_traces *traces = device->traces;
    *out = find_free(traces, n_runs);
    if (*out == NULL && traces->n_lists < MOST_LISTS) {
        *out = &traces->lists[traces->n_lists++];
        **out = (list){.is_free = true};
    } else if (*out == NULL) {
        CPL_TRY(cpli_cuda_wait(device, "a trace"));
        for (int i = 0; i < traces->n_lists; i++)
            traces->lists[i].is_free = !traces->lists[i].is_captured;
        *out = find_free(traces, n_runs);
    }
    if (*out == NULL)
        return cpli_fail(CPL_UNSUPPORTED,
                         "trace: captures on %s %d read %d lists of runs, and "
                         "no more are kept",
                         cpli_cuda_name, device->number, MOST_LISTS);
    return CPL_OK;
}

/* n_runs >= 1. */
static cpl_status keep_list(cpli_cuda *device, const cpl_run *runs,
                            int64_t n_runs, const list **out)
{
    cpli_traces *traces = device->traces;
    uint64_t hash = cpl_hash(0, runs, (size_t)n_runs * sizeof *runs);
    list *kept = find_list(traces, runs, n_runs, hash);
    if (kept == NULL) {
        CPL_TRY(find_place(device, n_runs, &kept));
        CPL_TRY(make_room_for(device, n_runs, kept));
        kept->hash = hash;
        kept->n_runs = n_runs;
        write_list(kept, runs);
        CPL_TRY(copy(device, kept->there, kept->here, bytes_of(n_runs)));
        kept->is_free = false;
    }
    kept->is_captured |= device->is_capturing;
    *out = kept;
    return CPL_OK;
}

cpl_status cpli_cuda_write_runs(cpl_comm *comm, int64_t *trace, int64_t n_rows,
                                const cpl_run *runs, int64_t n_runs)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    const list *kept;
    if (n_rows == 0 || n_runs == 0)
        return CPL_OK;
    CPL_TRY(begin(device));
    CPL_TRY(keep_list(device, runs, n_runs, &kept));
    cpl_cuda_positions positions = {.trace = trace,
                                    .n_rows = n_rows,
                                    .runs = kept->there,
                                    .run_ends = ends_of(kept),
                                    .n_runs = n_runs};
    if (CPLI_CUDA_NOTES(device, "positions", positions))
        return CPL_OK;
    return cpli_cuda_launched(device,
                              cpl_cuda_trace_write(&positions, device->stream),
                              "cpl_cuda_trace_write");
}

/* ---- comparing ---- */

static cpl_status make_room(cpli_traces *traces)
{
    void *labels = traces->labels;
    int64_t room = cpli_max(2 * traces->room, 16);
    if (traces->n_labels < traces->room)
        return CPL_OK;
    CPL_TRY(cpli_realloc(&labels, (size_t)room, sizeof *traces->labels));
    traces->labels = labels;
    traces->room = room;
    return CPL_OK;
}

static cpl_status keep_label(cpli_cuda *device, const char *who, int rank,
                             int64_t *out)
{
    cpli_traces *traces = device->traces;
    size_t bytes = strlen(who) + 1;
    for (*out = 0; *out < traces->n_labels; ++*out)
        if (traces->labels[*out].rank == rank &&
            strcmp(traces->labels[*out].who, who) == 0)
            return CPL_OK;
    if (traces->n_labels == MOST_LABELS)
        return cpli_fail(CPL_UNSUPPORTED,
                         "trace: more than %d names of checks on %s %d",
                         MOST_LABELS, cpli_cuda_name, device->number);
    CPL_TRY(make_room(traces));
    label *one = &traces->labels[traces->n_labels];
    CPL_TRY(CPL_ALLOC(bytes, &one->who));
    memcpy(one->who, who, bytes);
    one->rank = rank;
    traces->n_labels++;
    return CPL_OK;
}

cpl_status cpli_cuda_compare(cpl_comm *comm, const cpli_comparison *what)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    const list *kept;
    int64_t name;
    if (what->n_rows == 0 || what->n_runs == 0)
        return CPL_OK;
    CPL_TRY(begin(device));
    CPL_TRY(keep_list(device, what->runs, what->n_runs, &kept));
    CPL_TRY(keep_label(device, what->who, what->rank, &name));
    cpl_cuda_check check = {.trace = what->trace,
                            .n_rows = what->n_rows,
                            .runs = kept->there,
                            .run_ends = ends_of(kept),
                            .n_runs = what->n_runs,
                            .check = what->check * MOST_LABELS + name,
                            .wrong = device->traces->wrong};
    if (CPLI_CUDA_NOTES(device, "check", check))
        return CPL_OK;
    return cpli_cuda_launched(device,
                              cpl_cuda_trace_check(&check, device->stream),
                              "cpl_cuda_trace_check");
}

cpl_status cpli_cuda_found(cpl_comm *comm, cpli_wrong *out)
{
    cpli_cuda *device = cpli_cuda_of(comm);
    cpli_traces *traces = device->traces;
    *out = (cpli_wrong){0};
    if (traces == NULL)
        return CPL_OK;
    CPL_TRY(cpli_cuda_refuse_capture(device, "reading what checks found"));
    const cpl_cuda_wrong *read = &traces->slate->read;
    CPL_TRY(copy(device, &traces->slate->read, traces->wrong, sizeof *read));
    CPL_TRY(wipe(device));
    CPL_TRY(cpli_cuda_await(device, "reading what checks found"));
    if (read->rows == 0)
        return CPL_OK;
    const label *named = &traces->labels[read->check % MOST_LABELS];
    *out = (cpli_wrong){.rows = read->rows,
                        .check = read->check / MOST_LABELS,
                        .who = named->who,
                        .rank = named->rank,
                        .slot = read->slot,
                        .expected = read->expected,
                        .found = read->found};
    return CPL_OK;
}
