--- What `bench gqa`, `bench gdn` and `bench step` share: a head that says which machine this is and
-- how busy it is, or which devices there are; rows as they come, and the exit status.
-- @module cplab.bench_compute
local clib = require "clib"
local copies = require "cplab.bench.copy"
local environment = require "cplab.environment"
local outcome = require "cplab.bench.outcome"
local ranks = require "cplab.ranks"
local surveys = require "cplab.bench.survey"
local tables = require "cplab.bench.compute_table"

local M = {}

-- How many threads want to run, on the average of a minute.
local function load_average()
    local file = io.open("/proc/loadavg", "r")
    local load = file and file:read "*n"
    if file then file:close() end
    return load
end

-- As many as any row has.
local function most_ranks(cases)
    local n = 1
    for _, case in ipairs(cases) do n = math.max(n, case.cp or 1) end
    return n
end

-- What all rows have in common; or nil and why there is no such device, or not for so many ranks.
local function describe(kind, chosen)
    local device = chosen.device
    if not device then return environment.describe { device = "cpu" } end
    local is_there, missing = environment.use_device(device, chosen.transport)
    if not is_there then return nil, missing end
    local env, problem = surveys.run { n_ranks = most_ranks(chosen.cases), device = device,
        deadline = chosen.deadline, bytes = copies.bytes(device) }
    if not env then return nil, ("bench %s: %s"):format(kind, problem) end
    return env
end

-- The machine, what all rows have in common, and the head. Returns the table.
local function begin_table(kind, env, chosen)
    local version = table.concat({ env.version, env.commit }, " ")
    print(("# cplab %s, %s, %d core%s, load %.1f"):format(version, env.cpu, env.cores,
        env.cores == 1 and "" or "s", env.load or 0 / 0))
    local product = env.product and "products of matrices by " .. env.product
        or ("BLAS %s on one thread a rank"):format(env.blas)
    print(("# transport %s, %s, gemm of %d^3, %d iterations after %d"):format(env.transport,
        product, chosen.gemm, chosen.iters, chosen.warmup))
    if chosen.device then
        surveys.print_cards(env)
        surveys.print_copies(env)
    end
    local shown = tables.new(kind, chosen.cases, chosen.scan, chosen.device ~= nil)
    for _, line in ipairs(shown:preface { "sizes" }) do print(line) end
    print(shown:head())
    return shown
end

--- Runs a case on ranks.
-- @treturn ?table what rank 0 returned
-- @treturn ?table the failure
function M.on_ranks(chosen, module, case, n)
    local results, failure = ranks.run(n, chosen.deadline, module, case)
    if not (failure and failure.is_stuck) then clib.C.cpl_store_clear() end
    return results and results[1], failure
end

--- A row of what is known before anything runs.
-- @tparam string kind
-- @tparam table case
-- @tparam {string,...} names fields of the case that the row has
function M.begin(kind, case, names)
    local row = { schema = ("cplab.bench.%s/1"):format(kind) }
    for _, name in ipairs(names) do row[name] = case[name] end
    return row
end

-- In a table or else as JSON. Returns why it cannot be written.
local function show_row(row, env, shown)
    if shown then return outcome.print(tables.line(shown, row)) end
    row.env = env
    return outcome.print(tables.json(row))
end

--- Runs all cases of a table.
-- @tparam string kind "gqa", "gdn" or "step"
-- @tparam table chosen cases, gemm, iters, warmup, scan; device (nil: the host), transport
-- @tparam boolean as_json
-- @tparam function row_of makes a row from a case and the row before it that it doubles; and the
-- failure of a rank
-- @treturn integer exit status
-- @treturn ?string what to tell the user
function M.run(kind, chosen, as_json, row_of)
    local env, missing = describe(kind, chosen)
    if not env then return 3, missing end
    env.load = load_average()
    local shown = not as_json and begin_table(kind, env, chosen)
    local counts, last = { ok = 0, wrong = 0, error = 0, skipped = 0 }, nil
    for i, case in ipairs(chosen.cases) do
        local row, failure = row_of(case, case.follows and last)
        if failure then
            row.status, row.reason = "error", outcome.sentence(failure)
            outcome.show_failure(failure)
        end
        counts[row.status] = counts[row.status] + 1
        counts.unwritten = show_row(row, env, shown)
        counts.left, last = #chosen.cases - i, row
        if counts.unwritten or failure and failure.is_stuck then break end
    end
    return outcome.verdict("bench " .. kind, counts)
end

return M
