--- Labs in specs: a small hybrid stack on rank threads, by default traced and compared with
-- one rank.
local assert = require "luassert"
local buffer = require "string.buffer"

local clib = require "clib"
local C, ffi = clib.C, clib.ffi

local M = {}

--- A small model: sizes all differ, so that swapped axes fail; two key heads serve four value
-- heads, and the chunk is short, so that spans of a few tokens have several.
function M.model(changes)
    local model = {
        pattern = "GG*G", policy = "contiguous", hidden = 12, vocab = 17, dtype = "f64", seed = 3,
        gqa = { heads = 4, kv_heads = 2, head_dim = 8, rotary_dim = 4, rope_theta = 100 },
        gdn = { key_heads = 2, value_heads = 4, key_dim = 5, value_dim = 6, conv = 4, chunk = 4 },
        mlp = { width = 20 },
    }
    for name, value in pairs(changes or {}) do
        model[name] = value
    end
    return model
end

--- Runs a lab on cp * tp ranks. Returns the answers of the calls (and checks, metrics), or nil, the
-- message and the rank that failed.
-- @tparam table job stream, model, cp, tp (1), calls, options; see spec/support/lab_rank.lua
function M.run(job)
    C.cpl_store_put("said:lazy", "1", 1) -- spec/cli/lazy_spec.lua wants that warning, others not
    local payload = buffer.encode(job)
    local out = ffi.new "cpl_host_run *[1]"
    local n = job.cp * (job.tp or 1)
    clib.check(C.cpl_host_run_ranks(n, 60, "spec.support.lab_rank", payload, #payload, out))
    local run = ffi.gc(out[0], C.cpl_host_run_destroy)
    local failed = C.cpl_host_failed_rank(run)
    if failed >= 0 then
        return nil, ffi.string(C.cpl_host_message(run)), failed
    end
    local bytes = ffi.new "size_t[1]"
    local data = C.cpl_host_result(run, 0, bytes)
    return buffer.decode(ffi.string(data, bytes[0]))
end

--- One traced step with parity; raises what a rank raised.
function M.parity_step(stream, model, cp, options, tp)
    local result, message = M.run {
        stream = stream, model = model, cp = cp, tp = tp, options = options,
        calls = { { "step", { backward = true, reference = true, trace = true } } },
    }
    if not result then
        error(message, 2)
    end
    return result.answers[1], result
end

--- Fails unless a traced step equals the reference and no row was in a wrong place.
-- @tparam table m metrics of a step with `reference` and `trace`
-- @tparam number bound of both parities
-- @tparam ?string what begins the message
function M.assert_parity(m, bound, what)
    what = what and what .. ": " or ""
    assert.is_true(m.parity_fwd <= bound, ("%sforward %g at %s"):format(what, m.parity_fwd,
        tostring(m.parity_fwd_where)))
    assert.is_true(m.parity_grad <= bound, ("%sgradient %g at %s"):format(what, m.parity_grad,
        tostring(m.parity_grad_where)))
    assert.equal(0, m.wrong_rows, what .. "rows in a wrong place")
end

--- The same with a preset of cplab.model.
function M.run_preset(name, fields, stream, cp)
    return (M.parity_step(stream, { preset = name, fields = fields }, cp))
end

--- Pads real lengths to a multiple: { lengths =, real = }.
function M.padded(real, multiple)
    local lengths = {}
    for i, n in ipairs(real) do
        lengths[i] = math.ceil(n / multiple) * multiple
    end
    return { lengths = lengths, real = real }
end

return M
