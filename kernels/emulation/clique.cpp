/*
 * clique.cpp: a group of the NCCL double. It lays out what it sends (an address
 * in a letter box), takes what others laid out for it, and is done when all of
 * its own has been taken: as NCCL's, a send needs its receive.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "clique.h"

namespace emulation
{

size_t size_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

bool has_ended(const ncclComm &comm)
{
    return comm.in->broken || comm.in->aborted.count(comm.rank) > 0;
}

bool await(const ncclComm &comm, std::unique_lock<std::mutex> &hold,
           const std::function<bool()> &is_there)
{
    auto patience =
        std::chrono::duration<double>(current_settings().patience_s);
    return comm.in->changed.wait_for(
        hold, patience, [&] { return has_ended(comm) || is_there(); });
}

namespace
{

/* The communicator ends, and with it the device: nothing goes on wrong. */
void break_off(clique &c, int device, const std::string &why)
{
    c.broken = true;
    c.changed.notify_all();
    fault(device, cudaErrorLaunchFailure, "%s", why.c_str());
}

std::string missing(const char *what, int rank, int peer, size_t count)
{
    return "NCCL: rank " + std::to_string(rank) + " waits for rank " +
           std::to_string(peer) + " to " + what + " " + std::to_string(count) +
           " elements, which never comes";
}

void copy_letter(const letter &from, const send_or_receive &to,
                 cpli_check_op op)
{
    size_t bytes = to.count * size_of(to.type);
    if (bytes == 0)
        return;
    cpli_check_read(from.op, from.from, bytes, 0);
    std::memmove(to.at, from.from, bytes);
    cpli_check_write(op, to.at, bytes);
}

bool take_letter(const ncclComm &comm, std::unique_lock<std::mutex> &hold,
                 const send_or_receive &part, cpli_check_op op)
{
    clique &c = *comm.in;
    auto &box = c.boxes[{part.peer, comm.rank}];
    bool reaches = current_settings().network;
    if (!await(comm, hold, [&] { return reaches && !box.empty(); })) {
        break_off(c, comm.device,
                  missing("send", comm.rank, part.peer, part.count));
        return false;
    }
    if (has_ended(comm))
        return false;
    letter *next = box.front();
    box.pop_front();
    if (next->count != part.count || next->type != part.type) {
        char text[200];
        std::snprintf(text, sizeof text,
                      "NCCL: rank %d sends %zu elements of type %d, rank %d "
                      "receives %zu of type %d",
                      part.peer, next->count, static_cast<int>(next->type),
                      comm.rank, part.count, static_cast<int>(part.type));
        break_off(c, comm.device, text);
        return false;
    }
    copy_letter(*next, part, op);
    next->taken = true;
    c.changed.notify_all();
    return true;
}

bool exchange(const ncclComm &comm, const std::vector<send_or_receive> &parts,
              std::deque<letter> &mine, std::unique_lock<std::mutex> &hold,
              cpli_check_op op)
{
    clique &c = *comm.in;
    for (const auto &part : parts)
        if (part.sends) {
            mine.push_back({part.at, part.count, part.type, op, false});
            c.boxes[{comm.rank, part.peer}].push_back(&mine.back());
        }
    c.changed.notify_all();
    for (const auto &part : parts)
        if (!part.sends && !take_letter(comm, hold, part, op))
            return false;
    size_t i = 0;
    for (const auto &part : parts) {
        if (!part.sends)
            continue;
        letter &sent = mine[i++];
        if (!await(comm, hold, [&] { return sent.taken; })) {
            break_off(c, comm.device,
                      missing("receive", comm.rank, part.peer, part.count));
            return false;
        }
        if (has_ended(comm) && !sent.taken)
            return false;
    }
    return true;
}

} // namespace

void run_group(const ncclComm &comm, const std::vector<send_or_receive> &parts,
               cpli_check_op op)
{
    clique &c = *comm.in;
    std::deque<letter> mine;
    std::unique_lock<std::mutex> hold(c.lock);
    if (!has_ended(comm) && exchange(comm, parts, mine, hold, op))
        return;
    /* What nobody took goes with this function. */
    for (auto &box : c.boxes)
        for (letter &each : mine)
            box.second.erase(
                std::remove(box.second.begin(), box.second.end(), &each),
                box.second.end());
    if (c.broken && fault_of(comm.device) == cudaSuccess)
        fault(comm.device, cudaErrorLaunchFailure,
              "NCCL: rank %d gives up, since its communicator was ended",
              comm.rank);
}

} // namespace emulation
