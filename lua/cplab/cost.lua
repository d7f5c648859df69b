--- What a step would cost: exact counts of work, bytes and messages, priced on a cluster.
-- Counts come from runs and real lengths (cplab.cost.counts); nothing is run. The busiest rank sets
-- a time, not the average. Layers that are alike in kind, sizes, layout and mode share one price.
--
-- A detail is { compute =, comm =, host =, pack =, bytes =, messages =, imbalance =,
-- variant = }: seconds, exposed ones for comm, that add up to the price; bytes and messages of the
-- busiest rank, forward and backward; compute of the busiest rank over the mean; and, where there
-- is a choice that is no mode (how keys are gathered), its name.
-- @module cplab.cost
-- @usage local prices = cplab.cost.new { cluster = "h100", model = m, stream = s, cp = 16 }
--   print(prices:mixer(4, "mirror", "p2p"), prices:convert("contiguous", "mirror"))
local M = {}

local Prices = {}
Prices.__index = Prices

--- Prices of a model on a stream and a cluster.
-- @tparam table t cluster (a name, a path or a cluster), model, stream, cp, tp (1), backward (true:
-- prices are of forward and backward), dtype (of rows and products: "bf16", "f32", "f64"; the
-- model's), recompute (false; true: backward begins with the forward again), layouts (names of
-- candidates; by default contiguous, zigzag, mirror, balanced, balanced@0.1)
-- @treturn table layouts: names of the candidates that the stream can have, in the order of `t`;
-- refused: name -> why not; model, stream, cluster, cp, tp
-- @raise unknown names, and a stream that can have none of the layouts
function M.new(t) end

--- The same counts on another cluster: nothing is counted again.
-- @tparam table|string cluster
function Prices:on(cluster) end

--- The cp_modes that a layer can run with here.
-- @tparam number i from 1, of model:layers()
-- @treturn table names, in the order of cplab.schedule.cp_modes
function Prices:modes(i) end

--- What a layer's mixer costs in a layout, forward and backward, its own exchanges included.
-- @tparam number i from 1
-- @tparam string layout
-- @tparam ?string mode of `modes`; by default the layer's own
-- @treturn ?number seconds; nil where it cannot run
-- @return a detail, or why it cannot run
function Prices:mixer(i, layout, mode) end

--- What the norms, the residual sums and the feed-forward network of a layer cost.
-- @treturn number seconds
-- @treturn table detail
function Prices:rest(i, layout) end

--- One conversion of hidden states from a layout to another in the forward pass, together with its
-- adjoint in the backward pass; 0 between equal layouts.
function Prices:convert(from, to) end

--- Embedding, final norm, head, loss, the sum of gradients over the group and the optimizer.
function Prices:ends(entry, exit) end

--- The whole step under an assignment.
-- @tparam table assignment { name =, entry =, exit =, layers = a list of { live =, mixer =,
-- cp_mode = } }
-- @treturn table seconds (the sum of the prices above); compute, comm, convert, host (seconds that
-- add up to it); bytes, messages, conversions (forward); items: { name =, kind = "ends", "mixer",
-- "rest", "convert", layer =, seconds =, detail = } in the order of the forward pass; ranks:
-- timeline events { name =, rank =, start =, duration =, kind = "compute", "comm", "convert",
-- "host", "wait" } in seconds, of forward and backward
function Prices:step(assignment) end

return M
