-- ./cplab route and ./cplab bench route, as a user calls them.
local command = require "spec.cli.command"
local json = require "cplab.json"

local function route(words)
    local all = { "route" }
    for _, word in ipairs(words) do all[#all + 1] = word end
    return command.cplab(all)
end

describe("./cplab route", function()
    it("draws who holds what, the send matrix and the sums", function()
        local result = route { "--cp", "4", "--lengths", "64", "--from", "contiguous", "--to",
            "mirror" }
        assert.equal(0, result.status)
        assert.equal("", result.err)
        local lines = {}
        for line in result.out:gmatch "([^\n]*)\n" do lines[#lines + 1] = line end
        assert.equal("thd of 1 sequence, 64 positions, a cell is 1 position", lines[1])
        assert.equal("contiguous  " .. ("0"):rep(16) .. ("1"):rep(16) .. ("2"):rep(16)
            .. ("3"):rep(16), lines[3])
        assert.equal("mirror      0000000033333333111111112222222222222222111111113333333300000000",
            lines[4])
        assert.equal("from 1         .   (8)     8     .     8", lines[8])
        assert.equal("in             8     8     8     8", lines[11])
        assert.truthy(lines[13]:find("^32 of 64 rows change rank in 4 messages; the busiest rank "
            .. "moves 8; 8 segments; one rank's part took %d+ us$"))
        assert.is_nil(result.out:find "\27")
    end)

    it("marks a cell in which several ranks hold positions", function()
        local out = route({ "--cp", "2", "--lengths", "4,1000", "--from", "zigzag" }).out
        assert.truthy(out:find "\nzigzag      %*0")
    end)

    it("prints JSON with runs, segments and matrix", function()
        local result = route { "--cp", "2", "--lengths", "8,12,4", "--json" }
        assert.equal(0, result.status)
        local value = assert(json.decode(result.out))
        assert.equal("cplab.route/1", value.schema)
        assert.equal(24, value.n_positions)
        assert.equal(2, #value.matrix)
        local sum = 0
        for _, segment in ipairs(value.ranks[1].sends) do sum = sum + segment.length end
        assert.equal(12, sum)
        assert.same({ 0, 2 }, value.ranks[1].from_runs[1])
    end)

    it("writes the matrix that nccl-tests' alltoallv reads: bytes, a sender a line", function()
        local words = { "--cp", "2", "--lengths", "16,24", "--row-bytes", "16", "--matrix" }
        words[#words + 1] = "-"
        assert.equal("192 128\n128 192\n", route(words).out)
        local folder = command.folder()
        finally(function() command.remove(folder) end)
        words[#words] = folder .. "/matrix.txt"
        assert.equal(0, route(words).status)
        assert.equal("192 128\n128 192\n", command.read(folder .. "/matrix.txt"))
        words[#words] = folder .. "/missing/matrix.txt"
        local result = route(words)
        assert.equal(2, result.status)
        assert.truthy(result.err:find("cplab: route: --matrix: cannot write ", 1, true))
    end)

    it("reads lengths from a file or from standard input", function()
        local folder = command.folder()
        finally(function() command.remove(folder) end)
        local path = command.write(folder .. "/lengths", "16\n24\n")
        local expected = route({ "--cp", "2", "--lengths", "16,24", "--matrix", "-" }).out
        assert.equal(expected, route({ "--cp", "2", "--lengths", "@" .. path, "--matrix",
            "-" }).out)
        local piped = command.shell("echo 16 24 | " .. command.root
            .. "/cplab route --cp 2 --lengths - --matrix -")
        assert.equal(expected, piped.out)
    end)

    for words, message in pairs {
        ["--cp 4 --lengths 10"] =
            "cplab: layout.zigzag: sequence 0 has 10 tokens, not a multiple of 2*cp = 8",
        ["--cp 2 --lengths 16,x"] = "cplab: route: --lengths: 'x' is no number",
        ["--cp 2 --lengths ,"] = "cplab: route: --lengths: there are no numbers",
        ["--cp 2 --lengths @/no/such/file"] =
            "cplab: route: --lengths: cannot read /no/such/file: No such file or directory",
        ["--cp 2 --lengths 16 --from zigzak"] =
            'cplab: cplab.layout: unknown layout "zigzak"; did you mean "zigzag"?',
        ["--cp 0 --lengths 16"] = "--cp takes a whole number >= 1, got '0'",
    } do
        it("refuses " .. words, function()
            local list = {}
            for word in words:gmatch "%S+" do list[#list + 1] = word end
            local result = route(list)
            assert.equal(2, result.status)
            assert.equal("", result.out)
            assert.truthy(result.err:find(message, 1, true), result.err)
        end)
    end
end)

describe("./cplab bench route", function()
    it("prints a row for each size, with the cost of a segment", function()
        local result = command.cplab { "bench", "route", "--iters", "1", "--json" }
        assert.equal(0, result.status)
        local n = 0
        for line in result.out:gmatch "[^\n]+" do
            local row = assert(json.decode(line))
            n = n + 1
            assert.is_true(row.segments > 0 and row.median_ms > 0)
            assert.is_true(math.abs(row.ns_per_segment * row.segments - row.median_ms * 1e6)
                < 1e-6 * row.median_ms * 1e6)
        end
        assert.equal(24, n)
    end)

    it("knows what it can measure", function()
        assert.equal(2, command.cplab({ "bench", "routes" }).status)
    end)
end)
