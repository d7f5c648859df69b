--- The bytes of one execution of a step, on one rank.
-- @module cplab.bench.traffic
local clib = require "clib"

local C = clib.C

local M = {}

local function sum(segments, rank)
    local crossing, stay, still = 0, 0, 0
    for _, segment in ipairs(segments) do
        if segment.peer ~= rank then
            crossing = crossing + segment.length
        elseif segment.slot == segment.peer_slot then
            still = still + segment.length
        else
            stay = stay + segment.length
        end
    end
    return crossing, stay, still
end

--- Counts a step.
-- @tparam table step of `cplab.bench.setup`
-- @tparam integer rank
-- @tparam table case
-- @treturn table bytes: out (sent to others, as the plan says), in (from others), stay (written on
-- the rank itself), written (all rows that are written: in place those that keep their slot
-- are not); and messages (to others)
function M.of(step, rank, case)
    local forth, back = step.route:sends(rank), step.route:receives(rank)
    if step.is_adjoint then forth, back = back, forth end
    local out = sum(forth, rank)
    local incoming, moved, still = sum(back, rank)
    local stay = case.in_place and moved or moved + still
    local bytes = { ["in"] = incoming * case.row_bytes, stay = stay * case.row_bytes }
    bytes.out = out * case.row_bytes
    if not step.is_adjoint then
        bytes.out = math.max(bytes.out, tonumber(C.cpl_plan_sent_bytes(step.plan)))
    end
    bytes.written = bytes["in"] + bytes.stay
    bytes.messages = tonumber(C.cpl_plan_sent_messages(step.plan))
    return bytes
end

return M
