-- Steps of a lab as graphs: over streams that come again, with other tokens, and with parameters
-- that the steps before left.
local labs = require "spec.support.labs"
local on_device = require "spec.support.on_device"

local it_there = on_device.it(it, pending)

local function tokens(n, factor)
    local list = {}
    for i = 1, n do list[i] = factor * i % 17 end
    return list
end

-- Two kinds of streams, and each with tokens of its own.
local A, B = { lengths = { 32, 16 }, real = { 27, 16 } }, { lengths = { 24, 24 } }
local function with(stream, factor)
    return { lengths = stream.lengths, real = stream.real, tokens = tokens(48, factor) }
end
local STREAMS = { with(A, 3), with(B, 5), with(A, 7), with(A, 11), with(B, 13) }

local function run(step, changes, transport, streams)
    local model = { pattern = "G*", policy = "zigzag" }
    for name, value in pairs(changes or {}) do model[name] = value end
    return on_device.with(transport, labs.run, { streams = streams or STREAMS, cp = 2,
        model = labs.model(model), calls = { { "step", step } } })
end

-- The same training with graphs and without: losses, and what the last step counted.
local function compare(step, changes, transport)
    local function answers(graphs)
        local options = { graphs = graphs }
        for name, value in pairs(step) do options[name] = value end
        local result, message = run(options, changes, transport)
        assert(result, message)
        return result.answers[1]
    end
    local launched, replayed = answers(nil), answers(2)
    assert.same(launched.losses, replayed.losses) -- to the bit
    for name, value in pairs(launched) do
        if name ~= "losses" and not name:find "_ms$" and name ~= "peak_bytes" then
            assert.same(value, replayed[name], name)
        end
    end
    assert.is_nil(launched.graph_replays)
    assert.equal(0, replayed.host_syncs_in_step)
    assert.is_true(replayed.conversions_fwd > 0)
    return replayed
end

