--- Multi-token prediction: depth d, from 1, predicts the token d + 1 positions on.
--
--     h_d = block_d(project(concat(norm_e(embedding(token at p + d)), norm_h(h_{d-1}))))
--     logits_d = head(final_norm_d(h_d)),   label_d = the token at p + d + 1
--
-- h_0 is the residual stream after the last layer, before the final norm: "the representation given
-- by the main model" (DeepSeek-V3, arXiv 2412.19437, section 2.2 and figure 3, whose order of
-- modules this is). Embedding and head are the model's own; norms, projection and block are the
-- depth's. The norm before the shared head is the depth's own too, as in Megatron-LM
-- (multi_token_prediction.py: final_layernorm) and in the published weights (shared_head.norm);
-- unlike there, the next depth reads h_d from before that norm, as in the paper. Projecting a
-- concatenation is the sum of two projections (proj_e, proj_h), so nothing is concatenated.
--
-- A row of depth d has a token where its sequence goes on for d tokens more. So a depth runs on a
-- stream whose sequences end d real tokens earlier, with the same rows in the same slots: that
-- stream is the padding mask, rolled once, and mixers and experts treat rows without a token as the
-- padding they are. Tokens and labels are rolled at preparation, each k in one exchange
-- (cplab.tokens); a step rolls nothing.
--
-- A depth is a table that looks like a stack of one block and inherits all else from the stack, so
-- what runs blocks runs its block.
-- @module cplab.mtp
local clib = require "clib"
local layouts = require "cplab.layout"
local rows = require "cplab.rows"
local streams = require "cplab.stream"
local tokens = require "cplab.tokens"
local walk = require("cplab.walk").parts
local C = clib.C

local M = {}

local Methods = {} -- of stacks
local parts -- what a stack builds with; see M.install

--- The stream on which depth d runs: each sequence has d real tokens less, or none.
function M.stream(stream, d)
    local lengths, real = {}, {}
    for i = 1, stream:n_sequences() do
        local sequence = stream:sequence(i - 1)
        lengths[i], real[i] = sequence.padded, math.max(sequence.real - d, 0)
    end
    return streams.thd { lengths = lengths, real = real }
end

--- A layout of another stream of the same padded length, with the same positions in the same slots.
function M.same_rows(layout, stream)
    local ranks = {}
    for r = 1, layout:n_ranks() do ranks[r] = layout:runs(r - 1) end
    return layouts.custom(stream, { cp = layout:cp(), tp = layout:tp(), ranks = ranks })
end

-- All layouts but balanced follow from padded lengths alone, and know their rows in closed form;
-- those of columns do not.
local function shortened(layout, stream)
    if layout.kind == "balanced" or not rawequal(layout, layout:positions_layout()) then
        return M.same_rows(layout, stream)
    end
    return layouts.create(layout.kind, stream, { cp = layout:cp(), tp = layout:tp() })
end

--- The layout of depth d: that of the model's stream, on its own.
function M.layout(layout, d)
    return shortened(layout, M.stream(layout:stream(), d))
end

-- Of the layouts that a depth needs.
local function layouts_of(stack, stream, number)
    local assignment, made, of = stack.assignment, {}, { live = {}, shard = {} }
    local entry = assignment.layers[stack.model.schedule:count() + number]
    local function add(where, name)
        local layout = stack.layouts[where][name]
        made[layout] = made[layout] or shortened(layout, stream)
        of[where][name] = made[layout]
    end
    add("live", assignment.exit)
    add("shard", assignment.exit)
    add("shard", entry.mixer)
    return of
end

-- What the loss of one depth counts for.
local function scale_of(stack)
    return stack.model.mtp and stack.model.mtp.loss_scale / #stack.depths or 0
end

-- ---- building ------------------------------------------------------------------

