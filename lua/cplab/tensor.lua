--- Tensors as users see them: rows first, row-major, dense.
-- A thin face over `cpl_tensor`. It is what the ops of `cplab.op` take and give; layers and
-- exchanges use the pointer in `_ptr`, which lives as long as the object.
-- @classmod cplab.tensor
-- @usage local t = cplab.tensor.from({ 1, 2, 3, 4, 5, 6 }, { 3, 2 }, "f64")
--   t:shape()    --> { 3, 2 }
--   t:totable()  --> { 1, 2, 3, 4, 5, 6 }
local clib = require "clib"
local args = require "cplab.check_args"
local C, ffi = clib.C, clib.ffi

local Tensor = {}
Tensor.__index = Tensor

local M = {}

local dtype_names = { "f64", "f32", "bf16", "i64", "i32" }
local dtype_ctypes = { f64 = "double *", f32 = "float *", i64 = "int64_t *", i32 = "int32_t *" }
local memory -- whose comm's memory new tensors take; nil: the heap
local names_by_value = {}
for _, name in ipairs(dtype_names) do names_by_value[tonumber(clib.dtypes[name])] = name end

local function create(who, shape, dtype, level)
    args.integers(who, "shape", shape, 0, nil, level + 1)
    args.one_of(who, "dtype", dtype, dtype_names, level + 1)
    local dims = ffi.new("int64_t[?]", #shape, shape)
    local ptr = clib.create("cpl_tensor", C.cpl_tensor_destroy, level + 1,
        C.cpl_tensor_create, clib.dtypes[dtype], #shape, dims, memory)
    return setmetatable({ _ptr = ptr }, Tensor)
end

--- Where this Lua state's new tensors lie from now on: a rank's do in the memory of its group,
-- which peers reach fastest.
-- @param comm a `cpl_comm *`, which must outlive them; nil: the heap
function M.live_in(comm)
    memory = comm
end

--- The `cpl_comm *` that `live_in` last gave, or nil.
function M.memory()
    return memory
end

--- A tensor of zeros.
-- @tparam {int,...} shape 1 to 6 dimensions, each >= 0
-- @tparam ?string dtype "f64" (the default), "f32", "bf16", "i64" or "i32"
-- @treturn cplab.tensor
-- @raise where shape or dtype break these rules
function M.zeros(shape, dtype)
    return (create("tensor.zeros", shape, dtype or "f64", 2))
end

local LIMITS = { i32 = 2 ^ 31, i64 = 2 ^ 63 }

-- Storing what an integer type cannot hold would give another number without a word.
local function check_range(dtype, i, x)
    local limit = LIMITS[dtype]
    if limit and not (x >= -limit and x < limit) then
        error(("tensor.from: entry %d is %s, beyond %s"):format(i, args.show(x), dtype), 3)
    end
end

--- A tensor of the numbers of a flat list, row-major.
-- @tparam {number,...} list as many as the shape holds; rounded to the dtype
-- @tparam {int,...} shape
-- @tparam ?string dtype as in zeros
-- @treturn cplab.tensor
-- @raise where the count does not fit the shape, or an entry is no number
function M.from(list, shape, dtype)
    args.value("tensor.from", "list", list, "table", 2)
    local tensor = create("tensor.from", shape, dtype or "f64", 2)
    local n = tensor:n_elements()
    if #list ~= n then
        error(("tensor.from: %d numbers for shape %s of %d"):format(#list, tensor:describe(), n), 2)
    end
    local code, data = tensor._ptr.dtype, ffi.new("char[?]", C.cpl_tensor_bytes(tensor._ptr))
    for i = 1, n do
        if type(list[i]) ~= "number" then
            error(("tensor.from: entry %d is %s, not a number"):format(i, args.show(list[i])), 2)
        end
        check_range(tensor:dtype(), i, list[i])
        C.cpl_dtype_store(code, data, i - 1, list[i])
    end
    clib.check(C.cpl_tensor_upload(tensor._ptr, data), 2)
    return tensor
end

--- A tensor of zeros with the shape and dtype of another.
function M.like(tensor)
    if not M.is_tensor(tensor) then error("tensor.like: takes a tensor", 2) end
    return (create("tensor.like", tensor:shape(), tensor:dtype(), 2))
end

--- Whether a value is a tensor of this module.
function M.is_tensor(value)
    return getmetatable(value) == Tensor
end

--- Checks that a value is a tensor: what reads it goes by its pointer.
-- @return the value
-- @raise `lab:convert: tensor must be a cplab.tensor (got 3)`
function M.check(who, name, value, level)
    if M.is_tensor(value) then return value end
    error(("%s: %s must be a cplab.tensor (got %s)"):format(who, name, args.show(value)),
        (level or 1) + 1)
end

--- The dimensions, a fresh list.
function Tensor:shape()
    local shape = {}
    for i = 1, self._ptr.n_dims do shape[i] = tonumber(self._ptr.shape[i - 1]) end
    return shape
end

--- The name of the dtype.
function Tensor:dtype()
    return names_by_value[tonumber(self._ptr.dtype)]
end

--- How many numbers it holds.
function Tensor:n_elements()
    return tonumber(C.cpl_tensor_n_elements(self._ptr))
end

--- Every number in one flat list, row-major.
function Tensor:totable()
    local list, ptr = {}, self._ptr
    local data = ffi.new("char[?]", C.cpl_tensor_bytes(ptr))
    clib.check(C.cpl_tensor_download(ptr, data), 2)
    for i = 1, self:n_elements() do
        list[i] = C.cpl_dtype_load(ptr.dtype, data, i - 1)
    end
    return list
end

--- Where it lies: "cpu", or a device and its number, "cuda 0".
function Tensor:device()
    return ffi.string(C.cpl_tensor_device(self._ptr))
end

--- A typed pointer to the first number. It does not keep the tensor alive.
-- @raise the tensor lies on a device
function Tensor:pointer()
    if self:device() ~= "cpu" then
        error(("tensor.pointer: the tensor lies on %s"):format(self:device()), 2)
    end
    return ffi.cast(dtype_ctypes[self:dtype()] or "void *", self._ptr.data)
end

--- A tensor with the same numbers.
function Tensor:copy()
    local copy = M.like(self)
    clib.check(C.cpl_tensor_copy(copy._ptr, self._ptr))
    return copy
end

--- Sets every number. Returns the tensor.
function Tensor:fill(value)
    args.value("tensor.fill", "value", value, "any", 2)
    if type(value) ~= "number" then
        error(("tensor.fill: %s is not a number"):format(args.show(value)), 2)
    end
    clib.check(C.cpl_tensor_fill(self._ptr, value), 2)
    return self
end

--- Shape and dtype in words: "[3, 2] f64".
function Tensor:describe()
    return ("[%s] %s"):format(table.concat(self:shape(), ", "), self:dtype())
end

Tensor.__tostring = Tensor.describe

return M
