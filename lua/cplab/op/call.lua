--- What all ops share: argument checks that blame the line of the user, the kernel table of a
-- device, and memory. Outputs and workspaces start as NaN, so that a row which a kernel forgets
-- is seen.
--
-- Users give and get tensors of the host. What a kernel of a device reads and writes are copies
-- over there, which live as long as the call.
-- @module cplab.op.call
local blame = require "blame"
local clib = require "clib"
local args = require "cplab.check_args"
local tensor = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local M = {}

local devices = { "cpu", "ref", "cuda", "cuda-emulated" }
local of_the_host = { cpu = true, ref = true }
local ways = { "best", "naive" }

--- Raises `who: ...` at the user's line.
function M.fail(who, format, ...)
    error(who .. ": " .. format:format(...), blame())
end

--- The options of an op: a table without unknown names; nil stands for none.
-- @tparam string who
-- @param options what the user gave
-- @tparam table types as in check_args.fields; `device` and `way` are added
function M.options(who, options, types)
    types.device, types.way = "string?", "string?"
    options = args.fields(who, options or {}, types)
    local device = args.one_of(who, "device", options.device or "cpu", devices)
    args.one_of(who, "way", options.way or "best", ways)
    if options.way and of_the_host[device] then
        M.fail(who, "%s kernels have no ways; those of cuda and cuda-emulated do", device)
    end
    return options
end

--- The options of an op that another one is made of: where to run, and `more`.
function M.same_place(options, more)
    more.device, more.way = options.device, options.way
    return more
end

--- Dimensions by letter: the first tensor that has a letter gives its size, the others must agree.
local Dims = {}
Dims.__index = Dims

local function open_device(device)
    local box = ffi.new "cpl_comm *[1]"
    clib.check(C.cpl_host_device_here(device, box))
    return box[0]
end

--- Starts the checks of one call.
-- @tparam string who
-- @tparam table options with an optional `device`, and a `way` of its kernels
function M.dims(who, options)
    local device = options.device or "cpu"
    local self = {
        who = who, device = device, way = options.way or "best", is_wide = false,
        origin = {}, kept = {},
        copies = {}, -- of arrays and tensors, on the device
        results = {}, -- what comes back from there
    }
    if not of_the_host[device] then self.comm = open_device(device) end
    return setmetatable(self, Dims)
end

