local explain = require "cplab.explain"
local fake_prices = require "spec.support.fake_prices"
local planner = require "cplab.planner"

-- GDN computes for 2 ms anywhere; GQA takes 6 ms in contiguous, 2 elsewhere, half of it exchange;
-- what else a layer does takes 1 ms; mirror is 0.25 ms away, zigzag 0.5 ms.
local function prices_of(pattern)
    local prices = fake_prices.new { pattern = pattern, alike = true, seed = 1, style = "real",
        names = { "contiguous", "zigzag", "mirror" } }
    local kinds = prices.model:layers()
    prices.refused = { ["balanced"] = "no block divides" }
    prices.modes = function(_, i) return { kinds[i].kind == "gqa" and "p2p" or "chunkwise" } end
    prices.mixer = function(_, i, layout)
        if kinds[i].kind == "gdn" then
            if layout ~= "contiguous" then return nil, "wants contiguous" end
            return 2e-3, { compute = 2e-3 }
        end
        local seconds = layout == "contiguous" and 6e-3 or 2e-3
        return seconds, { compute = seconds / 2 }
    end
    prices.rest = function() return 1e-3, { compute = 1e-3 } end
    prices.ends = function() return 1e-3, { compute = 1e-3 } end
    prices.convert = function(_, from, to)
        return (from == "mirror" or to == "mirror") and 0.25e-3 or 0.5e-3
    end
    return prices
end

local function fixed(name, mixer, n)
    local layers = {}
    for i = 1, n do
        layers[i] = { live = "contiguous", mixer = i == n and mixer or "contiguous",
            cp_mode = i == n and "p2p" or "chunkwise" }
    end
    return { name = name, entry = "contiguous", exit = "contiguous", layers = layers }
end

describe("a plan in words", function()
    local function lines_of(pattern, options, others)
        local prices = prices_of(pattern)
        return explain.lines(prices, planner.plan(prices, options), others, "h100")
    end
    local CONTIGUOUS = { entry = "contiguous", exit = "contiguous" }

    it("says for each run of layers what was chosen, its price, and what is next", function()
        assert.same({
            "plan         20.000 ms a step on h100 (85/10/5 %); tokens in contiguous, loss in "
                .. "contiguous",
            "    layers    what  lives in    runs                         each  "
                .. "compute/comm/convert",
            "    0-1, 3-4  GDN   contiguous  chunkwise in contiguous  3.000 ms  100/0/0 %"
                .. "             nothing else is possible",
            "    2, 5      GQA   contiguous  p2p in mirror            3.500 ms  57/29/14 %"
                .. "            next: p2p in zigzag, +0.500 ms",
            "              ends  contiguous  embedding, head, loss    1.000 ms  100/0/0 %",
            "refused      balanced: no block divides",
        }, lines_of("GG*GG*", CONTIGUOUS, {}))
    end)

    it("shows where the residual stream is converted", function()
        local lines = lines_of("G***", CONTIGUOUS, {})
        local before = "^ +(.-)  +0"
        assert.equal("before 1  residual  mirror      from contiguous", lines[4]:match(before))
        assert.equal("before 4  residual  contiguous  from mirror", lines[6]:match(before))
        lines = lines_of("G***", { entry = "contiguous" }, {})
        assert.truthy(lines[1]:find("tokens in contiguous, loss in mirror", 1, true))
        assert.truthy(table.concat(lines, "\n"):find("ends +contiguous, mirror"))
    end)

    it("prices fixed policies beside it, the cheapest first", function()
        local lines = lines_of("G*", CONTIGUOUS, { fixed("stay", "contiguous", 2),
            fixed("far", "zigzag", 2), fixed("near", "mirror", 2), fixed("never", "zigzag", 1) })
        local text = table.concat(lines, "\n")
        assert.truthy(text:find("beside       near 7.500 ms (x1.000)\n             far 8.000 ms "
            .. "(x1.067)\n             stay 11.000 ms (x1.467)\n             never impossible: "
            .. "wants contiguous\n", 1, true), text)
    end)

    it("names the nearest of what layers of a line could do instead", function()
        local prices = prices_of "G*G*G*"
        local plan = planner.plan(prices, CONTIGUOUS)
        for i, more in pairs { [2] = 3e-3, [4] = 1e-3, [6] = 2e-3 } do
            plan.choices[i].instead = { live = "zigzag", mixer = "zigzag", cp_mode = "a2a",
                seconds = plan.seconds + more }
        end
        local lines = explain.lines(prices, plan)
        assert.truthy(lines[4]:find("next: a2a in zigzag, living there, from +1.000 ms", 1, true),
            lines[4])
    end)

    it("says how keys are gathered", function()
        local prices = prices_of "G*"
        local mixer = prices.mixer
        prices.mixer = function(...)
            local seconds, detail = mixer(...)
            if seconds then detail.variant = "node" end
            return seconds, detail
        end
        local lines = explain.lines(prices, planner.plan(prices, CONTIGUOUS))
        assert.truthy(lines[4]:find("GQA   contiguous  p2p in mirror (one copy a node)  ", 1, true))
    end)

    it("shortens long lists of layers", function()
        local lines = lines_of(("G*"):rep(9), CONTIGUOUS, {})
        assert.truthy(lines[3]:find("^    0, 2, 4, ... %(9 runs%)  GDN"))
    end)
end)
