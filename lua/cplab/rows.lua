--- Raw tensors of a stack: made once, handed to C by pointer.
-- The friendly tensor of users is cplab.tensor; this is what stands below it.
-- @module cplab.rows
local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

local function create(level, f, ...)
    return (clib.create("cpl_tensor", C.cpl_tensor_destroy, level + 1, f, ...))
end

--- A zeroed tensor [n_rows, width] in the memory of a group's transport.
-- @param comm a `cpl_comm *`
-- @tparam string dtype "f64", "f32", "i32", ...
function M.new(comm, dtype, n_rows, width)
    local shape = ffi.new("int64_t[2]", n_rows, width)
    return create(1, C.cpl_tensor_create, clib.dtypes[dtype], 2, shape, comm)
end

--- A tensor over memory that somebody else holds.
-- @param data a pointer; its owner must outlive the tensor
-- @tparam {number,...} dims
function M.wrap(data, dtype, dims)
    local shape = ffi.new("int64_t[6]", dims)
    return create(1, C.cpl_tensor_wrap, ffi.cast("void *", data), clib.dtypes[dtype], #dims, shape)
end

--- A tensor over elements of another one, which must outlive it, from `first` on.
-- @tparam {number,...} dims
function M.view(tensor, first, dims)
    local shape = ffi.new("int64_t[6]", dims)
    return create(1, C.cpl_tensor_view, tensor, first, #dims, shape)
end

--- Whether a tensor is on a device, where the host reads nothing.
function M.is_away(tensor)
    return ffi.string(C.cpl_tensor_device(tensor)) ~= "cpu"
end

--- Whether the tensors of a group are.
-- @param comm a `cpl_comm *`
function M.are_away(comm)
    return M.is_away(M.new(comm, "f64", 0, 1))
end

--- The tensor itself, or what it holds now as a tensor of the host.
function M.at_home(tensor)
    if not M.is_away(tensor) then return tensor end
    local copy = create(1, C.cpl_tensor_create, tensor.dtype, tensor.n_dims, tensor.shape, nil)
    clib.check(C.cpl_tensor_download(tensor, copy.data))
    return copy
end

--- Shows what a tensor holds to f(data), which gets a pointer that the host may follow.
-- @tparam string ctype of the numbers
-- @return what the pointer led to, alive until now: the tensor or a copy
function M.look(tensor, ctype, f)
    local here = M.at_home(tensor)
    f(ffi.cast(ctype .. " *", here.data))
    return here
end

--- The same for who changes it.
function M.edit(tensor, ctype, f)
    local here = M.look(tensor, ctype, f)
    if here ~= tensor then clib.check(C.cpl_tensor_upload(tensor, here.data)) end
end

-- Elements that stand in the same place must be of the same row.
local function check_marks(x, y)
    if x.layout ~= y.layout then
        local function kind(t) return t.layout_kind ~= nil and ffi.string(t.layout_kind) or "?" end
        error(("rows.add: rows of %s and rows of %s do not add up"):format(kind(x), kind(y)), 3)
    end
end

--- out = x + y, element by element; traces and marks follow x.
-- @raise the two are marked as rows of different layouts
function M.add(kernels, x, y, out)
    check_marks(x, y)
    local n = C.cpl_tensor_n_elements(x)
    kernels.axpby(ffi.new("cpl_axpby", { x = x.data, y = out.data, n = n, alpha = 1, beta = 0 }))
    kernels.axpby(ffi.new("cpl_axpby", { x = y.data, y = out.data, n = n, alpha = 1, beta = 1 }))
    clib.check(C.cpl_tensor_mark_like(out, x), 2)
end

--- y += alpha x.
function M.accumulate(kernels, x, y, alpha)
    kernels.axpby(ffi.new("cpl_axpby", {
        x = x.data, y = y.data, n = C.cpl_tensor_n_elements(x), alpha = alpha or 1, beta = 1,
    }))
end

return M
