--- The command `bench step`: what a step of a whole hybrid model costs, by policy and number of
-- ranks, and where its time goes.
-- @module cplab.bench_step
local bench = require "cplab.bench_compute"
local environment = require "cplab.environment"
local figures = require "cplab.bench.compute_figures"
local options = require "cplab.bench.step_options"

local M = {}

local FIELDS = { "policy", "cp", "tokens", "dtype", "preset", "scale", "layers", "hidden", "vocab",
    "heads", "kv_heads", "head_dim", "key_heads", "value_heads", "key_dim", "value_dim",
    "mlp_width", "gqa_mode", "a2a", "gdn_mode", "bound", "iters", "warmup", "gemm" }
local COUNTS = { "conversions_fwd", "conversions_bwd", "conversion_bytes_fwd",
    "conversion_bytes_bwd", "conversion_messages_fwd", "state_bytes", "host_syncs_in_step" }

local function add_counts(row, measured)
    for _, name in ipairs(COUNTS) do row[name] = measured.counts[name] end
    for name, value in pairs(measured.experts) do row[name] = value end
    row.conversions = row.conversions_fwd + row.conversions_bwd
    row.conversion_bytes = row.conversion_bytes_fwd + row.conversion_bytes_bwd
end

local function row_of(chosen, case, before)
    local row = bench.begin("step", case, FIELDS)
    local measured, failure = bench.on_ranks(chosen, "cplab.bench.step_rank", case, case.cp)
    if not measured then return row, failure end
    row.errors = measured.errors
    add_counts(row, measured)
    return figures.settle(row, measured, function()
        local add = case.device and figures.add_device_step or figures.add_step
        add(row, measured)
    end, before and before.peak_bytes)
end

--- Carries the command out.
-- @tparam table arguments words of the command line; json, device, transport
-- @treturn number exit status: 1 where a row is wrong or ended with an error, 3 where there is no
-- such device, or it does not serve so many ranks
-- @treturn ?string what to tell the user
function M.run(arguments)
    local _, processes = environment.transport()
    local chosen, message = options.read(arguments, processes)
    if not chosen then return 2, message end
    return bench.run("step", chosen, arguments.json, function(case, before)
        return row_of(chosen, case, before)
    end)
end

return M
