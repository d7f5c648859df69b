--- A stack: a model made live on one rank for one stream.
-- Everything that thinks happens in `new`: layouts, routes, plans, layers and memory. A step
-- only walks the list. Per mixer x = x + back(mixer(to(norm(x)))), then x = x + ffn(norm(x));
-- the backward pass walks the same blocks in reverse. Layers count from 0 in names.
-- @classmod cplab.stack
local clib = require "clib"
local conversion = require "cplab.conversion"
local layers = require "cplab.layers"
local mtp = require "cplab.mtp"
local optimizers = require "cplab.optimizer"
local parameters = require "cplab.parameters"
local policies = require "cplab.policy"
local rows = require "cplab.rows"
local tokens = require "cplab.tokens"
local C, ffi = clib.C, clib.ffi

local Stack = {}
Stack.__index = Stack

local M = {}

local check = clib.check

-- ---- building ------------------------------------------------------------------

local function make_layer(self, name, layout, kind, config)
    local layer = { name = name, layout = layout, ptr = layers.create(kind, config, self.dtype) }
    self.layers[#self.layers + 1] = layer
    return layer
end

local function make_norm(self, name)
    return make_layer(self, name, self.layouts.live, "norm",
        { hidden = self.model.hidden, eps = self.model.eps })
end

local function make_block(self, i, layer, name)
    local model, kind = self.model, layer.kind
    local where = policies.where(layer)
    local block = {
        index = i, where = where, name = name .. "." .. kind,
        norm = make_norm(self, name .. ".norm1"),
        mixer = make_layer(self, name .. "." .. kind, self.layouts[where], kind,
            layers.mixer_config(model, kind, layer)),
    }
    local ffn = model:ffn(i)
    if ffn then
        block.mlp_norm = make_norm(self, name .. ".norm2")
        block.mlp = make_layer(self, name .. "." .. ffn, self.layouts.live, ffn,
            layers.ffn_config(model, ffn))
        block.is_moe = ffn == "moe"
    end
    return block
end

local function make_layers(self)
    local model = self.model
    self.embedding = make_layer(self, "embedding", self.layouts.live, "embedding",
        { ["in"] = model.vocab, out = model.hidden })
    for i, layer in ipairs(model.schedule.layers) do
        self.blocks[i] = make_block(self, i - 1, layer, "layers." .. i - 1)
    end
    self.final_norm = make_norm(self, "final_norm")
    self.head = make_layer(self, "head", self.layouts.live, "linear",
        { ["in"] = model.hidden, out = model.vocab })
    self.head.tied_to = model.tied and self.embedding or nil
    self:make_depths()
end

-- Layers that run in one layout share a place, and with it their routes.
local function prepare_layers(self)
    for _, layer in ipairs(self.layers) do
        local layout = layer.layout
        if not self.places[layout] then
            self.places[layout] = clib.create("cpl_place", C.cpl_place_destroy, 1,
                C.cpl_place_create, self.comm, layout._ptr)
            if self.recompute then C.cpl_place_share_kept(self.places[layout]) end
        end
        check(C.cpl_layer_prepare(layer.ptr, layer.name, self.places[layout]))
    end
end

local function hidden_rows(self, layout)
    return rows.new(self.comm, self.dtype, layout:n_local(self.rank), self.model.hidden)
end

-- One conversion for each place where a mixer may run; fixed policies convert around it.
local function make_conversions(self)
    local policy = self.model.policy
    for _, block in ipairs(self.blocks) do
        local where = block.where
        if self.size > 1 and policy[where] ~= policy.live and not self.conversions[where] then
            self.conversions[where] = conversion.new(self, self.layouts.live, self.layouts[where])
        end
    end
end

-- What backward reads is kept per block, or with `recompute` its input alone; the rest is scratch
-- that all blocks share.
local function make_block_activations(self)
    local live = self.layouts.live
    local function there(where)
        local c = self.conversions[where]
        local layout = self.layouts[where]
        return { y = hidden_rows(self, layout), dh = hidden_rows(self, layout),
            dy = c and hidden_rows(self, layout), h = self.recompute and hidden_rows(self, layout) }
    end
    local shared
    self.x = {}
    for i, block in ipairs(self.blocks) do
        self.x[i] = hidden_rows(self, live)
        self.there[block.where] = self.there[block.where] or there(block.where)
        block.h = self.there[block.where].h or hidden_rows(self, self.layouts[block.where])
        if block.mlp then
            shared = shared or { mid = hidden_rows(self, live), h = hidden_rows(self, live) }
            block.mid, block.mlp_h = shared.mid, shared.h
            shared = self.recompute and shared or nil
        end
    end
    self.x[#self.x + 1] = hidden_rows(self, live)
end

local function make_activations(self)
    local live = self.layouts.live
    make_block_activations(self)
    for _, name in ipairs { "h", "y", "d", "dh", "t", "final_h" } do
        self[name] = hidden_rows(self, live)
    end
    local n = live:n_local(self.rank)
    self.logits = rows.new(self.comm, self.dtype, n, self.model.vocab)
    self.dlogits = rows.new(self.comm, self.dtype, n, self.model.vocab)
end

--- Collective. Makes a model live.
-- @tparam table t model, stream, comm (`cpl_comm *`), cp, tp, trace (token tracing), recompute
-- ("layer": blocks keep their input alone, and backward runs each forward again), faults
-- (test only: { swap_runs =, skip_back =, drop_handoff =, rope_shift =, drop_merge =, .. }: see
-- cplab.faults)
function M.new(t)
    local self = setmetatable({
        model = t.model, stream = t.stream, comm = t.comm, dtype = t.model.dtype,
        rank = C.cpl_comm_rank(t.comm), size = C.cpl_comm_size(t.comm),
        trace = t.trace or false, faults = t.faults or {},
        kernels = C.cpl_kernels_for("cpu", clib.dtypes[t.model.dtype]),
        layouts = policies.layouts(t.model.policy, t.stream, { cp = t.cp, tp = t.tp },
            t.model.balance),
        layers = {}, places = {}, blocks = {}, conversions = {}, there = {},
        lazy = t.model.routes == "lazy", recompute = t.recompute,
    }, Stack)
    make_layers(self)
    self.parameters = parameters.new(self.comm, self.dtype, self.layers)
    prepare_layers(self)
    make_conversions(self)
    make_activations(self)
    self:prepare_depths()
    self.tokens, self.rolled = tokens.place(self, #self.depths + 1, self:roll_layout())
    self.labels = self.rolled[1]
    self:give_depths(self.rolled)
    self:set_trace(self.trace)
    self.n_labels = tokens.n_labels(self.stream)
    self.live_rows = self.layouts.live:n_local(self.rank)
    self.parameters:draw(self.model.seed)
    self:plant_faults()
    return self
end

-- ---- walking -------------------------------------------------------------------

local function forward(layer, x, y)
    check(C.cpl_layer_forward(layer.ptr, x, y), 2)
end

local function backward(layer, dy, dx)
    check(C.cpl_layer_backward(layer.ptr, dy, dx), 2)
end

-- `pass` is what conversions count for: a block that runs again does so in the backward pass.
local function mixer_forward(self, block, x, pass)
    local c, there = self.conversions[block.where], self.there[block.where]
    local h = c and not c.in_place and self.h or block.h
    forward(block.norm, x, h)
    if not c then
        forward(block.mixer, block.h, there.y)
        return there.y
    end
    c:to(h, block.h, pass)
    forward(block.mixer, block.h, there.y)
    local y = c.in_place and there.y or self.y
    self:convert_back(block, c, there.y, y, pass)
    check(C.cpl_trace_check(y, self.layouts.live._ptr, self.rank, block.name .. " (output)"))
    return y
end

local function block_forward(self, block, x, out, pass)
    local mid = block.mlp and block.mid or out
    rows.add(self.kernels, x, mixer_forward(self, block, x, pass), mid)
    if block.mlp then
        forward(block.mlp_norm, mid, block.mlp_h)
        forward(block.mlp, block.mlp_h, self.y)
        rows.add(self.kernels, mid, self.y, out)
    end
end

--- Collective. From tokens to logits.
function Stack:forward()
    forward(self.embedding, self.tokens, self.x[1])
    self:swap_runs(self.x[1])
    for i, block in ipairs(self.blocks) do
        block_forward(self, block, self.x[i], self.x[i + 1], "fwd")
    end
    forward(self.final_norm, self.x[#self.x], self.final_h)
    forward(self.head, self.final_h, self.logits)
    self:forward_depths()
end

-- The mean loss of a stack's or a depth's logits; dlogits is filled, times `scale`.
local function mean_loss(self, scale)
    local sum, n = ffi.new("double[1]", 0), math.max(self.n_labels, 1)
    self.kernels.cross_entropy(ffi.new("cpl_cross_entropy", {
        logits = self.logits.data, labels = self.labels.data, dlogits = self.dlogits.data,
        loss_sum = sum, n_rows = self.live_rows, vocab = self.model.vocab, grad_scale = scale / n,
    }))
    check(C.cpl_tensor_mark_like(self.dlogits, self.logits))
    check(C.cpl_comm_sum(self.comm, sum, 1, C.CPL_F64))
    return sum[0] / n
end

--- Collective. The mean loss over the labelled tokens of the group; dlogits is filled. With MTP
-- `mtp_losses` are those of the depths, and `total_loss` is what is differentiated.
function Stack:loss()
    local loss = mean_loss(self, 1)
    local losses, added = self:depth_losses()
    self.mtp_losses, self.total_loss = losses, loss + added
    return loss
end

local function mixer_backward(self, block, d)
    local c, there = self.conversions[block.where], self.there[block.where]
    if not c then
        backward(block.mixer, d, there.dh)
        return there.dh
    end
    c:to(d, there.dy, "bwd")
    backward(block.mixer, there.dy, there.dh)
    local dh = c.in_place and there.dh or self.dh
    c:back(there.dh, dh, "bwd")
    return dh
end

-- d, the gradient of the block's output, becomes that of its input.
local function block_backward(self, block, d)
    if block.mlp then
        backward(block.mlp, d, self.dh)
        backward(block.mlp_norm, self.dh, self.t)
        rows.accumulate(self.kernels, self.t, d)
    end
    backward(block.norm, mixer_backward(self, block, d), self.t)
    rows.accumulate(self.kernels, self.t, d)
end

--- Collective. From dlogits to the gradients of all parameters, summed over the group.
function Stack:backward()
    self:backward_depths()
    backward(self.head, self.dlogits, self.dh)
    backward(self.final_norm, self.dh, #self.depths > 0 and self.t or self.d)
    if #self.depths > 0 then rows.accumulate(self.kernels, self.t, self.d) end
    for i = #self.blocks, 1, -1 do
        if self.recompute then
            block_forward(self, self.blocks[i], self.x[i], self.t, "bwd")
        end
        block_backward(self, self.blocks[i], self.d)
    end
    backward(self.embedding, self.d, nil)
    self.parameters:reduce()
end

--- Collective. One step; returns the loss.
-- @tparam table options backward (boolean), and the settings of an optimizer (cplab.optimizer)
function Stack:step(options)
    self.parameters:zero_gradients()
    self:forward()
    local loss = self:loss()
    if options.backward then
        self:backward()
        self.grad_norm = optimizers.norm(self.parameters, self.kernels)
    end
    if options.optimizer then
        optimizers.update(self.parameters, self.kernels, options, self.grad_norm)
    end
    for _, c in pairs(self.conversions) do
        c:end_step()
    end
    return loss
end

--- Turns token tracing on or off for the steps to come.
function Stack:set_trace(on)
    check(C.cpl_tensor_mark(self.tokens, self.layouts.live._ptr, self.rank, on))
    self:mark_depths(on)
end

--- Distinct routes built at preparation and, where lazy, in the last step.
function Stack:count_routes()
    local prepared, in_step = #self.rolled, 0 -- those that bring labels and rolled tokens
    for _, place in pairs(self.places) do
        prepared = prepared + tonumber(C.cpl_place_routes_built(place))
    end
    for _, c in pairs(self.conversions) do
        prepared = prepared + (self.lazy and 0 or 1)
        in_step = in_step + c.built_in_step
    end
    return prepared, in_step
end

-- ---- what parity compares --------------------------------------------------------

--- Each layer's output and the logits, as rows of the model's layout.
function Stack:outputs()
    local list = {}
    for i, block in ipairs(self.blocks) do
        list[i] = { name = block.name, tensor = self.x[i + 1] }
    end
    list[#list + 1] = { name = "logits", tensor = self.logits }
    return self:add_depth_outputs(list)
end

--- The gradient of each parameter (the same on all ranks).
function Stack:gradients()
    local list = {}
    for i, entry in ipairs(self.parameters.list) do
        list[i] = { name = entry.name, tensor = entry.grad }
    end
    return list
end

--- The gradient of the embedding's output, as rows of the model's layout.
function Stack:input_gradients()
    return self:add_depth_input_gradients { { name = "embedding (output)", tensor = self.d } }
end

require "cplab.faults"(Stack)
mtp.install(Stack, { layer = make_layer, norm = make_norm, block = make_block,
    conversions = make_conversions, activations = make_block_activations, forward = forward,
    backward = backward, block_forward = block_forward, block_backward = block_backward,
    loss = mean_loss })

return M
