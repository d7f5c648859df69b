--- Short names of kernels, which stay the same where a parameter changes: "axpby f32" for
-- cpli::axpby<float>. Symbols are mangled as the Itanium C++ ABI has it (section 5.1); of that this
-- reads a function in the namespace cpli and its template arguments.
-- @module spec.support.kernel_names
local M = {}

local builtin = { d = "f64", f = "f32", b = "bool", i = "int", j = "unsigned", l = "int64",
    m = "uint64", h = "uint8", t = "uint16", s = "int16" }
local named = { __nv_bfloat16 = "bf16" }

local Reader = {}
Reader.__index = Reader

function Reader:take(pattern)
    local found = self.text:match("^" .. pattern, self.at)
    if found then self.at = self.at + #found end
    return found
end

-- What may be said again by S_, S0_, S1_, ...
function Reader:remember(name)
    self.seen[#self.seen + 1] = name
    return name
end

function Reader:identifier()
    local n = tonumber(self:take "%d+")
    local name = self.text:sub(self.at, self.at + n - 1)
    self.at = self.at + n
    return name
end

function Reader:again()
    local digits = self:take "S[0-9A-Z]*_":match "S(.*)_"
    local name = self.seen[digits == "" and 1 or tonumber(digits, 36) + 2]
    return named[name] or name
end

-- Arguments to the end of their list, each a word.
function Reader:arguments(words)
    while not self:take "E" do
        if self.at > #self.text then error("kernel_names: cannot read " .. self.text, 0) end
        words[#words + 1] = self:argument()
    end
    return words
end

-- A name that may have arguments of its own.
function Reader:plain()
    local name = self:identifier()
    self:remember(name)
    if not self:take "I" then return named[name] or name end
    return self:remember(("%s<%s>"):format(name, table.concat(self:arguments {}, " ")))
end

function Reader:nested()
    local name
    while not self:take "E" do
        if self.text:match("^S", self.at) then
            name = self:again()
        else
            name = self:plain()
        end
    end
    return name
end

-- A number or a word of yes and no; of an enumeration its number.
function Reader:literal()
    local kind = self:argument()
    local digits = self:take "n?%d+":gsub("^n", "-")
    self:take "E"
    return kind == "bool" and (digits == "1" and "true" or "false") or digits
end

function Reader:argument()
    if self:take "L" then return self:literal() end
    if self:take "J" then return table.concat(self:arguments {}, " ") end
    if self:take "N" then return self:nested() end
    local next = self.text:sub(self.at, self.at)
    if next == "S" then return self:again() end
    if next:match "%d" then return self:plain() end
    self.at = self.at + 1
    return builtin[next] or error("kernel_names: cannot read " .. self.text, 0)
end

--- The short name of a symbol: the function's, and its template arguments as words.
-- @tparam string symbol
-- @treturn string the symbol itself where it is not mangled
function M.short(symbol)
    local self = setmetatable({ text = symbol, at = 1, seen = {} }, Reader)
    if not self:take "_ZN4cpli" then return symbol end
    self:remember "cpli"
    local words = { self:identifier() }
    self:remember(words[1])
    if self:take "I" then self:arguments(words) end
    return table.concat(words, " ")
end

return M
