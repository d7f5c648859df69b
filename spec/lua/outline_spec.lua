-- What `show` says of a case that is planned.
local cplab = require "cplab"
local describe_case = require("cplab.lab").describe

local function lines_of(lengths, auto, cp)
    return describe_case({
        stream = function() return cplab.stream.thd { lengths = lengths } end,
        model = function()
            return cplab.model { schedule = cplab.schedule.ratio("1:3", 8), policy = "auto",
                hidden = 64, vocab = 32, auto = auto,
                gqa = { heads = 4, kv_heads = 2, head_dim = 16 },
                gdn = { key_heads = 2, value_heads = 4, key_dim = 16, value_dim = 16, conv = 4 },
                mlp = { width = 128 } }
        end,
    }, { cp = cp })
end

local function has(text, ...)
    assert.truthy(text:find(table.concat { ... }), text)
end

describe("the outline of a planned case", function()
    it("explains the choices, with what is next and the fixed policies", function()
        local text = table.concat(lines_of({ 4096 }, { cluster = "h100", dtype = "bf16" }, 4), "\n")
        has(text, "\nplan         [%d.]+ ms a step on h100 %(%d+/%d+/%d+ %%%); tokens in %w+, ",
            "loss in %w+\n")
        has(text, "\n    0%-2, 4%-6 +GDN .+ in .+ ms .+/.+/.+ %% +next: .+ in .+, .*%+[%d.]+ ms\n")
        has(text, "\n    .*GQA .+ in .+ ms .+/.+/.+ %% +next: .+ in .+, .*%+[%d.]+ ms\n")
        local previous = 1
        local n = 0
        for ratio in text:match("\nbeside.*"):gmatch "%(x([%d.]+)%)" do
            assert.is_true(tonumber(ratio) >= previous, text) -- none is cheaper than the plan
            previous, n = tonumber(ratio), n + 1
        end
        assert.equal(5, n)
    end)

    it("says which candidates the stream refused, and why", function()
        local text = table.concat(lines_of({ 6, 10 }, {}, 2), "\n")
        has(text, "\nrefused      mirror: layout.mirror: sequence 0 has 6 tokens, not a multiple ",
            "of 2%*cp = 4\n             zigzag: layout.zigzag: sequence 0 has 6 tokens, not ")
        has(text, "\n             native impossible: zigzag: layout.zigzag: sequence 0 has 6 ")
    end)

    it("says nothing of plans under a fixed policy", function()
        local lines = describe_case({
            stream = function() return cplab.stream.thd { lengths = { 64 } } end,
            model = function()
                return cplab.model.qwen35_35b { scale = "tiny", policy = "mirror" }
            end,
        }, { cp = 2 })
        assert.is_nil(table.concat(lines, "\n"):find("plan  ", 1, true))
    end)
end)
