--- A stack: a model made live on one rank for one stream.
-- Everything that thinks happens in `new`: layouts, routes, plans, layers and memory. A step
-- only walks the list (cplab.walk). A block is a mixer and perhaps a feed-forward network, each a
-- *branch*: x = x + back(layer(to(norm(x)))), where `to` and `back` are conversions if the layer
-- runs elsewhere. The backward pass walks the same blocks in reverse. Layers count from 0 in names.
--
-- What runs where is the model's assignment for the stream (cplab.assignment). Each block has a
-- home, the layout in which the residual stream lives while it runs; between blocks of different
-- homes the residual stream *crosses*: it is converted once, and its gradient on the way back.
-- Embedding and tokens live in the layout `entry`, what follows the last block in `exit`.
--
-- With tensor parallelism norms, embedding, head and loss work on the window of each rank; the
-- layer of a branch on the whole shard of its CP rank, in the part of the group that has the same
-- tp rank. Each rank holds all parameters and uses its slice: memory is not what is studied here.
-- @classmod cplab.stack
local assignments = require "cplab.assignment"
local clib = require "clib"
local comms = require "cplab.comm"
local conversion = require "cplab.conversion"
local crossing = require "cplab.crossing"
local dials = require "cplab.dial"
local layers = require "cplab.layers"
local named = require "cplab.named_layouts"
local mtp = require "cplab.mtp"
local optimizers = require "cplab.optimizer"
local parameters = require "cplab.parameters"
local pipeline = require "cplab.pipeline"
local rows = require "cplab.rows"
local tokens = require "cplab.tokens"
local walk = require "cplab.walk"
local C, ffi = clib.C, clib.ffi

local Stack = {}
Stack.__index = Stack

local M = {}

local check = clib.check

-- ---- building ------------------------------------------------------------------

