--- A core: one kernel of a mixer and its backward, with everything that they read and write, as
-- the benches run it, on the host or on a device. `gqa_core` and `gdn_core` say which arrays there
-- are, which parameters the kernels take, and what must come out; here is what they share.
--
-- A *fault* makes the kernel a wrong one, for specs: "scale" (the softmax or the read-out has
-- another scale), "backward" (the last row of the last gradient is half too large), "handoff" (only
-- the large case: what comes before its middle is forgotten), "memory" (it takes tokens x tokens).
-- @classmod cplab.bench.core
local arrays = require "cplab.bench.arrays"
local clib = require "clib"

local C, ffi = clib.C, clib.ffi
local wide_dtype = clib.wide_dtype

local Core = {}
Core.__index = Core

local M = {}

local WRONG_SCALE, TOO_LARGE = 1.01, 1.5

-- A workspace starts as NaN.
local function workspace(self, op, p)
    local bytes = tonumber(self.kernels[op .. "_workspace"](p))
    local array = arrays.new("f64", math.ceil(bytes / 8), 1, self.comm)
    arrays.poison(array)
    p.workspace = array.data
    self.kept[#self.kept + 1] = array
    return bytes
end

local function dtype_of(self, entry)
    return entry.wide and wide_dtype(self.dtype) or self.dtype
end

-- The host draws the numbers, and in no dtype that it does not compute in.
local function draw(self, input)
    local array = arrays.new(wide_dtype(self.dtype), input[2], input[3])
    input.draw(array)
    return self.comm and arrays.there(array, dtype_of(self, input), self.comm) or array
end

local function make_inputs(self, kind, given)
    for _, input in ipairs(kind.inputs(self.case)) do
        local name = input[1]
        self[name] = given and arrays.in_double(given[name]) or draw(self, input)
    end
end

local function make_outputs(self, kind)
    for _, output in ipairs(kind.outputs(self.case)) do
        self[output[1]] = arrays.new(dtype_of(self, output), output[2], output[3], self.comm)
        self.outputs[#self.outputs + 1] = { name = output[1], array = self[output[1]] }
    end
end

-- The kernels that work where the arrays are.
local function kernels_of(self, given)
    local dtype = clib.dtypes[self.dtype]
    if self.comm then return C.cpl_comm_kernels(self.comm, dtype) end
    return C.cpl_kernels_for(given and "ref" or "cpu", dtype)
end

-- What a kernel says that does not take such sizes.
local function refusal_of(self)
    local refusal = self.kernels[self.op .. "_refusal"]
    local reason = refusal ~= nil and refusal(self.p) or nil
    return reason ~= nil and ffi.string(reason) or nil
end

--- A core.
-- @tparam table kind gqa_core or gdn_core
-- @tparam table case sizes, dtype, fault
-- @tparam ?Core given whose inputs it takes; it is then the reference, naive and in double
-- @param comm `cpl_comm *` on whose device it is; nil: on the host
-- @treturn ?Core
-- @treturn ?string why there is none: what its kernel takes
function M.new(kind, case, given, comm)
    local self = setmetatable({
        kind = kind, case = case, op = kind.op, dtype = given and "f64" or case.dtype,
        outputs = {}, kept = {}, fault = not given and case.fault or nil, comm = comm,
    }, Core)
    self.kernels = kernels_of(self, given)
    make_inputs(self, kind, given)
    make_outputs(self, kind)
    self.p, self.b = kind.parameters(self)
    local refusal = refusal_of(self)
    if refusal then return nil, refusal end
    if self.fault == "scale" then self.p.scale = self.p.scale * WRONG_SCALE end
    if self.fault == "handoff" and case.is_large then kind.forget_half(self) end
    if self.fault == "memory" then
        self:keep(arrays.new("f64", case.tokens, case.tokens, comm))
    end
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

--- The last row of the last output becomes a wrong one, without a wait for a device.
function Core:spoil()
    local array = self.outputs[#self.outputs].array
    local n, width = tonumber(C.cpl_tensor_n_elements(array)), tonumber(C.cpl_tensor_width(array))
    local row = ffi.cast("char *", array.data)
        + (n - width) * tonumber(C.cpl_dtype_bytes(array.dtype))
    self.kernels.axpby(ffi.new("cpl_axpby", { x = row, y = row, n = width, alpha = 0,
        beta = TOO_LARGE }))
end

--- Waits until everything is done, as who looks at what came out.
function Core:wait()
    local array = self.outputs[#self.outputs].array
    clib.check(C.cpl_tensor_download(array, ffi.new("char[?]", C.cpl_tensor_bytes(array))))
end

--- Something that lives as long as the core.
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

--- A C array of structs of int64_t (spans, blocks) where the kernels read it, kept by the core.
function Core:array(ctype, list)
    local here = ffi.new(ctype .. "[?]", math.max(#list, 1), list)
    if not self.comm then return self:keep(here) end
    local there = self:keep(arrays.new("i64", ffi.sizeof(here) / 8, 1, self.comm))
    clib.check(C.cpl_tensor_upload(there, here))
    return there.data
end

return M
