--- A rank's part of a captured conversion and its adjoint: layouts, tensors on the device, and the
-- work on them.
return function(comm)
    local cplab = require "cplab"
    local exchange = require "cplab.exchange"
    local rows = require "spec.exchange.rows"
    local rank, cp = comm:rank(), comm:size()
    local s = cplab.stream.thd { lengths = { 6 * cp, 2 * cp } }
    local z, c = cplab.layout.zigzag(s, { cp = cp }), cplab.layout.contiguous(s, { cp = cp })
    local t = { z = z, c = c, rank = rank, plan = exchange.plan(cplab.route(z, c), comm, "f32", 8) }
    t.x = rows.tensor("f32", z:n_local(rank), 8)
    t.y = rows.tensor("f32", c:n_local(rank), 8)
    t.back = rows.tensor("f32", z:n_local(rank), 8)
    t.saved = rows.tensor("f32", z:n_local(rank), 8)
    t.work = function()
        t.plan:convert(t.x, t.y)
        t.plan:adjoint(t.y, t.back)
    end
    return t
end
