--- Less work where a sanitizer looks on. It makes every access several times as dear, and sees what
-- it is there for in short sequences and in some of many cases, too: numbers are held by the stages
-- without one.
local M = {}

local is_on = os.getenv "CPLAB_VARIANT" == "address"

--- A length, or an eighth of it.
function M.length(n)
    return is_on and math.ceil(n / 8) or n
end

--- Whether case i is run: always, or if it is one of the n-th part that is numbered `part`.
function M.takes(i, n, part)
    return not is_on or (i + part) % n == 0
end

return M
