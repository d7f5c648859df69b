--- The walk of a step through a stack: forward, loss, backward. A stack (cplab.stack) says what
-- there is; here is in which order it runs, and what goes from where to where.
-- @module cplab.walk
local clib = require "clib"
local crossing = require "cplab.crossing"
local rows = require "cplab.rows"
local C, ffi = clib.C, clib.ffi

local check = clib.check

local Stack = {} -- the methods

local function forward(layer, x, y)
    check(C.cpl_layer_forward(layer.ptr, x, y), 2)
end

local function backward(layer, dy, dx)
    check(C.cpl_layer_backward(layer.ptr, dy, dx), 2)
end

-- Who asks for a conversion takes the mark off its target; only the exchange puts one there. So
-- whoever takes the rows sees a conversion that did not happen, in every step and untraced, though
-- the target still holds the rows of the step before.
local function to_layer(self, branch, src, dst, pass, of_gradient)
    if dst ~= src then C.cpl_tensor_unmark(dst) end
    self:convert_to(branch, src, dst, pass, of_gradient)
end

local function back_home(self, branch, src, dst, pass, of_gradient)
    if dst ~= src then C.cpl_tensor_unmark(dst) end
    self:convert_back(branch, src, dst, pass, of_gradient)
    check(C.cpl_tensor_expect(dst, branch.block.live._ptr, self.rank, branch.name
        .. (of_gradient and " (gradient)" or " (output)")))
end

-- `pass` is what conversions count for: a block that runs again does so in the backward pass.
local function branch_forward(self, branch, x, pass)
    local c, there, scratch = branch.conversion, branch.there, branch.block.scratch
    local h = c and not c.in_place and scratch.h or branch.h
    forward(branch.norm, x, h)
    if not c then
        forward(branch.layer, branch.h, there.y)
        return there.y
    end
    to_layer(self, branch, h, branch.h, pass, false)
    forward(branch.layer, branch.h, there.y)
    local y = c.in_place and there.y or scratch.y
    back_home(self, branch, there.y, y, pass, false)
    return y
end

local function block_forward(self, block, x, out, pass)
    local mid = block.ffn and block.mid or out
    rows.add(self.kernels, x, branch_forward(self, block.mixer, x, pass), mid)
    if block.ffn then
        rows.add(self.kernels, mid, branch_forward(self, block.ffn, mid, pass), out)
    end
end

local function embed(self)
    forward(self.embedding, self.tokens, self.out[0])
    self:swap_runs(self.out[0])
end

local function predict(self)
    local last = #self.blocks
    crossing.forward(self, self.crossings[last + 1], self.out[last])
    forward(self.final_norm, self.x[last + 1], self.final_h)
    forward(self.head, self.final_h, self.logits)
    self:forward_depths()
end

--- Collective. Stage s, from 1, of a forward pass: from what the stage before left (or the tokens)
-- to its own last block (or the logits). Stages run in order; those of other stacks, on other
-- microbatches, may run in between.
function Stack:forward_stage(s)
    local stage = self.stages[s]
    if s == 1 then embed(self) end
    for i = stage.first + 1, stage.first + stage.count do
        crossing.forward(self, self.crossings[i], self.out[i - 1])
        block_forward(self, self.blocks[i], self.x[i], self.out[i], "fwd")
    end
    if s == #self.stages then predict(self) end
end

--- Collective. From tokens to logits.
function Stack:forward()
    for s = 1, #self.stages do self:forward_stage(s) end
end

-- Logits meet the label of their own token. Labels, those of depths too, are rows of the layout in
-- which the stack's tokens were rolled.
local function expect_at_loss(self)
    local who = self.number and ("mtp.%d.loss"):format(self.number) or "loss"
    check(C.cpl_tensor_expect(self.logits, self.exit._ptr, self.rank, who))
    check(C.cpl_tensor_expect(self.labels, (self.stack or self).exit._ptr, self.rank,
        who .. " (labels)"))
end

