--- The lab: what `run(lab)` of an experiment works with, on each rank.
-- It is SPMD: every rank calls the same methods in the same order. Metrics of later steps
-- replace those of earlier ones, so a traced parity step followed by timed steps leaves the
-- parity of the one and the times of the other.
-- @classmod cplab.lab
-- @usage run = function(lab)
--   local m = lab:step { backward = true, reference = true, trace = true }
--   lab:check("parity_grad", m.parity_grad, 1e-12)
-- end
local args = require "cplab.check_args"
local clib = require "clib"
local comms = require "cplab.comm"
local decode = require "cplab.decode"
local decoders = require "cplab.decoder"
local experiments = require "cplab.experiment"
local measure = require "cplab.measure"
local metrics = require "cplab.metrics"
local models = require "cplab.model"
local optimizers = require "cplab.optimizer"
local outline = require "cplab.outline"
local pipeline = require "cplab.pipeline"
local plans = require "cplab.plans"
local references = require "cplab.reference"
local rows = require "cplab.rows"
local step_graph = require "cplab.step_graph"
local steps = require "cplab.steps"
local tensors = require "cplab.tensor"
local C, ffi = clib.C, clib.ffi

local Lab = {}
Lab.__index = Lab

local M = {}

local STEP = {
    iters = "integer?", warmup = "integer?", backward = "boolean?", reference = "boolean?",
    trace = "boolean?", recompute = "string?", pipeline = "table?", graphs = "integer?",
}
local REFERENCE = { iters = "integer?", backward = "boolean?" }
for name, wanted in pairs(optimizers.fields) do STEP[name], REFERENCE[name] = wanted, wanted end
local CONVERT = { method = "string?" }

-- ---- making --------------------------------------------------------------------

local function model_of(self)
    local f = self.experiment.model
    local model = f and experiments.call(f, self.case)
    if not models.is(model) then
        error("lab: model(case) must return a cplab.model", 0)
    end
    return model:with { dtype = self.options.dtype or model.dtype,
        seed = self.options.seed or model.seed }
end

--- A lab of one rank for one case. Of its cp * tp ranks, rank cp_rank * tp + tp_rank is this one;
-- with tp > 1 layers are split, see cplab.stack.
-- @tparam table t experiment, case, comm (`cpl_comm *`), options (dtype, seed, iters, warmup,
-- trace_tokens; faults: test only)
function M.new(t)
    local self = setmetatable({
        experiment = t.experiment, case = t.case, comm = t.comm, options = t.options or {},
        rank = C.cpl_comm_rank(t.comm), size = C.cpl_comm_size(t.comm),
        metrics = {}, checks = {}, samples = {}, records = {}, streams = {}, shelf = {},
        n_stacks = 1,
        on_device = rows.are_away(t.comm),
    }, Lab)
    self.cp, self.tp = t.case.cp or self.size, t.case.tp or 1
    if self.experiment.stream then
        self.stream = steps.stream_at(self, 0)
    end
    if self.experiment.model then
        self.model = model_of(self)
    end
    return self
end

local function need(self, who, level)
    if not self.model then
        error(("lab:%s: the experiment has no model(case)"):format(who), level + 1)
    elseif not self.stream then
        error(("lab:%s: the experiment has no stream(case)"):format(who), level + 1)
    end
end

local function need_stack(self, who)
    need(self, who, 3)
    return steps.stack_at(self, 0)
end

-- ---- the reference ---------------------------------------------------------------

-- Returns the settings of the optimizer.
local function check_options(who, options, fields)
    args.fields("lab:" .. who, options, fields, 3)
    local settings = optimizers.settings("lab:" .. who, options, 3)
    for _, name in ipairs { "iters", "warmup" } do
        local least = name == "iters" and 1 or 0
        if options[name] and options[name] < least then
            error(("lab:%s: %s must be at least %d (got %d)"):format(who, name, least,
                options[name]), 3)
        end
    end
    return settings
end

