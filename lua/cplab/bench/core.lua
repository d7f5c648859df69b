--- A core: one kernel of a mixer and its backward, with everything that they read and write, as
-- the benches run it. `gqa_core` and `gdn_core` say which arrays there are, which parameters the
-- kernels take, and what must come out; here is what they share.
--
-- A *fault* makes the kernel a wrong one, for specs: "scale" (the softmax or the read-out has
-- another scale), "backward" (the last row of the last gradient is half too large), "handoff" (only
-- the large case: what comes before its middle is forgotten), "memory" (it takes tokens x tokens).
-- @classmod cplab.bench.core
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi

local Core = {}
Core.__index = Core

local M = {}

local WRONG_SCALE, TOO_LARGE = 1.01, 1.5

-- A workspace starts as NaN.
local function workspace(self, op, p)
    local bytes = tonumber(self.kernels[op .. "_workspace"](p))
    local array = arrays.new("f64", math.ceil(bytes / 8), 1)
    arrays.poison(array)
    p.workspace = array.data
    self.kept[#self.kept + 1] = array
    return bytes
end

local function make_inputs(self, kind, given)
    for _, input in ipairs(kind.inputs(self.case)) do
        local name, n_rows, width = input[1], input[2], input[3]
        if given then
            self[name] = arrays.in_double(given[name])
        else
            self[name] = arrays.new(self.dtype, n_rows, width)
            input.draw(self[name])
        end
    end
end

local function make_outputs(self, kind)
    for _, output in ipairs(kind.outputs(self.case)) do
        self[output[1]] = arrays.new(self.dtype, output[2], output[3])
        self.outputs[#self.outputs + 1] = { name = output[1], array = self[output[1]] }
    end
end

--- A core.
-- @tparam table kind gqa_core or gdn_core
-- @tparam table case sizes, dtype, fault
-- @tparam ?Core given whose inputs it takes; it is then the reference, naive and in double
function M.new(kind, case, given)
    local self = setmetatable({
        kind = kind, case = case, op = kind.op, dtype = given and "f64" or case.dtype,
        outputs = {}, kept = {}, fault = not given and case.fault or nil,
    }, Core)
    self.kernels = C.cpl_kernels_for(given and "ref" or "cpu", clib.dtypes[self.dtype])
    make_inputs(self, kind, given)
    make_outputs(self, kind)
    self.p, self.b = kind.parameters(self)
    if self.fault == "scale" then self.p.scale = self.p.scale * WRONG_SCALE end
    if self.fault == "handoff" and case.is_large then kind.forget_half(self) end
    if self.fault == "memory" then self:keep(arrays.new("f64", case.tokens, case.tokens)) end
    local bytes = workspace(self, self.op, self.p)
    self.b.forward = self.p
    self.workspace_bytes = math.max(bytes, workspace(self, self.op .. "_backward", self.b))
    return self
end

--- Every output becomes NaN.
function Core:poison()
    for _, output in ipairs(self.outputs) do arrays.poison(output.array) end
end

function Core:forward()
    self.kernels[self.op](self.p)
end

function Core:backward()
    self.kernels[self.op .. "_backward"](self.b)
    if self.fault == "backward" then self:spoil() end
end

--- The last row of the last output becomes a wrong one.
function Core:spoil()
    local array = self.outputs[#self.outputs].array
    local n, width = tonumber(C.cpl_tensor_n_elements(array)), tonumber(C.cpl_tensor_width(array))
    local data = arrays.pointer(array)
    for i = n - width, n - 1 do data[i] = TOO_LARGE * data[i] end
end

--- A list of spans or blocks as a C array that lives as long as the core.
function Core:keep(object)
    self.kept[#self.kept + 1] = object
    return object
end

--- The worst error of any output against a reference that has run.
-- @treturn number
-- @treturn string whose it is
function Core:error(reference)
    local list = {}
    for i, output in ipairs(self.outputs) do
        list[i] = { name = output.name,
            error = arrays.error(output.array, reference.outputs[i].array) }
    end
    return arrays.worst(list)
end

--- A C array of structs, kept by the core.
function Core:array(ctype, list)
    return self:keep(ffi.new(ctype .. "[?]", math.max(#list, 1), list))
end

return M
