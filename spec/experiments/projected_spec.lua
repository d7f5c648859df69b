-- experiments/when_does_it_pay.lua: its own checks, and what its comment says. It runs nothing, so
-- this is quick.
local command = require "spec.cli.command"
local json = require "cplab.json"

-- The records of the cases by "network pack", and how the run ended.
local function project()
    local folder, records, n = command.folder(), {}, 0
    local path = folder .. "/rows"
    local result = command.cplab { "run", command.root .. "/experiments/when_does_it_pay.lua",
        "--only", "group=16", "--only", "pack=one,log-normal 1k", "--json", path }
    for line in (command.read(path) or ""):gmatch "[^\n]+" do
        local row = json.decode(line)
        records[row.case.network .. " " .. row.case.pack], n = row.records[1], n + 1
    end
    command.remove(folder)
    return result, records, n
end

describe("the experiment when_does_it_pay", function()
    it("passes, and says for whom it pays", function()
        local result, records, n = project()
        assert.equal(0, result.status, result.err)
        assert.equal(4, n)
        for _, record in pairs(records) do
            assert.is_true(record.auto >= 1)
            for _, name in ipairs { "mirror ring", "zigzag gather", "contig gather",
                "balanced gather", "native" } do
                assert.is_true(record[name] <= record.auto, name)
            end
        end
        -- Short documents over a slow network; one document hardly, and never unbalanced.
        assert.is_true(records["infiniband log-normal 1k"].auto > 1.1)
        assert.is_true(records["infiniband one"].auto < 1.05)
        assert.is_true(records["infiniband one"]["contig gather"] < 0.8)
    end)
end)
