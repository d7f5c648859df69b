-- Rows whose bits tell where they belong.
local patterns = require "cplab.bench.pattern"
local ffi = require("clib").ffi

local function bytes_of(row_bytes, n_rows)
    return ffi.new("uint8_t[?]", row_bytes * n_rows)
end

-- The rows of positions 0 .. n-1 as strings, all phases of a row one behind the other.
local function rows_of(row_bytes, n)
    local pattern, data, rows = patterns.new(row_bytes, n), bytes_of(row_bytes, n), {}
    for phase = 1, pattern.n_phases do
        pattern:fill(data, { { 0, n } }, phase)
        for i = 1, n do
            rows[i] = (rows[i] or "") .. ffi.string(data + (i - 1) * row_bytes, row_bytes)
        end
    end
    return rows, pattern.n_phases
end

describe("a pattern", function()
    for _, case in ipairs { { 2, 70000, 2 }, { 2, 65536, 1 }, { 6, 40000, 2 }, { 14, 9000, 1 },
        { 4, 70000, 1 }, { 12, 30000, 1 }, { 8, 70000, 1 }, { 4096, 100, 1 } } do
        local row_bytes, n, phases = unpack(case)
        it(("makes %d rows of %d bytes all different in %d phases"):format(n, row_bytes, phases),
            function()
                local rows, n_phases = rows_of(row_bytes, n)
                assert.equal(phases, n_phases)
                local seen, distinct = {}, 0
                for _, row in ipairs(rows) do
                    if not seen[row] then distinct = distinct + 1 end
                    seen[row] = true
                end
                assert.equal(n, distinct)
            end)
    end

    for _, row_bytes in ipairs { 2, 4, 6, 8, 24 } do
        it(("knows its rows of %d bytes, and sees any byte that differs"):format(row_bytes),
            function()
                local runs = { { 7, 3 }, { 0, 2 }, { 2 ^ 40, 4 } }
                local pattern, data = patterns.new(row_bytes, 2 ^ 41), bytes_of(row_bytes, 9)
                for phase = 1, pattern.n_phases do
                    pattern:fill(data, runs, phase)
                    assert.equal(0, pattern:count_wrong(data, runs, phase))
                    for i = 0, 9 * row_bytes - 1 do
                        data[i] = data[i] + 1
                        assert.equal(1, pattern:count_wrong(data, runs, phase))
                        data[i] = data[i] - 1
                    end
                    assert.equal(0, pattern:count_wrong(data, runs, phase))
                end
            end)
    end

    it("counts rows that changed places, and rows of other runs", function()
        local pattern, data = patterns.new(16, 100), bytes_of(16, 10)
        pattern:fill(data, { { 5, 1 }, { 4, 1 }, { 6, 8 } }, 1)
        assert.equal(2, pattern:count_wrong(data, { { 4, 10 } }, 1))
        assert.equal(10, pattern:count_wrong(data, { { 50, 10 } }, 1))
        assert.equal(0, pattern:count_wrong(data, {}, 1))
    end)

    it("poisons every byte", function()
        for _, row_bytes in ipairs { 2, 12, 40 } do
            local pattern, runs = patterns.new(row_bytes, 2 ^ 20), { { 900, 5 }, { 3, 4 } }
            local right, poison = bytes_of(row_bytes, 9), bytes_of(row_bytes, 9)
            for phase = 1, pattern.n_phases do
                pattern:fill(right, runs, phase)
                pattern:poison(poison, runs, phase)
                assert.equal(9, pattern:count_wrong(poison, runs, phase))
                for i = 0, 9 * row_bytes - 1 do assert.equal(255 - right[i], poison[i]) end
            end
        end
    end)
end)