describe("steps as graphs", function()
    -- Of each kind the first step is launched, the second captured.
    it_there("train as steps that are launched, by nccl", function()
        local m = compare({ iters = 5, optimizer = "sgd", lr = 0.3 }, nil, "nccl")
        assert.same({ 2, 3 }, { m.graph_captures, m.graph_replays })
        assert.not_equal(m.losses[1], m.losses[3]) -- other tokens
    end)

    -- The stacks of both kinds count one step after the other.
    it_there("train by adamw, clipped: each replay counts its step and finds its norm", function()
        local m = compare { iters = 6, optimizer = "adamw", lr = 0.01, clip = 0.05 }
        assert.same({ 2, 4 }, { m.graph_captures, m.graph_replays })
        assert.is_true(m.losses[6] < m.losses[1]) -- the same microbatch, five updates later
    end)

    -- That a replay tells of wrong rows is shown by spec/cuda/capture_spec.lua.
    it_there("may be traced", function()
        local m = compare { iters = 5, trace = true, backward = true }
        assert.same({ 0, 3 }, { m.wrong_rows, m.graph_replays })
    end)

    -- This fault swaps rows of one rank on the host; the others wait for it, and hear what it says.
    it_there("are refused where the host looks at rows on their way", function()
        local result, message, rank = on_device.with(nil, labs.run, { stream = A, cp = 2,
            model = labs.model { pattern = "G*" },
            options = { faults = { swap_runs = { rank = 1 } } },
            calls = { { "step", { iters = 2, graphs = 1 } } } })
        assert.same({ nil, 1 }, { result, rank })
        assert.truthy(message:find("a download in a capture: nothing there may wait for the device "
            .. "or take its memory", 1, true), message)
    end)

    -- One for all: when both have been, there is room for both, and a graph serves both. By NCCL
    -- none does, and kinds that take turns make room for each other before they come again.
    it_there("are of one kind of stream each, or one for all that come in its place", function()
        local function counts(graphs, streams, transport)
            local result, message = run({ iters = 4, backward = true, graphs = graphs }, nil,
                transport, streams)
            assert(result, message)
            local m = result.answers[1]
            return { m.graph_captures, m.graph_replays }
        end
        assert.same({ 1, 2 }, counts(1, { A, B }))
        assert.same({ 0, 0 }, counts(1, { A, B }, "nccl"))
        assert.same({ 2, 2 }, counts(2, { A, B }))
        assert.same({ 1, 3 }, counts(1, { A }))
    end)

    -- Of both optimizers: the other numbers of AdamW are its launches'.
    for name, other in pairs {
        sgd = { { clip = 0.05 } },
        adamw = { { clip = 0.05 }, { betas = { 0.5, 0.95 } }, { eps = 0.1 }, { weight_decay = 1 } },
    } do
        it_there("hold one step at any learning rate, and no other step: " .. name, function()
            local rates, calls = { 0.02, 0.01, 0.02 }, {}
            local function add(changes, graphs)
                local step = { iters = 3, graphs = graphs, optimizer = name, lr = 0.02 }
                for key, value in pairs(changes) do step[key] = value end
                calls[#calls + 1] = { "step", step }
            end
            for _, lr in ipairs(rates) do add({ lr = lr }, 1) end
            for _, lr in ipairs(rates) do add { lr = lr } end
            for _, changes in ipairs(other) do add(changes, 1) end
            local result, message = on_device.with(nil, labs.run, { streams = { A }, cp = 2,
                model = labs.model { pattern = "G*" }, calls = calls })
            assert(result, message)
            for i, m in ipairs(result.answers) do
                local launched = result.answers[i + #rates]
                if i <= #rates then
                    assert.same({ i == 1 and 1 or 0, launched.losses },
                        { m.graph_captures, m.losses }) -- to the bit
                elseif i > 2 * #rates then
                    assert.equal(1, m.graph_captures)
                end
            end
            assert.not_same(result.answers[1].losses, result.answers[2].losses)
        end)
    end

    it_there("are one graph for a rate of each step", function()
        local function step(graphs)
            return { "with_rates", "step", { iters = 4, optimizer = "adamw", graphs = graphs },
                { 0.02, 0.01, 0, 0.03 } }
        end
        local result, message = on_device.with(nil, labs.run, { streams = { A }, cp = 2,
            model = labs.model { pattern = "G*" }, calls = { step(1), step() } })
        assert(result, message)
        local replayed, launched = unpack(result.answers)
        assert.same({ 1, 3 }, { replayed.graph_captures, replayed.graph_replays })
        assert.same(launched.losses, replayed.losses) -- to the bit
        assert.equal(replayed.losses[3], replayed.losses[4])
    end)

    it_there("are compared with the reference", function()
        local result, message = on_device.with(nil, labs.run, { stream = A, cp = 2,
            model = labs.model { pattern = "G*", policy = "mirror" },
            calls = { { "step", { iters = 3, graphs = 1, reference = true, trace = true } } } })
        assert(result, message)
        labs.assert_parity(result.answers[1], 1e-12)
        assert.equal(2, result.answers[1].graph_replays)
    end)

    it_there("are refused where there is nothing to capture, or that cannot be", function()
        local function refused(rule, graphs, changes, there)
            local job = { stream = A, cp = 2, model = labs.model(changes),
                calls = { { "step", { graphs = graphs } } } }
            local run_there = there and on_device.with or function(_, f, ...) return f(...) end
            local result, message = run_there(nil, labs.run, job)
            assert.is_nil(result)
            assert.truthy(message:find(rule, 1, true), message)
        end
        refused("lab:step: graphs = 2, but steps on the cpu are not captured: they need "
            .. "--device cuda", 2)
        refused('lab:step: graphs = 2, but a step that builds its routes (routes = "lazy") is no '
            .. "graph", 2, { routes = "lazy" }, true)
        refused("lab:step: graphs must be an integer in 1 .. 1024 (got 0)", 0, nil, true)
    end)
end)