-- Of a stack's or a depth's logits: dlogits is filled, times what its dial says, and loss_sum.
local function differentiate(self)
    expect_at_loss(self)
    self.kernels.cross_entropy(ffi.new("cpl_cross_entropy", {
        logits = self.logits.data, labels = self.labels.data, dlogits = self.dlogits.data,
        loss_sum = ffi.cast("double *", self.loss_sum.data), n_rows = self.n_logits,
        vocab = self.model.vocab, grad_scale = 1, scale = self.grad_scale:at(),
    }))
    check(C.cpl_tensor_mark_like(self.dlogits, self.logits))
end

-- Collective. The mean loss of what was differentiated last.
local function mean_loss(self)
    local sum = ffi.new "double[1]"
    check(C.cpl_tensor_download(self.loss_sum, sum))
    check(C.cpl_comm_sum(self.comm, sum, 1, C.CPL_F64))
    return sum[0] / math.max(self.n_labels, 1)
end

--- Collective. The mean loss over the labelled tokens of the group; dlogits is filled. With MTP
-- `mtp_losses` are those of the depths, and `total_loss` is what is differentiated.
function Stack:loss()
    self:differentiate()
    return self:read_loss()
end

--- From logits to the losses of the rank's rows, and dlogits; nobody reads the losses yet.
function Stack:differentiate()
    differentiate(self)
    self:differentiate_depths()
end

--- Collective. The losses of what was differentiated last.
function Stack:read_loss()
    local loss = mean_loss(self)
    local losses, added = self:depth_losses()
    self.mtp_losses, self.total_loss = losses, loss + added
    return loss
end

local function branch_backward(self, branch, d)
    local c, there = branch.conversion, branch.there
    if not c then
        backward(branch.layer, d, there.dh)
        return there.dh
    end
    to_layer(self, branch, d, there.dy, "bwd", true)
    backward(branch.layer, there.dy, there.dh)
    local dh = c.in_place and there.dh or branch.block.scratch.dh
    back_home(self, branch, there.dh, dh, "bwd", true)
    return dh
end

-- d, the gradient of the block's output, becomes that of its input.
local function block_backward(self, block, d)
    for _, branch in ipairs { block.ffn or block.mixer, block.ffn and block.mixer } do
        local t = block.scratch.t
        backward(branch.norm, branch_backward(self, branch, d), t)
        rows.accumulate(self.kernels, t, d)
    end
end

-- From dlogits to the gradient of what the last block gave.
local function predict_backward(self)
    self:backward_depths()
    backward(self.head, self.dlogits, self.dh)
    backward(self.final_norm, self.dh, #self.depths > 0 and self.t or self.d)
    if #self.depths > 0 then rows.accumulate(self.kernels, self.t, self.d) end
    self.d_here = crossing.backward(self, self.crossings[#self.blocks + 1], self.d)
end

-- The rest of a backward pass when all stages are through.
local function embed_backward(self)
    self.input_d = self.d_here
    backward(self.embedding, self.input_d, nil)
    self.parameters:reduce()
end

--- Collective. Stage s of a backward pass, the last stage first: from the gradient of what it gave
-- to that of what the stage before gave, and at the first to the gradients of all parameters,
-- summed over the group.
function Stack:backward_stage(s)
    local stage = self.stages[s]
    if s == #self.stages then predict_backward(self) end
    for i = stage.first + stage.count, stage.first + 1, -1 do
        local block = self.blocks[i]
        if self.recompute then
            block_forward(self, block, self.x[i], block.scratch.t, "bwd")
        end
        block_backward(self, block, self.d_here)
        self.d_here = crossing.backward(self, self.crossings[i], self.d_here)
    end
    if s == 1 then embed_backward(self) end
end

--- Collective. From dlogits to the gradients of all parameters, summed over the group.
function Stack:backward()
    for s = #self.stages, 1, -1 do self:backward_stage(s) end
end

--- `methods` of stacks, and `parts` that depths of MTP walk with: forward and backward of a layer
-- and of a block, differentiate, and loss.
return { methods = Stack, parts = { forward = forward, backward = backward,
    block_forward = block_forward, block_backward = block_backward, differentiate = differentiate,
    loss = mean_loss } }
