--- What all ops share: argument checks that blame the line of the user, the kernel table of a
-- device, and memory. Outputs and workspaces start as NaN, so that a row which a kernel forgets
-- is seen.
-- @module cplab.op.call
local blame = require "blame"
local clib = require "clib"
local args = require "cplab.check_args"
local tensor = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local M = {}

local devices = { "cpu", "ref" }

--- Raises `who: ...` at the user's line.
function M.fail(who, format, ...)
    error(who .. ": " .. format:format(...), blame())
end

--- The options of an op: a table without unknown names; nil stands for none.
-- @tparam string who
-- @param options what the user gave
-- @tparam table types as in check_args.fields; `device` is added
function M.options(who, options, types)
    types.device = "string?"
    options = args.fields(who, options or {}, types)
    args.one_of(who, "device", options.device or "cpu", devices)
    return options
end

--- Dimensions by letter: the first tensor that has a letter gives its size, the others must agree.
local Dims = {}
Dims.__index = Dims

--- Starts the checks of one call.
-- @tparam string who
-- @tparam table options with an optional `device`
function M.dims(who, options)
    local self = { who = who, device = options.device or "cpu", origin = {}, kept = {} }
    return setmetatable(self, Dims)
end

--- Anchors what a kernel's parameters point to until the call is done.
-- @return the object
function Dims:keep(object)
    self.kept[#self.kept + 1] = object
    return object
end

local function check_size(self, name, letter, size)
    if self[letter] == nil then
        self[letter], self.origin[letter] = size, name
    elseif self[letter] ~= size then
        M.fail(self.who, "%s has %s = %d, but %s has %d", name, letter, size,
            self.origin[letter], self[letter])
    end
end

-- All tensors of a call have one dtype, f32 or f64.
local function check_dtype(self, name, dtype)
    if dtype ~= "f32" and dtype ~= "f64" then
        M.fail(self.who, "%s is %s, not f32 or f64", name, dtype)
    end
    self.dtype, self.dtype_of = self.dtype or dtype, self.dtype_of or name
    if dtype ~= self.dtype then
        M.fail(self.who, "%s is %s, but %s is %s", name, dtype, self.dtype_of, self.dtype)
    end
end

--- Checks one tensor and returns its data pointer.
-- @tparam string name what the op calls it
-- @tparam cplab.tensor t
-- @tparam string letters its dimensions, "T Hk K"; "* D": any number of leading ones, whose
--   product is the letter N
function Dims:take(name, t, letters)
    if not tensor.is_tensor(t) then
        M.fail(self.who, "%s must be a tensor (got %s)", name, args.show(t))
    end
    check_dtype(self, name, t:dtype())
    self:keep(t)
    local shape, wanted = t:shape(), {}
    for letter in letters:gmatch "%S+" do wanted[#wanted + 1] = letter end
    if wanted[1] == "*" then
        check_size(self, name, wanted[2], shape[#shape])
        check_size(self, name, "N", t:n_elements() / math.max(shape[#shape], 1))
        return t._ptr.data
    end
    if #shape ~= #wanted then
        M.fail(self.who, "%s must be [%s] (got %s)", name, table.concat(wanted, ", "), t:describe())
    end
    for i, letter in ipairs(wanted) do check_size(self, name, letter, shape[i]) end
    return t._ptr.data
end

--- The same for a tensor that may be nil.
function Dims:take_if(name, t, letters)
    if t ~= nil then return self:take(name, t, letters) end
    return nil
end

--- Raises unless one size is a multiple of another and neither is 0.
function Dims:check_groups(letter, per)
    if self[per] == 0 or self[letter] == 0 or self[letter] % self[per] ~= 0 then
        M.fail(self.who, "%s = %d is not a positive multiple of %s = %d", letter, self[letter],
            per, self[per])
    end
end

--- A new tensor of the call's dtype, every byte 0xff: NaN.
function Dims:new(...)
    local t = tensor.zeros({ ... }, self.dtype)
    ffi.fill(t._ptr.data, C.cpl_tensor_bytes(t._ptr), 0xff)
    return self:keep(t)
end

--- The same with the shape of another tensor.
function Dims:new_like(t)
    return self:new(unpack(t:shape()))
end

--- A new tensor of zeros: for gradients that kernels add to.
function Dims:zeros(...)
    return self:keep(tensor.zeros({ ... }, self.dtype))
end

-- The kernel table for device and dtype.
local function kernels_of(self)
    local kernels = C.cpl_kernels_for(self.device, clib.dtypes[self.dtype])
    if kernels == nil then error(ffi.string(C.cpl_last_error()), blame()) end
    return kernels
end

--- Runs a kernel. Returning what was kept is what keeps it: a name that is used later is alive.
-- @tparam string op the name of the entry
-- @param p its parameters
function Dims:call(op, p)
    kernels_of(self)[op](p)
    return self.kept
end

--- Runs a kernel that needs a workspace: p has a field for it.
function Dims:call_with_workspace(op, p)
    local kernels = kernels_of(self)
    local n = math.ceil(tonumber(kernels[op .. "_workspace"](p)) / 8)
    local workspace = self:keep(tensor.zeros({ n }, "f64"))
    ffi.fill(workspace._ptr.data, n * 8, 0xff)
    p.workspace = workspace._ptr.data
    return self:call(op, p)
end

--- The boundaries of packed sequences: a checked copy, or the one sequence { 0, T }.
function Dims:boundaries(cu_seqlens)
    local cu = cu_seqlens or { 0, self.T }
    args.integers(self.who, "cu_seqlens", cu, 0, nil)
    if cu[1] ~= 0 or cu[#cu] ~= self.T then
        M.fail(self.who, "cu_seqlens goes from %s to %s, not from 0 to T = %d",
            args.show(cu[1]), args.show(cu[#cu]), self.T)
    end
    for i = 2, #cu do
        if cu[i] < cu[i - 1] then
            M.fail(self.who, "cu_seqlens[%d] = %d comes after %d", i, cu[i], cu[i - 1])
        end
    end
    self.S = #cu - 1
    self.origin.S = "cu_seqlens"
    return cu
end

--- One span per sequence; an empty sequence is an empty span.
function Dims:spans(cu_seqlens)
    local cu = self:boundaries(cu_seqlens)
    local spans = self:keep(ffi.new("cpl_span[?]", math.max(self.S, 1)))
    for i = 0, self.S - 1 do
        spans[i].sequence, spans[i].slot = i, cu[i + 1]
        spans[i].length = cu[i + 2] - cu[i + 1]
    end
    return spans
end

--- A list of integers as a C array, T of them.
function Dims:integers(name, list, ctype)
    args.integers(self.who, name, list, nil, nil)
    check_size(self, name, "T", #list)
    return self:keep(ffi.new(ctype .. "[?]", math.max(#list, 1), list))
end

return M
