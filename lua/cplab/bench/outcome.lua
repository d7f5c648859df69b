--- What became of a bench: its rows as they come, and the exit status at the end.
-- @module cplab.bench.outcome
local M = {}

--- The sentence of a rank's failure, without the place in this program that raised it.
function M.sentence(failure)
    return (failure.reason:gsub("^(rank %d+: )[^\n]-%.lua:%d+: ", "%1"))
end

--- The place of a rank's failure, for who wants to mend it.
function M.show_failure(failure)
    if failure.traceback and failure.traceback ~= "" then
        io.stderr:write(failure.traceback, "\n")
    end
end

--- A line is there as soon as it is known. Returns why it cannot be written.
function M.print(line)
    print(line)
    local ok, message = io.stdout:flush()
    return not ok and message or nil
end

--- What is wrong with the table as a whole.
-- @tparam string who
-- @tparam table counts of rows: wrong, error, left (not run); unwritten (why)
-- @treturn integer exit status
-- @treturn ?string
function M.verdict(who, counts)
    if counts.unwritten then return 2, "cannot write standard output: " .. counts.unwritten end
    if counts.wrong + counts.error == 0 then return 0 end
    local left = counts.left > 0
        and ("; %d more were not run, since a rank does not return"):format(counts.left) or ""
    return 1, ("%s: rows of the table: %d wrong, %d ended with an error%s"):format(who,
        counts.wrong, counts.error, left)
end

return M
