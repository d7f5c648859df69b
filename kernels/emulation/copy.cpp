/*
 * copy.cpp: copies and memsets. Which side is whose is judged when the copy is
 * enqueued; the bytes move when the stream gets there, also from and to
 * ordinary host memory. There CUDA may be earlier: no program can lean on it.
 */
#include <cstring>

#include "emulator.h"
#include "stream.h"

namespace emulation
{

namespace
{

struct side {
    bool on_device;
    int device;
};

/* The side of `bytes` at `at`; an error if they run past their allocation. */
cudaError_t side_of(const void *at, size_t bytes, const char *what, side *out)
{
    if (at == nullptr)
        return fail(cudaErrorInvalidValue, "a copy's %s is no address", what);
    memory_place place = find_memory(at);
    out->on_device = place.kind == memory_kind::device;
    out->device = place.device;
    if (place.kind != memory_kind::unknown && bytes > place.left)
        return fail(cudaErrorInvalidValue,
                    "a copy's %s has %zu bytes left in its allocation of %zu, "
                    "not %zu",
                    what, place.left, place.bytes, bytes);
    return cudaSuccess;
}

cudaError_t check_kind(cudaMemcpyKind kind, side to, side from)
{
    bool to_device =
        kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device =
        kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return fail(cudaErrorInvalidMemcpyDirection, "a copy of kind %d",
                    static_cast<int>(kind));
    if (kind == cudaMemcpyDefault ||
        (to_device == to.on_device && from_device == from.on_device))
        return cudaSuccess;
    return fail(cudaErrorInvalidValue,
                "a copy from %s to %s, but it goes from %s to %s",
                from_device ? "device" : "host", to_device ? "device" : "host",
                from.on_device ? "device" : "host",
                to.on_device ? "device" : "host");
}

struct rows {
    size_t n, bytes, to_pitch, from_pitch;

    size_t span(size_t pitch) const
    {
        return (n - 1) * pitch + bytes;
    }
};

cudaError_t copy_rows(void *to, const void *from, rows shape,
                      cudaMemcpyKind kind, cudaStream_t on)
{
    if (cudaError_t error = enter())
        return error;
    if (shape.n == 0 || shape.bytes == 0)
        return cudaSuccess;
    side there = {}, source_side = {};
    if (cudaError_t error =
            side_of(to, shape.span(shape.to_pitch), "target", &there))
        return error;
    if (cudaError_t error =
            side_of(from, shape.span(shape.from_pitch), "source", &source_side))
        return error;
    if (cudaError_t error = check_kind(kind, there, source_side))
        return error;
    stream_pointer s = find_stream(on);
    if (!s)
        return fail(cudaErrorInvalidResourceHandle, "a copy on no stream");
    count(counter::copies);
    cpli_check_op id = 0;
    bool leaves = !there.on_device;
    cudaError_t error = enqueue(
        s,
        {"copy",
         [=](cpli_check_op op) {
             for (size_t i = 0; i < shape.n; i++) {
                 char *target = static_cast<char *>(to) + i * shape.to_pitch;
                 const char *source =
                     static_cast<const char *>(from) + i * shape.from_pitch;
                 cpli_check_read(op, source, shape.bytes, leaves);
                 std::memmove(target, source, shape.bytes);
                 cpli_check_write(op, target, shape.bytes);
             }
         }},
        &id);
    if (error == cudaSuccess && id != 0 && !there.on_device)
        cpli_check_host_buffer(id, to, shape.span(shape.to_pitch), 1);
    if (error == cudaSuccess && id != 0 && !source_side.on_device)
        cpli_check_host_buffer(id, from, shape.span(shape.from_pitch), 0);
    return error;
}

cudaError_t set_bytes(void *at, int value, size_t bytes, cudaStream_t on)
{
    if (cudaError_t error = enter())
        return error;
    if (bytes == 0)
        return cudaSuccess;
    side where = {};
    if (cudaError_t error = side_of(at, bytes, "target", &where))
        return error;
    if (!where.on_device)
        return fail(cudaErrorInvalidValue, "cudaMemset: %p is not a device's",
                    at);
    stream_pointer s = find_stream(on);
    if (!s)
        return fail(cudaErrorInvalidResourceHandle, "a memset on no stream");
    count(counter::copies);
    return enqueue(s, {"memset", [=](cpli_check_op op) {
                           std::memset(at, value, bytes);
                           cpli_check_write(op, at, bytes);
                       }});
}

/* On the default stream, and waited for. */
cudaError_t and_wait(cudaError_t error, const char *function)
{
    if (error != cudaSuccess)
        return error;
    if (cudaError_t forbidden = forbid_capture(function))
        return forbidden;
    return cudaStreamSynchronize(nullptr);
}

} // namespace

} // namespace emulation

using namespace emulation;

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t on)
{
    return copy_rows(to, from, {1, bytes, bytes, bytes}, kind, on);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                       cudaMemcpyKind kind)
{
    return and_wait(cudaMemcpyAsync(to, from, bytes, kind, nullptr),
                    "cudaMemcpy");
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t on)
{
    if (width > to_pitch || width > from_pitch)
        return fail(cudaErrorInvalidValue,
                    "rows of %zu bytes, but pitches of %zu and %zu", width,
                    to_pitch, from_pitch);
    return copy_rows(to, from, {height, width, to_pitch, from_pitch}, kind, on);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from,
                         size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind)
{
    return and_wait(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width,
                                      height, kind, nullptr),
                    "cudaMemcpy2D");
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from,
                                int from_device, size_t bytes, cudaStream_t on)
{
    if (cudaError_t error = enter())
        return error;
    int n = current_settings().devices;
    if (to_device < 0 || to_device >= n || from_device < 0 || from_device >= n)
        return fail(cudaErrorInvalidDevice, "a copy from device %d to %d of %d",
                    from_device, to_device, n);
    if (bytes != 0 && (find_memory(to).device != to_device ||
                       find_memory(from).device != from_device))
        return fail(cudaErrorInvalidValue,
                    "cudaMemcpyPeer: from %d to %d, but the memory is of %d "
                    "and %d",
                    from_device, to_device, find_memory(from).device,
                    find_memory(to).device);
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, on);
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t on)
{
    return set_bytes(at, value, bytes, on);
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    return and_wait(set_bytes(at, value, bytes, nullptr), "cudaMemset");
}
