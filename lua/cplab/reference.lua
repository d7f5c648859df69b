--- The reference of a case: the same model on one rank, in the contiguous layout.
-- Rank 0 computes what is missing and leaves it in the store of the process, so that all ranks,
-- and all later cases with the same model and stream, read it there.
-- @module cplab.reference
local clib = require "clib"
local parity = require "cplab.parity"
local stacks = require "cplab.stack"
local C, ffi = clib.C, clib.ffi

local M = {}

local function key_of(self, what)
    local tokens = self.stream.tokens
    local text = tokens and table.concat(tokens, ",") or ""
    local digest = C.cpl_hash(C.cpl_stream_digest(self.stream._ptr), text, #text)
    return ("%s|%s|%s"):format(what, self.model:signature(), tostring(digest))
end

-- The same model on one rank, contiguous; made by rank 0 for all.
local function reference_stack(self)
    local model = self.model:with {
        policy = { "contiguous", "contiguous", "contiguous" },
    }
    return stacks.new { model = model, stream = self.stream, comm = C.cpl_comm_self(), cp = 1,
        tp = 1 }
end

local function have(key)
    return C.cpl_store_get(key, clib.box "size_t") ~= nil
end

-- Rank 0 makes what is missing; the others wait for it.
local function once_on_rank_0(self, key, make)
    if self.rank == 0 and not have(key) then
        local faults = C.cpl_faults_here()
        local planted = ffi.new("cpl_faults", faults[0])
        local text = make()
        ffi.copy(faults, planted, ffi.sizeof "cpl_faults")
        clib.check(C.cpl_store_put(key, text, #text))
    end
    clib.check(C.cpl_comm_barrier(self.comm))
end

--- Collective. One step with its gradients, for cplab.parity.
-- @tparam table self a lab
-- @treturn string the key of the tensors in the store
function M.parity(self)
    local key = key_of(self, "parity")
    once_on_rank_0(self, key, function()
        local stack = reference_stack(self)
        stack:step { backward = true }
        parity.capture(key, stack:outputs())
        parity.capture(key, stack:gradients())
        parity.capture(key, stack:input_gradients())
        return "made"
    end)
    return key
end


-- The losses are stored as text that keeps every bit.
local function run_losses(self, options)
    local stack, losses = reference_stack(self), {}
    for i = 1, options.iters do
        losses[i] = ("%.17g"):format(stack:step(options))
    end
    return table.concat(losses, " ")
end

--- Collective. The loss of each of several steps.
-- @tparam table self a lab
-- @tparam table options iters, backward, optimizer, lr
-- @treturn {number,...}
function M.losses(self, options)
    local key = key_of(self, ("losses %d %s %s %s"):format(options.iters,
        tostring(options.backward), tostring(options.optimizer), tostring(options.lr)))
    once_on_rank_0(self, key, function() return run_losses(self, options) end)
    local box, losses = clib.box "size_t", {}
    local text = C.cpl_store_get(key, box)
    for number in ffi.string(text, box[0]):gmatch "%S+" do
        losses[#losses + 1] = tonumber(number)
    end
    return losses
end

return M
