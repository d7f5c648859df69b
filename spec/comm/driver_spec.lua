-- The driver in C offers the methods what transports without shared memory, or with messages
-- alone, would offer: what such a transport does not have is refused, and auto does not choose it.
describe("the driver of the local transport", function()
    it("finds every byte in its place, by every method, over all that a transport may offer",
        function()
            local cdef = assert(package.searchpath("cplab_cdef", package.path))
            local build = cdef:match "^(.*)/lua/[^/]*$"
            local word = require "cplab.environment".shell_word
            local pipe = io.popen(word(build .. "/bin/tsan_local") .. " 2>&1")
            local text = pipe:read "*a"
            pipe:close()
            assert.matches("^%d+ passed, 0 failed\n$", text)
        end)
end)
