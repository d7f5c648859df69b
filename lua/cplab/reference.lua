--- The reference of a case: the same model on one rank of the host, in the contiguous layout; of
-- bf16, which the host does not compute in, in f32.
-- Rank 0 computes what is missing and leaves it in the store of the process, so that all ranks,
-- and all later cases with the same model and stream, read it there. Where ranks are processes,
-- those whose store lacks it get its bytes.
-- @module cplab.reference
local clib = require "clib"
local optimizers = require "cplab.optimizer"
local parity = require "cplab.parity"
local steps = require "cplab.steps"
local C, ffi = clib.C, clib.ffi

local M = {}

-- Names what was computed: the model's numbers and the tokens of the first n steps.
local function key_of(lab, what, n)
    local digest = ffi.cast("uint64_t", 0)
    for step = 0, steps.vary(lab) and n - 1 or 0 do
        local stream = steps.stream_at(lab, step)
        local text = ("%s %s"):format(tostring(C.cpl_stream_digest(stream._ptr)),
            table.concat(stream:token_list() or {}, ","))
        digest = C.cpl_hash(digest, text, #text)
    end
    return ("%s|%s|%s"):format(what, lab.model:signature(), tostring(digest))
end

-- The same model on one rank, contiguous: what binds its layers to other layouts is not asked.
local function reference_stack(lab, step, old)
    return steps.stack_for(old, steps.stream_at(lab, step), {
        model = lab.model:with { bound_to = {}, dtype = clib.wide_dtype(lab.model.dtype),
            policy = { "contiguous", "contiguous", "contiguous" } },
        comm = C.cpl_comm_self(), cp = 1, tp = 1,
    })
end

local function have(key)
    return C.cpl_store_get(key, clib.box "size_t") ~= nil
end

-- The reference has no faults; those planted on this rank come back afterwards.
local function without_faults(f, i)
    local faults = C.cpl_faults_here()
    local planted = ffi.new("cpl_faults", faults[0])
    f(i)
    ffi.copy(faults, planted, ffi.sizeof "cpl_faults")
end

-- Rank 0 makes what is missing, in n parts; the others wait for one part at a time, so that no
-- wait is longer than a step of one rank.
local function make_once(self, key, n, part, text)
    local missing = ffi.new("double[1]", self.rank == 0 and not have(key) and 1 or 0)
    clib.check(C.cpl_comm_max(self.comm, missing, 1))
    for i = 1, missing[0] * n do
        if self.rank == 0 then
            without_faults(part, i)
        end
        clib.check(C.cpl_comm_barrier(self.comm))
    end
    if self.rank == 0 and missing[0] == 1 then
        local kept = text()
        clib.check(C.cpl_store_put(key, kept, #kept))
    end
    clib.check(C.cpl_comm_barrier(self.comm))
    clib.check(C.cpl_store_share(self.comm, key))
end

--- Collective. One step with its gradients, for cplab.parity.
-- @tparam table self a lab
-- @treturn string the key of the tensors in the store
function M.parity(self)
    local key = key_of(self, "parity", 1)
    make_once(self, key, 1, function()
        local stack = reference_stack(self, 0)
        stack:step { backward = true }
        parity.capture(key, stack:outputs())
        parity.capture(key, stack:gradients())
        parity.capture(key, stack:input_gradients())
    end, function() return "made" end)
    return key
end

-- Text that keeps every bit of a number.
local function exact(number)
    return number and ("%.17g"):format(number)
end

--- Collective. The loss of each of several steps.
-- @tparam table self a lab
-- @tparam table options iters, backward
-- @tparam table settings of an optimizer (cplab.optimizer: plan_rates), or empty
-- @treturn {number,...}
function M.losses(self, options, settings)
    local key = key_of(self, ("losses %d %s %s"):format(options.iters,
        tostring(options.backward), optimizers.text(settings)), options.iters)
    local step = { backward = options.backward }
    for name, value in pairs(settings) do step[name] = value end
    local stack, made = nil, {}
    make_once(self, key, options.iters, function(i)
        stack = reference_stack(self, i - 1, stack)
        made[i] = exact(stack:step(optimizers.at(step, i - 1)))
    end, function() return table.concat(made, " ") end)
    local box, losses = clib.box "size_t", {}
    local text = C.cpl_store_get(key, box)
    for number in ffi.string(text, box[0]):gmatch "%S+" do
        losses[#losses + 1] = tonumber(number)
    end
    return losses
end

return M