--- Anchors what a kernel's parameters point to until the call is done.
-- @return the object
function Dims:keep(object)
    self.kept[#self.kept + 1] = object
    return object
end

-- ---- memory --------------------------------------------------------------------------------

local function create_copy(self, dtype, n)
    return clib.create("cpl_tensor", C.cpl_tensor_destroy, 1, C.cpl_tensor_create,
        dtype, 1, ffi.new("int64_t[1]", n), self.comm)
end

-- A host tensor's memory, or an array that is a multiple of 4 bytes.
local function host_memory(object)
    if tensor.is_tensor(object) then
        return object._ptr.data, object._ptr.dtype, object:n_elements()
    end
    return object, C.CPL_I32, ffi.sizeof(object) / 4
end

--- Where the kernel finds what a tensor or an array holds now.
-- @return a pointer, which lives as long as the call
function Dims:at(object)
    local memory, dtype, n = host_memory(self:keep(object))
    if not self.comm then return memory end
    if not self.copies[object] then
        local copy = create_copy(self, dtype, n)
        clib.check(C.cpl_tensor_upload(copy, memory))
        self.copies[object] = copy
    end
    return self.copies[object].data
end

local function as_result(self, object)
    self.results[#self.results + 1] = object
    return self:keep(object)
end

local function bring_back(self)
    for _, object in ipairs(self.results) do
        local copy = self.copies[object]
        if copy then
            local memory = host_memory(object)
            clib.check(C.cpl_tensor_download(copy, memory))
        end
    end
end

local function nans(shape, dtype)
    local t = tensor.zeros(shape, dtype)
    ffi.fill(t._ptr.data, C.cpl_tensor_bytes(t._ptr), 0xff)
    return t
end

--- A new tensor of the call's dtype, every byte 0xff: NaN.
function Dims:new(...)
    return as_result(self, nans({ ... }, self.dtype))
end

--- The same of a WIDE tensor.
function Dims:new_wide(...)
    return as_result(self, nans({ ... }, clib.wide_dtype(self.dtype)))
end

--- The same with the shape and dtype of another tensor.
function Dims:new_like(t)
    return as_result(self, nans(t:shape(), t:dtype()))
end

--- A new tensor of zeros, WIDE: for gradients of parameters, which kernels add to.
function Dims:zeros(...)
    return as_result(self, tensor.zeros({ ... }, clib.wide_dtype(self.dtype)))
end

--- A copy for the kernel to write to.
function Dims:copy(t)
    return as_result(self, t:copy())
end

--- A new C array of n entries for the kernel to write to, every byte 0xff.
function Dims:new_array(ctype, n)
    local array = ffi.new(ctype .. "[?]", math.max(n, 1))
    ffi.fill(array, ffi.sizeof(array), 0xff)
    return as_result(self, array)
end

--- Where the kernel finds a list of numbers, as a C array.
function Dims:list(ctype, list)
    return self:at(ffi.new(ctype .. "[?]", math.max(#list, 1), list))
end

-- ---- checks --------------------------------------------------------------------------------

local function check_size(self, name, letter, size)
    if self[letter] == nil then
        self[letter], self.origin[letter] = size, name
    elseif self[letter] ~= size then
        M.fail(self.who, "%s has %s = %d, but %s has %d", name, letter, size,
            self.origin[letter], self[letter])
    end
end

-- Kernels of the host compute in f64 and f32, those of devices in bf16 too.
local function check_known(self, name, dtype)
    local is_known = dtype == "f64" or dtype == "f32" or dtype == "bf16" and self.comm ~= nil
    if is_known then return end
    M.fail(self.who, "%s is %s, not f32 or f64%s", name, dtype, self.comm and " or bf16" or "")
end

-- All tensors of a call have one dtype; what is WIDE is f32 in a call of bf16.
local function check_dtype(self, name, dtype, is_wide)
    check_known(self, name, dtype)
    self.dtype = self.dtype or dtype
    local wanted = is_wide and clib.wide_dtype(self.dtype) or self.dtype
    self.dtype_of = self.dtype_of or dtype == wanted and name or "the call"
    if dtype == wanted then return end
    M.fail(self.who, "%s is %s, but %s is %s%s", name, dtype, self.dtype_of, self.dtype,
        wanted ~= self.dtype and ", which goes with an " .. name .. " of f32" or "")
end

--- Checks one tensor and returns where the kernel finds it.
-- @tparam string name what the op calls it
-- @tparam cplab.tensor t
-- @tparam string letters its dimensions, "T Hk K"; "* D": any number of leading ones, whose
--   product is the letter N
-- @tparam ?boolean is_wide whether kernels.h calls it WIDE
function Dims:take(name, t, letters, is_wide)
    if not tensor.is_tensor(t) then
        M.fail(self.who, "%s must be a tensor (got %s)", name, args.show(t))
    end
    if t:device() ~= "cpu" then
        M.fail(self.who, "%s lies on %s; ops take tensors of the host", name, t:device())
    end
    check_dtype(self, name, t:dtype(), is_wide)
    local shape, wanted = t:shape(), {}
    for letter in letters:gmatch "%S+" do wanted[#wanted + 1] = letter end
    if wanted[1] == "*" then
        check_size(self, name, wanted[2], shape[#shape])
        check_size(self, name, "N", t:n_elements() / math.max(shape[#shape], 1))
        return self:at(t)
    end
    if #shape ~= #wanted then
        M.fail(self.who, "%s must be [%s] (got %s)", name, table.concat(wanted, ", "), t:describe())
    end
    for i, letter in ipairs(wanted) do check_size(self, name, letter, shape[i]) end
    return self:at(t)
end

--- The same for a WIDE tensor.
function Dims:take_wide(name, t, letters)
    return self:take(name, t, letters, true)
end

--- The same for a tensor that may be nil.
function Dims:take_if(name, t, letters, is_wide)
    if t ~= nil then return self:take(name, t, letters, is_wide) end
    return nil
end

--- Raises unless one size is a multiple of another and neither is 0.
function Dims:check_groups(letter, per)
    if self[per] == 0 or self[letter] == 0 or self[letter] % self[per] ~= 0 then
        M.fail(self.who, "%s = %d is not a positive multiple of %s = %d", letter, self[letter],
            per, self[per])
    end
end

--- Says that the numbers of an op are WIDE ones, f32, in a call of bf16.
function Dims:set_wide()
    if not self.comm then M.fail(self.who, "wide numbers are those of bf16, on a device") end
    self.is_wide, self.dtype, self.dtype_of = true, "bf16", "the call"
end

-- ---- the call ------------------------------------------------------------------------------

-- The kernel table for device and dtype.
local function kernels_of(self)
    local dtype = clib.dtypes[self.dtype]
    local kernels
    if not self.comm then
        kernels = C.cpl_kernels_for(self.device, dtype)
    elseif self.way == "naive" then
        kernels = C.cpl_comm_naive_kernels(self.comm, dtype)
    else
        kernels = C.cpl_comm_kernels(self.comm, dtype)
    end
    if kernels == nil then error(ffi.string(C.cpl_last_error()), blame()) end
    return kernels
end

-- The kernels that do not take every size, by the op.
local REFUSALS = {
    attention = function(kernels, p) return kernels.attention_refusal, p end,
    attention_backward = function(kernels, p) return kernels.attention_refusal, p.forward end,
    gdn = function(kernels, p) return kernels.gdn_refusal, p end,
    gdn_backward = function(kernels, p) return kernels.gdn_refusal, p.forward end,
    gdn_summary = function(kernels, p) return kernels.gdn_refusal, p.gdn end,
    gdn_summary_backward = function(kernels, p) return kernels.gdn_refusal, p.gdn end,
}

local function check_taken(self, kernels, op, p)
    if kernels[op] == nil then
        M.fail(self.who, "the device %s has no kernel %s", self.device, op)
    end
    if not REFUSALS[op] then return end
    local refusal, sizes = REFUSALS[op](kernels, p)
    local why = refusal ~= nil and refusal(sizes)
    if why and why ~= nil then M.fail(self.who, "%s", ffi.string(why)) end
end

--- Runs a kernel. Returning what was kept is what keeps it: a name that is used later is alive.
-- @tparam string op the name of the entry
-- @param p its parameters
function Dims:call(op, p)
    local kernels = kernels_of(self)
    check_taken(self, kernels, op, p)
    kernels[op](p)
    bring_back(self)
    return self.kept
end

--- Runs a kernel that needs a workspace: p has a field for it.
function Dims:call_with_workspace(op, p)
    local kernels = kernels_of(self)
    check_taken(self, kernels, op, p)
    local n = math.ceil(tonumber(kernels[op .. "_workspace"](p)) / 8)
    p.workspace = self:at(nans({ n }, "f64"))
    return self:call(op, p)
end

-- ---- lists ---------------------------------------------------------------------------------

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
-- @return where the kernel finds them, and their boundaries
function Dims:spans(cu_seqlens)
    local cu = self:boundaries(cu_seqlens)
    local spans = ffi.new("cpl_span[?]", math.max(self.S, 1))
    for i = 0, self.S - 1 do
        spans[i].sequence, spans[i].slot = i, cu[i + 1]
        spans[i].length = cu[i + 2] - cu[i + 1]
    end
    return self:at(spans), cu
end

--- Where the kernel finds a list of numbers of rows, from 0, or -1 for none; all such lists of a
-- call have as many `entries`.
-- @tparam number n how many rows there are
function Dims:indices(name, list, n)
    args.integers(self.who, name, list, -1, n - 1)
    if self.entries ~= nil and self.entries ~= #list then
        M.fail(self.who, "%s has %d entries, but %s has %d", name, #list, self.origin.entries,
            self.entries)
    end
    self.entries, self.origin.entries = #list, name
    return self:list("int64_t", list)
end

--- Raises where such a list has a row twice.
function Dims:check_each_once(name, list)
    local seen = {}
    for i, row in ipairs(list) do
        if seen[row] then M.fail(self.who, "%s[%d] = %d stands twice", name, i, row) end
        seen[row] = row >= 0
    end
end

--- Where the kernel finds a list of integers, T of them.
function Dims:integers(name, list, ctype)
    args.integers(self.who, name, list, nil, nil)
    check_size(self, name, "T", #list)
    return self:list(ctype, list)
end

return M
