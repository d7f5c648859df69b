-- Routes of Megatron-LM's public builders (spec/golden/routes.json, whose "conventions" say what
-- each field means): ids, split sizes and index orders of both directions, exactly.
local ffi = require "ffi"
local cplab = require "cplab"
local environment = require "cplab.environment"
local json = require "cplab.json"
local naive = require "spec.support.layout_naive"
local message = require "spec.support.message"

local function read(path)
    local file = assert(io.open(environment.root() .. "/" .. path))
    local text = file:read "*a"
    file:close()
    return json.decode(text)
end

local golden = read "spec/golden/routes.json"

local function value(x)
    if x == json.null then return nil end
    return x
end

local function layouts(stream, case)
    local options = {
        cp = case.cp, tp = case.tp, group_order = value(case.group_rank_by_logical_rank),
    }
    return cplab.layout.zigzag(stream, options), cplab.layout.contiguous(stream, options)
end

-- An index list, nil if it is the identity, as the vectors have it.
local function index_of(segments)
    local list = naive.slots(segments)
    for i, slot in ipairs(list) do
        if slot ~= i - 1 then return list end
    end
    return nil
end

local function check_rank(z, c, route, back, expected)
    local r = expected.group_rank
    assert.same(expected.zz_ids, z:positions(r))
    assert.same(expected.ct_ids, c:positions(r))
    assert.same({ expected.zz_splits, expected.ct_splits }, { route:split_sizes(r) })
    assert.same({ expected.ct_splits, expected.zz_splits }, { back:split_sizes(r) })
    assert.same(value(expected.zz_index), index_of(route:sends(r)))
    assert.same(value(expected.ct_index), index_of(route:receives(r)))
    assert.same(value(expected.ct_index), index_of(back:sends(r)))
    assert.same(value(expected.zz_index), index_of(back:receives(r)))
end

