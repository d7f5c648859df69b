/*
 * clique.h: what the ranks of one communicator of the NCCL double share, and
 * what a group of theirs does on its stream.
 */
#ifndef CPLI_EMULATION_CLIQUE_H
#define CPLI_EMULATION_CLIQUE_H

#include <condition_variable>
#include <deque>
#include <map>
#include <set>

#include "emulator.h"

#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

namespace emulation
{

/* What a rank sends, laid out for its receiver. */
struct letter {
    const char *from;
    size_t count;
    ncclDataType_t type;
    cpli_check_op op; /* the sender's */
    bool taken;
};

/* What the ranks of one communicator share. */
struct clique {
    std::mutex lock;
    std::condition_variable changed;
    int n = 0, n_joined = 0;
    std::vector<int> devices; /* by rank; -1: has not joined */
    ncclResult_t joined = ncclSuccess;
    std::map<std::pair<int, int>, std::deque<letter *>> boxes; /* (from, to) */
    std::set<int> aborted; /* ranks that wait for nobody any more */
    bool broken = false;   /* by a fault: all devices have it */
};

using clique_pointer = std::shared_ptr<clique>;

struct send_or_receive {
    bool sends;
    char *at;
    size_t count;
    ncclDataType_t type;
    int peer;
};

/* Whether a rank's part is over, come what may. */
bool has_ended(const ncclComm &);

/* Until something is there, or that is so. False: nobody will come. The lock is
 * held before and after. */
bool await(const ncclComm &, std::unique_lock<std::mutex> &,
           const std::function<bool()> &is_there);

/* 0: not a type that is emulated. */
size_t size_of(ncclDataType_t);

/* A group, on its stream's thread. A fault ends device and communicator. */
void run_group(const ncclComm &, const std::vector<send_or_receive> &,
               cpli_check_op);

} // namespace emulation

/* nccl.h names it, and knows no more. */
struct ncclComm {
    emulation::clique_pointer in;
    int rank, device;
};

#endif
