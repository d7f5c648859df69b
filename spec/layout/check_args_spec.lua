-- Argument checks: what they let through, what they say, and whom they blame.
local args = require "cplab.check_args"
local cplab = require "cplab"
local message = require "spec.support.message"

describe("the nearest name", function()
    local names = { "contiguous", "zigzag", "mirror", "custom", "cp", "tp", "group_order" }

    it("is one that a slip of the hand away is", function()
        local slips = {
            zigzg = "zigzag", Zigzag = "zigzag", zgizag = "zigzag", contigous = "contiguous",
            mirorr = "mirror", cpp = "cp", c = "cp", grouporder = "group_order",
            group = "group_order", tpp = "tp",
        }
        for slip, name in pairs(slips) do assert.equal(name, args.nearest(slip, names), slip) end
    end)

    it("is none where nothing is near", function()
        for _, word in ipairs { "interleaved", "snake", "", "xyz" } do
            assert.is_nil(args.nearest(word, names))
        end
        assert.is_nil(args.nearest(7, names))
        assert.is_nil(args.nearest("cp", {}))
    end)

    it("ends a message, or all names do", function()
        assert.equal('; did you mean "mirror"?', args.suggestion("miror", names))
        assert.equal("; there are cp, tp", args.suggestion("interleaved", { "cp", "tp" }))
        assert.equal("; there are none", args.suggestion("cp", {}))
    end)
end)

describe("the name of a type", function()
    it("is one of those that fields take, alternatives and what may be nil too", function()
        for _, name in ipairs { "integer", "integer?", "table|string?", "any?", "list" } do
            assert.equal(name, args.type_name("f", "x", name))
        end
        assert.equal('f: x: unknown type "integr"; did you mean "integer"?',
            message(args.type_name, "f", "x", "integr?"))
        assert.equal('f: x: unknown type "strin"; did you mean "string"?',
            message(args.type_name, "f", "x", "list|strin"))
        assert.equal("f: x must be a string (got 3)", message(args.type_name, "f", "x", 3))
        assert.truthy(message(args.type_name, "f", "x", ""):find 'unknown type ""')
    end)
end)

describe("fields", function()
    local types = { cp = "integer", tp = "integer?", near = "table|string?", runs = "list?",
        f = "function?", x = "number?", flag = "boolean?", any = "any?" }

    it("let through what fits", function()
        local t = { cp = 2, near = "x", runs = {}, f = print, x = 0.5, flag = false, any = print }
        assert.equal(t, args.fields("f", t, types))
        assert.is_not_nil(args.fields("f", { cp = 2, near = {} }, types))
    end)

    local refused = {
        ["an unknown field"] = { { cp = 1, tpp = 2 },
            'f: unknown field "tpp"; did you mean "tp"?' },
        ["a positional field"] = { { cp = 1, 5 },
            "f: unknown field 1; there are any, cp, f, flag, near, runs, tp, x" },
        ["a missing field"] = { {}, 'f: field "cp" is missing' },
        ["a fraction"] = { { cp = 1.5 }, "f: cp must be an integer (got 1.5)" },
        ["an integer that is not exact"] = { { cp = 2 ^ 54 },
            "f: cp must be an integer (got 18014398509481984)" },
        ["infinity"] = { { cp = math.huge }, "f: cp must be an integer (got inf)" },
        ["a text"] = { { cp = "2" }, 'f: cp must be an integer (got "2")' },
        ["neither of two types"] = { { cp = 1, near = 1 },
            "f: near must be a table or a string (got 1)" },
        ["a list with a hole"] = { { cp = 1, runs = { 1, nil, 3 } },
            "f: runs must be a list (got a table)" },
        ["a list with a name"] = { { cp = 1, runs = { n = 1 } },
            "f: runs must be a list (got a table)" },
        ["no function"] = { { cp = 1, f = true }, "f: f must be a function (got true)" },
        ["no number"] = { { cp = 1, x = 0 / 0 }, "f: x must be a number (got nan)" },
        ["no flag"] = { { cp = 1, flag = 1 }, "f: flag must be a boolean (got 1)" },
        ["no table"] = { nil, "f: takes a table of named fields (got nil)" },
    }
    for name, case in pairs(refused) do
        it("refuse " .. name, function()
            local text = message(args.fields, "f", case[1], types)
            assert.equal(case[2], (text:gsub("%-nan", "nan")))
        end)
    end

    it("name a type that there is not, for the author", function()
        assert.equal("check_args: no type int", message(args.fields, "f", { a = 1 }, { a = "int" }))
    end)
end)

describe("single checks", function()
    it("bound integers", function()
        assert.equal(3, args.integer("f", "n", 3, 0, 3))
        assert.equal("f: n must be an integer in 0 .. 3 (got 4)",
            message(args.integer, "f", "n", 4, 0, 3))
        assert.equal("f: n must be an integer <= 3 (got 4)",
            message(args.integer, "f", "n", 4, nil, 3))
        assert.equal("f: n must be an integer (got a table)", message(args.integer, "f", "n", {}))
    end)

    it("choose from names", function()
        assert.equal("f32", args.one_of("model", "dtype", "f32", { "f64", "f32" }))
        assert.equal('model: unknown dtype "f23"; did you mean "f32"?',
            message(args.one_of, "model", "dtype", "f23", { "f64", "f32" }))
    end)

    it("look into lists", function()
        assert.same({ 1, 2 }, args.integers("f", "list", { 1, 2 }, 1, 2))
        assert.equal("f: list[2] must be an integer in 1 .. 2 (got 3)",
            message(args.integers, "f", "list", { 1, 3 }, 1, 2))
        assert.equal("f: list must be a list (got 1)", message(args.integers, "f", "list", 1))
    end)
end)

describe("blame", function()
    -- Public functions as they are written everywhere: the check is told level 2.
    local function public(check)
        return function(...)
            check(...)
            return true
        end
    end
    local checks = {
        fields = public(function() args.fields("f", { x = 1 }, {}, 3) end),
        types = public(function() args.fields("f", { x = 1.5 }, { x = "integer" }, 3) end),
        missing = public(function() args.fields("f", {}, { x = "integer" }, 3) end),
        no_table = public(function() args.fields("f", 1, {}, 3) end),
        value = public(function() args.value("f", "x", 1, "string", 3) end),
        integer = public(function() args.integer("f", "x", 1, 2, 3, 3) end),
        integers = public(function() args.integers("f", "x", { 1 }, 2, 3, 3) end),
        one_of = public(function() args.one_of("f", "x", 1, {}, 3) end),
        unknown = public(function() args.unknown("f", "x", 1, {}, 3) end),
    }
    for name, check in pairs(checks) do
        it("falls on the caller of " .. name, function()
            local line = debug.getinfo(1, "l").currentline + 1
            local _, text = pcall(function() check() return nil end)
            assert.truthy(text:find(("check_args_spec.lua:%d: f: "):format(line), 1, true), text)
        end)
    end
end)

describe("the module table", function()
    it("loads its parts when they are named", function()
        assert.equal(require "cplab.stream", cplab.stream)
        assert.equal(rawget(cplab, "stream"), cplab.stream)
    end)

    it("suggests the part that was meant", function()
        assert.equal('cplab: unknown name "layuot"; did you mean "layout"?',
            message(function() return cplab.layuot end))
    end)
end)
