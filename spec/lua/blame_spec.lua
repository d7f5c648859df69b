-- Whose line an error names: that of who wrote the script, however deep the check stands.
local blame = require "blame"
local case_run = require "cplab.case_run"
local experiment = require "cplab.experiment"

-- Each line of what follows is wrong in itself.
local WRONG = [[
cplab.model(with { hiden = 1 })
cplab.model(with { hidden = 0 })
cplab.model(with { dtype = "f65" })
cplab.model(with { policy = "zigzak" })
cplab.model(with { policy = { "zigzag", "zigzak", "zigzag" } })
cplab.model(with { gqa = { heads = 2, kv_heads = 1, head_dims = 4 } })
cplab.model(with { gqa = { heads = 3, kv_heads = 2, head_dim = 4 } })
cplab.model(with { gqa = { heads = 2, kv_heads = 1, head_dim = 4, cp_mode = "p2q" } })
cplab.model(with { gdn = { key_heads = 2, value_heads = 3, key_dim = 4, value_dim = 4 } })
cplab.model(with { mtp = { depth = 1 } })
cplab.model(with { exchange = { method = "pakked" } })
cplab.model(with {}):with { sed = 1 }
cplab.model.qwen35_35b { scale = "tny" }
cplab.schedule.ratio("1:3", 5)
cplab.schedule.list { { "gdn", cp_mod = "headwise" } }
cplab.schedule.pattern("GXG", 3)
cplab.stream.thd { length = { 1 } }
cplab.stream.thd { lengths = { 4 }, real = { 5 } }
cplab.stream.sbhd { seqlen = 4, batchs = 2 }
cplab.layout.zigzag(stream, { cpp = 2 })
cplab.layout.zigzak(stream, { cp = 2 })
cplab.layout.zigzag(stream, { cp = 3 })
cplab.layout.zigzag(stream, { cp = 2 }):runs(2)
cplab.layout.zigzag(stream, { cp = 2 }):locate(99)
cplab.route(cplab.layout.zigzag(stream, { cp = 2 }), 3)
cplab.view.halo(cplab.layout.zigzag(stream, { cp = 2 }), -1)
cplab.tensor.from({ 1, 2 }, { 3 }, "f64")
cplab.op.gdn(1, 2)
cplab.pipeline.cut(cplab.schedule.ratio("1:1", 4), { ppp = 2 })
cplab.rules.check({}, "mega")
cplab.rules.demand { context_parallel_size = 0 }
cplab.experiment { name = "x", runn = 1 }
cplab.policy.resolve "zigzak"
cplab.boundary.enter(3)
cplab.laout.zigzag()]]

local RUNS = [[
lab:step { iter = 1 }
lab:step { iters = 0 }
lab:step { optimizer = "sdg" }
lab:step(3)
lab:step { pipeline = { ppp = 2 } }
lab:check("x", 1, { equal = 1 })
lab:gather(3)
lab:gather(cplab.tensor.zeros { 3, 1 }, "zigzak")
lab:convert(3, "zigzag", "contiguous")
lab:convert(cplab.tensor.zeros { 12, 1 }, "zigzag", "contiguous", { method = "cpy" })
lab:decoder { capacit = 1 }
lab:decode { tokns = 2 }
cplab.boundary.enter(lab, cplab.tensor.zeros { 12, 1 }, "zigzak")]]

-- What is wrong with the stack, not with a line.
local STACKS = {
    { "tolerance must be a number", 'policy = "balanced", gqa = { heads = 2, kv_heads = 1, '
        .. "head_dim = 4, tolerance = -1 }" },
    { "3 heads, not a multiple of the 2 ranks", 'gqa = { heads = 3, kv_heads = 3, head_dim = 4, '
        .. 'cp_mode = "a2a" }' },
    { 'method "composed" needs tp > 1', 'exchange = { method = "composed" }' },
    { ", vocabulary of 5", "vocab = 5" },
}

local HEAD = [[
local cplab = require "cplab"
local tokens = {} for i = 1, 24 do tokens[i] = i - 1 end
local stream = cplab.stream.thd { lengths = { 8, 16 }, tokens = tokens }
local function with(changes)
    local t = { schedule = cplab.schedule.ratio("1:1", 2), policy = "contiguous", hidden = 8,
        vocab = 24, dtype = "f64", gqa = { heads = 2, kv_heads = 1, head_dim = 4 },
        gdn = { key_heads = 1, value_heads = 2, key_dim = 4, value_dim = 4 } }
    for name, value in pairs(changes) do t[name] = value end
    return t
end
]]

describe("the line that an error names", function()
    local path = os.tmpname()

    teardown(function() os.remove(path) end)

    local function write(text)
        local file = assert(io.open(path, "w"))
        file:write(HEAD, text)
        file:close()
    end

    local function line_of(text, at)
        return select(2, (HEAD .. text):sub(1, at):gsub("\n", "")) + 1
    end

    -- The lines as functions, each a line long: with the call in a statement, or in a tail call.
    local function functions(lines, form)
        local list = {}
        for line in lines:gmatch "[^\n]+" do list[#list + 1] = form:format(line) end
        return "return {\n" .. table.concat(list, "\n") .. "\n}\n"
    end

    for form, text in pairs { statement = "function() local x = %s return x end,",
        ["tail call"] = "function() return %s end," } do
        it(("is that of the %s, whatever is wrong"):format(form), function()
            write(functions(WRONG, text))
            local _, head = HEAD:gsub("\n", "")
            for i, f in ipairs(dofile(path)) do
                local ok, message = pcall(experiment.call, f)
                assert.is_false(ok)
                local place = ("%s:%d: "):format(path, head + 1 + i)
                assert.equal(place, tostring(message):sub(1, #place), message)
            end
        end)
    end

    -- Reasons of cases: "rank 0: " may stand in front.
    local function reason(text)
        write(text)
        local result = case_run.run(path, { cp = 2, tp = 1 }, { deadline = 20 })
        assert.equal("error", result.status)
        return (result.reason:gsub("^rank %d: ", ""))
    end

    local FRAME = [[
return cplab.experiment { name = "wrong", stream = function() return stream end,
    model = function() return cplab.model(with { %s }) end,
    run = function(lab)
        %s
    end }
]]

    it("is that of what run asks of the lab", function()
        for line in RUNS:gmatch "[^\n]+" do
            for _, statement in ipairs { line, "return " .. line } do
                local text = FRAME:format("", "local x = " .. line .. " return x")
                if statement ~= line then text = FRAME:format("", statement) end
                local where = line_of(text, #HEAD + text:find("run = function", 1, true))
                local got = reason(text)
                local place = ("%s:%d: "):format(path, statement == line and where + 1 or where)
                assert.equal(place, got:sub(1, #place), got)
            end
        end
    end)

    it("is that of the step whose stack cannot be made", function()
        for _, case in ipairs(STACKS) do
            local text = FRAME:format(case[2], "lab:step {}")
            local where = line_of(text, #HEAD + text:find("lab:step", 1, true))
            local got = reason(text)
            local place = ("%s:%d: "):format(path, where)
            assert.equal(place, got:sub(1, #place), got)
            assert.truthy(got:find(case[1], 1, true), got)
        end
    end)

    it("(control) is ours where no other is there, and never that of a C function", function()
        local here = debug.getinfo(1, "S").source
        assert.equal(1, blame(1))
        local level = select(2, pcall(blame, 1)) -- of pcall, which has no line
        assert.equal(2, level)
        assert.equal(here, debug.getinfo(level - 1, "S").source)
        local inside = coroutine.wrap(function() return (blame(7)) end)
        assert.equal(7, inside())
    end)
end)
