-- What the command line says where a device, or part of what it needs, is not there: one sentence
-- and exit status 3; and of what goes wrong on a device inside a case. The emulator plays the
-- machines.
local device = require "spec.support.on_device"
local word = require("cplab.environment").shell_word

local it_there = device.it(it, pending)
local program = require("cplab.environment").root() .. "/cplab"

-- An experiment in a file of its own; the text of its `run`.
local function experiment(run, ranks)
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(([[
local cplab = require "cplab"
return cplab.experiment { name = "rows", about = "rows on a device", sweep = { cp = { %d } },
    stream = function() return cplab.stream.thd { lengths = { 64 } } end,
    run = function(lab)
        local z = cplab.layout.zigzag(lab.stream, { cp = lab.size })
        local c = cplab.layout.contiguous(lab.stream, { cp = lab.size })
        local x = cplab.tensor.zeros({ z:n_local(lab.rank), 4 }, "f32")
        %s
    end }
]]):format(ranks or 4, run))
    file:close()
    return path
end

-- Runs it on emulated devices. Returns the exit status, and all that was said.
local function run(path, settings, words)
    local command = { "env" }
    for name, value in pairs(settings) do
        command[#command + 1] = word(("CPLAB_CUDA_%s=%s"):format(name, value))
    end
    command[#command + 1] = ("%s run %s --device %s 2>&1; echo status $?"):format(word(program),
        word(path), words or "cuda-emulated")
    local pipe = io.popen(table.concat(command, " "))
    local text = pipe:read "*a"
    pipe:close()
    os.remove(path)
    local said, status = text:match "^(.*)status (%d+)\n$"
    return tonumber(status), said
end

-- What the one rank that knew said, without who passed it on and where.
local function sentence_of(said)
    local text = said:match "\nerror: cp=%d+: rank %d: ([^\n]+)\n"
    return text and (text:gsub("^rank %d failed: ", ""):gsub("^[^:]+:%d+: ", ""))
end

describe("a device that is not there", function()
    local cases = {
        { { DRIVER = "0" }, "there is no NVIDIA driver here" },
        { { DEVICES = "0" }, "there is no GPU here %(no CUDA%-capable device is detected%)" },
        { { DRIVER = "12020" }, "the driver serves CUDA 12%.2, this build wants %d+%.%d or later" },
    }
    for _, case in ipairs(cases) do
        it_there("is one sentence and exit status 3: " .. next(case[1]) .. " "
            .. select(2, next(case[1])), function()
                local status, said = run(experiment "lab:convert(x, z, c)", case[1])
                assert.equal(3, status)
                assert.matches("^cplab: device cuda%-emulated: " .. case[2] .. "\n$", said)
            end)
    end

    it_there("is not missed where it is there", function()
        local status, said = run(experiment "lab:convert(x, z, c)", {})
        assert.equal(0, status, said)
    end)

    -- A folder with this program and its library, and beside them a plug-in of yesterday.
    it("is refused where its plug-in was built for another version of the program", function()
        local root, build = require("cplab.environment").root(),
            package.searchpath("cplab_cdef", package.path):match "^(.*)/lua/"
        local pipe = io.popen(([[
            folder=$(mktemp -d) && cp %s/bin/cplab-host %s/bin/libcplab.so $folder
            printf '%%s' '#include "comm/devices.h"
                cpl_status cpl_cuda_open(const cpli_devices_ops **out) {
                    static const cpli_devices_ops old = {.version = 1};
                    *out = &old;
                    return CPL_OK; }' >$folder/old.c
            cd %s && cc -shared -fPIC -Icore -Icore/base $folder/old.c -o $folder/libcplab_cuda.so
            $folder/cplab-host lua/cplab/main.lua run experiments/ratio_sweep.lua --device cuda 2>&1
            echo status $?
            rm -rf $folder]]):format(word(build), word(build), word(root)))
        local said = pipe:read "*a"
        pipe:close()
        assert.matches("^cplab: device cuda: the plug%-in has version 1, this program wants %d+: "
            .. "build both again\nstatus 3\n$", said)
    end)
end)

describe("a group that devices do not serve", function()
    for what, case in pairs {
        ["too few devices for NCCL"] = { "2", "ranks 0 and 2 are both on device 0 (2 devices" },
        ["all ranks on one device with NCCL"] = { "1", "ranks 0 and 1 are both on device 0 (1 "
            .. "device" },
    } do
        it_there("has " .. what, function()
            local status, said = run(experiment "lab:convert(x, z, c)", { DEVICES = case[1] },
                "cuda-emulated --transport nccl")
            assert.equal(1, status)
            assert.equal(("nccl: %s for 4 ranks), and NCCL takes one rank a device; ranks that are "
                .. "threads can share one with the transport direct"):format(case[2]),
                sentence_of(said))
        end)
    end

    it_there("shares a device where it is direct", function()
        local status, said = run(experiment("lab:convert(x, z, c)", 8), { DEVICES = "1" })
        assert.equal(0, status, said)
    end)

    it_there("has devices that do not reach each other", function()
        local status, said = run(experiment "lab:convert(x, z, c)", { PEERS = "0" })
        assert.equal(1, status)
        assert.matches("^cuda%-emulated %d does not reach the memory of device %d: use the "
            .. "transport nccl, or show one device only %(CUDA_VISIBLE_DEVICES%)$",
            sentence_of(said))
    end)

    it_there("has an NCCL of another version than its header", function()
        local status, said = run(experiment "lab:convert(x, z, c)", { NCCL = "21903" },
            "cuda-emulated --transport nccl")
        assert.equal(1, status)
        assert.matches("^nccl: the library is 2%.19%.3, but this build was made with the header of "
            .. "2%.%d+%.%d+: it wants that one, or a later 2$", sentence_of(said))
    end)
end)

describe("a case on a device", function()
    it_there("has no memory left", function()
        local status, said = run(experiment "cplab.tensor.zeros({ 2 ^ 20, 4 }, 'f32')",
            { MEMORY = "4M" })
        assert.equal(1, status)
        assert.matches("^cuda%-emulated %d: out of memory in taking 16777216 bytes: %d+ of 4194304 "
            .. "bytes are left$", sentence_of(said))
    end)

    for _, transport in ipairs { "direct", "nccl" } do
        it_there("reads where nothing is: the error names the kernel, " .. transport, function()
            local status, said = run(experiment [[
                local y = lab:convert(x, z, c)
                if lab.rank == 1 then x._ptr.data = require("ffi").cast("void *", 4096) end
                lab:convert(x, z, c):totable()]], {}, "cuda-emulated --transport " .. transport)
            assert.equal(1, status)
            assert.matches("^cuda%-emulated %d: kernel cpl_cuda_copy: an illegal memory access was "
                .. "encountered: kernel cpli_copy_%w+, block %(%d,0,0%), thread %(%d+,0,0%): "
                .. "illegal access to address 0x1%x+$", sentence_of(said))
        end)
    end
end)