describe("the packed vector", function()
    for _, case in ipairs(golden.thd_cases) do
        it(case.name, function()
            local s = cplab.stream.thd { cu_seqlens = case.cu_seqlens }
            local z, c = layouts(s, case)
            local route, back = cplab.route(z, c), cplab.route(c, z)
            assert.equal(case.total, s:n_positions())
            assert.equal(case.cp * case.tp, #case.ranks)
            for _, expected in ipairs(case.ranks) do
                assert.equal(case["local"], z:n_local(expected.group_rank))
                check_rank(z, c, route, back, expected)
            end
        end)
    end
end)

-- The generator of the large cases: lengths come from its high bits.
local function lcg(seed)
    local state = ffi.new("uint64_t", seed)
    return function(n)
        state = state * 6364136223846793005ULL + 1442695040888963407ULL
        return tonumber(bit.rshift(state, 33) % n)
    end
end

-- The rules of cu_seqlens_rule, by the name of the case.
local rules = {
    big_uniform_n64_cp8 = { seed = 1, n = 64, draw = function(g) return g(8) end },
    big_longtail_n1024_cp8 = { seed = 3, n = 1024 },
    big_longtail_n256_cp64 = { seed = 5, n = 256 },
}

local function long_tail(g)
    if g(16) == 0 then return 64 end
    return g(3)
end

local function boundaries(case)
    local rule = rules[case.name]
    local g, cu = lcg(rule.seed), { 0 }
    for i = 1, rule.n do
        cu[i + 1] = cu[i] + 2 * case.cp * (1 + (rule.draw or long_tail)(g))
    end
    return cu
end

local function fnv(list)
    if list == nil then return nil end
    local words = ffi.new("int64_t[?]", #list, list)
    return bit.tohex(require "clib".C.cpl_hash(0, words, 8 * #list))
end

local function count_peers(splits)
    local n = 0
    for _, rows in ipairs(splits) do n = n + (rows > 0 and 1 or 0) end
    return n
end

describe("the large vector", function()
    for _, case in ipairs(golden.thd_hashed_cases) do
        it(case.name, function()
            local cu = boundaries(case)
            assert.equal(case.num_cu, #cu)
            assert.equal(case.fnv_cu, fnv(cu))
            local z, c = layouts(cplab.stream.thd { cu_seqlens = cu }, case)
            local route = cplab.route(z, c)
            for _, expected in ipairs(case.ranks) do
                local r = expected.cp_rank
                local zz_splits, ct_splits = route:split_sizes(r)
                local zz_index = index_of(route:sends(r))
                local ct_index = index_of(route:receives(r))
                assert.same({
                    cp_rank = r, tp_rank = 0,
                    fnv_zz_ids = fnv(z:positions(r)), fnv_ct_ids = fnv(c:positions(r)),
                    zz_index_is_null = zz_index == nil, ct_index_is_null = ct_index == nil,
                    fnv_zz_index = fnv(zz_index) or json.null,
                    fnv_ct_index = fnv(ct_index) or json.null,
                    fnv_zz_splits = fnv(zz_splits), fnv_ct_splits = fnv(ct_splits),
                    zz_nonzero_peers = count_peers(zz_splits),
                    ct_nonzero_peers = count_peers(ct_splits),
                }, expected)
            end
        end)
    end
end)

-- Rows of segments in an order of slots, nil if that is the identity.
local function rows_of(slots, length)
    local segments = {}
    for i, slot in ipairs(slots) do segments[i] = { slot = slot * length, length = length } end
    return index_of(segments)
end

local function inverse(permutation)
    local list = {}
    for i, k in ipairs(permutation) do list[k + 1] = i - 1 end
    return list
end

local function check_direction(route, r, expected, length)
    if expected == nil then return end -- one rank has nothing to exchange
    local to, from = route:split_sizes(r)
    assert.same({ expected.send_splits, expected.recv_splits }, { to, from })
    assert.same(rows_of(expected.send_slots, length), index_of(route:sends(r)))
    assert.same(rows_of(inverse(expected.receive_permutation), length),
        index_of(route:receives(r)))
end

describe("the unpacked vector", function()
    for _, case in ipairs(golden.sbhd_cases) do
        it(case.name, function()
            local z, c = layouts(cplab.stream.sbhd { seqlen = case.S }, case)
            local route, back = cplab.route(z, c), cplab.route(c, z)
            assert.equal(case.cp * case.tp, #case.ranks)
            for _, expected in ipairs(case.ranks) do
                local r = expected.group_rank
                assert.same(expected.zz_ids, z:positions(r))
                assert.same(expected.ct_ids, c:positions(r))
                assert.equal(case.cp * case.tp > 1, expected.z2c ~= nil)
                check_direction(route, r, value(expected.z2c), case.segment_len)
                check_direction(back, r, value(expected.c2z), case.segment_len)
            end
        end)
    end
end)

-- What their builders refuse, in our words; or why there is nothing to refuse here.
local function refuse(text)
    return function(input)
        assert.equal(text, message(function()
            local s = cplab.stream.thd { cu_seqlens = input.cu_seqlens }
            local z = layouts(s, input)
            return z:runs(input.cp_rank)
        end))
    end
end

local function refuse_sbhd(options, text)
    return function()
        assert.equal(text, message(cplab.layout.zigzag, cplab.stream.sbhd { seqlen = 16 }, options))
    end
end

local function refuse_name(name)
    return function()
        local s = cplab.stream.sbhd { seqlen = 16 }
        assert.equal(("cplab.layout: unknown layout %s; there are %s"):format(
            name and '"' .. name .. '"' or "nil", table.concat(cplab.layout.kinds, ", ")),
            message(cplab.layout.create, name, s, { cp = 2 }))
    end
end

local no_processes = "ranks of a group are numbers here; no process ids are mapped to them"
local no_tensor = "of a tensor, not of a route: spec/exchange says what a plan refuses"

local errors = {
    seq_len_not_div_2cp = refuse
        "layout.zigzag: sequence 0 has 10 tokens, not a multiple of 2*cp = 4",
    total_not_div_cp = refuse
        "layout.zigzag: sequence 0 has 7 tokens, not a multiple of 2*cp = 4",
    total_div_cp_but_seqs_not = refuse
        "layout.zigzag: sequence 0 has 6 tokens, not a multiple of 2*cp = 8",
    cu_negative_start = refuse "stream.thd: cu_seqlens starts at -4, not at 0",
    cu_decreasing_then_up = refuse
        "stream.thd: cu_seqlens must be nondecreasing, sequence 1 goes from 16 to 8",
    cu_2d = refuse "stream.thd: cu_seqlens[1] must be an integer (got a table)",
    cp_size_zero = refuse "layout.zigzag: cp must be an integer in 1 .. 2147483647 (got 0)",
    cp_rank_eq_size = refuse "layout.runs: rank must be an integer in 0 .. 1 (got 2)",
    cp_rank_far = refuse "layout.runs: rank must be an integer in 0 .. 1 (got 7)",
    cp1_odd_len = refuse "layout.zigzag: sequence 0 has 3 tokens, not a multiple of 2*cp = 2",
    -- A stream comes first here, so its error is the one that is told.
    bad_cp_size_beats_bad_cu = refuse "stream.thd: cu_seqlens starts at 3, not at 0",
    -- Accepted there, cut to 16; an error here.
    cu_float_truncated_accepted = refuse
        "stream.thd: cu_seqlens[2] must be an integer (got 16.699999999999999)",
    tp_size_zero = refuse "layout.zigzag: tp must be an integer in 1 .. 2147483647 (got 0)",
    tp_rank_negative = "a rank of the group is one number here, see cp_rank_far",
    map_duplicate = refuse("layout.zigzag: group_order must be a permutation, but logical ranks 0 "
        .. "and 1 are both group rank 0"),
    map_out_of_range = refuse "layout.zigzag: group_order of logical rank 3 is 4, not in 0 .. 3",
    partition_error_beats_map_error = refuse
        "layout.zigzag: sequence 0 has 10 tokens, not a multiple of 2*cp = 4",
    map_cp_fastest_ok = no_processes,
    map_reordered_group_ok = no_processes,
    map_dynamic_cp_subgroup = no_processes,
    map_overlap_ranks = no_processes,
    sbhd_cp_size_zero = refuse_sbhd({ cp = 0 },
        "layout.zigzag: cp must be an integer in 1 .. 2147483647 (got 0)"),
    sbhd_tp_rank_oob = "a rank of the group is one number here, see cp_rank_far",
    sbhd_bad_map = refuse_sbhd({ cp = 2, group_order = { 0, 0 } },
        "layout.zigzag: group_order must be a permutation, but logical ranks 0 and 1 are both "
        .. "group rank 0"),
    -- Accepted there, since nothing is converted; an unknown name is an error here.
    convert_same_layout_returns_input_even_if_unknown_name = refuse_name "foo",
    convert_unknown_source = refuse_name "foo",
    convert_none_source = refuse_name(nil),
    convert_thd_len_mismatch = no_tensor,
    convert_thd_bad_seq = refuse
        "layout.zigzag: sequence 0 has 10 tokens, not a multiple of 2*cp = 4",
    v1_same_mode = "a route between equal layouts is the identity here, not an error",
}

describe("the refused input", function()
    for _, case in ipairs(golden.error_cases) do
        it(case.name, function()
            local ours = errors[case.name]
            if type(ours) == "function" then
                case.input.tp = case.input.tp or 1
                ours(case.input)
            else
                assert.equal("string", type(ours), "no counterpart and no reason")
            end
        end)
    end
end)
