--- Results: one JSON object a line for each finished case, schema `cplab.case/1`, and CSV.
--
-- A line holds, in this order, schema, experiment, case, status, reason, metrics, checks, samples,
-- records (where the script recorded any) and env. Every metric of `results.metrics` is there, null
-- where it was not measured; what a script adds follows by name. NaN and infinities are strings
-- (see cplab.json). Files open before the first case and get one write a finished line, so a file
-- that was cut off misses at most the end of its last line.
-- @module cplab.results
local lfs = require "lfs"

local clib = require "clib"
local json = require "cplab.json"

clib.ffi.cdef "int truncate(const char *path, long length);"

local M = {}

M.schema = "cplab.case/1"

--- The metrics that every step has, in their order in a line.
M.metrics = {
    "conversions_fwd", "conversions_bwd", "conversion_bytes_fwd", "conversion_bytes_bwd",
    "conversion_messages_fwd", "routes_built", "layers", "gqa_layers", "gdn_layers", "mla_layers",
    "routes_built_in_step", "host_syncs_in_step", "wrong_rows", "parity_fwd", "parity_grad",
    "loss", "attention_imbalance", "step_ms", "convert_ms", "compute_ms", "comm_ms", "busy_ms",
    "peak_bytes",
}

local check_order = { "name", "passed", "value", "bound" }
local env_order = {
    "version", "commit", "cpu", "cores", "transport", "processes", "device", "dtype", "seed",
    "luajit", "blas",
}

local function encode_metrics(metrics)
    local full = {}
    for name, value in pairs(metrics or {}) do full[name] = value end
    for _, name in ipairs(M.metrics) do
        if full[name] == nil then full[name] = json.null end
    end
    return json.encode(full, M.metrics)
end

local function encode_checks(checks)
    local parts = {}
    for i, check in ipairs(checks or {}) do
        local full = { name = check.name, passed = check.passed, value = check.value,
            bound = check.bound }
        if full.value == nil then full.value = json.null end
        parts[i] = json.encode(full, check_order)
    end
    return "[" .. table.concat(parts, ",") .. "]"
end

