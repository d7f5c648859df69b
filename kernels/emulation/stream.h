/*
 * stream.h: a stream is a queue and a thread that works it off, so that two
 * streams really run apart: work that forgot an event meets work that is not
 * done. The thread is started with the first operation.
 */
#ifndef CPLI_EMULATION_STREAM_H
#define CPLI_EMULATION_STREAM_H

#include <condition_variable>
#include <deque>
#include <thread>

#include "emulator.h"

namespace emulation
{

struct queued {
    operation what;
    cpli_check_op id;
};

struct stream {
    int device = 0;
    unsigned flags = 0;
    int priority = 0;
    uint64_t number = 0; /* of all streams: its delays' salt */
    bool is_default = false;

    std::mutex lock;
    std::condition_variable changed;
    std::deque<queued> queue;
    uint64_t n_pushed = 0, n_done = 0;
    bool ends = false;
    std::thread worker;

    capture_place captured; /* guarded by capture_lock() */
};

/* Until `n` operations of it are done. */
void wait_for(stream &, uint64_t n);

} // namespace emulation

#endif
