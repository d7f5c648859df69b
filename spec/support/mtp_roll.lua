--- Runs on a rank: rolls rows by k along a layout, in one exchange, and sends gradients back.
-- The payload: stream (fields of thd, or of sbhd with seqlen), layout (a name), tp, k, dtype, rows
-- (a list of values for each global position), and gradient likewise or nil. Returns what the rank
-- then holds, slot by slot: rolled, back (the gradients of its own rows), and kept (its rows after
-- both). Fill is 0.
return function(comm, p)
    local cplab = require "cplab"
    local stream = p.stream.seqlen and cplab.stream.sbhd(p.stream) or cplab.stream.thd(p.stream)
    local tp = p.tp or 1
    local layout = cplab.layout[p.layout](stream, { cp = comm:size() / tp, tp = tp })
    local positions, width = layout:positions(comm:rank()), #p.rows[1]
    local function tensor(by_position)
        local values = {}
        for _, position in ipairs(positions) do
            for c = 1, width do values[#values + 1] = by_position[position + 1][c] end
        end
        return cplab.tensor.from(values, { #positions, width }, p.dtype or "f64")
    end
    local function zeros()
        return cplab.tensor.zeros({ #positions, width }, p.dtype or "f64")
    end
    local route = cplab.route(layout, cplab.view.shift(layout, p.k))
    local plan = cplab.exchange.plan(route, comm, p.dtype or "f64", width)
    local src, out = tensor(p.rows), zeros()
    plan:convert(src, out)
    local back
    if p.gradient then
        back = zeros()
        plan:adjoint(tensor(p.gradient), back)
    end
    return { positions = positions, rolled = out:totable(), kept = src:totable(),
        back = back and back:totable() }
end