local function make_layer(self, name, layout, kind, config)
    local layer = {
        name = name, layout = layout, ptr = layers.create(kind, config, self.dtype),
        is_split = self.tp > 1 and layout:tp() == 1,
    }
    self.layers[#self.layers + 1] = layer
    return layer
end

local function make_norm(self, name, live)
    return make_layer(self, name, live, "norm",
        { hidden = self.model.hidden, eps = self.model.eps })
end

local function make_branch(self, block, norm, name, layout, kind, config)
    local norm_layer = make_norm(self, norm, block.live)
    return {
        block = block, name = name, layout = layout, norm = norm_layer,
        layer = make_layer(self, name, layout, kind, config),
    }
end

-- Block i, from 0; `live` and `shard` are its home, over all ranks and over the CP ranks alone.
local function make_block(self, i, name)
    local model, entry = self.model, self.assignment.layers[i + 1]
    local kind = entry.layer.kind
    local block = { index = i, name = name .. "." .. kind,
        live = self.layouts.live[entry.live], shard = self.layouts.shard[entry.live] }
    block.mixer = make_branch(self, block, name .. ".norm1", block.name,
        self.layouts.shard[entry.mixer], kind, layers.mixer_config(model, kind, entry.layer))
    local ffn = model:ffn(i)
    if ffn then
        block.ffn = make_branch(self, block, name .. ".norm2", name .. "." .. ffn, block.shard,
            ffn, layers.ffn_config(model, ffn))
        block.is_moe = ffn == "moe"
    end
    return block
end

local function make_layers(self)
    local model = self.model
    self.embedding = make_layer(self, "embedding", self.entry, "embedding",
        { ["in"] = model.vocab, out = model.hidden })
    for i = 1, model.schedule:count() do
        self.blocks[i] = make_block(self, i - 1, "layers." .. i - 1)
    end
    self.final_norm = make_norm(self, "final_norm", self.exit)
    self.head = make_layer(self, "head", self.exit, "linear",
        { ["in"] = model.hidden, out = model.vocab })
    self.head.tied_to = model.tied and self.embedding or nil
    self:make_depths()
end

local function make_place(self, layout, is_split)
    local place = clib.create("cpl_place", C.cpl_place_destroy, 1, C.cpl_place_create,
        is_split and self.cp_comm or self.comm, layout._ptr)
    if is_split then check(C.cpl_place_split(place, self:tp_slice(), self.tp)) end
    if self.recompute then C.cpl_place_share_kept(place) end
    C.cpl_place_demand_marks(place)
    return place
end

-- Layers that run in one layout share a place, and with it their routes.
local function prepare_layers(self)
    for _, layer in ipairs(self.layers) do
        local layout = layer.layout
        self.places[layout] = self.places[layout] or make_place(self, layout, layer.is_split)
        check(C.cpl_layer_prepare(layer.ptr, layer.name, self.places[layout]))
    end
end

-- Of a layout over the CP ranks alone, the rows of this rank's CP rank.
local function n_rows(self, layout)
    return layout:n_local(layout:tp() > 1 and self.rank or self.cp_rank)
end

--- Rows of hidden states in a layout.
function Stack:hidden_rows(layout)
    return rows.new(self.comm, self.dtype, n_rows(self, layout), self.model.hidden)
end

-- Visits all branches in their order.
local function each_branch(self, visit)
    for _, block in ipairs(self.blocks) do
        visit(block.mixer, block)
        if block.ffn then visit(block.ffn, block) end
    end
end

-- Crossing i is before block i, the last one before what follows the blocks: a list of conversions,
-- empty where neighbours have one home.
local function make_conversions(self)
    each_branch(self, function(branch, block)
        branch.conversion = conversion.to_layer(self, block.live, block.shard, branch.layout)
    end)
    self.crossings = {}
    local at, begins = self.entry, {}
    for s = 2, #self.stages do begins[self.stages[s].first] = s end
    for i = 1, #self.blocks + 1 do
        local block, s = self.blocks[i], begins[i - 1]
        local live = block and block.live or self.exit
        self.crossings[i] = crossing.new(self, at, live, { index = i - 1,
            name = block and block.name or "final_norm", stage = self.stages[s],
            before = s and self.stages[s - 1] })
        at = live
    end
end

-- Scratch is shared by all that have as many rows.
local function scratch_for(self, layout)
    local n = n_rows(self, layout)
    if not self.scratch[n] then
        local scratch = {}
        for _, name in ipairs { "h", "y", "d", "dh", "t" } do
            scratch[name] = self:hidden_rows(layout)
        end
        self.scratch[n] = scratch
    end
    return self.scratch[n]
end

--- Memory for a gradient of the residual stream that is copied to a layout.
function Stack:add_gradient_rows(layout)
    local scratch = scratch_for(self, layout)
    scratch.spare = scratch.spare or self:hidden_rows(layout)
end

--- Where such a gradient goes to: a tensor other than the one that it comes from. Onto itself it
-- would go through a buffer, unless the rows only swap.
function Stack:gradient_rows(layout, src)
    local scratch = self.scratch[n_rows(self, layout)]
    return scratch.d ~= src and scratch.d or scratch.spare
end

-- Memory for what backward reads: each its own, or with `recompute` one for all of a role and a
-- layout.
local function keeper(self)
    local kept = {}
    return function(role, layout)
        kept[role] = kept[role] or {}
        local tensor = kept[role][layout] or self:hidden_rows(layout)
        kept[role][layout] = self.recompute and tensor or nil
        return tensor
    end
end

-- The input of each block, x, and what the one before gave, out: one tensor unless the residual
-- stream is copied on its way.
local function make_residuals(self)
    self.x, self.out = {}, {}
    for i = 1, #self.blocks + 1 do
        local block = self.blocks[i]
        self.x[i] = self:hidden_rows(block and block.live or self.exit)
        self.out[i - 1] = crossing.prepare(self, self.crossings[i], self.x[i])
    end
end

-- What backward reads is kept per branch, or with `recompute` the input of a block alone; the rest
-- is scratch that all branches share.
local function make_block_activations(self)
    local keep = keeper(self)
    each_branch(self, function(branch, block)
        local layout = branch.layout
        block.scratch = scratch_for(self, block.live)
        branch.h = keep(branch == block.ffn and "ffn" or "mixer", layout)
        if branch.conversion and not self.there[layout] then
            self.there[layout] = { y = self:hidden_rows(layout), dh = self:hidden_rows(layout),
                dy = self:hidden_rows(layout) }
        end
        branch.there = branch.conversion and self.there[layout] or block.scratch
    end)
    make_residuals(self)
    for _, block in ipairs(self.blocks) do
        block.mid = block.ffn and keep("mid", block.live) or nil
    end
end

-- Of a stack or a depth: what it predicts, and its loss over the rows of this rank; `scale`: what
-- the mean over its labelled tokens counts for.
local function make_logits(self, scale)
    local n = self.exit:n_local(self.rank)
    self.logits = rows.new(self.comm, self.dtype, n, self.model.vocab)
    self.dlogits = rows.new(self.comm, self.dtype, n, self.model.vocab)
    self.loss_sum = rows.new(self.comm, "f64", 1, 1)
    self.grad_scale = dials.new(self.comm)
    self.grad_scale:turn(scale / math.max(self.n_labels, 1))
end

local function make_activations(self)
    scratch_for(self, self.entry)
    for name, tensor in pairs(scratch_for(self, self.exit)) do self[name] = tensor end
    self.final_h = self:hidden_rows(self.exit)
    make_block_activations(self)
    make_logits(self, 1)
end

-- The ranks with the same tp rank, one of each CP rank: the group of the layers that are split.
local function part_of(self)
    local members = {}
    for c = 0, self.cp - 1 do members[c + 1] = c * self.tp + self.tp_rank end
    return comms.wrap(self.comm):part(members)
end

-- The kernels that work where the rows of the group are.
local function kernels_of(t)
    local kernels = C.cpl_comm_kernels(t.comm, clib.dtypes[t.model.dtype])
    if kernels == nil then error(ffi.string(C.cpl_last_error()), 0) end
    return kernels
end

-- What each rank planned for itself must be one plan: ranks that convert differently would wait for
-- each other, or worse.
local function check_plan(self)
    if not self.model.policy.is_auto then return end
    local text = table.concat(assignments.describe(self.assignment), "; ")
    if not comms.wrap(self.comm):same(text) then
        error(("stack: the ranks plan different layouts; rank %d: %s"):format(self.rank, text), 0)
    end
end

-- What runs where, as layouts of rows.
local function place_layers(self, group)
    local model, stream = self.model, self.stream
    self.assignment = pipeline.place(model:assignment(stream, group),
        self.stages or pipeline.cut(model.schedule, { pp = 1 }))
    self.stages = self.assignment.stages
    check_plan(self)
    self.layouts = named.by_column(model:layouts(self.assignment, stream, group))
    self.entry = self.layouts.live[self.assignment.entry]
    self.exit = self.layouts.live[self.assignment.exit]
end

-- Those of another stack of the model, as they are, or new ones.
local function take_parameters(self, others)
    self.parameters = others or parameters.new(self.comm, self.dtype, self.layers)
    if others then others:bind(self.layers) end
end

local function place_tokens(self)
    self.placed = tokens.place(self, #self.depths + 1, self:roll_layouts())
    self.tokens, self.rolled = self.placed.tokens, self.placed.rolled
    self:claim_rolled(self.rolled)
    self.labels = self.rolled[1]
    self:give_depths(self.rolled)
    self:set_trace(self.trace)
end

-- All that hangs on the stream.
local function take_memory(self)
    prepare_layers(self)
    make_conversions(self)
    self.n_labels = tokens.n_labels(self.exit:stream())
    make_activations(self)
    self:prepare_depths()
    place_tokens(self)
end

--- Whether a stream has the sequences that the stack was made for, whatever its tokens are.
function Stack:has_sequences_of(stream)
    return C.cpl_stream_digest(self.stream._ptr) == C.cpl_stream_digest(stream._ptr)
end

--- Collective. The stack goes on with another microbatch: a stream with the same sequences, which
-- may have other tokens. Marks of tokens are those of no trace: see set_trace.
function Stack:take_tokens(stream)
    if rawequal(stream, self.stream) then return end
    if not self:has_sequences_of(stream) then
        error(("stack: it was made for %s, and takes no tokens of %s, which has other sequences")
            :format(tostring(self.stream), tostring(stream)), 2)
    end
    tokens.fill(self.placed, stream)
    self.stream = stream
    self:claim_rolled(self.rolled)
end

--- Collective. Makes a model live.
-- @tparam table t model, stream, comm (`cpl_comm *`), cp, tp, trace (token tracing), recompute
-- ("layer": blocks keep their input alone, and backward runs each forward again), stages (of
-- cplab.pipeline.cut; none: one), parameters (those of another stack of the model, as they are;
-- none: new ones, of the model's seed), mould (in which it is made; none: in memory of its own),
-- past (what sequences were before: see cplab.decoder; bound
-- to the layers before they are prepared), faults
-- (test only: { swap_runs =, skip_back =, drop_handoff =, rope_shift =, drop_merge =, .. }: see
-- cplab.faults)
function M.new(t)
    local self = setmetatable({
        model = t.model, stream = t.stream, comm = t.comm, dtype = t.model.dtype,
        rank = C.cpl_comm_rank(t.comm), size = C.cpl_comm_size(t.comm),
        tp = t.tp or 1, trace = t.trace or false, faults = t.faults or {},
        kernels = kernels_of(t), mould = t.mould, steps = {},
        layers = {}, places = {}, blocks = {}, conversions = {}, ways = {}, there = {},
        scratch = {}, stages = t.stages, cut = t.stages, recompute = t.recompute,
        lazy = t.model.routes == "lazy",
    }, Stack)
    place_layers(self, { cp = t.cp, tp = t.tp })
    self.cp, self.tp_rank = self.size / self.tp, self.rank % self.tp
    self.cp_rank = math.floor(self.rank / self.tp)
    self.part = self.tp > 1 and part_of(self) or nil
    self.cp_comm = self.part and self.part._ptr or self.comm
    make_layers(self)
    if t.past then t.past:bind(self) end
    take_parameters(self, t.parameters)
    if self.mould then
        self.mould:fill(take_memory, self)
    else
        take_memory(self)
    end
    self.n_logits = self.exit:n_local(self.rank)
    if not t.parameters then self.parameters:draw(self.model.seed) end
    self:plant_faults()
    return self
end

-- ---- steps ---------------------------------------------------------------------

--- Collective. One step; returns the loss.
-- @tparam table options backward (boolean), and the settings of an optimizer (cplab.optimizer)
function Stack:step(options)
    self:run_step(options)
    return self:read_step(options)
end

--- Collective. One step, of which nothing is read: on a device nobody waits for it.
function Stack:run_step(options)
    self.parameters:zero_gradients()
    self:forward()
    self:differentiate()
    if options.backward then
        self:backward()
        optimizers.measure(self.parameters)
    end
    if options.optimizer then
        optimizers.update(self.parameters, options)
    end
    self:end_step()
end

--- Collective. The loss of the last step; `grad_norm` is the norm of its gradients, if any.
function Stack:read_step(options)
    self.grad_norm = options.backward and optimizers.norm(self.parameters) or nil
    return self:read_loss()
end

--- Returns when the rank's device has done all that it was told; at once without one.
function Stack:wait()
    check(C.cpl_tensor_download(self.loss_sum, ffi.new "double[1]"))
end

--- The end of a step, of training or of decoding: what was made for it alone is forgotten.
function Stack:end_step()
    for _, c in pairs(self.conversions) do c:end_step() end
end

--- Turns token tracing on or off for the steps to come.
function Stack:set_trace(on)
    check(C.cpl_tensor_mark(self.tokens, self.entry._ptr, self.rank, on))
    self:mark_depths(on)
end

--- Distinct routes built at preparation and, where lazy, in the last step.
function Stack:count_routes()
    local prepared, in_step = self.placed.n_routes, 0 -- that bring labels and rolled tokens
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

--- Each layer's output and the logits, and the layouts whose rows they are: the home of the layer,
-- or where the residual stream went from there if it went in place.
function Stack:outputs()
    local list = {}
    for i, block in ipairs(self.blocks) do
        list[i] = { name = block.name, tensor = self.out[i],
            layout = crossing.kept_in(self.crossings[i + 1], block.live) }
    end
    list[#list + 1] = { name = "logits", tensor = self.logits, layout = self.exit }
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

--- The gradient of the embedding's output, as rows of the entry layout; and of depths.
function Stack:input_gradients()
    return self:add_depth_input_gradients { { name = "embedding (output)",
        tensor = self.input_d, layout = self.entry } }
end

require "cplab.faults"(Stack)
for name, method in pairs(walk.methods) do Stack[name] = method end
mtp.install(Stack, { layer = make_layer, norm = make_norm, block = make_block,
    conversions = make_conversions, activations = make_block_activations, logits = make_logits })

return M
