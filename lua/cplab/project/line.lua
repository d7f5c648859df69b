--- A line through measured times, t = fixed * calls + slope * x, with neither part below zero.
-- Errors count relative to each time, so that the short calls say what is fixed and the long ones
-- the slope.
-- @module cplab.project.line
local M = {}

-- Sums of a weighted least-squares fit.
local function sums(points)
    local s = { w = 0, x = 0, t = 0, xx = 0, xt = 0 }
    for _, point in ipairs(points) do
        local x, t, c = point.x, point.seconds, point.calls or 1
        local w = 1 / (t * t)
        s.w, s.x, s.t = s.w + w * c * c, s.x + w * c * x, s.t + w * c * t
        s.xx, s.xt = s.xx + w * x * x, s.xt + w * x * t
    end
    return s
end

--- Fits a line.
-- @tparam table points a list of { x =, seconds =, calls = (1) } with x > 0 and seconds > 0, of two
-- different x / calls at least
-- @tparam ?boolean through_zero nothing is fixed
-- @treturn table fixed (>= 0) and slope (> 0): seconds = fixed * calls + slope * x
-- @raise fewer sizes, times that are no numbers > 0, times that do not grow
function M.fit(points, through_zero)
    for _, point in ipairs(points) do
        if not (point.seconds > 0 and point.seconds < math.huge and point.x > 0) then
            error(("line: a time of %g s at %g"):format(point.seconds, point.x), 2)
        end
    end
    local s = sums(points)
    local spread = s.w * s.xx - s.x * s.x
    if #points < 2 or spread <= 1e-12 * s.w * s.xx then error("line: takes two sizes", 2) end
    local slope = (s.w * s.xt - s.x * s.t) / spread
    local fixed = (s.t - slope * s.x) / s.w
    -- Where the best line would go below zero, the best of those through zero.
    if fixed < 0 or through_zero then fixed, slope = 0, s.xt / s.xx end
    if slope <= 0 then error("line: the times do not grow with the size", 2) end
    return { fixed = fixed, slope = slope }
end

return M
