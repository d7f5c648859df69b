-- Experiments with a model from the command line, on devices that are emulated: unchanged but for
-- the word --device, and what is refused there.
local command = require "spec.cli.command"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

-- An experiment in a file of its own: the dtype of its model, and the text of its `run`.
local SCRIPT = [[
local cplab = require "cplab"
return cplab.experiment { name = "small", about = "a small model", sweep = { cp = { 1, 2 } },
    params = { dtype = %q },
    stream = function() return cplab.stream.thd { lengths = { 16, 8 } } end,
    model = function(case)
        return cplab.model { schedule = cplab.schedule.pattern("G*", 2), policy = "zigzag",
            hidden = 8, vocab = 11, dtype = case.dtype,
            gqa = { heads = 2, kv_heads = 1, head_dim = 8 },
            gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 } }
    end,
    run = function(lab) %s end }
]]

local STEP = [[
    local m = lab:step { backward = true, reference = true, trace = true }
    lab:check("forward", m.parity_fwd, 1e-12)
    lab:check("gradient", m.parity_grad, 1e-12)
    lab:check("waits", m.host_syncs_in_step, { equals = 0 })
    lab:check("losses", lab:token_losses():n_elements(), { equals = 24 / lab.cp })
]]

local DECODE = [[
    local m = lab:decode { last = 2 }
    lab:check("prompts", m.parity_prefill, 1e-12)
    lab:check("tokens", m.parity_decode, 1e-12)
    lab:check("waits", m.host_syncs_in_step, { equals = 0 })
]]

local function run(dtype, text, ...)
    local path = command.write(os.tmpname(), SCRIPT:format(dtype, text))
    local result = command.cplab { "run", path, ... }
    os.remove(path)
    result.err = result.err:gsub("cplab: case [^\n]*\n", "")
    return result
end

describe("run --device", function()
    it_there("runs a model where the device is", function()
        local result = run("f64", STEP, "--device", "cuda-emulated")
        assert.equal(0, result.status, result.out .. result.err)
        assert.matches("host_syncs_in_step", run("f64", STEP, "--device", "cuda-emulated",
            "--json", "/dev/stdout").out)
    end)

    it("is needed for bf16", function()
        local result = run("f64", STEP, "--dtype", "bf16")
        assert.equal(2, result.status)
        assert.equal("cplab: dtype bf16: the cpu computes in f64 and f32\n", result.err)
        result = run("bf16", STEP)
        assert.equal(2, result.status)
        assert.equal("cplab: dtype bf16: the cpu computes in f64 and f32\n", result.err)
        -- A model that says so itself.
        local script = SCRIPT:format("f64", STEP):gsub("params = [^\n]*\n", "")
        local path = command.write(os.tmpname(), (script:gsub("case%.dtype", '"bf16"')))
        result = command.cplab { "run", path }
        os.remove(path)
        assert.equal(2, result.status)
        assert.matches("^cplab: [^\n]+:%d+: dtype bf16: the cpu computes in f64 and f32\n$",
            result.err)
    end)

    it_there("knows no other dtype", function()
        local result = run("f64", STEP, "--device", "cuda-emulated", "--set", "dtype=f16")
        assert.equal(2, result.status)
        assert.equal("cplab: dtype f16: devices compute in f64, f32 and bf16\n", result.err)
    end)

    it_there("keeps steps as graphs with --graphs, but for those that build routes", function()
        local text = [[
    local m = lab:step { backward = true, iters = 3 }
    lab:check("replays", m.graph_replays, { equals = 2 })
    lab:check("waits", m.host_syncs_in_step, { equals = 0 })]]
        local result = run("f32", text, "--device", "cuda-emulated", "--graphs", "2")
        assert.equal(0, result.status, result.out .. result.err)
        result = run("f32", text, "--device", "cuda-emulated")
        assert.equal(1, result.status) -- nobody asked
        local lazy = SCRIPT:gsub('policy = "zigzag"', 'policy = "zigzag", routes = "lazy"')
        local path = command.write(os.tmpname(), lazy:format("f32", [[
    lab:check("launched", lab:step { iters = 2 }.graph_replays and 1 or 0, { equals = 0 })]]))
        result = command.cplab { "run", path, "--device", "cuda-emulated", "--graphs", "2" }
        os.remove(path)
        assert.equal(0, result.status, result.out .. result.err)
    end)

    local function refuses(rule, ...)
        local result = run("f32", STEP, ...)
        assert.same({ 2, "cplab: run: " .. rule .. "\n", "" },
            { result.status, result.err, result.out })
    end

    for _, transport in ipairs { "direct", "nccl" } do
        it_there("passes the self-test of exchanges and their graphs by " .. transport, function()
            local result = command.cplab { "run", command.root .. "/experiments/gpu_selftest.lua",
                "--device", "cuda-emulated", "--transport", transport, "--only",
                "what=exchanges,graphs of exchanges" }
            assert.equal(0, result.status, result.out .. result.err)
            assert.matches("2 cases: 2 passed, 0 failed, 0 skipped\n$", result.out)
        end)
    end

    it("has graphs on devices alone", function()
        refuses("--graphs needs --device cuda: steps on the cpu are not captured", "--graphs", "2")
    end)

    it("has transports on devices alone", function()
        refuses("--transport nccl is for rows on a device: it takes --device cuda or cuda-emulated",
            "--transport", "nccl")
    end)

    it_there("has no more graphs than a step may ask for", function()
        refuses("--graphs takes a whole number in 1 .. 1024, got '1025'", "--graphs", "1025",
            "--device", "cuda-emulated")
    end)

    it_there("decodes", function()
        local result = run("f64", DECODE, "--device", "cuda-emulated", "--trace-tokens")
        assert.equal(0, result.status, result.out .. result.err)
    end)

    it_there("trains bf16 by sgd, clipped, and nobody waits", function()
        local result = run("bf16", [[
    local m = lab:step { optimizer = "sgd", lr = 0.1, clip = 0.1, iters = 2 }
    lab:check("waits", m.host_syncs_in_step, { equals = 0 })
    lab:check("falls", m.losses[2] - m.losses[1], -1e-3)]], "--device", "cuda-emulated")
        assert.equal(0, result.status, result.err)
    end)
end)
