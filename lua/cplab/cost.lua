--- What a step would cost: exact counts of work, bytes and messages, priced on a cluster.
-- Counts come from runs and real lengths (cplab.cost.counts); nothing is run. The busiest rank sets
-- a time, not the average. Layers that are alike in kind, sizes, layout and mode share one price.
--
-- A detail is { compute =, comm =, host =, pack =, bytes =, messages =, imbalance =, variant =,
-- passes = }: seconds, exposed ones for comm, that add up to the price; bytes and messages of the
-- busiest rank, forward and backward; compute of the busiest rank over the mean; where there is
-- a choice that is no mode (how keys are gathered, whether a conversion swaps in place), its name;
-- and the passes (cplab.cost.pass), which a timeline is drawn from.
--
-- What is not counted: experts on other ranks (cplab has all of them on every rank), pipeline
-- bubbles, an optimizer, the rolling of labels (once a step, of integers), and for MTP the tokens
-- that a depth's shorter sequences lack.
-- @module cplab.cost
-- @usage local prices = cplab.cost.new { cluster = "h100", model = m, stream = s, cp = 16 }
--   print(prices:mixer(4, "mirror", "p2p"), prices:convert("contiguous", "mirror"))
local alike = require "cplab.cost.alike"
local args = require "cplab.check_args"
local attention = require "cplab.cost.attention"
local clib = require "clib"
local clusters = require "cplab.cluster"
local counting = require "cplab.cost.counts"
local gdn = require "cplab.cost.gdn"
local models = require "cplab.model"
local passes = require "cplab.cost.pass"
local named_layouts = require "cplab.named_layouts"
local projection = require "cplab.cost.projection"
local rest = require "cplab.cost.rest"
local schedules = require "cplab.schedule"
local sizes = require "cplab.cost.sizes"
local streams = require "cplab.stream"

local Prices = {}
Prices.__index = Prices

local M = {}

local FIELDS = {
    cluster = "any", model = "any", stream = "any", cp = "integer", tp = "integer?",
    backward = "boolean?", dtype = "string?", recompute = "boolean?", layouts = "list?",
    near = "string?",
}
local DTYPES = { "bf16", "f32", "f64" }

--- The names of the layouts that are tried where none are given, beside those that the model names:
-- what binds its kinds of layers, and the ends of `auto`.
M.candidates = { "contiguous", "zigzag", "mirror", "balanced", "balanced@0.1" }

-- ---- making ---------------------------------------------------------------------

local function check_fields(t, level)
    args.fields("cost.new", t, FIELDS, level + 1)
    for name, is in pairs { model = models.is, stream = streams.is } do
        if not is(t[name]) then
            error(("cost.new: %s must be a cplab.%s"):format(name, name), level + 1)
        end
    end
    args.integer("cost.new", "cp", t.cp, 1, nil, level + 1)
    args.integer("cost.new", "tp", t.tp or 1, 1, nil, level + 1)
    args.one_of("cost.new", "dtype", t.dtype or t.model.dtype, DTYPES, level + 1)
    for _, name in ipairs(t.layouts or {}) do
        named_layouts.check("cost.new", name, level + 1)
    end
    named_layouts.check("cost.new", t.near or "contiguous", level + 1)
    local reason = sizes.split_refusal(t.model, t.tp or 1)
    if reason then error("cost.new: " .. reason, level + 1) end
end

