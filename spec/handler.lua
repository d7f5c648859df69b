--- What a run of the specs prints: a character a test, then every failure with file and line,
-- every skip with its reason, the files that took seconds, and one closing line that programs read.
local base = require "busted.outputHandlers.base"

local marks = { success = ".", failure = "F", error = "E", pending = "s" }

local function text_of(message)
    if type(message) == "string" then
        return message
    end
    return message == nil and "(no message)" or require("pl.pretty").write(message)
end

local function place_of(entry)
    local trace = entry.element.trace or entry.trace
    if trace and trace.short_src then
        return ("%s:%d"):format(trace.short_src, trace.currentline or 0)
    end
    return "?"
end

local function print_entries(kind, entries)
    for _, entry in ipairs(entries) do
        io.write(("\n%s %s: %s\n    %s\n"):format(kind, place_of(entry), entry.name,
            (text_of(entry.message):gsub("\n", "\n    "))))
        local traceback = entry.isError and entry.trace and entry.trace.traceback
        if traceback then
            io.write("    ", (traceback:gsub("\n", "\n    ")), "\n")
        end
    end
end

return function()
    local busted = require "busted"
    local handler = base()

    function handler.testEnd(_, _, status)
        io.write(marks[status] or "?")
        io.flush()
        return nil, true
    end

    local clock, since, took = require("clib").C.cpl_clock, 0, {}

    function handler.fileStarts()
        since = clock()
        return nil, true
    end

    function handler.fileEnds(file)
        took[#took + 1] = { clock() - since, file.name }
        return nil, true
    end

    function handler.finish()
        io.write "\n"
        print_entries("skipped", handler.pendings)
        print_entries("failed", handler.failures)
        print_entries("error", handler.errors)
        local n = handler.successesCount + handler.failuresCount + handler.errorsCount
            + handler.pendingsCount
        -- A run of nothing proves nothing: the runner gives it status 1.
        require("busted.compatibility").has_run_nothing = n == 0
        if n == 0 then io.write "there was no spec to run\n" end
        for _, one in ipairs(took) do
            if one[1] > 2 then io.write(("took %.1f s: %s\n"):format(one[1], one[2])) end
        end
        io.write(("\n%d passed, %d failed, %d skipped\n"):format(handler.successesCount,
            handler.failuresCount + handler.errorsCount, handler.pendingsCount))
        io.flush()
        return nil, true
    end

    busted.subscribe({ "test", "end" }, handler.testEnd)
    busted.subscribe({ "file", "start" }, handler.fileStarts)
    busted.subscribe({ "file", "end" }, handler.fileEnds)
    busted.subscribe({ "exit" }, handler.finish)
    return handler
end
