--- Byte-level tokens of real files, packed to a budget: one file is one sequence, one byte one
-- token.
--
-- Files come in the order of the paths given, a folder's files sorted by path, so the same files
-- give the same stream on every machine. What a folder holds under a name that begins with a dot
-- stays out, and so do files that were there already under another name. Positions count from 0
-- elsewhere; the lists here are Lua lists.
-- @module cplab.corpus
-- @usage local c = corpus.load { paths = { "lua" }, budget = 2048, multiple = 8 }
local args = require "cplab.check_args"
local environment = require "cplab.environment"
local lfs = require "lfs"

local M = {}

--- Takes a sentence about each file that was left out; set by the controller, so that ranks, which
-- read the same files, stay silent.
M.notify = nil

local fields = { paths = "list", budget = "integer", multiple = "integer" }
local binary_probe = 8192 -- bytes looked at for a NUL

-- One entry of a folder; a folder sorts as "name/", which is the order of whole paths.
local function entry(folder, name)
    local path = folder:gsub("/+$", "") .. "/" .. name
    local attributes = lfs.attributes(path)
    if attributes and attributes.mode == "directory" then
        return { path = path, key = name .. "/", attributes = attributes }
    end
    return { path = path, key = name, attributes = attributes }
end

local function entries(folder)
    local list = {}
    local ok, iterate, state = pcall(lfs.dir, folder)
    if not ok then return nil, "cannot be read" end
    for name in iterate, state do
        if name:sub(1, 1) ~= "." then
            list[#list + 1] = entry(folder, name)
        end
    end
    table.sort(list, function(a, b) return a.key < b.key end)
    return list
end

-- ---- reading one file ----------------------------------------------------------

local function read_file(path, limit)
    local file, message = io.open(path, "rb")
    if not file then return nil, (message:gsub("^.*: ", "")) end
    local text, problem = file:read(math.max(limit, binary_probe))
    file:close()
    if text == nil then return nil, problem and problem:gsub("^.*: ", "") or "empty" end
    if text:sub(1, binary_probe):find("\0", 1, true) then return nil, "binary" end
    return text:sub(1, limit)
end

local function add_sequence(self, path, text)
    local padded = math.ceil(#text / self.multiple) * self.multiple
    local at = #self.tokens
    for i = 1, #text do self.tokens[at + i] = text:byte(i) end
    for i = #text + 1, padded do self.tokens[at + i] = 0 end
    self.lengths[#self.lengths + 1] = padded
    self.real[#self.real + 1] = #text
    self.files[#self.files + 1] = path
    self.room = self.room - padded
end

local told = {}

local function skip(self, path, reason)
    local line = ("corpus: skipped %s: %s"):format(path, reason)
    self.skipped[#self.skipped + 1] = line
    if M.notify and not told[line] then
        told[line] = true
        M.notify(line)
    end
end

-- Sources of a checkout. The folders with short files stand first, so that a small budget holds
-- several sequences; what lies in two of them is taken once.
local source_folders = {
    "core/trace", "kernels/axpby", "kernels", "core", "bindings", "lua", "experiments", "spec",
}

local function add_sources(paths, folder)
    for _, item in ipairs(entries(folder) or {}) do
        local mode = (item.attributes or {}).mode
        if mode == "directory" then
            add_sources(paths, item.path)
        elseif mode == "file" and (item.path:find "%.[ch]$" or item.path:find "%.lua$") then
            paths[#paths + 1] = item.path
        end
    end
end

--- Text that every machine has: the sources of this checkout, and the licences of Debian. Nothing
-- else that lies in the checkout counts.
-- @tparam ?string root the checkout; else this one
-- @treturn table paths, those that are not there left out
function M.default(root)
    local paths = {}
    for _, folder in ipairs(source_folders) do
        add_sources(paths, (root or environment.root()) .. "/" .. folder)
    end
    local licences = "/usr/share/common-licenses"
    if lfs.attributes(licences) then paths[#paths + 1] = licences end
    return paths
end

-- ---- walking -------------------------------------------------------------------

local function first_time(self, attributes)
    local id = attributes.dev .. ":" .. attributes.ino
    if self.seen[id] then return false end
    self.seen[id] = true
    return true
end

local visit

local function visit_folder(self, path)
    local list, reason = entries(path)
    if not list then return skip(self, path, reason) end
    for _, item in ipairs(list) do
        if self.room < self.multiple then return end
        visit(self, item.path, item.attributes)
    end
end

function visit(self, path, attributes)
    if not attributes then return skip(self, path, "cannot be read") end
    if not first_time(self, attributes) then return end
    if attributes.mode == "directory" then return visit_folder(self, path) end
    if attributes.mode ~= "file" then return skip(self, path, "not a file") end
    local text, reason = read_file(path, self.room)
    if not text then return skip(self, path, reason) end
    add_sequence(self, path, text)
end

local function check(options, level)
    args.fields("corpus.load", options, fields, level)
    args.integer("corpus.load", "budget", options.budget, 1, nil, level)
    args.integer("corpus.load", "multiple", options.multiple, 1, nil, level)
    if #options.paths == 0 then error("corpus.load: paths names no file and no folder", level) end
    if options.budget < options.multiple then
        error(("corpus.load: a budget of %d tokens is less than one multiple of %d"):format(
            options.budget, options.multiple), level)
    end
end

--- Reads files until the budget is full.
-- @tparam table options paths (files and folders), budget (tokens, pads included), multiple (to
-- which every sequence is padded)
-- @treturn table lengths (padded), real, tokens (a byte 0..255 for each padded position, 0 in
-- pads), files (their names), skipped (a sentence for each file that was no text); the padded
-- lengths add up to the largest multiple within the budget where there is text enough
-- @raise a path that is missing, or no usable file at all
function M.load(options)
    check(options, 3)
    local self = {
        lengths = {}, real = {}, tokens = {}, files = {}, skipped = {}, seen = {},
        multiple = options.multiple,
        room = math.floor(options.budget / options.multiple) * options.multiple,
    }
    for _, path in ipairs(options.paths) do
        local attributes, message = lfs.attributes(path)
        if not attributes then
            -- "cannot obtain information from file 'x': No such file or directory"
            error(("corpus.load: cannot read %s: %s"):format(path, message:match ": ([^:]*)$"), 2)
        end
        if self.room >= self.multiple then visit(self, path, attributes) end
    end
    if #self.lengths == 0 then
        local why = self.skipped[1] and (" (%s)"):format(self.skipped[1]:gsub("^corpus: ", ""))
            or ""
        error(("corpus.load: %s holds no usable file%s"):format(
            table.concat(options.paths, ", "), why), 2)
    end
    return {
        lengths = self.lengths, real = self.real, tokens = self.tokens, files = self.files,
        skipped = self.skipped,
    }
end

return M
