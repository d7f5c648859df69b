--- The boundary of a module: what goes in is converted to the layout that the module wants, what
-- comes out is converted back to the caller's.
--
--     local inside, exit = cplab.boundary.enter(lab, { x, residual }, "zigzag")
--     return exit(attention(inside[1], inside[2]))
--
-- Nothing of the caller's is written, and the converter travels with the call: it is a value, not
-- something that the module keeps. So calls may be interleaved in any order, and an error leaves
-- the caller's tensors as they were, in the layout in which they were.
--
-- What is known of a tensor's layout is the mark that it carries (every conversion leaves one);
-- `from` must agree with it. Only a tensor without a mark is believed to be where `from` says, or
-- the enclosing `run`, or else where the model lives.
--
-- Shapes. n is the number of this rank's rows in the caller's layout, m that in the target.
--
-- - tensors: [n, ...], first axis rows. Of a batch (sbhd) a row is a position with all its columns,
--   [n, batch, ...].
-- - masks and biases: [n, ..., n_keys], first axis this rank's queries, last axis *all* keys; axes
--   between (heads, columns) as many as there are. Rows follow the query layout. Columns are the
--   keys of rank 0, then those of rank 1, and so on (`columns = "ranks"`, the order in which
--   gathering the shards puts them), so they follow the key layout; with `columns = "positions"`
--   they are in global order and stay.
-- - key and value states of cross-attention: [rows, ...] of the key layout, which is that of the
--   queries unless `keys` names another (an encoder's has a stream of its own).
--
-- With tensor parallelism (tp > 1) rows are those of sequence parallelism: the window of each rank,
-- of a layout over all cp * tp ranks. Whole shards that every tp rank has are refused by their row
-- count; what the tp ranks do with a module's weights is not looked at.
--
-- Gradients cross the same way: those of outputs are entered, those of inputs exit, because a
-- conversion only moves rows and its adjoint moves them back.
-- @module cplab.boundary
local args = require "cplab.check_args"
local comms = require "cplab.comm"
local keys = require "cplab.boundary.keys"
local plans = require "cplab.plans"
local tree = require "cplab.boundary.tree"

local M = {}

local OPTIONS = { masks = "any?", bias = "any?", key_value_states = "any?", from = "any?",
    keys = "list?", columns = "string?", strict = "boolean?" }
local COLUMNS = { "ranks", "positions" }
local SIDE = { "masks", "bias", "key_value_states" }
local IN_WORDS = { masks = "an explicit mask", bias = "a bias",
    key_value_states = "key and value states of cross-attention" }

-- Where code inside of `run` is, by coroutine (each interleaved microbatch has its own).
local function inside_of(lab)
    lab.boundaries = lab.boundaries or setmetatable({}, { __mode = "k" })
    return lab.boundaries, coroutine.running() or lab
end

-- ---- which layout -----------------------------------------------------------------

local function assumed(lab, own, who, level)
    local runs, co = inside_of(lab)
    if runs[co] then return runs[co] end
    if not lab.model then
        error(("%s: say in which layout the rows are: the tensors carry no mark, there is no from, "
            .. "and the lab has no model"):format(who), level + 1)
    end
    local assignment = lab.model:assignment(lab.stream, { cp = lab.cp, tp = lab.tp })
    return (own:layout(assignment.entry, who, level + 1))
end

-- The one that the tensors are marked with, or nil.
local function mark_of(own, leaves)
    for _, leaf in ipairs(leaves) do
        local marked = own:marked(leaf.tensor)
        if marked then return marked end
    end
    return nil
end

-- What is wrong with the marks of tensors that should hold rows of a layout, in words; nil where
-- nothing is.
local function complaint_of_marks(own, leaves, layout)
    for _, leaf in ipairs(leaves) do
        local marked = own:marked(leaf.tensor)
        if marked ~= nil and marked ~= layout then
            return ("%s holds rows of %s, not of %s"):format(leaf.path,
                marked and tostring(marked) or "another layout", tostring(layout))
        end
    end
    return nil
end

-- The same of marks and numbers of rows.
local function complaint_of_rows(lab, own, leaves, layout)
    local said = complaint_of_marks(own, leaves, layout)
    if said then return said end
    local n = layout:n_local(lab.rank)
    for _, leaf in ipairs(leaves) do
        local shape = leaf.tensor:shape()
        for i = 2, #shape do
            if shape[i] == 0 then
                return ("%s is %s: its rows are empty"):format(leaf.path, leaf.tensor:describe())
            end
        end
        if shape[1] ~= n then
            return ("%s has %d rows, but rank %d has %d in %s%s"):format(leaf.path, shape[1],
                lab.rank, n, tostring(layout), lab.tp > 1 and
                (", whose rows are windows of tp = %d"):format(lab.tp) or "")
        end
    end
    return nil
end

-- ---- a crossing: what one call converts, and between what -----------------------------

local function needs(pair)
    return pair.from ~= pair.to
end

local function leaves_of(self)
    local leaves = { tensors = tree.leaves(self.tensors, "tensors") }
    for _, name in ipairs(SIDE) do leaves[name] = tree.leaves(self.side[name], name) end
    return leaves
end

-- What the reference refuses, in its order.
local function complaint_of_strict(self, leaves)
    if not self.strict then return nil end
    for _, name in ipairs(SIDE) do
        local leaf = leaves[name][1]
        if leaf then
            return ("strict: %s (%s, %s) does not cross from %s to %s"):format(IN_WORDS[name],
                leaf.path, leaf.tensor:describe(), tostring(self.rows.from),
                tostring(self.rows.to))
        end
    end
    return nil
end

-- Layouts between which no route is, in words; nil where there is one.
local function complaint_of_pair(lab, what, pair)
    local from, to = pair.from, pair.to
    if not from:stream():equals(to:stream()) then
        return ("%s would go from %s to %s, a layout of another stream"):format(what,
            tostring(from), tostring(to))
    end
    for _, layout in ipairs { from, to } do
        if layout:cp() ~= lab.cp or layout:tp() ~= lab.tp then
            return ("%s would go from %s to %s, but the lab has cp %d, tp %d"):format(what,
                tostring(from), tostring(to), lab.cp, lab.tp)
        end
    end
    return nil
end

local function complaint(self, leaves)
    local lab, own, rows = self.lab, self.own, self.rows
    local said = complaint_of_strict(self, leaves)
        or complaint_of_pair(lab, "rows", rows) or complaint_of_pair(lab, "keys", self.keys)
        or complaint_of_rows(lab, own, leaves.tensors, rows.from)
        or complaint_of_rows(lab, own, leaves.key_value_states, self.keys.from)
    for _, name in ipairs { "masks", "bias" } do
        said = said or complaint_of_rows(lab, own, leaves[name], rows.from)
            or keys.complaint(leaves[name], self.keys.from)
    end
    return said
end

-- What crosses, in words that are the same on all ranks where they convert the same: each path
-- with what a row is, and between which layouts.
local function in_words(self, leaves)
    local words = {}
    for _, name in ipairs { "tensors", unpack(SIDE) } do
        for _, leaf in ipairs(leaves[name]) do
            local row = leaf.tensor:describe():gsub("^%[%d+", "[rows")
            words[#words + 1] = leaf.path .. " " .. row
        end
    end
    local text = ("%s from %s to %s"):format(#words > 0 and table.concat(words, ", ") or "nothing",
        tostring(self.rows.from), tostring(self.rows.to))
    if #leaves.masks + #leaves.bias > 0 then text = text .. ", columns by " .. self.columns end
    if self.keys == self.rows then return text end
    return ("%s, keys from %s to %s"):format(text, tostring(self.keys.from), tostring(self.keys.to))
end

-- Collective. One rank's complaint is raised on all; ranks that bring different things would wait
-- for each other, or mix them.
local function agree(self, leaves, level)
    local comm, said = comms.wrap(self.lab.comm), complaint(self, leaves)
    if comm:agree(said == nil) then
        local words = in_words(self, leaves)
        if comm:same(words) then return end
        error(("%s: the ranks bring different things; rank %d: %s"):format(self.who, comm:rank(),
            words), level + 1)
    end
    local first
    for rank, other in ipairs(comm:gather(said or false)) do
        first = first or other and (rank - 1 == comm:rank() and other
            or ("rank %d: %s"):format(rank - 1, other)) or nil
    end
    error(("%s: %s"):format(self.who, said or first), level + 1)
end

local function mover(self, pair)
    if not needs(pair) then return nil end
    return function(tensor) return self.own:convert(tensor, pair.from, pair.to, nil, 1) end
end

-- Rows, then columns.
local function mask_mover(self, rows, columns)
    local move = mover(self, rows)
    if self.columns == "positions" or not needs(columns) then return move end
    local segments = keys.segments(self.own, columns.from, columns.to)
    return function(tensor) return keys.permute(move and move(tensor) or tensor, segments) end
end

-- Collective. Tensors and what stands beside them, moved along a pair of layouts of rows and one of
-- keys.
local function move(self, tensors, side, rows, columns)
    local moved = {
        masks = tree.map(side.masks, mask_mover(self, rows, columns)),
        bias = tree.map(side.bias, mask_mover(self, rows, columns)),
        key_value_states = tree.map(side.key_value_states, mover(self, columns)),
    }
    return tree.map(tensors, mover(self, rows)), moved
end

local function turned(pair)
    return { from = pair.to, to = pair.from }
end

-- The way back of a crossing, as a crossing of its own.
local function way_back(self)
    return function(tensors, side)
        side = args.fields("boundary: exit", side or {}, { masks = "any?", bias = "any?",
            key_value_states = "any?" }, 2)
        if not (needs(self.rows) or needs(self.keys)) then return tensors, side end
        local rows = turned(self.rows)
        local back = { lab = self.lab, own = self.own, who = "boundary: exit",
            columns = self.columns, tensors = tensors, side = side, rows = rows,
            keys = self.keys == self.rows and rows or turned(self.keys) }
        agree(back, leaves_of(back), 2)
        return move(back, tensors, side, back.rows, back.keys)
    end
end

local function options_of(who, options, level)
    options = args.fields(who, options or {}, OPTIONS, level + 1)
    args.one_of(who, "columns", options.columns or "ranks", COLUMNS, level + 1)
    if options.keys and #options.keys ~= 2 then
        error(("%s: keys must be { from, to }, two layouts (got %d)"):format(who, #options.keys),
            level + 1)
    end
    return options
end

local function check_lab(who, lab, level)
    if type(lab) ~= "table" or not (lab.comm and lab.cp and lab.rank) then
        error(("%s: the first argument must be a lab (got %s)"):format(who, args.show(lab)),
            level + 1)
    end
end

-- What a call is about; nothing is checked yet but what it asks for.
local function open(lab, tensors, target, options, who, level)
    level = level + 1
    check_lab(who, lab, level)
    options = options_of(who, options, level)
    local own = plans.of(lab)
    local function layout(name_or_layout)
        return (own:layout(name_or_layout, who, level + 1))
    end
    local self = { lab = lab, own = own, who = who, columns = options.columns or "ranks",
        strict = options.strict, tensors = tensors, side = {} }
    for _, name in ipairs(SIDE) do self.side[name] = options[name] end
    local to, given = layout(target), options.from and layout(options.from)
    local leaves = leaves_of(self)
    self.rows = { to = to,
        from = given or mark_of(own, leaves.tensors) or assumed(lab, own, who, level) }
    self.keys = not options.keys and self.rows
        or { from = layout(options.keys[1]), to = layout(options.keys[2]) }
    return self, leaves
end

local function enter(lab, tensors, target, options, who, level)
    level = level + 1
    local self, leaves = open(lab, tensors, target, options, who, level)
    if not (needs(self.rows) or needs(self.keys)) then
        local said = complaint_of_rows(lab, self.own, leaves.tensors, self.rows.from)
        if said then error(("%s: %s"):format(who, said), level) end
        return tensors, way_back(self), self.side, self
    end
    agree(self, leaves, level)
    local inside, side = move(self, tensors, self.side, self.rows, self.keys)
    return inside, way_back(self), side, self
end

--- Collective, where something is to be converted. Brings a module's inputs to its layout.
-- @tparam table lab
-- @param tensors a cplab.tensor, or tables of such, however deep: their shape is kept, and whatever
-- is no plain table and no tensor (numbers, strings, objects, functions) passes through untouched,
-- as what is absent does. Where nothing needs converting this very value is returned.
-- @param target a layout, or the name of one of the lab's stream and group
-- @tparam ?table options masks, bias, key_value_states (tensors or tables of them, see above), from
-- (where the rows are: a layout or its name), keys ({ from, to }: the key layouts, where they are
-- not those of the queries), columns ("ranks", "positions"), strict (refuse masks, biases and key
-- and value states where rows are to be converted, as the reference does)
-- @return what `tensors` is inside
-- @treturn function exit(outputs, side): outputs back in the caller's layout, by the same rules,
-- and side ({ masks =, bias =, key_value_states = }, such as gradients of a bias) too; to be called
-- as often as there are ways out
-- @treturn table { masks =, bias =, key_value_states = }, as they are inside
-- @raise on all ranks, before anything is converted: rows or columns that are not those of the
-- layout, a mark that says otherwise, and with strict what the reference refuses
function M.enter(lab, tensors, target, options)
    local inside, exit, side = enter(lab, tensors, target, options, "boundary.enter", 2)
    return inside, exit, side
end

local function pack(...)
    return { n = select("#", ...), ... }
end

--- Collective. Runs a module inside of its layout: every way out of it leads back to the caller's.
-- While it runs, boundaries without a mark or a `from` start from the target; afterwards, errors
-- included, they start again from where they did before.
-- @param lab
-- @param tensors
-- @param target
-- @tparam ?table options these four as of `enter`
-- @tparam function body called with what `enter` returns first and third; it may return any number
-- of values, nil among them
-- @return what the body returns, in the caller's layout
-- @raise what `enter` raises, and what the body raises, as it raised it
function M.run(lab, tensors, target, options, body)
    args.value("boundary.run", "body", body, "function", 2)
    local inside, exit, side, self = enter(lab, tensors, target, options, "boundary.run", 2)
    local runs, co = inside_of(lab)
    local before = runs[co]
    runs[co] = self.rows.to
    local results = pack(pcall(body, inside, side))
    runs[co] = before
    if not results[1] then error(results[2], 0) end
    local outputs = {}
    for i = 2, results.n do outputs[i - 1] = results[i] end
    return unpack((exit(outputs)), 1, results.n - 1)
end

return M
