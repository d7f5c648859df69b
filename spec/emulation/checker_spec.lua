--- The checker of emulated kernels: spec/emulation/planted runs bugs and their correct twins in
-- each order of threads and blocks. Each bug must be called by its name and its lines, however
-- luckily it ran, and of what is correct not a word may be said.
local lfs = require "lfs"

local shell_word = require "cplab.environment".shell_word

local build = package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
local sources = debug.getinfo(1, "S").source:match "^@(.*)checker_spec.lua$" .. "planted/"

local orders = { "forward", "reverse", "random:1", "random:2" }

-- What each planted bug is called.
local names = {
    past_the_end = "out of bounds",
    past_the_tile = "out of bounds",
    after_free = "out of bounds",
    no_block_barrier = "missing block barrier",
    no_second_barrier = "missing block barrier",
    no_warp_barrier = "missing warp barrier",
    only_the_warp = "missing block barrier",
    half_waited_for = "missing warp barrier",
    overwritten_early = "missing block barrier",
    no_second_warp_barrier = "missing warp barrier",
    one_byte_across = "two blocks one row",
    second_reader = "forgotten event",
    shuffle_is_no_barrier = "missing warp barrier",
    wrong_mask = "missing warp barrier",
    divergent_barrier = "divergent barrier",
    one_row_twice = "two blocks one row",
    never_written = "uninitialised read",
    tile_not_written = "uninitialised read",
    copied_unwritten = "uninitialised read",
    misaligned = "misaligned access",
    wrong_group = "wrong wait",
    others_copy = "missing block barrier",
    read_before_sync = "wrong wait",
    write_before_sync = "wrong wait",
    forgotten_event = "forgotten event",
    event_too_late = "forgotten event",
    forgotten_join = "forgotten event",
    host_pointer = "host pointer",
    device_pointer = "device pointer on the host",
}

-- Kernels without a bug, of the kinds that are easily taken for one.
local correct = { "reductions", "atomics", "pipeline", "tails", "early_exit", "graph",
    "host_waits", "groups" }

-- Lines of the sources that end in a comment "bug: NAME", as the reports write them.
local function marked_lines()
    local marks = {}
    for file in lfs.dir(sources) do
        local number = 0
        for line in io.lines(file:find "%.cu$" and sources .. file or "/dev/null") do
            number = number + 1
            local name = line:match "/%* bug: (%S+) %*/"
            if name then
                marks[name] = marks[name] or {}
                table.insert(marks[name], ("%s:%d"):format(file, number))
            end
        end
    end
    return marks
end

-- Sentences by side ("wrong", "right") and case, and how the program ended.
local function run(program, order)
    local word = shell_word(program)
    local pipe = io.popen(word .. " " .. order .. " 2>/dev/null; echo status $?")
    local sentences, status = { wrong = {}, right = {} }, nil
    for line in pipe:lines() do
        local name, side, sentence = line:match "^(%S+)\t(%S+)\t(.*)$"
        if name then
            local all = sentences[side]
            all[name] = all[name] or {}
            if sentence ~= "" then table.insert(all[name], sentence) end
        end
        status = line:match "^status (%d+)$" or status
    end
    pipe:close()
    for _, side in pairs(sentences) do
        -- Two streams come in either order.
        for _, all in pairs(side) do table.sort(all) end
    end
    return sentences, status
end

describe("the checker of emulated kernels", function()
    local program = build .. "/bin/planted"
    local file = io.open(program)
    if not file then
        pending "is not built: it needs CUDA's headers, an x86-64, and no sanitizer"
        return
    end
    file:close()

    local marks, runs = marked_lines(), {}
    for _, order in ipairs(orders) do
        local sentences, status = run(program, order)
        runs[order] = { sentences = sentences, status = status }
    end

    for _, order in ipairs(orders) do
        local wrong, right = runs[order].sentences.wrong, runs[order].sentences.right

        it("runs every planted bug and its twin, " .. order, function()
            assert.equal("0", runs[order].status)
            for name in pairs(names) do
                assert.is_table(wrong[name], name)
                assert.is_table(right[name], name)
            end
            for _, name in ipairs(correct) do assert.is_table(right[name], name) end
            for name in pairs(wrong) do assert.is_string(names[name], name) end
        end)

        for name, called in pairs(names) do
            it(("calls %s %s, %s"):format(name, called, order), function()
                local found = wrong[name]
                assert.is_true(#found > 0, "nothing was reported")
                for _, sentence in ipairs(found) do
                    assert.equal(called, sentence:match "^([^:]+): ")
                    for _, line in ipairs(marks[name] or {}) do
                        assert.is_truthy(sentence:find(line, 1, true),
                            ("no %s in: %s"):format(line, sentence))
                    end
                end
            end)
        end

        for name, found in pairs(right) do
            it(("says nothing of %s when it is right, %s"):format(name, order), function()
                assert.same({}, found)
            end)
        end
    end

    it("says the same in the same order", function()
        for _, order in ipairs(orders) do
            assert.same(runs[order].sentences, (run(program, order)))
        end
    end)
end)