local function make_layers(depth, before)
    local stack, name, model = depth.stack, "mtp." .. depth.number, depth.model
    local function linear(of, what, n_in, n_out, kind)
        return parts.layer(of, name .. "." .. what, of.exit, kind or "linear",
            { ["in"] = n_in, out = n_out })
    end
    depth.embedding = linear(depth, "embedding", model.vocab, model.hidden, "embedding")
    depth.embedding.tied_to = stack.embedding
    depth.norm_e = parts.norm(depth, name .. ".norm_e", depth.exit)
    depth.proj_e = linear(depth, "proj_e", model.hidden, model.hidden)
    depth.norm_h = parts.norm(before, name .. ".norm_h", before.exit)
    depth.proj_h = linear(before, "proj_h", model.hidden, model.hidden)
    local index = model.schedule:count() + depth.number - 1
    depth.blocks[1] = parts.block(depth, index, name)
    depth.final_norm = parts.norm(depth, name .. ".final_norm", depth.exit)
    depth.head = linear(depth, "head", model.hidden, model.vocab)
    depth.head.tied_to = stack.head.tied_to or stack.head
end

local function make_depth(stack, d, before)
    local whole = stack.exit:stream()
    local stream = M.stream(whole, d * (stack.faults.mask_roll or 1))
    local layouts_here = layouts_of(stack, stream, d)
    local live = layouts_here.live[stack.assignment.exit]
    local depth = setmetatable({
        stack = stack, number = d, layouts = layouts_here, entry = live, exit = live, stages = {},
        n_labels = tokens.n_labels(M.stream(whole, d)), blocks = {}, there = {},
    }, { __index = stack })
    make_layers(depth, before)
    return depth
end

-- With recomputation only what leads out of a depth, its block's input and its logits are kept.
local function make_activations(depth, scratch, scale)
    local live = depth.exit
    for _, name in ipairs { "e", "ne", "nh", "final_h" } do
        if depth.recompute then
            scratch[name] = scratch[name] or depth:hidden_rows(live)
            depth[name] = scratch[name]
        else
            depth[name] = depth:hidden_rows(live)
        end
    end
    depth.de = depth:hidden_rows(live)
    parts.logits(depth, scale)
end

-- ---- walking -------------------------------------------------------------------

local function enter(depth, h)
    local forward = walk.forward
    forward(depth.embedding, depth.tokens, depth.e)
    forward(depth.norm_e, depth.e, depth.ne)
    forward(depth.proj_e, depth.ne, depth.x[1])
    forward(depth.norm_h, h, depth.nh)
    forward(depth.proj_h, depth.nh, depth.y)
    rows.accumulate(depth.kernels, depth.y, depth.x[1])
end

local function leave(depth)
    walk.forward(depth.final_norm, depth.x[2], depth.final_h)
    walk.forward(depth.head, depth.final_h, depth.logits)
end

-- d, the gradient of the block's input, becomes that of the h before, whose rows are in another
-- stream's layout.
local function enter_backward(depth, d, before)
    local backward = walk.backward
    backward(depth.proj_e, d, depth.dh)
    backward(depth.norm_e, depth.dh, depth.de)
    backward(depth.embedding, depth.de, nil)
    C.cpl_tensor_remark(d, before.exit._ptr)
    backward(depth.proj_h, d, depth.dh)
    backward(depth.norm_h, depth.dh, d)
end

--- The layers of all depths, behind those of the stack.
function Methods:make_depths()
    self.depths = {}
    local before = self
    for d = 1, self.model.mtp and self.model.mtp.depth or 0 do
        self.depths[d] = make_depth(self, d, before)
        before = self.depths[d]
    end
end

--- Collective. Conversions and memory of all depths.
function Methods:prepare_depths()
    local scratch = {}
    for _, depth in ipairs(self.depths) do
        parts.conversions(depth)
        parts.activations(depth)
        make_activations(depth, scratch, scale_of(self))
    end
end

