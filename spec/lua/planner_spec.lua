-- The planner against everything that could have been planned.
local all_plans = require "spec.support.all_plans"
local fake_prices = require "spec.support.fake_prices"
local planner = require "cplab.planner"

local FIVE = { "contiguous", "zigzag", "mirror", "balanced", "balanced@0.1" }
local STYLES = { "real", "ties", "holes" }

local function first(n)
    return { unpack(FIVE, 1, n) }
end

local function prices_of(pattern, n_layouts, seed, style, more)
    local t = { pattern = pattern, names = first(n_layouts), seed = seed, style = style }
    for name, value in pairs(more or {}) do t[name] = value end
    return fake_prices.new(t)
end

-- Ends fixed or free, in turn.
local function ends_of(k, n_layouts)
    return { entry = k % 2 == 1 and FIVE[k % n_layouts + 1] or nil,
        exit = k % 4 > 1 and FIVE[(k + 1) % n_layouts + 1] or nil }
end

-- Plans, or nil where none can be had.
local function try(f, prices, options)
    local ok, plan = pcall(f, prices, options)
    if not ok then assert.truthy(plan:find("planner: ", 1, true), plan) end
    return ok and plan or nil
end

local function assert_same(expected, plan, where)
    if expected == nil or plan == nil then
        assert.equal(expected, plan, where)
        return
    end
    assert.equal(expected.seconds, plan.seconds, where)
    assert.equal(expected.conversions, plan.conversions, where)
    assert.same(expected.assignment, plan.assignment, where)
end


-- The first layouts, layers and seeds of the larger oracle: (layouts^2 * modes)^layers ways.
local SMALL = { { 1, 4 }, { 2, 4 }, { 3, 3 }, { 5, 2 } }

local function each_small(visit)
    local seed = 1000
    for _, size in ipairs(SMALL) do
        for n = 1, size[2] do
            for _, pattern in ipairs(fake_prices.patterns(n)) do
                for _, style in ipairs(STYLES) do
                    seed = seed + 1
                    local prices = prices_of(pattern, size[1], seed, style)
                    visit(prices, ends_of(seed, size[1]), ("%d layouts, %s, seed %d, %s"):format(
                        size[1], pattern, seed, style))
                end
            end
        end
    end
end

local function number_of(names, name)
    for l, known in ipairs(names) do
        if known == name then return l end
    end
end

-- The least prices of the whole among the choices of a layer other than the one taken, and among
-- those whose mixer runs elsewhere or otherwise.
local function next_best(prices, best, i, choice)
    local modes, order = prices:modes(i), nil
    for k, mode in ipairs(modes) do order = mode == choice.cp_mode and k or order end
    local mixing = ("%d %d"):format(number_of(prices.layouts, choice.mixer), order)
    local taken = number_of(prices.layouts, choice.live) .. " " .. mixing
    assert.equal(best.ps, best.choices[i][taken].ps)
    local other, otherwise
    for key, c in pairs(best.choices[i]) do
        if key ~= taken then other = math.min(other or c.ps, c.ps) end
        if key:match "^%d+ (.*)$" ~= mixing then otherwise = math.min(otherwise or c.ps, c.ps) end
    end
    return other, otherwise
end

local function ps_of(choice)
    return choice and math.floor(choice.seconds * 1e12 + 0.5)
end

