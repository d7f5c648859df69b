-- Lines of results: what is written can be read back, whatever the numbers and wherever it stops.
local lfs = require "lfs"

local compare = require "cplab.compare"
local json = require "cplab.json"
local report = require "cplab.report"
local results = require "cplab.results"

local function temporary()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    return path
end

local function contents(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read "*a"
    file:close()
    return text
end

local function put(path, text)
    local file = assert(io.open(path, "wb"))
    file:write(text)
    file:close()
end

local function result(cp, status)
    return {
        experiment = "x", case = { cp = cp, ratio = "1:3" }, status = status or "passed",
        metrics = { step_ms = 0.1 + 0.2, zeta = 1 / 0 },
        checks = { { name = "parity", passed = false, value = 0 / 0, bound = 1e-12 } },
        samples = { step_ms = { 1, 2.5 } }, env = { seed = 1 },
    }
end

describe("json", function()
    it("writes every number with all of its digits", function()
        for _, x in ipairs { 0, -3, 0.1 + 0.2, 1 / 3, 1e300, 2 ^ 53, 5e-324, -2.5 } do
            assert.equal(x, (json.decode(json.encode(x))))
        end
    end)

    it("writes NaN and infinities as strings", function()
        assert.equal('["nan","inf","-inf"]', json.encode { 0 / 0, 1 / 0, -1 / 0 })
        assert.equal(-1 / 0, json.to_number "-inf")
    end)

    it("brings any text back", function()
        for _, text in ipairs { "", 'a"b\\c', "\0\1\n\t\127", "\\u0041", "π", "\\", '"' } do
            assert.equal(text, (json.decode(json.encode(text))))
        end
    end)

    it("escapes bytes that are no UTF-8, and those alone", function()
        for text, line in pairs {
            ["\255"] = "\\u00ff", ["a\195"] = "a\\u00c3", ["\195\188\188"] = "\195\188\\u00bc",
            ["\192\128"] = "\\u00c0\\u0080", ["\237\160\128"] = "\\u00ed\\u00a0\\u0080",
            ["\240\159\152\128"] = "\240\159\152\128", ["\226\130\172\n"] = "\226\130\172\\n",
            ["\244\144\128\128"] = "\\u00f4\\u0090\\u0080\\u0080",
        } do
            assert.equal('"' .. line .. '"', json.encode(text))
        end
    end)

    for _, text in ipairs { "", "{", '{"a"', '{"a":}', "[1,", '"a', "nul", "1 2", "{1:2}", "-" } do
        it("refuses " .. (text == "" and "nothing" or text), function()
            local value, message = json.decode(text)
            assert.is_nil(value)
            assert.truthy(message:match "^json: no JSON at character %d+$")
        end)
    end
end)

describe("results.encode", function()
    it("orders the keys and fills every metric", function()
        local line = results.encode(result(4), { "ratio", "cp" })
        local head = '{"schema":"cplab.case/1","experiment":"x","case":{"ratio":"1:3","cp":4},'
            .. '"status":"passed","reason":null,"metrics":{"conversions_fwd":null,'
        assert.equal(head, line:sub(1, #head))
        assert.truthy(line:find('"step_ms":0.30000000000000004,"convert_ms":null', 1, true))
        assert.truthy(line:find('"peak_bytes":null,"zeta":"inf"}', 1, true))
        assert.truthy(line:find(
            '"checks":[{"name":"parity","passed":false,"value":"nan","bound":1e-12}]', 1, true))
        assert.truthy(line:find('"samples":{"step_ms":[1,2.5]},"env":{"seed":1}}', 1, true))
    end)

    it("writes a case without checks and metrics", function()
        local line = results.encode { experiment = "x", case = { cp = 1 }, status = "skipped",
            reason = "too large" }
        assert.truthy(line:find('"reason":"too large"', 1, true))
        assert.truthy(line:find('"checks":[],"samples":{},"env":{}}', 1, true))
    end)

    it("is read back with its numbers", function()
        local back = results.decode(results.encode(result(4)))
        assert.equal(0.1 + 0.2, back.metrics.step_ms)
        assert.equal(1 / 0, back.metrics.zeta)
        assert.is_nil(back.reason)
        assert.is_nil(back.metrics.loss)
    end)
end)

describe("results.json_lines", function()
    it("truncates what was there", function()
        local path = temporary()
        put(path, "old\n")
        local sink = results.json_lines(path, false)
        sink:put(result(1))
        sink:close()
        sink:close()
        assert.equal(results.encode(result(1)) .. "\n", contents(path))
    end)

    it("has written a line as soon as put returns", function()
        local path = temporary()
        local sink = results.json_lines(path, false)
        sink:put(result(1))
        assert.equal(1, #results.read(path))
        sink:close()
    end)

    it("resumes after whole lines and cuts a half-written one", function()
        local path = temporary()
        local first, second = results.encode(result(1)), results.encode(result(2))
        for _, n in ipairs { 0, 1, 40, #second } do
            put(path, first .. "\n" .. second:sub(1, n))
            local sink, old = results.json_lines(path, true)
            assert.equal(1, #old)
            sink:put(result(4))
            sink:close()
            assert.equal(first .. "\n" .. results.encode(result(4)) .. "\n", contents(path))
        end
    end)

    it("refuses a line that is no result, and says which", function()
        local path = temporary()
        put(path, results.encode(result(1)) .. "\n{}\n")
        assert.same({ nil, path .. ":2: not a line of schema cplab.case/1" },
            { results.json_lines(path, true) })
        assert.equal("{}\n", contents(path):sub(-3))
    end)

    local odd = {
        { "experiment", "null", "experiment is no text" },
        { "case", "[1]", "case is no object" },
        { "case", "3", "case is no object" },
        { "status", "null", "status is none of passed, failed, error, skipped" },
        { "status", '"fine"', "status is none of passed, failed, error, skipped" },
        { "reason", "3", "reason is no text" },
        { "env", "3", "env is no object or list" },
        { "metrics", "3", "metrics is no object or list" },
        { "metrics", '{"conversions_fwd":"x"}', "the metric conversions_fwd is no number" },
        { "metrics", '{"step_ms":[]}', "the metric step_ms is no number" },
        { "samples", '{"step_ms":["x",null]}', "the samples of step_ms are no list of numbers" },
        { "samples", '{"step_ms":3}', nil },
        { "checks", "[1]", "checks is no list of objects" },
        { "records", '{"a":{}}', "records is no list of objects" },
        { "env", "null", nil }, { "metrics", "null", nil }, { "records", "null", nil },
    }
    for _, row in ipairs(odd) do
        it(("reads no more than it can use: %s = %s"):format(row[1], row[2]), function()
            local fields = { schema = '"cplab.case/1"', experiment = '"x"', case = '{"cp":1}',
                status = '"passed"' }
            fields[row[1]] = row[2]
            local parts = {}
            for name, text in pairs(fields) do
                parts[#parts + 1] = ('"%s":%s'):format(name, text)
            end
            local back, message = results.decode("{" .. table.concat(parts, ",") .. "}")
            assert.equal(row[3] and "not a line of schema cplab.case/1: " .. row[3], message)
            if not back then return end
            results.key(back)
            report.table({ back }, { axes = { "cp" } })
            compare.lines({ back }, { back })
        end)
    end

    it("knows a case whose text is no UTF-8 again", function()
        local a = result(1)
        a.case.name, a.experiment = "\255", "x\255"
        assert.equal(results.key(a), results.key(results.decode(results.encode(a))))
    end)

    it("knows a case by experiment, case, seed and dtype", function()
        local a, b = result(1), result(1)
        assert.equal(results.key(a), results.key(results.decode(results.encode(b))))
        b.env = { seed = 2 }
        assert.not_equal(results.key(a), results.key(b))
        assert.not_equal(results.key(a), results.key(result(2)))
    end)
end)

describe("results.writable", function()
    it("leaves nothing behind", function()
        local path = temporary()
        os.remove(path)
        assert.is_true(results.writable { path })
        assert.is_nil(io.open(path))
    end)

    it("does not touch one file where another is wrong", function()
        local path = temporary()
        put(path, "kept")
        local ok, message = results.writable { path, "no/such/folder.csv" }
        assert.is_nil(ok)
        assert.equal("results: cannot write no/such/folder.csv: No such file or directory", message)
        assert.equal("kept", contents(path))
    end)
end)

describe("results.distinct", function()
    local folder

    before_each(function()
        folder = os.tmpname()
        os.remove(folder)
        assert(lfs.mkdir(folder))
        put(folder .. "/script.lua", "")
        lfs.link("script.lua", folder .. "/link", true)
        lfs.link(folder .. "/new", folder .. "/dangling", true)
    end)
    after_each(function() os.execute("rm -rf " .. folder) end)

    local function distinct(a, b)
        return results.distinct({ { "--json", a }, { "--csv", b } }, folder .. "/script.lua")
    end

    it("takes files of their own, and devices", function()
        assert.is_true(distinct(folder .. "/a", folder .. "/b"))
        assert.is_true(distinct("/dev/null", "/dev/null"))
        assert.is_true(distinct("no/such", "no/such/folder"))
    end)

    it("refuses the script by any name", function()
        for _, name in ipairs { "script.lua", "./script.lua", "link" } do
            local path = folder .. "/" .. name
            assert.same({ nil, ("run: --csv %s would overwrite the script"):format(path) },
                { distinct(folder .. "/a", path) })
        end
    end)

    it("refuses one file for two outputs", function()
        put(folder .. "/old", "")
        for _, pair in ipairs { { "old", "old" }, { "new", "./new" }, { "new", "dangling" } } do
            local b = folder .. "/" .. pair[2]
            assert.same({ nil, "run: --json and --csv name the same file, " .. b },
                { distinct(folder .. "/" .. pair[1], b) })
        end
    end)

    it("leaves standard output to the table", function()
        assert.same({ nil, "run: --json takes a file; standard output is the table's" },
            { distinct("-", "b") })
    end)
end)

describe("a full disk", function()
    it("ends a file of results with one sentence", function()
        local sink = results.json_lines("/dev/full", false)
        assert.same({ nil, "results: cannot write /dev/full: No space left on device" },
            { sink:put(result(1)) })
        assert.is_nil(sink:put(result(1)))
        assert.same({ nil, "results: cannot write /dev/full: No space left on device" },
            { results.csv("/dev/full", {}, {}) })
    end)
end)

describe("results.csv", function()
    it("quotes what needs it and leaves gaps for what was not measured", function()
        local path = temporary()
        local sink = results.csv(path, { "ratio", "policy", "cp" }, { "mine", "loss" })
        local r = result(4, "failed")
        r.case.policy = { "zigzag", "mirror", "contiguous" }
        r.reason = 'a "b", c'
        r.metrics.mine = 0 / 0
        sink:put(r)
        sink:close()
        local header, row = contents(path):match "^([^\n]*)\n([^\n]*)\n$"
        assert.equal("experiment,ratio,policy,cp,status,reason," ..
            table.concat(results.metrics, ",") .. ",mine", header)
        assert.equal('x,1:3,zigzag/mirror/contiguous,4,failed,"a ""b"", c"', row:match "^(.-),,")
        assert.truthy(row:find(",0.30000000000000004,,", 1, true))
        assert.equal(",nan", row:sub(-4))
    end)
end)