-- The candidates where none are given.
local function candidates_of(model)
    local names, known = {}, {}
    local function add(name)
        if not known[name] then known[name], names[#names + 1] = true, name end
    end
    for _, name in ipairs(M.candidates) do add(name) end
    for _, kind in ipairs(schedules.kinds) do
        local bound = model.bound_to[kind]
        for _, name in ipairs(type(bound) == "table" and bound or {}) do add(name) end
    end
    add(model.auto.entry or names[1])
    add(model.auto.exit or names[1])
    return names
end

-- Tries to lay the stream out; returns why that cannot be.
local function refusal_of(counts, name)
    local made, message = pcall(counts.windows, counts, name)
    return not made and (tostring(message):gsub("^[^:]*%.lua:%d+: ", "")) or nil
end

local function split_by_refusal(self, names)
    self.layouts, self.refused, self.tried = {}, {}, {}
    for _, name in ipairs(names) do
        name = named_layouts.check("cost.new", name)
        self.refused[name] = refusal_of(self.counts, name)
        self.tried[name] = true
        if not self.refused[name] then self.layouts[#self.layouts + 1] = name end
    end
end

-- What all parts of the model of costs read.
local function environment(self, cluster)
    local bytes = tonumber(clib.C.cpl_dtype_bytes(clib.dtypes[self.dtype]))
    local env = {
        cluster = cluster, model = self.model, cp = self.cp, tp = self.tp,
        batch = self.stream:batch(), dtype = self.dtype, bytes = bytes,
        gradient_bytes = math.max(bytes, 4), nodes = {}, loads = {},
        node_size = math.max(math.floor(cluster.ranks_per_node / self.tp), 1),
    }
    for c = 0, self.cp - 1 do env.nodes[c] = math.floor(c * self.tp / cluster.ranks_per_node) end
    function env.pass() return passes.new(cluster, self.cp) end
    return env
end

local function price_on(self, cluster)
    self.cluster, self.known = cluster, {}
    self.env = environment(self, cluster)
    return self
end

local function cluster_of(cluster, level)
    return clusters.is(cluster) and cluster or (clusters.load(cluster, level + 1))
end

--- Prices of a model on a stream and a cluster.
-- @tparam table t cluster (a name, a path or a cluster), model, stream, cp, tp (1), backward (true:
-- prices are of forward and backward), dtype (of rows and products: "bf16", "f32", "f64"; the
-- model's), recompute (false; true: backward begins with the forward again), layouts (names of
-- candidates; by default M.candidates), near (the layout that balanced ones stay near: contiguous)
-- @treturn table layouts: names of the candidates that the stream can have, in their order;
-- refused: name -> why not; model, stream, cluster, cp, tp, near
-- @raise unknown names, a tp that does not divide, a stream that can have none of the layouts
function M.new(t)
    check_fields(t, 2)
    local self = setmetatable({
        model = t.model, stream = t.stream, cp = t.cp, tp = t.tp or 1,
        backward = t.backward ~= false, dtype = t.dtype or t.model.dtype,
        recompute = t.recompute or false, list = alike.layers(t.model),
        counts = counting.new { stream = t.stream, cp = t.cp, tp = t.tp or 1,
            near = t.near, balance = t.model.balance },
        near = t.near or "contiguous",
    }, Prices)
    price_on(self, cluster_of(t.cluster, 2))
    local names = t.layouts or candidates_of(t.model)
    split_by_refusal(self, names)
    if #self.layouts == 0 then
        error(("cost.new: the stream can have none of the layouts %s; %s: %s"):format(
            table.concat(names, ", "), names[1] or "none", self.refused[names[1]] or "none asked"),
            2)
    end
    return self
end

--- The same counts on another cluster: nothing is counted again.
-- @tparam table|string cluster
function Prices:on(cluster)
    local copy = {}
    for name, value in pairs(self) do copy[name] = value end
    return price_on(setmetatable(copy, Prices), cluster_of(cluster, 2))
end

-- ---- prices ---------------------------------------------------------------------

-- A price by key; make returns the forward pass, the backward one and a variant.
local function price(self, key, make)
    local known = self.known[key]
    if not known then
        local forward, backward, variant = make()
        local list = { forward }
        if self.backward and self.recompute then list[2] = forward end
        if self.backward then list[#list + 1] = backward end
        known = { passes.price(list, variant) }
        self.known[key] = known
    end
    return known[1], known[2]
end

-- What a layout is to work on all rows: how many each rank has; with windows, also where they are.
local function rows_key(self, layout)
    return self.tp == 1 and self.counts:rows_key(layout) or layout
end

local function check_layer(self, who, i, level)
    args.integer(who, "layer", i, 1, #self.list, level + 1)
    return self.list[i]
end

-- Why a layout cannot be had; nil if it can. Names beyond the candidates are tried here.
local function layout_refusal(self, who, name, level)
    if not self.tried[name] then
        named_layouts.check(who, name, level + 1)
        self.refused[name], self.tried[name] = refusal_of(self.counts, name), true
    end
    return self.refused[name]
end

--- Why the stream cannot have a layout; nil where it can. Any name that a policy may have.
-- @raise an unknown layout
function Prices:refusal(layout)
    return (layout_refusal(self, "prices:refusal", layout, 2))
end

local function need_layout(self, who, name, level)
    local reason = layout_refusal(self, who, name, level + 1)
    if reason then error(("%s: %s: %s"):format(who, name, reason), level + 1) end
end

local function mode_refusal(self, about, mode)
    if about.kind == "gdn" then return gdn.refusal(self.env, mode, about.config) end
    if mode == "a2a+p2p" and about.config.a2a == 0 then return "the model says no a2a" end
    return attention.refusal(self.env, about.kind, mode, about.config)
end

--- The cp_modes that a layer can run with here. On one CP rank all are the same: its own alone.
-- @tparam number i from 1, of model:layers()
-- @treturn {string,...} in the order of cplab.schedule.cp_modes
function Prices:modes(i)
    local layer, list = check_layer(self, "prices:modes", i, 2), {}
    if self.cp == 1 then return { layer.cp_mode } end
    for _, mode in ipairs(schedules.cp_modes(layer.about.kind)) do
        if not mode_refusal(self, layer.about, mode) then list[#list + 1] = mode end
    end
    return list
end

--- What a layer's mixer costs in a layout, its own exchanges included; with tp > 1 also the gather
-- of windows before it and the sum behind it.
-- @tparam number i from 1
-- @tparam string layout
-- @tparam ?string mode by default the layer's own
-- @treturn ?number seconds; nil where it cannot run
-- @return a detail, or why it cannot run
-- @raise unknown layers, layouts and modes
function Prices:mixer(i, layout, mode)
    local layer = check_layer(self, "prices:mixer", i, 2)
    local about, env, counts = layer.about, self.env, self.counts
    mode = args.one_of("prices:mixer", "cp_mode", mode or layer.cp_mode,
        schedules.cp_modes(about.kind), 2)
    local reason = layout_refusal(self, "prices:mixer", layout, 2)
        or self.cp > 1 and mode_refusal(self, about, mode)
    if reason then return nil, reason end
    local where = mode == "headwise" and rows_key(self, layout) or layout
    return price(self, about.key .. "|" .. mode .. "|" .. where, function()
        local forward, backward, variant
        if about.kind == "gdn" then
            forward, backward = gdn.passes(env, counts, layout, mode, about.config)
        else
            forward, backward, variant = attention.passes(env, counts, layout, about.kind,
                self.cp == 1 and "gather" or mode, about.config)
        end
        for _, pass in ipairs { forward, forward, backward, backward } do
            rest.gather(env, counts, layout, pass)
        end
        return forward, backward, variant
    end)
end

--- What the norms, the residual sums and the feed-forward network of a layer cost.
-- @treturn number seconds
-- @treturn table detail
-- @raise unknown layers and layouts; one that the stream cannot have
function Prices:rest(i, layout)
    local layer = check_layer(self, "prices:rest", i, 2)
    need_layout(self, "prices:rest", layout, 2)
    local key = ("rest %s|%s"):format(layer.ffn or "", rows_key(self, layout))
    return price(self, key, function()
        return rest.layer(self.env, self.counts, layout, layer.ffn)
    end)
end

local PLACES = { "residual", "there", "back" }

--- One conversion of hidden states from a layout to another in the forward pass, together with its
-- adjoint in the backward pass; 0 between equal names and on one CP rank.
-- With tp > 1 it matters where it stands: the residual stream goes from windows to windows; to a
-- mixer it goes from windows of `from` to whole shards of `to`, less the gather that is counted
-- with what runs there, and the way back from a mixer is the adjoint of that.
-- @tparam string from
-- @tparam string to
-- @tparam ?string place "residual" (default), "there" (to a mixer) or "back" (from it)
function Prices:convert(from, to, place)
    need_layout(self, "prices:convert", from, 2)
    need_layout(self, "prices:convert", to, 2)
    args.one_of("prices:convert", "place", place or PLACES[1], PLACES, 2)
    local is_residual = self.tp == 1 or (place or PLACES[1]) == "residual"
    -- Between partitions what goes there forward comes back backward: both ways cost the same.
    if place == "back" or (is_residual and to < from) then from, to = to, from end
    local key = ("convert %s|%s%s"):format(from, to, is_residual and "" or "|shard")
    return price(self, key, function()
        if from == to or self.cp == 1 then return self.env.pass(), self.env.pass() end
        return rest.conversion(self.env, self.counts, from, to, is_residual)
    end)
end

--- Embedding, final norm, head and loss, those of MTP, and the sum of gradients over the group.
function Prices:ends(entry, exit)
    need_layout(self, "prices:ends", entry, 2)
    need_layout(self, "prices:ends", exit, 2)
    local key = ("ends %s|%s"):format(rows_key(self, entry), rows_key(self, exit))
    return price(self, key, function()
        return rest.ends(self.env, self.counts, entry, exit)
    end)
end

--- The whole step under an assignment.
-- @tparam table assignment { name =, entry =, exit =, layers = a list of { live =, mixer =,
-- cp_mode = } }
-- @treturn table seconds (the sum of the prices above); compute, comm, convert, host (seconds that
-- add up to it); bytes, messages (of the busiest rank of each part, added up); metrics (counts of
-- the group as lab:step has them: conversions_fwd, conversions_bwd, conversion_bytes_fwd,
-- conversion_bytes_bwd, conversion_messages_fwd, state_bytes); items: { name =, kind = "ends",
-- "mixer", "rest", "convert", layer = (from 0), seconds =, detail = } in the order of the forward
-- pass; ranks: timeline events { name =, rank =, start =, duration =, kind = "compute", "comm",
-- "convert", "host", "wait" } in seconds, rank by rank
-- @raise an assignment that does not fit the model, or that cannot run
function Prices:step(assignment)
    return (projection.step(self, assignment, 2))
end

return M