--- Which rolled tokens each depth reads, and which are its labels. What a depth reads the one
-- before has as labels: as input they are rows of the depth's own layout, with the same positions
-- in the same slots.
function Methods:give_depths(rolled)
    for d, depth in ipairs(self.depths) do
        clib.check(C.cpl_tensor_expect(rolled[d], self.exit._ptr, self.rank,
            ("mtp.%d (tokens)"):format(d)))
        depth.tokens = rows.view(rolled[d], 0, { depth.exit:n_local(self.rank), 1 })
        depth.labels = rolled[d + 1]
    end
end

--- Marks the tokens of depths as rows of their layouts.
function Methods:mark_depths(traced)
    for _, depth in ipairs(self.depths) do
        clib.check(C.cpl_tensor_mark(depth.tokens, depth.exit._ptr, self.rank, traced))
    end
end

--- Collective. From the stack's last rows to the logits of all depths.
function Methods:forward_depths()
    local h = self.x[#self.x]
    for _, depth in ipairs(self.depths) do
        enter(depth, h)
        walk.block_forward(depth, depth.blocks[1], depth.x[1], depth.x[2], "fwd")
        leave(depth)
        h = depth.x[2]
    end
end

--- The losses of the depths and their gradients, which carry loss_scale / depth.
function Methods:differentiate_depths()
    for _, depth in ipairs(self.depths) do walk.differentiate(depth) end
end

--- Collective. The mean loss of each depth, when they are there.
-- @treturn {number,...}
-- @treturn number what they add to the loss
function Methods:depth_losses()
    local losses, sum = {}, 0
    for d, depth in ipairs(self.depths) do
        losses[d] = walk.loss(depth)
        sum = sum + scale_of(self) * losses[d]
    end
    return losses, sum
end

--- Collective. What the depths add to gradients; `self.d` becomes that of the stack's last
-- rows, of depths alone.
function Methods:backward_depths()
    for i = #self.depths, 1, -1 do
        local depth, before = self.depths[i], self.depths[i - 1] or self
        local is_last = i == #self.depths
        if self.recompute then
            enter(depth, before.x[#before.x])
            walk.block_forward(depth, depth.blocks[1], depth.x[1], self.t, "bwd")
            walk.forward(depth.final_norm, depth.x[2], depth.final_h)
        end
        walk.backward(depth.head, depth.dlogits, self.dh)
        walk.backward(depth.final_norm, self.dh, is_last and self.d or self.t)
        if not is_last then rows.accumulate(self.kernels, self.t, self.d) end
        walk.block_backward(depth, depth.blocks[1], self.d)
        enter_backward(depth, self.d, before)
    end
end

--- All blocks: the stack's, then the depths'.
function Methods:all_blocks()
    local list = {}
    for _, block in ipairs(self.blocks) do list[#list + 1] = block end
    for _, depth in ipairs(self.depths) do list[#list + 1] = depth.blocks[1] end
    return list
end

--- Adds the outputs and the logits of depths to a list for parity.
function Methods:add_depth_outputs(list)
    for d, depth in ipairs(self.depths) do
        list[#list + 1] = { name = depth.blocks[1].name, tensor = depth.x[2],
            layout = self.exit }
        list[#list + 1] = { name = ("mtp.%d.logits"):format(d), tensor = depth.logits,
            layout = self.exit }
    end
    return list
end

--- Adds the gradients of what depths read of the embedding.
function Methods:add_depth_input_gradients(list)
    for d, depth in ipairs(self.depths) do
        list[#list + 1] = { name = ("mtp.%d.embedding (output)"):format(d), tensor = depth.de,
            layout = self.exit }
    end
    return list
end

--- Adds the methods to the class of stacks.
-- @tparam table Stack
-- @tparam table of_stack its functions: layer, norm, block, conversions, activations, logits
function M.install(Stack, of_stack)
    parts = of_stack
    for name, method in pairs(Methods) do Stack[name] = method end
end

return M
