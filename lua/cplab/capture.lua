--- Captures: what all ranks of a group do on their devices, kept as a graph and done again by each
-- replay, with what its tensors hold then. See cpl_capture in cplab.h.
-- @classmod cplab.capture
-- @usage local graph = capture.of(comm._ptr, function() stack:step { backward = true } end)
--   tokens:put(batch)
--   graph:replay()
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local Capture = {}
Capture.__index = Capture

local M = {}

local n_open = 0 -- captures that this rank is making

--- Collective. Captures what a function does; nothing is done yet. It must not wait for the device
-- or take memory of it, so run it once before.
-- @param comm `cpl_comm *`
-- @tparam function f
-- @param ?keeps what the memory belongs to that f works on, and is kept with the graph; f itself
-- @treturn Capture
-- @raise the rows are on the cpu; what cannot be captured; what f raises. If it did so on this rank
-- alone, ranks that wait for this one fail with that, too
function M.of(comm, f, keeps)
    local out = ffi.new "cpl_capture *[1]"
    clib.check(C.cpl_capture_begin(comm, out), 2)
    local capture = ffi.gc(out[0], C.cpl_capture_destroy)
    n_open = n_open + 1
    local worked, message = pcall(f)
    n_open = n_open - 1
    if not worked then
        C.cpl_capture_fail(capture, tostring(message))
        error(message, 0)
    end
    clib.check(C.cpl_capture_end(capture), 2)
    return setmetatable({ _ptr = capture, _keeps = keeps or f }, Capture)
end

--- Whether a capture is being made: what is done now is done by replays alone.
function M.is_open()
    return n_open > 0
end

--- Collective. Does all of it again.
function Capture:replay()
    clib.check(C.cpl_capture_replay(self._ptr), 2)
end

--- Collective. The same for something else that has the same launches, and counts for itself.
-- @param rehearsal a `cpl_rehearsal` of it
function Capture:replay_as(rehearsal)
    clib.check(C.cpl_capture_replay_as(self._ptr, rehearsal), 2)
end

return M
