-- Files become sequences: order, cutting, padding, and what is left out.
local lfs = require "lfs"

local corpus = require "cplab.corpus"

local folder

local function put(name, text)
    local file = assert(io.open(folder .. "/" .. name, "wb"))
    file:write(text)
    file:close()
end

local function load(options)
    options.paths = options.paths or { folder }
    options.multiple = options.multiple or 4
    local c = corpus.load(options)
    for i, name in ipairs(c.files) do c.files[i] = name:sub(#folder + 2) end
    for i, line in ipairs(c.skipped) do
        c.skipped[i] = line:gsub(folder:gsub("%p", "%%%0") .. "/", "")
    end
    return c
end

local function text_of(tokens)
    return string.char(unpack(tokens))
end

describe("corpus.load", function()
    before_each(function()
        folder = os.tmpname()
        os.remove(folder)
        assert(lfs.mkdir(folder))
    end)
    after_each(function()
        os.execute("rm -rf " .. folder)
    end)

    it("makes one padded sequence of bytes of each file, sorted by path", function()
        lfs.mkdir(folder .. "/b")
        put("b/one", "xyz")
        put("b.txt", "hello")
        put("a", "\1\255\3\4")
        local c = load { budget = 100 }
        assert.same({ "a", "b.txt", "b/one" }, c.files)
        assert.same({ 4, 8, 4 }, c.lengths)
        assert.same({ 4, 5, 3 }, c.real)
        assert.equal("\1\255\3\4hello\0\0\0xyz\0", text_of(c.tokens))
    end)

    it("fills the budget exactly where there is text enough", function()
        put("a", "abcde")
        put("b", ("x"):rep(1000))
        put("c", "never")
        local c = load { budget = 23 } -- 5 multiples of 4
        assert.same({ 8, 12 }, c.lengths)
        assert.same({ 5, 12 }, c.real)
        assert.equal(20, #c.tokens)
    end)

    it("cuts one long file at the budget", function()
        put("a", ("x"):rep(50000))
        local c = load { budget = 16384, multiple = 8 }
        assert.same({ { 16384 }, { 16384 } }, { c.lengths, c.real })
    end)

    it("leaves out what is no text, in one sentence each", function()
        put("a", "")
        put("b", "binary\0")
        put("c", ("x"):rep(9000) .. "\0")
        lfs.mkdir(folder .. "/.hidden")
        put(".hidden/d", "no")
        put(".config", "no")
        lfs.link(folder .. "/c", folder .. "/e", true)
        lfs.link(folder .. "/gone", folder .. "/f", true)
        local c = load { budget = 40000 }
        assert.same({ "c" }, c.files)
        assert.same({ "corpus: skipped a: empty", "corpus: skipped b: binary",
            "corpus: skipped f: cannot be read" }, c.skipped)
    end)

    it("tells the controller once about a file, and nobody else", function()
        put("a", "")
        put("b", "text")
        local lines = {}
        corpus.notify = function(line) lines[#lines + 1] = line end
        finally(function() corpus.notify = nil end)
        load { budget = 8 }
        load { budget = 8 }
        assert.same({ "corpus: skipped " .. folder .. "/a: empty" }, lines)
    end)

    it("takes single files, in the order given", function()
        put("a", "1234")
        put("b", "5678")
        local c = load { budget = 8, paths = { folder .. "/b", folder .. "/a" } }
        assert.equal("56781234", text_of(c.tokens))
    end)

    local function fails(options, sentence)
        options.multiple = options.multiple or 4
        local ok, message = pcall(corpus.load, options)
        assert.is_false(ok)
        assert.equal(sentence, (message:gsub("^[^\n]-%.lua:%d+: ", "")))
    end

    it("refuses a path that is not there", function()
        fails({ paths = { "no/such" }, budget = 8 },
            "corpus.load: cannot read no/such: No such file or directory")
    end)

    it("refuses a folder without a usable file", function()
        fails({ paths = { folder }, budget = 8 }, ("corpus.load: %s holds no usable file"):format(
            folder))
        put("a", "")
        fails({ paths = { folder }, budget = 8 }, ("corpus.load: %s holds no usable file "
            .. "(skipped %s/a: empty)"):format(folder, folder))
    end)

    it("refuses a budget below one multiple", function()
        fails({ paths = { folder }, budget = 7, multiple = 8 },
            "corpus.load: a budget of 7 tokens is less than one multiple of 8")
    end)

    for _, bad in ipairs { 0, -8, 1.5 } do
        it("refuses a budget of " .. bad, function()
            fails({ paths = { folder }, budget = bad },
                ("corpus.load: budget must be an integer%s (got %s)"):format(
                    bad == 1.5 and "" or " >= 1", bad))
        end)
    end
end)

describe("corpus.default", function()
    it("takes the sources of a checkout alone, in the order of their folders", function()
        folder = os.tmpname()
        os.remove(folder)
        assert(lfs.mkdir(folder))
        finally(function() os.execute("rm -rf " .. folder) end)
        os.execute(("cd %s && mkdir -p kernels/axpby core/trace lua"):format(folder))
        for _, name in ipairs { "lua/a.lua", "core/a.c", "core/trace/t.h", "kernels/axpby/x.c",
            "core/.a.c", "core/notes.txt", "core/a.c.orig", "stray.lua", ".b.lua" } do
            put(name, "text")
        end
        local paths = corpus.default(folder)
        if paths[#paths] == "/usr/share/common-licenses" then paths[#paths] = nil end
        for i, path in ipairs(paths) do paths[i] = path:sub(#folder + 2) end
        assert.same({ "core/trace/t.h", "kernels/axpby/x.c", "kernels/axpby/x.c", "core/a.c",
            "core/trace/t.h", "lua/a.lua" }, paths)
        assert.equal(4, #corpus.load { paths = corpus.default(folder), budget = 32,
            multiple = 8 }.files)
    end)

    it("holds several sequences within a small budget", function()
        local c = corpus.load { paths = corpus.default(), budget = 2048, multiple = 8 }
        assert.is_true(#c.files >= 3)
        assert.equal(2048, #c.tokens)
    end)
end)
