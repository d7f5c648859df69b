local clib = require "clib"

local C, ffi = clib.C, clib.ffi

ffi.cdef [[
    bool cpli_is_beyond_caches(int64_t bytes);
    void cpli_copy_bytes(void *dst, const void *src, size_t bytes, bool is_large);
    void cpli_copy_fence(void);
    void cpli_swap_bytes(void *a, void *b, size_t bytes);
]]

local MARGIN = 160

local function random_bytes(n, seed)
    local bytes = ffi.new("uint8_t[?]", n)
    for i = 0, n - 1 do
        bytes[i] = tonumber(C.cpl_random_bits(seed, i) % 256)
    end
    return bytes
end

-- Sizes around a cache line, around where copies begin to be streamed, and a few pages.
local sizes = { 0, 1, 63, 64, 65, 1023, 1024, 1025, 1024 + 63, 4096 + 17, 3 * 4096 }

describe("a copy", function()
    for _, is_large in ipairs { true, false } do
        it(("writes its bytes and no others, at any alignment, %s"):format(
            is_large and "around the caches" or "through them"), function()
            local n = 3 * 4096 + 2 * MARGIN
            local src = random_bytes(n, 1)
            local wrong = {}
            for _, bytes in ipairs(sizes) do
                for _, to in ipairs { 0, 1, 31, 32, 63, 64 } do
                    for _, from in ipairs { 0, 7, 64 } do
                        local dst = random_bytes(n, 2)
                        local expected = ffi.new("uint8_t[?]", n)
                        ffi.copy(expected, dst, n)
                        for i = 0, bytes - 1 do expected[to + i] = src[from + i] end
                        C.cpli_copy_bytes(dst + to, src + from, bytes, is_large)
                        C.cpli_copy_fence()
                        if ffi.string(dst, n) ~= ffi.string(expected, n) then
                            wrong[#wrong + 1] = ("%d bytes, %d to %d"):format(bytes, from, to)
                        end
                    end
                end
            end
            assert.same({}, wrong)
        end)
    end

    it("is large when the caches hold less", function()
        assert.is_false(C.cpli_is_beyond_caches(0))
        assert.is_false(C.cpli_is_beyond_caches(2 ^ 16))
        assert.is_true(C.cpli_is_beyond_caches(2 ^ 40))
    end)
end)

describe("a swap", function()
    it("exchanges its bytes and no others", function()
        local n, wrong = 3 * 4096 + MARGIN, {}
        for _, bytes in ipairs(sizes) do
            for _, offset in ipairs { 0, 1, 33 } do
                local a, b = random_bytes(n, 3), random_bytes(n, 4)
                local was_a, was_b = ffi.string(a, n), ffi.string(b, n)
                C.cpli_swap_bytes(a + offset, b, bytes)
                local now_a = was_a:sub(1, offset) .. was_b:sub(1, bytes)
                    .. was_a:sub(offset + bytes + 1)
                local now_b = was_a:sub(offset + 1, offset + bytes) .. was_b:sub(bytes + 1)
                if ffi.string(a, n) ~= now_a or ffi.string(b, n) ~= now_b then
                    wrong[#wrong + 1] = ("%d bytes at %d"):format(bytes, offset)
                end
            end
        end
        assert.same({}, wrong)
    end)
end)
