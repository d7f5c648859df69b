--- The parameters of a stack in one block of memory, and their gradients in another.
-- One block each, so that a step zeroes, reduces and updates them with one call. Values are
-- drawn from (seed, name, element): they do not depend on ranks or layouts.
-- @classmod cplab.parameters
local clib = require "clib"
local optimizers = require "cplab.optimizer"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local Parameters = {}
Parameters.__index = Parameters

local M = {}

local function elements_of(info)
    return tonumber(info.shape[0] * (info.n_dims == 2 and info.shape[1] or 1))
end

--- How many numbers the parameters of a layer are.
-- @param ptr a `cpl_layer *`
function M.count(ptr)
    local n = 0
    for i = 0, C.cpl_layer_n_params(ptr) - 1 do
        n = n + elements_of(C.cpl_layer_param(ptr, i))
    end
    return n
end

local function count(layers)
    local n = 0
    for _, layer in ipairs(layers) do
        n = n + (layer.tied_to and 0 or M.count(layer.ptr))
    end
    return n
end

-- Two lists of pointers, which a layer copies when it is bound.
local function bind(self, layer, at)
    local n = C.cpl_layer_n_params(layer.ptr)
    local weights, grads = ffi.new("cpl_tensor *[?]", n), ffi.new("cpl_tensor *[?]", n)
    local size = tonumber(C.cpl_dtype_bytes(clib.dtypes[self.dtype]))
    for i = 0, n - 1 do
        local info = C.cpl_layer_param(layer.ptr, i)
        local dims = { tonumber(info.shape[0]) }
        dims[2] = info.n_dims == 2 and tonumber(info.shape[1]) or nil
        local function view(block)
            return rows.wrap(ffi.cast("char *", block.data) + at * size, self.dtype, dims)
        end
        local entry = {
            name = layer.name .. "." .. ffi.string(info.name),
            layer = layer.ptr, index = i,
            weight = view(self.weights), grad = view(self.grads),
            at = at, n = elements_of(info), decays = optimizers.decays(info.n_dims),
        }
        self.list[#self.list + 1] = entry
        weights[i], grads[i] = entry.weight, entry.grad
        at = at + elements_of(info)
    end
    clib.check(C.cpl_layer_bind(layer.ptr, weights, grads))
    return at
end

-- A tied layer has the only parameter of another one, and adds to its gradient.
local function bind_tied(self, layer)
    for _, entry in ipairs(self.list) do
        if entry.layer == layer.tied_to.ptr then
            local weight = ffi.new("cpl_tensor *[1]", entry.weight)
            local grad = ffi.new("cpl_tensor *[1]", entry.grad)
            clib.check(C.cpl_layer_bind(layer.ptr, weight, grad))
        end
    end
end

--- Takes memory for the parameters of layers and binds them.
-- @param comm a `cpl_comm *`
-- @tparam string dtype
-- @tparam {table,...} layers in order: { name =, ptr = cpl_layer *, tied_to = an earlier one or
-- nil }
function M.new(comm, dtype, layers)
    local n = count(layers)
    local self = setmetatable({
        comm = comm, dtype = dtype, n = n, list = {},
        weights = rows.new(comm, dtype, n, 1), grads = rows.new(comm, dtype, n, 1),
    }, Parameters)
    local at = 0
    for _, layer in ipairs(layers) do
        if layer.tied_to then
            bind_tied(self, layer)
        else
            at = bind(self, layer, at)
        end
    end
    return self
end

--- The parameters become those of a seed, and training begins anew. Drawing costs more than
-- copying, so the first values are kept for the next time.
function Parameters:draw(seed)
    optimizers.forget(self)
    if self.drawn_seed == seed then
        clib.check(C.cpl_tensor_copy(self.weights, self.drawn))
        return
    end
    for _, entry in ipairs(self.list) do
        clib.check(C.cpl_layer_init(entry.layer, entry.index, seed, entry.name, entry.weight))
    end
    self.drawn = self.drawn or rows.new(self.comm, self.dtype, self.n, 1)
    clib.check(C.cpl_tensor_copy(self.drawn, self.weights))
    self.drawn_seed = seed
end

--- The values of other parameters, of the same layers, become these, and their moments too.
function Parameters:take(other)
    optimizers.take(self, other)
    clib.check(C.cpl_tensor_copy(self.weights, other.weights))
end

--- Collective. Sums the gradients over the group, in rank order.
function Parameters:reduce()
    clib.check(C.cpl_comm_sum(self.comm, self.grads.data, self.n, clib.dtypes[self.dtype]))
end

--- The gradients become 0.
function Parameters:zero_gradients()
    C.cpl_tensor_fill(self.grads, 0)
end

return M
