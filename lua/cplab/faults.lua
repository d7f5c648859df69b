--- Faults that specs plant in a stack to prove that the checks catch them.
-- A real run has none. Each is the silent bug that it is named after: nothing raises, the
-- numbers are just wrong.
-- @module cplab.faults
local clib = require "clib"
local mtp = require "cplab.mtp"
local streams = require "cplab.stream"
local C, ffi = clib.C, clib.ffi

local function here(fault, rank)
    return fault and (fault.rank or 0) == rank
end

local function swap_bytes(data, row_bytes, i, j, n)
    local bytes = ffi.cast("char *", data)
    local kept = ffi.string(bytes + i * row_bytes, n * row_bytes)
    ffi.copy(bytes + i * row_bytes, bytes + j * row_bytes, n * row_bytes)
    ffi.copy(bytes + j * row_bytes, kept, n * row_bytes)
end

--- Adds the hooks to the class of stacks.
return function(Stack)
    --- drop_handoff, rope_shift, route_padding and those of attention's modes happen inside the
    -- layers of one rank.
    function Stack:plant_faults()
        local planted = C.cpl_faults_here()
        local drop, shift = self.faults.drop_handoff, self.faults.rope_shift
        planted.drop_handoff = here(drop, self.rank) and 1 or 0
        planted.rope_shift = here(shift, self.rank) and shift.by or 0
        for _, name in ipairs { "drop_merge", "reverse_ring", "kv_head_shift", "route_padding" } do
            planted[name] = here(self.faults[name], self.rank) and 1 or 0
        end
    end

    --- swap_runs: the two halves of a rank's rows change places, rows and trace alike.
    function Stack:swap_runs(x)
        if not here(self.faults.swap_runs, self.rank) then
            return
        end
        local half = math.floor(self.live_rows / 2)
        local row_bytes = tonumber(C.cpl_dtype_bytes(x.dtype) * C.cpl_tensor_width(x))
        swap_bytes(x.data, row_bytes, 0, half, half)
        if x.trace ~= nil then
            swap_bytes(x.trace, 8, 0, half, half)
        end
    end

    --- roll: tokens are rolled "across" the ends of sequences, or to their "padded" ends; without
    -- it nil. (mask_roll, in cplab.mtp: how often each depth rolls its mask, which is once.)
    function Stack:roll_layout()
        local roll, stream = self.faults.roll, self.stream
        if not roll then return nil end
        local lengths = {}
        for i = 1, stream:n_sequences() do lengths[i] = stream:sequence(i - 1).padded end
        lengths = roll == "across" and { stream:n_positions() } or lengths
        return mtp.same_rows(self.layouts.live, streams.thd { lengths = lengths })
    end

    --- skip_back: a mixer's output stays where it was made, though marked as converted.
    function Stack:convert_back(block, c, src, dst, pass)
        local skip = self.faults.skip_back
        if not (skip and skip.layer == block.index) then
            return c:back(src, dst, pass)
        end
        if dst ~= src then
            clib.check(C.cpl_tensor_copy(dst, src))
            clib.check(C.cpl_tensor_mark_like(dst, src))
        end
        dst.layout = C.cpl_layout_digest(self.layouts.live._ptr)
    end
end