--- One line of a result, without the newline.
-- @tparam table result experiment, case, status, reason, metrics, checks, samples, records, env
-- @tparam ?table axes the first keys of `case`
-- @treturn string
function M.encode(result, axes)
    local parts = {
        '"schema":' .. json.encode(M.schema),
        '"experiment":' .. json.encode(result.experiment),
        '"case":' .. json.encode(result.case, axes),
        '"status":' .. json.encode(result.status),
        '"reason":' .. json.encode(result.reason),
        '"metrics":' .. encode_metrics(result.metrics),
        '"checks":' .. encode_checks(result.checks),
        '"samples":' .. json.encode(result.samples or {}),
    }
    if result.records and result.records[1] then
        parts[#parts + 1] = '"records":' .. json.encode(result.records)
    end
    parts[#parts + 1] = '"env":' .. json.encode(result.env or {}, env_order)
    return "{" .. table.concat(parts, ",") .. "}"
end

local function plain(value)
    if value == json.null then return nil end
    return value
end

local statuses = { passed = true, failed = true, error = true, skipped = true }

local is_common = {}
for _, name in ipairs(M.metrics) do is_common[name] = true end

-- Tables that a line may leave out or have as null.
local optional = { "metrics", "checks", "samples", "records", "env" }

local function is_list_of_tables(list)
    for key, value in pairs(list) do
        if type(key) ~= "number" or type(value) ~= "table" then return false end
    end
    return true
end

-- What a metric or a sample may be; the table computes with those that every step has.
local function check_numbers(result)
    for name, value in pairs(result.metrics or {}) do
        if is_common[name] and value ~= json.null and not json.to_number(value) then
            return nil, ("the metric %s is no number"):format(name)
        end
    end
    for name, list in pairs(result.samples or {}) do
        for key, value in pairs(type(list) == "table" and list or { list }) do
            if type(key) ~= "number" or not json.to_number(value) then
                return nil, ("the samples of %s are no list of numbers"):format(name)
            end
        end
    end
    return true
end

local function check_fields(result)
    if type(result.experiment) ~= "string" then return nil, "experiment is no text" end
    if type(result.case) ~= "table" or result.case[1] ~= nil then
        return nil, "case is no object"
    end
    if not statuses[result.status] then
        return nil, "status is none of passed, failed, error, skipped"
    end
    if result.reason ~= nil and type(result.reason) ~= "string" then
        return nil, "reason is no text"
    end
    for _, name in ipairs(optional) do
        if result[name] ~= nil and type(result[name]) ~= "table" then
            return nil, name .. " is no object or list"
        end
    end
    for _, name in ipairs { "checks", "records" } do
        if not is_list_of_tables(result[name] or {}) then
            return nil, name .. " is no list of objects"
        end
    end
    return check_numbers(result)
end

--- Reads a line back; numbers that had to be strings are numbers again.
-- @tparam string line
-- @treturn ?table
-- @treturn ?string what is wrong with it
function M.decode(line)
    local result, message = json.decode(line)
    if message then return nil, message end
    if type(result) ~= "table" or result.schema ~= M.schema then
        return nil, "not a line of schema " .. M.schema
    end
    result.reason = plain(result.reason)
    for _, name in ipairs(optional) do result[name] = plain(result[name]) end
    local ok, wrong = check_fields(result)
    if not ok then return nil, ("not a line of schema %s: %s"):format(M.schema, wrong) end
    for name, value in pairs(result.metrics or {}) do
        result.metrics[name] = json.to_number(value) or plain(value)
    end
    return result
end

-- Bytes that are no UTF-8 are written as other text than they were: this is the JSON of what a file
-- would bring back.
local function as_read(value)
    local text = json.encode(value)
    if not text:find("\\u00", 1, true) then return text end
    return json.encode((json.decode(text)))
end

--- Names a result: the same experiment, case, seed and dtype give the same text.
function M.key(result)
    local env = result.env or {}
    return table.concat({ as_read(result.experiment), as_read(result.case),
        json.encode(plain(env.seed)), json.encode(plain(env.dtype)) }, "\n")
end

--- Reads a file of lines. A last line that was cut off is left out.
-- @tparam string path
-- @treturn ?table results in file order, each with its text in `line`
-- @treturn string|number the sentence, or how many bytes whole lines take
function M.read(path)
    local file, problem = io.open(path, "rb")
    if not file then return nil, ("results: cannot read %s"):format(problem) end
    local text, unreadable = file:read "*a"
    file:close()
    if not text then return nil, ("results: cannot read %s: %s"):format(path, unreadable) end
    local results, at, number = {}, 1, 0
    while true do
        local stop = text:find("\n", at, true)
        if not stop then return results, at - 1 end
        local line = text:sub(at, stop - 1)
        number = number + 1
        if line:match "%S" then
            local result, message = M.decode(line)
            if not result then
                return nil, ("%s:%d: %s"):format(path, number, message)
            end
            result.line = line
            results[#results + 1] = result
        end
        at = stop + 1
    end
end

--- The last result of each case, where a resumed file holds several.
-- @tparam table list of results
-- @treturn table list, each case where it first stood
function M.latest(list)
    local last, place = {}, {}
    for _, result in ipairs(list) do
        local key = M.key(result)
        place[key] = place[key] or #last + 1
        last[place[key]] = result
    end
    return last
end

-- ---- files --------------------------------------------------------------------

local Sink = {}
Sink.__index = Sink

-- Unbuffered, so that a line is one write.
local function open(path, mode)
    local file, message = io.open(path, mode)
    if not file then return nil, ("results: cannot write %s"):format(message) end
    file:setvbuf "no"
    return file
end

-- Where a chain of links ends, whether or not something is there.
local function target_of(path)
    for _ = 1, 40 do -- as many as the kernel follows
        local to = lfs.symlinkattributes(path, "target")
        if not to then break end
        path = to:sub(1, 1) == "/" and to or (path:match "^.*/" or "") .. to
    end
    return path
end

-- One text for one file, by whatever name; nil for what many may share, such as /dev/null.
local function identity(path)
    local there = lfs.attributes(path)
    if there and there.mode ~= "file" then return nil end
    if there then return there.dev .. ":" .. there.ino end
    local folder, name = target_of(path):match "^(.-)([^/]*)$"
    local above = lfs.attributes(folder == "" and "." or folder)
    return above and ("%s:%s/%s"):format(above.dev, above.ino, name)
end

--- Checks that outputs are files, and neither the script nor one another. Opens nothing.
-- @tparam table outputs list of { option, path }
-- @tparam string script
-- @treturn ?boolean
-- @treturn ?string the sentence
function M.distinct(outputs, script)
    local seen, the_script = {}, identity(script)
    for _, output in ipairs(outputs) do
        local option, path = output[1], output[2]
        if path == "-" then
            return nil, ("run: %s takes a file; standard output is the table's"):format(option)
        end
        local id = identity(path)
        if id and id == the_script then
            return nil, ("run: %s %s would overwrite the script"):format(option, path)
        end
        if id and seen[id] then
            return nil, ("run: %s and %s name the same file, %s"):format(seen[id], option, path)
        end
        if id then seen[id] = option end
    end
    return true
end

-- Writes a text, or leaves the file as it was, as far as it can be shortened.
local function write(file, path, text)
    local size = file:seek "end"
    local ok, message = file:write(text)
    if ok then return true end
    if size then clib.ffi.C.truncate(path, size) end
    return nil, ("results: cannot write %s: %s"):format(path, message)
end

--- Checks that every path can be written and leaves no trace of the attempt.
-- @tparam table paths
-- @treturn ?boolean
-- @treturn ?string the sentence
function M.writable(paths)
    for _, path in ipairs(paths) do
        local existing = io.open(path, "rb")
        if existing then existing:close() end
        local file, message = open(path, "ab")
        if not file then return nil, message end
        file:close()
        if not existing then os.remove(path) end
    end
    return true
end

-- Cuts a half-written last line off, through a second file so that nothing is ever lost.
local function cut(path, bytes)
    local file = assert(io.open(path, "rb"))
    local text = file:read "*a"
    file:close()
    if #text == bytes then return true end
    local part, message = open(path .. ".part", "wb")
    if not part then return nil, message end
    local ok, problem = write(part, path .. ".part", text:sub(1, bytes))
    part:close()
    if not ok then
        os.remove(path .. ".part")
        return nil, problem
    end
    return os.rename(path .. ".part", path)
end

--- Opens the file of JSON lines.
-- @tparam string path
-- @tparam boolean resume whether what it holds stays
-- @treturn ?Sink
-- @treturn table|string results that are in the file already, or the sentence
function M.json_lines(path, resume)
    local old = {}
    local existing = resume and io.open(path, "rb")
    if existing then
        existing:close()
        local results, bytes = M.read(path)
        if not results then return nil, bytes end
        local ok, message = cut(path, bytes)
        if not ok then return nil, message end
        old = results
    end
    local file, message = open(path, resume and "ab" or "wb")
    if not file then return nil, message end
    local sink = setmetatable({ _file = file, _path = path }, Sink)
    sink.text = function(result, axes) return result.line or M.encode(result, axes) end
    return sink, old
end

local function csv_cell(value)
    if value == nil or value == json.null then return "" end
    local text
    if type(value) == "number" then
        text = json.encode(value):gsub('"', "")
    elseif type(value) == "table" then
        text = require("cplab.sweep").label(value)
    else
        text = tostring(value)
    end
    if text:find '[",\r\n]' then text = '"' .. text:gsub('"', '""') .. '"' end
    return text
end

local function csv_line(cells, n)
    local parts = {}
    for i = 1, n do parts[i] = csv_cell(cells[i]) end
    return table.concat(parts, ",")
end

--- Opens the file of comma-separated values: the case, status, reason, and the metrics that every
-- step has, then those named in `extra`.
-- @tparam string path
-- @tparam table case_keys
-- @tparam table extra names of metrics
-- @treturn ?Sink
-- @treturn ?string the sentence
function M.csv(path, case_keys, extra)
    local file, message = open(path, "wb")
    if not file then return nil, message end
    local names, known = {}, {}
    for _, list in ipairs { M.metrics, extra } do
        for _, name in ipairs(list) do
            if not known[name] then names[#names + 1], known[name] = name, true end
        end
    end
    local header = { "experiment" }
    for _, list in ipairs { case_keys, { "status", "reason" }, names } do
        for _, name in ipairs(list) do header[#header + 1] = name end
    end
    local sink = setmetatable({ _file = file, _path = path }, Sink)
    sink.text = function(result)
        local cells = { result.experiment }
        for i, key in ipairs(case_keys) do cells[1 + i] = result.case[key] end
        local n = 1 + #case_keys
        cells[n + 1], cells[n + 2] = result.status, result.reason
        for i, name in ipairs(names) do cells[n + 2 + i] = (result.metrics or {})[name] end
        return csv_line(cells, #header)
    end
    local ok, problem = write(file, path, csv_line(header, #header) .. "\n")
    if not ok then
        sink:close()
        return nil, problem
    end
    return sink
end

--- Writes one finished result, in one write. After a failure nothing more is written.
-- @treturn ?boolean
-- @treturn ?string the sentence, once
function Sink:put(result, axes)
    if self.failed then return nil end
    local ok, message = write(self._file, self._path, self.text(result, axes) .. "\n")
    self.failed = not ok
    return ok, message
end

--- Closes the file; twice is harmless.
function Sink:close()
    if self._file then self._file:close() end
    self._file = nil
end

return M
