--- Pictures of layouts and routes as text: who holds what, who sends what to whom.
-- A picture is a list of lines. Each rank is a letter, and with colour also a colour; without
-- colour the letters say all. Ranks and positions count from 0.
-- @module cplab.draw
local M = {}

local LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
local MANY = "*" -- a cell in which several ranks hold positions
-- The bright half of the 256-colour cube, spread so that neighbours differ.
local COLOURS = { 39, 208, 76, 171, 220, 45, 203, 118, 141, 214, 51, 205 }

local function letter(rank)
    local i = rank % #LETTERS + 1
    return LETTERS:sub(i, i)
end

local function paint(text, rank, colour)
    if not colour or not rank then return text end
    return ("\27[38;5;%dm%s\27[0m"):format(COLOURS[rank % #COLOURS + 1], text)
end

-- How many positions a cell stands for, so that the stream fits into `width` cells.
local function scale(n_positions, width)
    return math.max(1, math.ceil(n_positions / width))
end

-- The rank that holds all positions of a cell, or nil.
local function holder(layout, first, last)
    local rank
    local position = first
    while position <= last do
        local here, slot = layout:locate(position)
        if rank and here ~= rank then return nil end
        rank = here
        -- The rest of the run is the same rank's.
        local next_position = position + 1
        while next_position <= last and slot + (next_position - position) < layout:n_local(here)
            and layout:position(here, slot + (next_position - position)) == next_position do
            next_position = next_position + 1
        end
        position = next_position
    end
    return rank
end

--- One line: for each cell of the stream the letter of the rank that holds it.
-- @tparam table layout
-- @tparam table options width (cells), colour
-- @treturn string
function M.holders(layout, options)
    local n = layout:stream():n_positions()
    local per_cell = scale(n, options.width)
    local cells = {}
    for first = 0, n - 1, per_cell do
        local rank = holder(layout, first, math.min(first + per_cell, n) - 1)
        cells[#cells + 1] = paint(rank and letter(rank) or MANY, rank, options.colour)
    end
    return table.concat(cells)
end

--- One line: a bar where a sequence begins, a dot in its real tokens, a blank in its padding.
function M.sequences(stream, options)
    local n = stream:n_positions()
    local per_cell = scale(n, options.width)
    local cells = {}
    for i = 1, math.ceil(n / per_cell) do cells[i] = " " end
    for i = 0, stream:n_sequences() - 1 do
        local sequence = stream:sequence(i)
        for cell = math.floor(sequence.start / per_cell),
            math.ceil((sequence.start + sequence.real) / per_cell) - 1 do
            if cells[cell + 1] == " " then cells[cell + 1] = "." end
        end
        if sequence.padded > 0 then cells[math.floor(sequence.start / per_cell) + 1] = "|" end
    end
    return table.concat(cells)
end

--- What a cell of the two lines above stands for.
function M.per_cell(stream, options)
    return scale(stream:n_positions(), options.width)
end

--- The send matrix with its sums, as aligned lines; a rank's own rows in brackets.
-- @tparam {table,...} matrix matrix[from + 1][to + 1], in rows
-- @tparam boolean colour
function M.matrix(matrix, colour)
    local n, width = #matrix, 6
    for _, row in ipairs(matrix) do
        for _, value in ipairs(row) do width = math.max(width, #("%d"):format(value) + 3) end
    end
    local function cell(text) return (" "):rep(width - #text) .. text end
    local header = { (" "):rep(10) }
    for to = 0, n - 1 do header[#header + 1] = paint(cell("to " .. letter(to)), to, colour) end
    local lines = { table.concat(header) .. cell "out" }
    local in_sums = {}
    for from = 0, n - 1 do
        local cells, sum = {}, 0
        for to = 0, n - 1 do
            local rows = matrix[from + 1][to + 1]
            local text = rows == 0 and "." or ("%d"):format(rows)
            if from ~= to then
                sum = sum + rows
                in_sums[to + 1] = (in_sums[to + 1] or 0) + rows
            elseif rows > 0 then
                text = "(" .. text .. ")"
            end
            cells[#cells + 1] = cell(text)
        end
        lines[#lines + 1] = paint(("from %-5s"):format(letter(from)), from, colour)
            .. table.concat(cells) .. cell(("%d"):format(sum))
    end
    local last = { ("%-10s"):format("in") }
    for to = 1, n do last[#last + 1] = cell(("%d"):format(in_sums[to] or 0)) end
    lines[#lines + 1] = table.concat(last)
    return lines
end

return M
