--- Faults that specs plant in a stack to prove that the checks catch them.
-- A real run has none. Each is the silent bug that it is named after: nothing raises, the
-- numbers are just wrong.
-- @module cplab.faults
local clib = require "clib"
local mtp = require "cplab.mtp"
local rows = require "cplab.rows"
local streams = require "cplab.stream"
local C, ffi = clib.C, clib.ffi

local function here(fault, rank)
    return fault and (fault.rank or 0) == rank
end

local function swap_bytes(bytes, row_bytes, i, j, n)
    local kept = ffi.string(bytes + i * row_bytes, n * row_bytes)
    ffi.copy(bytes + i * row_bytes, bytes + j * row_bytes, n * row_bytes)
    ffi.copy(bytes + j * row_bytes, kept, n * row_bytes)
end

-- Rows that stay where they are, marked as rows of a layout.
local function stay(src, dst, layout)
    if dst ~= src then
        clib.check(C.cpl_tensor_copy(dst, src))
        clib.check(C.cpl_tensor_mark_like(dst, src))
    end
    C.cpl_tensor_remark(dst, layout._ptr)
end

--- Adds the hooks to the class of stacks.
return function(Stack)
    --- drop_handoff, cross_columns, rope_shift, route_padding and those of attention's modes happen
    -- inside the layers of one rank.
    function Stack:plant_faults()
        local planted = C.cpl_faults_here()
        local drop, shift = self.faults.drop_handoff, self.faults.rope_shift
        planted.drop_handoff = here(drop, self.rank) and 1 or 0
        planted.rope_shift = here(shift, self.rank) and shift.by or 0
        for _, name in ipairs { "drop_merge", "reverse_ring", "kv_head_shift", "route_padding",
            "cross_columns", "forget_offset", "cache_padding", "drop_partial" } do
            planted[name] = here(self.faults[name], self.rank) and 1 or 0
        end
    end

    --- swap_runs: the two halves of a rank's rows change places, rows and trace alike.
    function Stack:swap_runs(x)
        if not here(self.faults.swap_runs, self.rank) then
            return
        end
        local half = math.floor(tonumber(x.shape[0]) / 2)
        local row_bytes = tonumber(C.cpl_dtype_bytes(x.dtype) * C.cpl_tensor_width(x))
        rows.edit(x, "char", function(bytes) swap_bytes(bytes, row_bytes, 0, half, half) end)
        if x.trace ~= nil then
            local trace = ffi.new("int64_t[?]", x.shape[0])
            clib.check(C.cpl_tensor_get_trace(x, trace))
            swap_bytes(ffi.cast("char *", trace), 8, 0, half, half)
            clib.check(C.cpl_tensor_set_trace(x, trace))
        end
    end

    --- roll: tokens are rolled "across" the ends of sequences, or to their "padded" ends; without
    -- it to where they end. (mask_roll, in cplab.mtp: how often each depth rolls its mask, which
    -- is once.) labels_in: they are rolled in a layout of that name instead of the exit layout.
    function Stack:roll_layouts()
        local roll, labels_in = self.faults.roll, self.faults.labels_in
        if labels_in then return self.entry, self.layouts.live[labels_in] end
        if not roll then return self.entry, self.exit end
        local lengths, stream = {}, self.exit:stream()
        for i = 1, stream:n_sequences() do lengths[i] = stream:sequence(i - 1).padded end
        lengths = roll == "across" and { stream:n_positions() } or lengths
        stream = streams.thd { lengths = lengths }
        return mtp.same_rows(self.entry, stream), mtp.same_rows(self.exit, stream)
    end

    --- What `roll` made of tokens is marked as if nothing were wrong.
    function Stack:claim_rolled(rolled)
        if not self.faults.roll then return end
        for _, tensor in ipairs(rolled) do C.cpl_tensor_remark(tensor, self.exit._ptr) end
    end

    --- wrong_slice: under tensor parallelism a rank computes the slice of another.
    function Stack:tp_slice()
        local wrong = here(self.faults.wrong_slice, self.rank)
        return wrong and (self.tp_rank + 1) % self.tp or self.tp_rank
    end

    -- skip_sum: of the partial sums of tp ranks only the first one's arrives.
    local function skip_sum(self, branch, src, pass)
        local skip = self.faults.skip_sum
        if skip and skip.name == branch.name and skip.pass == pass and self.tp_rank > 0 then
            C.cpl_tensor_fill(src, 0)
        end
    end

    -- sum_twice: what is the sum over tp ranks already is summed over them again.
    local function sum_twice(self, branch, dst, pass)
        local twice = self.faults.sum_twice
        if twice and twice.name == branch.name and twice.pass == pass then
            rows.accumulate(self.kernels, dst, dst, self.tp - 1)
        end
    end

    -- leave_out: a conversion of a layer's mixer, or of the residual stream before the layer, does
    -- not happen, and nobody claims that it did. `way`: "to" or "back" (of a mixer), "residual";
    -- `gradient`: in the backward pass; `after`: how often it did happen before (0).
    local function is_left_out(self, index, way, of_gradient)
        local fault = self.faults.leave_out
        if not (fault and fault.layer == index and fault.way == way
            and (fault.gradient or false) == of_gradient) then
            return false
        end
        fault.seen = (fault.seen or 0) + 1
        return fault.seen > (fault.after or 0)
    end

    local function is_left_out_of(self, branch, way, of_gradient)
        return branch == branch.block.mixer
            and is_left_out(self, branch.block.index, way, of_gradient)
    end

    --- What a layer takes, or the gradient of what it gave.
    function Stack:convert_to(branch, src, dst, pass, of_gradient)
        if is_left_out_of(self, branch, "to", of_gradient) then return end
        branch.conversion:to(src, dst, pass)
    end

    --- forget_state, forget_tail: sequences that go on have lost the state of the delta rule, or
    -- what the convolution still saw.
    function Stack:forget_past(states)
        for _, state in pairs(states) do
            if self.faults.forget_state then C.cpl_tensor_fill(state.state, 0) end
            if self.faults.forget_tail then C.cpl_tensor_fill(state.tail, 0) end
        end
    end

    -- With has_past = true on the way out of decoding steps alone.
    local function skips(self, branch)
        local skip = self.faults.skip_back
        return skip and skip.layer == branch.block.index and branch == branch.block.mixer
            and (skip.has_past == nil or skip.has_past == self.has_past)
    end

    --- skip_back: a mixer's output stays where it was made, though marked as converted.
    function Stack:convert_back(branch, src, dst, pass, of_gradient)
        local direction = of_gradient and "bwd" or "fwd"
        if is_left_out_of(self, branch, "back", of_gradient) then return end
        if not of_gradient and skips(self, branch) then
            return stay(src, dst, branch.block.live)
        end
        skip_sum(self, branch, src, direction)
        branch.conversion:back(src, dst, pass)
        sum_twice(self, branch, dst, direction)
    end

    --- skip_residual: before a layer the residual stream (in the pass "bwd": its gradient) stays
    -- where it was, though marked as converted.
    -- @tparam table hop of cplab.crossing
    -- @tparam boolean is_back
    function Stack:convert_residual(hop, is_back, src, dst)
        local skip, pass = self.faults.skip_residual, is_back and "bwd" or "fwd"
        if is_left_out(self, hop.index, "residual", is_back) then return end
        if skip and skip.layer == hop.index and (skip.pass or "fwd") == pass then
            stay(src, dst, is_back and hop.from or hop.to)
        elseif is_back then
            hop.way:back(src, dst, pass)
        else
            hop.way:to(src, dst, pass)
        end
    end

    --- stage_exit: before a stage, hidden states are handed over in another layout than its entry.
    function Stack:handed_over_in(stage)
        local fault = self.faults.stage_exit
        return fault and fault.stage == stage.index and fault.layout or stage.entry
    end
end