describe("the planner", function()
    it("equals exhaustive search on every schedule of up to 8 layers", function()
        local seed = 0
        for n = 1, 8 do
            for _, pattern in ipairs(fake_prices.patterns(n)) do
                seed = seed + 1
                local style = STYLES[seed % 3 + 1]
                local prices = prices_of(pattern, 2, seed, style, { alike = seed % 2 == 0 })
                local options = ends_of(seed, 2)
                local where = ("%s, seed %d, %s"):format(pattern, seed, style)
                assert_same(try(planner.exhaustive, prices, options),
                    try(planner.plan, prices, options), where)
            end
        end
    end)

    it("equals all sequences of five homes on every schedule of up to 7 layers, and some of 8",
        function()
            local seed = 5000
            for n = 1, 8 do
                for k, pattern in ipairs(fake_prices.patterns(n)) do
                    if n < 8 or k % 16 == 3 then
                        seed = seed + 1
                        local prices = prices_of(pattern, 5, seed, STYLES[seed % 3 + 1])
                        local options = { entry = FIVE[seed % 5 + 1], exit = FIVE[seed % 4 + 1] }
                        local ps, conversions = all_plans.best_homes(prices, options)
                        local plan = try(planner.plan, prices, options)
                        local where = ("%s, seed %d"):format(pattern, seed)
                        assert.equal(ps < math.huge and ps or nil, ps_of(plan), where)
                        assert.equal(plan and conversions, plan and plan.conversions, where)
                    end
                end
            end
        end)

    it("finds the first of the cheapest and the price of each runner-up", function()
        each_small(function(prices, options, where)
            local best = all_plans.best(prices, options, true)
            local plan = try(planner.plan, prices, options)
            assert.equal(best == nil, plan == nil, where)
            if not best then return end
            assert.same(best.assignment, plan.assignment, where)
            assert.equal(best.ps, math.floor(plan.seconds * 1e12 + 0.5), where)
            assert.equal(best.n, plan.conversions, where)
            for i, choice in ipairs(plan.choices) do
                local least, otherwise = next_best(prices, best, i, choice)
                local other = choice.runner_up
                assert.equal(least, ps_of(other), where)
                assert.equal(otherwise, ps_of(choice.instead), where)
                assert.is_false(other ~= nil and other.live == choice.live
                    and other.mixer == choice.mixer and other.cp_mode == choice.cp_mode, where)
            end
        end)
    end)

    it("keeps depths of multi-token prediction where the loss is", function()
        for seed = 1, 60 do
            local prices = prices_of("G*", 3, seed, STYLES[seed % 3 + 1], { depths = 2 })
            local options = ends_of(seed, 3)
            local plan = try(planner.plan, prices, options)
            local best = try(planner.exhaustive, prices, options)
            assert_same(best, plan, "seed " .. seed)
            if seed < 20 then
                local oracle = all_plans.best(prices, options)
                assert.same(oracle and oracle.assignment, plan and plan.assignment)
            end
            for i = 3, plan and 4 or 0 do
                assert.equal(plan.assignment.exit, plan.assignment.layers[i].live)
            end
        end
    end)

    it("prices its assignment as anyone would", function()
        for seed = 1, 30 do
            local prices = prices_of("GG*G", 5, seed, "real")
            local options = ends_of(seed, 5)
            local plan = planner.plan(prices, options)
            local price = planner.price(prices, plan.assignment)
            assert.is_true(math.abs(price - plan.seconds) <= 1e-11)
            local a = plan.assignment
            local sum = prices:ends(a.entry, a.exit)
            for _, choice in ipairs(plan.choices) do sum = sum + choice.seconds end
            local last = a.layers[#a.layers].live
            sum = sum + (last == a.exit and 0 or prices:convert(last, a.exit))
            assert.is_true(math.abs(sum - plan.seconds) <= 1e-11)
        end
        local prices = prices_of("GG", 2, 1, "real")
        prices.rest = function() return nil, "it is Sunday" end
        local price, reason = planner.price(prices, { entry = "zigzag", exit = "zigzag",
            layers = { { live = "zigzag", mixer = "zigzag", cp_mode = "chunkwise" } } })
        assert.is_nil(price)
        assert.equal("it is Sunday", reason)
    end)

    it("asks for each price once for each distinct layer", function()
        local prices = prices_of(("GGG*"):rep(24), 5, 3, "real", { alike = true })
        local n = 0
        local mixer = prices.mixer
        prices.mixer = function(...)
            n = n + 1
            return mixer(...)
        end
        planner.plan(prices)
        assert.equal((2 + 3) * 5, n) -- modes of both kinds x layouts
    end)

    it("stays where it is rather than convert for nothing", function()
        local prices = prices_of("G*G*", 5, 1, "real")
        local free = function() return 0 end
        prices.mixer, prices.rest, prices.convert, prices.ends = free, free, free, free
        local plan = planner.plan(prices)
        assert.equal(0, plan.conversions)
        assert.equal("contiguous", plan.assignment.entry)
        for i, layer in ipairs(plan.assignment.layers) do
            assert.same({ "contiguous", "contiguous" }, { layer.live, layer.mixer })
            assert.equal(i % 2 == 1 and "chunkwise" or "p2p", layer.cp_mode)
            -- the next in order is the same price, in another mode
            assert.equal(i % 2 == 1 and "headwise" or "gather", plan.choices[i].runner_up.cp_mode)
        end
        plan = planner.plan(prices, { layouts = { "mirror", "zigzag" }, exit = "zigzag" })
        assert.same({ "zigzag", "zigzag" }, { plan.assignment.entry, plan.assignment.exit })
    end)

    it("converts once for a run of layers that want the same", function()
        local prices = prices_of("G***G", 2, 1, "real")
        prices.modes = function() return { "p2p" } end
        prices.mixer = function(_, i, layout)
            return (layout == "zigzag") == (i > 1 and i < 5) and 0 or 10
        end
        prices.rest, prices.ends = function() return 0 end, function() return 0 end
        prices.convert = function() return 1 end
        local plan = planner.plan(prices, { entry = "contiguous", exit = "contiguous" })
        assert.equal(2, plan.conversions)
        assert.equal(2, plan.seconds)
        local lives = {}
        for i, layer in ipairs(plan.assignment.layers) do lives[i] = layer.live end
        assert.same({ "contiguous", "zigzag", "zigzag", "zigzag", "contiguous" }, lives)
        assert.same({ live = "contiguous", mixer = "zigzag", cp_mode = "p2p", seconds = 6 },
            plan.choices[3].runner_up)
    end)

    it("settles ties between mixers by the order of layouts, then of modes", function()
        local prices = prices_of("*", 3, 1, "real")
        local free = function() return 0 end
        prices.rest, prices.convert, prices.ends = free, free, free
        prices.modes = function() return { "p2p", "gather" } end
        prices.mixer = function(_, _, layout, mode)
            if layout == "contiguous" then return 1 end
            return (layout == "zigzag") == (mode == "gather") and 0 or 1
        end
        local plan = planner.plan(prices, { entry = "contiguous", exit = "contiguous" })
        assert.same({ live = "contiguous", mixer = "zigzag", cp_mode = "gather" },
            plan.assignment.layers[1])
        assert.same({ live = "contiguous", mixer = "mirror", cp_mode = "p2p", seconds = 0 },
            plan.choices[1].runner_up)
    end)

    it("has no runner-up where there is one way only", function()
        local prices = prices_of("G", 1, 1, "real")
        prices.modes = function() return { "chunkwise" } end
        assert.is_nil(planner.plan(prices).choices[1].runner_up)
    end)
end)

describe("the planner on prices of real streams", function()
    local cplab = require "cplab"

    local function model_of(pattern)
        return cplab.model { schedule = cplab.schedule.pattern(pattern, #pattern), hidden = 64,
            policy = "auto", vocab = 32, gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
            gdn = { key_heads = 2, value_heads = 4, key_dim = 16, value_dim = 16, conv = 4 },
            mlp = { width = 128 } }
    end

    local STREAMS = { { 8192 }, { 4096, 64, 64, 2048, 1920 },
        { 128, 64, 64, 256, 64, 64, 128, 64 } }

    it("equals exhaustive search", function()
        local patterns, n = fake_prices.patterns(8), 0
        for k, lengths in ipairs(STREAMS) do
            local stream = cplab.stream.thd { lengths = lengths }
            for _, cluster in ipairs { "h100", "local" } do
                for _, cp in ipairs { 2, 16 } do
                    n = n + 1
                    local pattern = patterns[(n * 67) % #patterns + 1]
                    local prices = cplab.cost.new { cluster = cluster, stream = stream, cp = cp,
                        model = model_of(pattern), dtype = "bf16" }
                    local where = ("%s, stream %d, cp %d on %s"):format(pattern, k, cp, cluster)
                    assert_same(planner.exhaustive(prices, { layouts = first(2) }),
                        planner.plan(prices, { layouts = first(2) }), where)
                    local short = cplab.cost.new { cluster = cluster, stream = stream, cp = cp,
                        model = model_of(pattern:sub(1, 3)), dtype = "bf16" }
                    assert_same(planner.exhaustive(short), planner.plan(short), where)
                end
            end
        end
    end)

    it("costs what a step under its assignment costs, and no fixed policy less", function()
        for k, lengths in ipairs(STREAMS) do
            local model = model_of "GGG*GG*"
            local prices = cplab.cost.new { cluster = "h100", model = model, cp = 16,
                stream = cplab.stream.thd { lengths = lengths } }
            local plan = planner.plan(prices)
            assert.is_true(math.abs(prices:step(plan.assignment).seconds - plan.seconds)
                <= 1e-9 * plan.seconds)
            for name, triple in pairs(cplab.policy.triples) do
                local fixed = cplab.assignment.from_policy({ name = name, live = triple[1],
                    gqa = triple[2], gdn = triple[3] }, model:layers())
                local price = planner.price(prices, fixed)
                assert.is_true(plan.seconds <= price * (1 + 1e-12),
                    ("%s, stream %d"):format(name, k))
            end
        end
    end)

    it("keeps to the layouts that the model binds a kind to", function()
        local model = model_of "GG*"
        model.bound_to = { gqa = "balanced", gdn = { "zigzag", "mirror" }, mla = "any" }
        local prices = cplab.cost.new { cluster = "h100", model = model, cp = 4,
            stream = cplab.stream.thd { lengths = { 4096 } } }
        for i, layer in ipairs(planner.plan(prices).assignment.layers) do
            assert.truthy(layer.mixer:find(i == 3 and "^balanced" or "^[zm]i"), layer.mixer)
        end
        model.bound_to.gdn = { "snake" }
        local ok, message = pcall(planner.plan, prices)
        assert.is_false(ok)
        assert.truthy(message:find("layer 0 (gdn) can run in none of the layouts", 1, true))
        assert.truthy(message:find("gdn layers may run in snake alone", 1, true))
    end)

    it("prices no assignment in a layout that the stream cannot have", function()
        local prices = cplab.cost.new { cluster = "h100", model = model_of "G", cp = 2,
            stream = cplab.stream.thd { lengths = { 6, 10 } }, layouts = { "contiguous" } }
        local layer = { live = "zigzag", mixer = "contiguous", cp_mode = "chunkwise" }
        local price, reason = planner.price(prices, { entry = "zigzag", exit = "zigzag",
            layers = { layer } })
        assert.is_nil(price)
        assert.truthy(reason:find("^zigzag: layout.zigzag: sequence 0 has 6 tokens"), reason)
    end)
end)

describe("the planner refuses", function()
    local function message_of(change, options)
        local prices = prices_of("G*", 2, 1, "real")
        if change then change(prices) end
        local ok, message = pcall(planner.plan, prices, options)
        assert.is_false(ok)
        return message
    end

    it("options and layouts that it does not know", function()
        assert.truthy(message_of(nil, { entri = "zigzag" }):find('did you mean "entry"?', 1, true))
        assert.truthy(message_of(nil, { entry = "zigzg" }):find('did you mean "zigzag"?', 1, true))
        assert.truthy(message_of(nil, { exit = "mirror" }):find(
            'unknown exit layout "mirror"; there are contiguous, zigzag', 1, true))
        assert.truthy(message_of(nil, { layouts = {} }):find("at least one layout", 1, true))
        assert.truthy(message_of(nil, { layouts = { "snake" } }):find("unknown layout", 1, true))
        assert.truthy(message_of(nil, { layouts = { "zigzag" }, entry = "contiguous" }):find(
            'unknown entry layout "contiguous"', 1, true))
    end)

    it("prices that are no seconds, by name", function()
        for _, bad in ipairs { -1, 0 / 0, math.huge, "1" } do
            local message = message_of(function(prices)
                prices.convert = function() return bad end
            end)
            assert.truthy(message:find("the price of converting contiguous to zigzag", 1, true))
            message = message_of(function(prices)
                prices.mixer = function() return bad end
            end)
            assert.truthy(message:find("the mixer of layer 0, chunkwise in contiguous", 1, true))
        end
    end)

    it("a layer that can run nowhere, with the reason, and ends that nothing joins", function()
        local message = message_of(function(prices)
            prices.mixer = function(_, i) return i == 1 and 1 or nil, "too few heads" end
        end)
        assert.truthy(message:find(
            "layer 1 (gqa) can run in none of the layouts contiguous, zigzag: too few heads", 1,
            true))
        message = message_of(function(prices)
            prices.convert = function() return nil, "no way" end
        end, { entry = "contiguous", exit = "zigzag" })
        assert.truthy(message:find("no assignment of layouts can be had", 1, true))
    end)
end)
