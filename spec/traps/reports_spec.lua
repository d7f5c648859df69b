-- The public bug reports of gdn_and_attention.md, section 7: each has a spec here that would see
-- it, or a reason why it can have none.
local traps = require "spec.support.traps"

local function reports(first, last, other)
    local ids = traps.ids(first, last)
    ids[#ids + 1] = other
    return ids
end

-- What is checked, and how many of it there are; a list that is not written yet is not.
local LISTS = {
    { name = "reports_gdn", ids = reports(1, 59, "20b") },
    { name = "reports_attention", ids = reports(60, 79) },
}

describe("every bug report", function()
    for _, list in ipairs(LISTS) do
        local entries = traps.load(list.name)
        if #entries > 0 then
            it(("of %s has a spec or a reason"):format(list.name), function()
                assert.equal("", table.concat(traps.wrong(list.ids, entries), "\n"))
            end)
        end
    end
end)

describe("the check of these lists", function()
    local TEXT = [[
describe("outer [report 3]", function()
    describe("inner", function()
        it("holds", function() end)
    end)
    it("[reports 1, 20b] counts", function() end)
    for _, n in ipairs { 1, 2 } do
        it(("[report 2] takes %d"):format(n), function() end)
        it(
            "T-29, T-31: rolls", function() end)
    end
end)
it("alone", function() end)
]]

    local function read(path) return path == "a_spec.lua" and TEXT or nil end

    local function entry(id, name, changes)
        local e = { id = id, source = "x#1", about = "a fault", spec = "a_spec.lua", name = name }
        for field, value in pairs(changes or {}) do e[field] = value or nil end
        return e
    end

    local function wrong(ids, ...) return traps.wrong(ids, { ... }, read) end

    it("finds names, also on a line below and with what a format fills", function()
        assert.same({}, wrong({ 3, 1, "20b", 2, "T-29", "T-31" }, entry(3, "holds"),
            entry(1, "[reports 1, 20b] counts"), entry("20b", "[reports 1, 20b] counts"),
            entry(2, "[report 2] takes %d"), entry("T-29", "T-29, T-31: rolls"),
            entry("T-31", "T-29, T-31: rolls")))
    end)

    it("takes a reason instead", function()
        assert.same({}, wrong({ 9 },
            entry(9, nil, { spec = false, reason = "there is no such thing here" })))
    end)

    it("sees what is missing, there twice or too much", function()
        assert.same({ "3 is there 0 times" }, wrong { 3 })
        assert.same({ "3 is there 2 times" }, wrong({ 3 }, entry(3, "holds"), entry(3, "holds")))
        assert.same({ "3 is not expected" }, wrong({}, entry(3, "holds")))
    end)

    it("sees a spec that is not there, and one of another report", function()
        assert.same({ "3 names a file that is not there: b_spec.lua" },
            wrong({ 3 }, entry(3, "holds", { spec = "b_spec.lua" })))
        assert.same({ '3 names an it that a_spec.lua does not have: "hold"' },
            wrong({ 3 }, entry(3, "hold")))
        assert.same({ '20 is not told by the name of its it: "[reports 1, 20b] counts"' },
            wrong({ 20 }, entry(20, "[reports 1, 20b] counts")))
        assert.same({ '3 is not told by the name of its it: "alone"' },
            wrong({ 3 }, entry(3, "alone")))
        assert.same({ 'T-3 is not told by the name of its it: "T-29, T-31: rolls"' },
            wrong({ "T-3" }, entry("T-3", "T-29, T-31: rolls")))
    end)

    it("takes more than one spec, and sees what is wrong with each", function()
        local function also(...) return wrong({ 3 }, entry(3, "holds", { also = { ... } })) end
        local other = { spec = "a_spec.lua", name = "[reports 1, 20b] counts" }
        assert.same({}, also(other, { spec = "a_spec.lua", name = "holds" }))
        assert.same({ '3 names an it that a_spec.lua does not have: "hold"' },
            also(other, { spec = "a_spec.lua", name = "hold" }))
        assert.same({ '3 is not told by the name of its it: "alone"' },
            also { spec = "a_spec.lua", name = "alone" })
        assert.same({ "3 must have both spec and name" }, also { spec = "a_spec.lua" })
        assert.same({ "3 has an empty also" }, also())
    end)

    it("sees an entry that says too little, too much or nothing", function()
        local function one(changes) return wrong({ 3 }, entry(3, "holds", changes))[1] end
        assert.equal("3 has no source", one { source = false })
        assert.equal("3 does not say what it is about", one { about = " " })
        assert.equal("3 must have either spec and name or a reason", one { reason = "none" })
        assert.equal("3 must have either spec and name or a reason",
            one { spec = false, name = false })
        assert.equal("3 must have both spec and name", one { name = false })
        assert.equal("3 has an empty reason", one { spec = false, name = false, reason = "" })
        assert.equal("3 has an unknown field specs", one { specs = "a_spec.lua" })
    end)
end)
