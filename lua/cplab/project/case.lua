--- A case of an experiment on a cluster: the projected step and its row.
-- @module cplab.project.case
local args = require "cplab.check_args"
local costs = require "cplab.cost"
local models = require "cplab.model"
local streams = require "cplab.stream"

local M = {}

-- ---- model and stream -----------------------------------------------------------------

local function gcd(a, b)
    while b > 0 do a, b = b, a % b end
    return a
end

local function multiple_of(a, b)
    return a / gcd(a, b) * b
end

--- A copy of a case with another size: tokens, cp or nodes.
-- Nodes are filled: cp = nodes * ranks_per_node / tp. What sequences are padded to grows along.
-- @tparam table case
-- @tparam string axis
-- @tparam number value
-- @tparam table cluster
-- @treturn ?table nil where nodes do not hold a whole number of CP ranks
-- @treturn ?string the sentence
function M.at(case, axis, value, cluster)
    local copy = {}
    for name, old in pairs(case) do copy[name] = old end
    copy[axis] = value
    if axis == "nodes" then
        local ranks = value * cluster.ranks_per_node
        if ranks % case.tp ~= 0 then
            return nil, ("%d ranks of %d nodes are not a multiple of tp = %d"):format(ranks, value,
                case.tp)
        end
        copy.cp = ranks / case.tp
    end
    copy.multiple = multiple_of(case.multiple or 2, 2 * copy.cp * copy.tp)
    return copy
end

-- A size is what it says to an eighth: many short sequences cannot be scaled to any.
local FAR = 1 / 8

-- The stream with all sequences longer or shorter by one factor, each a multiple of `unit`; real
-- lengths by the same factor as the padded ones, empty sequences stay so.
local function scaled(stream, tokens, unit)
    local batch, sum, lengths, real = stream:batch(), 0, {}, {}
    local factor = tokens / batch / math.max(stream:n_positions(), 1)
    for i = 1, stream:n_sequences() do
        local sequence = stream:sequence(i - 1)
        local n = sequence.padded
        lengths[i] = n > 0 and math.max(1, math.floor(n * factor / unit + 0.5)) * unit or 0
        real[i] = n > 0 and math.ceil(sequence.real / n * lengths[i]) or 0
        sum = sum + batch * lengths[i]
    end
    if math.abs(sum - tokens) > FAR * tokens then
        error(("project: scaled to %d tokens, sequences of whole multiples of %d have %d"):format(
            tokens, unit, sum), 0)
    elseif stream:format() == "sbhd" then
        return streams.sbhd { seqlen = lengths[1], batch = batch }
    end
    return streams.thd { lengths = lengths, real = real }
end

-- What a function of the script returns, checked.
local function call(script, name, is, case)
    if not script[name] then
        error(("project: the experiment has no %s(case)"):format(name), 0)
    end
    local value = script[name](case, 0)
    if not is(value) then
        error(("project: %s(case) must return a cplab.%s (got %s)"):format(name, name,
            args.show(value)), 0)
    end
    return value
end

-- Sizes of tokens that the script does not know are made by scaling its stream.
local function stream_of(script, case, size)
    local stream = call(script, "stream", streams.is, case)
    local knows = script.params.tokens ~= nil or script.sweep.tokens ~= nil
    if not (size and size.axis == "tokens") or knows then return stream end
    return scaled(stream, size.value, case.multiple)
end

-- ---- a row ------------------------------------------------------------------------

-- Rows and products are of two bytes on clusters whose ranks have processors of their own; on
-- shared cores they are of the model's.
local function dtype_of(job, model)
    return job.dtype or not job.cluster.cores and "bf16" or model.dtype
end

-- The worst imbalance of any mixer.
local function imbalance(step)
    local worst = 1
    for _, item in ipairs(step.items or {}) do
        worst = math.max(worst, item.kind == "mixer" and item.detail.imbalance or 1)
    end
    return worst
end

local function prices_of(job, model, stream, case, layouts, near)
    return costs.new {
        cluster = job.cluster, model = model, stream = stream, cp = case.cp, tp = case.tp,
        backward = not job.forward, dtype = dtype_of(job, model), recompute = job.recompute,
        layouts = layouts, near = near,
    }
end

local function add_step(row, step)
    row.seconds = step.seconds
    row.step_ms, row.compute_ms = step.seconds * 1e3, step.compute * 1e3
    row.comm_ms, row.convert_ms = step.comm * 1e3, step.convert * 1e3
    row.host_ms = step.host * 1e3
    row.bytes, row.messages = step.bytes, step.messages
    row.conversions = step.metrics and step.metrics.conversions_fwd
    row.imbalance = imbalance(step)
end

local function too_large(job, case)
    local ranks = case.cp * case.tp
    local most = job.nodes and job.nodes * job.cluster.ranks_per_node
    if not most or ranks <= most then return nil end
    return ("needs %d ranks, %d node%s of %s have %d"):format(ranks, job.nodes,
        job.nodes == 1 and "" or "s", job.cluster.name, most)
end

-- The prices of a case and its assignment. "auto" is planned by the prices of this cluster, not by
-- those of the model's own, but from the candidates and with the ends that the model names; a
-- balanced layout stays near what the policy says.
local function planned(job, model, stream, case)
    local make = job.prices or prices_of
    if model.policy.is_auto then
        local prices = make(job, model, stream, case, model.auto.layouts)
        return prices, require("cplab.planner").auto(prices).assignment
    end
    local assignment = model:assignment(stream, { cp = case.cp, tp = case.tp })
    return make(job, model, stream, case, nil, assignment.near), assignment
end

local function project(job, row, case, size)
    local model = call(job.script, "model", models.is, case)
    local stream = stream_of(job.script, case, size)
    row.tokens, row.dtype = stream:n_positions() * stream:batch(), dtype_of(job, model)
    local prices, assignment = planned(job, model, stream, case)
    row.policy = assignment.name
    local step = prices:step(assignment)
    add_step(row, step)
    row.status = "projected"
    return step
end

-- The place in our own files says nothing to who wrote the script.
local function sentence(message)
    return (tostring(message):gsub("^[^\n]-lua/cplab/[^\n]-%.lua:%d+: ", ""))
end

--- Projects a case.
-- @tparam table job script, cluster, nodes, dtype, forward (no backward pass), recompute
-- @tparam table case
-- @tparam ?table size { axis =, value = } of a sweep: the case is one of `at`
-- @tparam ?string skipped why it is not projected
-- @treturn table a row: case, status ("projected", "skipped", "error"), reason; tokens, policy,
-- dtype, seconds, step_ms and its parts, bytes, messages, imbalance
-- @treturn ?table the step of prices
function M.row(job, case, size, skipped)
    local row = { case = case, reason = skipped or too_large(job, case) }
    row.status = row.reason and "skipped" or "error"
    if row.reason then return row end
    local ok, step = pcall(project, job, row, case, size)
    if ok then return row, step end
    row.reason = sentence(step)
    return row
end

return M