--- Collective. The same steps on one rank in the contiguous layout; computed once in a process.
-- @tparam table options iters, backward, and an optimizer as in `step`
-- @treturn table losses (one an iteration), loss (the last)
function Lab:reference(options)
    options = options or {}
    local settings = check_options("reference", options, REFERENCE)
    need_stack(self, "reference")
    local iters = options.iters or self.options.iters or 1
    local losses = references.losses(self, {
        iters = iters,
        backward = options.backward or options.optimizer ~= nil,
    }, optimizers.plan_rates("lab:reference", settings, iters, 2))
    return { losses = losses, loss = losses[#losses] }
end

-- ---- steps -----------------------------------------------------------------------

local function merge(into, from)
    for name, value in pairs(from) do
        into[name] = value
    end
    return into
end

--- Collective. A wrong row on any rank fails the case, with a check that says which.
-- @tparam table trace of cplab.steps
-- @treturn number wrong rows of all ranks
function Lab:judge_trace(trace)
    local wrong_rows, sentence = metrics.wrong_rows(self.comm, trace)
    if wrong_rows > 0 then
        self.checks[#self.checks + 1] = { name = "trace: " .. sentence, passed = false,
            value = wrong_rows, bound = { equals = 0 } }
    end
    return wrong_rows
end

-- What the caller left open, from the command line. The reference is of the first step, so a
-- compared run must not go on to other parameters or another stream.
local function fill_in(self, options)
    local compared = options.reference
    options.iters = options.iters or not compared and self.options.iters or 1
    options.warmup = options.warmup or not compared and self.options.warmup or 0
    if compared and options.iters > 1 and (options.optimizer or steps.vary(self)) then
        error(("lab:step: reference compares the first step; with an optimizer, or a stream for "
            .. "each step, iters must be 1 (got %d)"):format(options.iters), 3)
    end
    if options.backward == nil then
        options.backward = options.optimizer ~= nil or compared or false
    elseif not options.backward and options.optimizer then
        error("lab:step: an optimizer needs backward, which is false", 3)
    end
    return options
end

-- Collective. Ranks that ask for different things would train different models, or never meet.
local function agree(self, who, what, options)
    local text = optimizers.text(options)
    if not comms.wrap(self.comm):same(text) then
        error(("lab:%s: the ranks ask for different %s; rank %d: %s"):format(who, what, self.rank,
            text), 3)
    end
end

-- Of MTP: what is differentiated, and the mean over depths; returns the loss of each.
local function add_depths(result, stack)
    if not stack.model.mtp then return nil end
    local sum = 0
    for _, loss in ipairs(stack.mtp_losses) do sum = sum + loss end
    result.mtp_loss, result.total_loss = sum / #stack.mtp_losses, stack.total_loss
    return stack.mtp_losses
end

-- The stages that are asked for; the options keep a text that says them to `agree`. The same text
-- gives the same stages, so that a stack lives on.
local function take_stages(self, options)
    if not options.pipeline then
        self.stages = nil
        return
    elseif not self.model then
        return -- need_stack says so
    end
    local stages, words = pipeline.cut(self.model.schedule, options.pipeline, 3), {}
    for i, stage in ipairs(stages) do
        words[i] = ("%d:%d%s"):format(stage.pp_rank, stage.count, stage.entry or "")
    end
    options.pipeline = table.concat(words, ",")
    self.cuts = self.cuts or {}
    self.cuts[options.pipeline] = self.cuts[options.pipeline] or stages
    self.stages = self.cuts[options.pipeline]
end

-- What cannot be a graph, whatever the step does; what the caller left open, from the command line.
local function check_graphs(self, options)
    if not options.graphs then
        local is_lazy = self.model and self.model.routes == "lazy"
        options.graphs = not is_lazy and self.options.graphs or nil
        return
    end
    args.integer("lab:step", "graphs", options.graphs, 1, step_graph.most, 3)
    if not self.on_device then
        error(("lab:step: graphs = %d, but steps on the cpu are not captured: they need --device "
            .. "cuda"):format(options.graphs), 3)
    elseif self.model and self.model.routes == "lazy" then
        error(("lab:step: graphs = %d, but a step that builds its routes (routes = \"lazy\") is no "
            .. "graph"):format(options.graphs), 3)
    end
end

--- Collective. Runs steps from the model's initial parameters and returns their metrics, which
-- also become those of the case.
-- @tparam table options iters (1), warmup (0; leaves nothing behind), backward, reference (compare
-- with one rank: parity), trace (token tracing), graphs (see below); optimizer ("sgd", "adamw")
-- with lr (a number, or a function that gives that of a step, counted from 0, on all ranks the
-- same), clip (a bound on the norm of all gradients) and for adamw betas ({ 0.9, 0.95 }), eps
-- (1e-8), weight_decay (0.01; matrices only, see cplab.optimizer). `losses` lists the loss of each;
-- `grad_norm` is the norm of all gradients of the last, before clipping. With experts,
-- `expert_tokens` lists for each layer how many tokens chose each expert. With recompute = "layer"
-- a block keeps its input alone and runs forward again before its backward; its conversions then
-- count as the backward pass's.
-- With pipeline = { pp = 2 } (see cplab.pipeline.cut) the schedule is cut into stages, which run
-- one after the other on the same ranks and check in which layout hidden states arrive at each.
-- With graphs = n (on devices) stacks of the last n kinds of sequences live on, each with a graph
-- that serves steps with the same launches (see cplab.step_graph); `graph_replays` says how many of
-- the steps were replays, and `graph_captures` how many of these had to be captured first.
-- With MTP `loss` stays that of the next token, comparable with and without it; `mtp_losses` lists
-- that of each depth, `mtp_loss` is their mean, and `total_loss` = loss + loss_scale * mtp_loss is
-- what is differentiated (beside `aux_loss`).
function Lab:step(options)
    options = merge({}, args.value("lab:step", "options", options, "table?", 2) or {})
    local settings = check_options("step", options, STEP)
    if options.recompute then
        args.one_of("lab:step", "recompute", options.recompute, { "layer" }, 2)
    end
    check_graphs(self, options)
    take_stages(self, options)
    options.betas = nil
    merge(options, settings)
    optimizers.plan_rates("lab:step", fill_in(self, options), options.iters, 2)
    agree(self, "step", "steps", options)
    self.recompute = options.recompute
    need_stack(self, "step")
    collectgarbage() -- the peak is of this step, not of a stack that is gone
    local traced = options.trace or self.options.trace_tokens or false
    local key = options.reference and references.parity(self)
    C.cpl_memory_reset_peak()
    local run = steps.run(self, options, traced)
    local result = merge(metrics.structure(run.stack), metrics.counts(run.stack))
    local experts, expert_tokens = metrics.experts(run.stack)
    merge(result, experts)
    result.loss = run.losses[#run.losses]
    local mtp_losses = add_depths(result, run.stack)
    result.grad_norm = options.backward and run.stack.grad_norm or nil
    result.wrong_rows = traced and self:judge_trace(run.trace) or nil
    if key then
        merge(result, metrics.compare(run.stack, key, options.backward))
    end
    if options.graphs then
        result.graph_captures, result.graph_replays = run.captured, run.replayed
    end
    local times, samples = measure.times(measure.gather(self.comm, run.records), self.on_device)
    merge(result, times)
    merge(self.metrics, result)
    self.samples.step_ms = samples
    return merge({ losses = run.losses, expert_tokens = expert_tokens, mtp_losses = mtp_losses },
        result)
end

-- ---- decoding ------------------------------------------------------------------------

--- Collective. Prefills all but the last tokens of each sequence of the stream, decodes those, and
-- compares every layer's output and the logits with one forward pass over the whole stream on one
-- rank. Parameters are the initial ones. The metrics become those of the case; counts
-- (`conversions_fwd`, ...) are of the last decoding step, `host_syncs_in_step` of all steps.
-- @tparam table options last (how many tokens of each sequence are decoded; of shorter ones all),
-- chunk (1: tokens of each sequence in one decoding step), prefill (tokens of each sequence in one
-- step of the prefill; default: all at once), capacity (tokens that caches have room for: see
-- cplab.decoder; default: exactly what each rank will hold), reference (true), trace
-- @treturn table metrics: parity_decode, parity_prefill, wrong_rows, cache_bytes (keys and values,
-- of all ranks and layers), cache_imbalance (most over mean of ranks: what a decoding step's
-- attention costs them), gdn_state_bytes (states and tails, once), routes_built (of all steps),
-- prefill_ms (all of it), decode_ms (the median step), prefill_steps, decode_steps,
-- decode_allocations (of this process in the worst step on a stack that ran before; if not traced)
function Lab:decode(options)
    need(self, "decode", 2)
    self.stream = steps.stream_at(self, 0) -- what the reference is of
    options = decode.check(self, options or {}, 2)
    agree(self, "decode", "decodings", options)
    local result, samples, trace = decode.run(self, options, 2)
    result.wrong_rows = trace and self:judge_trace(trace) or nil
    merge(self.metrics, result)
    self.samples.decode_ms = samples
    return result
end

--- A decoder that a script drives itself: see cplab.decoder. With --trace-tokens it traces.
-- @tparam table options capacity: tokens that a sequence may have in all, a number or one for each
function Lab:decoder(options)
    need(self, "decoder", 2)
    local decoder = decoders.new(self, options or {}, 2)
    decoder:set_trace(self.options.trace_tokens or false)
    return decoder
end

-- ---- checks, records, tensors --------------------------------------------------------

local function judge(value, bound)
    if type(value) ~= "number" or value ~= value then
        return false
    elseif type(bound) == "table" then
        return value == bound.equals
    end
    return value <= bound
end

--- Passes iff value <= bound, or equals it for { equals = n }; nil and NaN fail.
-- @tparam string name
-- @tparam ?number value
-- @param bound a number or { equals = number }
function Lab:check(name, value, bound)
    if type(name) ~= "string" or name == "" then
        error("lab:check: the first argument is the name of the check", 2)
    end
    local equals = type(bound) == "table" and bound.equals
    if type(bound) ~= "number" and type(equals) ~= "number" then
        error(("lab:check: the bound of '%s' must be a number or { equals = number }"):format(
            name), 2)
    end
    local passed = judge(value, bound)
    self.checks[#self.checks + 1] = { name = name, passed = passed, value = value, bound = bound }
    return passed
end

--- Keeps a table of plain values with the case.
function Lab:record(t)
    if type(t) ~= "table" then
        error("lab:record: expected a table", 2)
    end
    self.records[#self.records + 1] = t
end

--- Collective. A new tensor with the rows of `to`, from one with those of `from`. A row is what
-- belongs to one position: of a batch all columns, as in a tensor [rows, batch, hidden]. Where a
-- rank's rows lie column by column, give `layout:columns()` on both sides. Routes and plans are
-- kept for the next time (cplab.plans).
-- @param tensor a cplab.tensor whose first axis is this rank's rows
-- @param from a layout or its name
-- @param to likewise
-- @tparam ?table options method: a name of cplab.exchange.methods(), or "auto"
function Lab:convert(tensor, from, to, options)
    args.fields("lab:convert", options or {}, CONVERT, 2)
    tensors.check("lab:convert", "tensor", tensor, 2)
    local own = plans.of(self)
    return (own:convert(tensor, own:layout(from, "lab:convert", 2), own:layout(to, "lab:convert",
        2), options and options.method, 2))
end

--- Collective. All rows in global order, on every rank. For a batch of columns a row is that of a
-- position, as in `convert`, unless the layout is one of columns.
-- @param tensor a cplab.tensor with this rank's rows
-- @param layout whose rows they are, or its name; default: where the model lives
-- (under an assignment: the exit layout)
function Lab:gather(tensor, layout)
    tensors.check("lab:gather", "tensor", tensor, 2)
    local of = layout and plans.of(self):layout(layout, "lab:gather", 2)
        or need_stack(self, "gather").exit:positions_layout()
    local shape, src = tensor:shape(), tensor._ptr
    local row_bytes = tonumber(C.cpl_tensor_width(src) * C.cpl_dtype_bytes(src.dtype))
    local most, total = 0, 0
    for rank = 0, self.size - 1 do
        most, total = math.max(most, of:n_local(rank)), total + of:n_local(rank)
    end
    if shape[1] ~= of:n_local(self.rank) then
        error(("lab:gather: %d rows, but rank %d has %d in %s"):format(shape[1], self.rank,
            of:n_local(self.rank), tostring(of)), 2)
    end
    local mine = ffi.new("char[?]", most * row_bytes)
    local all = ffi.new("char[?]", most * row_bytes * self.size)
    clib.check(C.cpl_tensor_download(src, mine), 2)
    clib.check(C.cpl_comm_gather(self.comm, mine, most * row_bytes, all), 2)
    shape[1] = total
    local result = tensors.zeros(shape, tensor:dtype())
    rows.edit(result._ptr, "char", function(out)
        for rank = 0, self.size - 1 do
            for slot, position in ipairs(of:positions(rank)) do
                ffi.copy(out + position * row_bytes, all + (rank * most + slot - 1) * row_bytes,
                    row_bytes)
            end
        end
    end)
    return result
end

--- Collective. The loss of each token of the last step, as rows of the entry layout, where the
-- batch and its masks are (under a fixed policy: where the model lives); 0 where there is no label.
-- Rows of a batch of columns are those of its columns.
-- @treturn cplab.tensor [rows, 1], f64
-- @treturn Layout whose rows they are, for `gather`
-- @raise before any step
function Lab:token_losses()
    if not self.stack then error("lab:token_losses: no step has run", 2) end
    return require("cplab.token_losses").of(self.stack), self.stack.entry
end

--- What the worker sends to the controller.
function Lab:result()
    return { metrics = self.metrics, checks = self.checks, samples = self.samples,
        records = self.records }
end

--- Lines that say what a case would do, with nothing run.
-- @tparam table experiment
-- @tparam table case
-- @tparam ?table options dtype, seed
-- @treturn {string,...}
function M.describe(experiment, case, options)
    local self = { experiment = experiment, case = case, options = options or {} }
    return outline.lines(steps.make_stream(experiment, case, 0), model_of(self), case.cp or 1,
        case.tp or 1)
end

return M
