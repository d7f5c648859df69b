--- Rows whose bits tell where they belong, and the count of those that are elsewhere.
--
-- A row is cut into words of 8, 4 or 2 bytes, the longest that divide it. The word with index
-- i = position * words + column holds i times an odd number, modulo the size of a word: different
-- for different i, as long as a word has enough bits. Where it has too few, i is shown in turn,
-- some bits in each *phase*; two rows that are alike in all phases are the same row. Poison is the
-- complement of what must come, so that no byte of it can be right by chance.
--
-- Runs are those of a layout: { start, length }, in the order of slots.
-- @classmod cplab.bench.pattern
local bit = require "bit"

local clib = require "clib"

local ffi = clib.ffi

local Pattern = {}
Pattern.__index = Pattern

local M = {}

local ODD = 0x9E3779B97F4A7C15ULL
local AS_IT_IS, COMPLEMENT = 0ULL, bit.bnot(0ULL)

local function word_bytes(row_bytes)
    for _, bytes in ipairs { 8, 4 } do
        if row_bytes % bytes == 0 then return bytes end
    end
    return 2
end

-- How often `bits` bits must be shown to tell n indices apart.
local function phases_of(n, bits)
    local phases = 1
    while n > 2 ^ (bits * phases) do phases = phases + 1 end
    return phases
end

--- The pattern of rows of `row_bytes`, an even number, of `n_positions` positions.
function M.new(row_bytes, n_positions)
    local bytes = word_bytes(row_bytes)
    local name = ("uint%d_t"):format(bytes * 8)
    local words = row_bytes / bytes
    return setmetatable({
        n_phases = phases_of(n_positions * words, bytes * 8), _words = words, _bits = bytes * 8,
        _pointer = ffi.typeof(name .. " *"), _box = ffi.new(name .. "[1]"),
    }, Pattern)
end

local function write_words(words, first, n, index, shift, flip)
    for i = first, first + n - 1 do
        words[i] = bit.bxor(bit.rshift(index, shift) * ODD, flip)
        index = index + 1
    end
end

local function write(self, data, runs, phase, flip)
    local words, slot = ffi.cast(self._pointer, data), 0
    for _, run in ipairs(runs) do
        write_words(words, slot * self._words, run[2] * self._words,
            ffi.cast("uint64_t", run[1] * self._words), (phase - 1) * self._bits, flip)
        slot = slot + run[2]
    end
end

--- Writes the rows of runs.
-- @param data where the rows lie
-- @tparam {table,...} runs
-- @tparam integer phase from 1
function Pattern:fill(data, runs, phase)
    write(self, data, runs, phase, AS_IT_IS)
end

--- Writes what no byte of the rows of runs may stay.
function Pattern:poison(data, runs, phase)
    write(self, data, runs, phase, COMPLEMENT)
end

local function is_right(words, first, n, index, shift, box)
    for i = first, first + n - 1 do
        box[0] = bit.rshift(index, shift) * ODD
        if words[i] ~= box[0] then return false end
        index = index + 1
    end
    return true
end

local function wrong_of_run(self, words, slot, run, shift)
    local n, wrong = self._words, 0
    local index = ffi.cast("uint64_t", run[1] * n)
    for row = slot, slot + run[2] - 1 do
        if not is_right(words, row * n, n, index, shift, self._box) then wrong = wrong + 1 end
        index = index + n
    end
    return wrong
end

--- How many rows are not bit for bit those of the runs.
-- @treturn integer
function Pattern:count_wrong(data, runs, phase)
    local words, slot, wrong = ffi.cast(self._pointer, data), 0, 0
    for _, run in ipairs(runs) do
        wrong = wrong + wrong_of_run(self, words, slot, run, (phase - 1) * self._bits)
        slot = slot + run[2]
    end
    return wrong
end

return M
