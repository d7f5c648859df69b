--- The parameters of a stack in one block of memory, and their gradients in another.
-- One block each, so that a step zeroes, reduces and updates them with one call. Values are
-- drawn from (seed, name, element): they do not depend on ranks or layouts. Of a bf16 model some
-- parameters are f32, in a block of their own, and all gradients are (what kernels.h calls WIDE).
-- @classmod cplab.parameters
local clib = require "clib"
local optimizers = require "cplab.optimizer"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local Parameters = {}
Parameters.__index = Parameters

local M = {}

local names = {} -- of dtypes, by number
for name, number in pairs(clib.dtypes) do names[tonumber(number)] = name end

local function elements_of(info)
    return tonumber(info.shape[0] * (info.n_dims == 2 and info.shape[1] or 1))
end

local function each_param(ptr, visit)
    for i = 0, C.cpl_layer_n_params(ptr) - 1 do visit(C.cpl_layer_param(ptr, i), i) end
end

--- How many numbers the parameters of a layer are.
-- @param ptr a `cpl_layer *`
function M.count(ptr)
    local n = 0
    each_param(ptr, function(info) n = n + elements_of(info) end)
    return n
end

-- All numbers of layers, and those of each dtype.
local function count(layers)
    local n, by_dtype = 0, {}
    for _, layer in ipairs(layers) do
        each_param(layer.ptr, function(info)
            if layer.tied_to then return end
            local dtype = names[tonumber(info.dtype)]
            n = n + elements_of(info)
            by_dtype[dtype] = (by_dtype[dtype] or 0) + elements_of(info)
        end)
    end
    return n, by_dtype
end

-- Part of a block with the shape of a parameter.
local function part(tensor, at, info)
    local dims = { tonumber(info.shape[0]) }
    dims[2] = info.n_dims == 2 and tonumber(info.shape[1]) or nil
    return rows.view(tensor, at, dims)
end

-- Gives a layer of its own the next memory of the blocks; returns where the one after it begins.
local function place_layer(self, layer, at)
    local entries = {}
    each_param(layer.ptr, function(info, i)
        local block = self.blocks[names[tonumber(info.dtype)]]
        local entry = {
            name = layer.name .. "." .. ffi.string(info.name),
            index = i, dtype = names[tonumber(info.dtype)],
            weight = part(block.weights, block.used, info), grad = part(self.grads, at, info),
            at = at, n = elements_of(info), decays = optimizers.decays(info.n_dims),
        }
        entries[i + 1], self.list[#self.list + 1] = entry, entry
        at, block.used = at + entry.n, block.used + entry.n
    end)
    self.entries[layer.name] = entries
    return at
end

local function make_blocks(self, by_dtype)
    self.blocks = {}
    for dtype, n in pairs(by_dtype) do
        self.blocks[dtype] = { weights = rows.new(self.comm, dtype, n, 1), used = 0, n = n }
    end
    local own = self.blocks[self.dtype]
    self.weights = own and own.weights -- those of the model's dtype: all, but of bf16
end

--- Collective. Takes memory for the parameters of layers and binds them.
-- @param comm a `cpl_comm *`
-- @tparam string dtype
-- @tparam {table,...} layers in order: { name =, ptr = cpl_layer *, tied_to = an earlier one or
-- nil }
function M.new(comm, dtype, layers)
    local n, by_dtype = count(layers)
    local wide = clib.wide_dtype(dtype)
    local self = setmetatable({
        comm = comm, dtype = dtype, wide = wide, n = n, list = {}, entries = {},
        grads = rows.new(comm, wide, n, 1),
        sum = clib.create("cpl_sum", C.cpl_sum_destroy, 1, C.cpl_sum_create, comm,
            clib.dtypes[wide], n),
    }, Parameters)
    make_blocks(self, by_dtype)
    local at = 0
    for _, layer in ipairs(layers) do
        if not layer.tied_to then at = place_layer(self, layer, at) end
    end
    self:bind(layers)
    return self
end

--- Binds layers to these parameters: those that they were made for, or those of another stack of
-- the same model. From then on the parameters are drawn by these layers. A tied layer has the only
-- parameter of another one, and adds to its gradient.
-- @tparam {table,...} layers as above
function Parameters:bind(layers)
    for _, layer in ipairs(layers) do
        local entries = self.entries[(layer.tied_to or layer).name]
        local n = C.cpl_layer_n_params(layer.ptr)
        local weights, grads = ffi.new("cpl_tensor *[?]", n), ffi.new("cpl_tensor *[?]", n)
        for i = 1, n do
            weights[i - 1], grads[i - 1] = entries[i].weight, entries[i].grad
            if not layer.tied_to then entries[i].layer = layer.ptr end
        end
        clib.check(C.cpl_layer_bind(layer.ptr, weights, grads)) -- which copies the lists
    end
end

--- Lets the layers go that were bound last: nobody draws before others are bound.
function Parameters:unbind()
    for _, entry in ipairs(self.list) do entry.layer = nil end
end

--- The kernels of a dtype, where the parameters are.
function Parameters:kernels(dtype)
    return C.cpl_comm_kernels(self.comm, clib.dtypes[dtype])
end

--- The parameters become those of a seed, and training begins anew. Drawing costs more than
-- copying, so the first values are kept for the next time.
function Parameters:draw(seed)
    optimizers.forget(self)
    local is_new = self.drawn_seed ~= seed
    for _, entry in ipairs(is_new and self.list or {}) do
        clib.check(C.cpl_layer_init(entry.layer, entry.index, seed, entry.name, entry.weight))
    end
    for dtype, block in pairs(self.blocks) do
        block.drawn = block.drawn or rows.new(self.comm, dtype, block.n, 1)
        local to, from = block.weights, block.drawn
        if is_new then to, from = from, to end
        clib.check(C.cpl_tensor_copy(to, from))
    end
    self.drawn_seed = seed
end

--- Collective. Sums the gradients over the group, in rank order.
function Parameters:reduce()
    clib.check(C.cpl_sum_execute(self.sum, self.grads))
end

--- The gradients become 0.
function Parameters:zero_gradients()
    clib.check(C.cpl_tensor_fill(self.grads, 0))
end

return M
