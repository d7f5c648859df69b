# all.sh: the stages of `./cplab test --all`, which is what CI runs. The launcher sources this file;
# the functions and names that are not defined here are its own.
#
# A stage is a command with a line of its own: its name, whether it went well, its seconds. What it
# printed is shown where it failed; what specs skipped, always, with the reason.

passed=0 failed=0 skipped=0

count() { # log: adds what its last line counts; fails if there is no such line
    local line
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -n 1)
    [ -n "$line" ] || return 1
    # shellcheck disable=SC2086
    set -- $line
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}

seconds_since() { # EPOCHREALTIME of the start
    local now=${EPOCHREALTIME/[.,]/} start=${1/[.,]/}
    printf '%d.%d s' $(((now - start) / 1000000)) $(((now - start) / 100000 % 10))
}

# Runs one stage: a line with its time, its log only where it failed.
stage() { # name, command ...
    local name=$1 start=$EPOCHREALTIME log ok before=$failed
    log=$builds/test/${name//[!a-z0-9,+]/_}.log
    shift
    "$@" >"$log" 2>&1 </dev/null
    ok=$?
    if ! count "$log"; then
        # A spec that ends the program leaves no count behind, whatever the status.
        if [ $ok -eq 0 ] && [[ $1 != specs* ]]; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    elif [ $ok -ne 0 ] && [ "$failed" -eq "$before" ]; then
        failed=$((failed + 1)) # it counted, and then it died
    fi
    grep -A 1 '^skipped ' "$log" # the place, and under it the reason
    if [ "$failed" -eq "$before" ]; then
        printf '%-28s ok      %s\n' "$name" "$(seconds_since "$start")"
    else
        printf '%-28s FAILED  %s\n' "$name" "$(seconds_since "$start")"
        cat "$log"
    fi
}

c_files() {
    find core kernels bindings spec -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' |
        LC_ALL=C sort
}

lint_lua() {
    luacheck --quiet --no-color lua bindings experiments spec
}

lint_format() {
    # shellcheck disable=SC2046 # no name here has a blank
    clang-format --dry-run -Werror $(c_files)
}

lint_c() {
    cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
        --error-exitcode=1 --suppress=missingIncludeSystem -j "$(nproc)" \
        -DCPLI_F64 -Icore -Icore/base -Ikernels core kernels bindings spec/c
}

build_stage() { # variant, in a shell of its own, since a failure exits
    (build_variant "$1" specs)
}

specs() { # variant
    # LuaJIT's heap hides pointers from the leak detector; the specs count leaks by cpl_memory.
    CPLAB_VARIANT=$1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
        bash spec/share.sh "$(host "$1")"
}

# The specs that hold for any number of ranks, whatever these are.
rank_specs="spec/mpi spec/comm/comm_spec.lua spec/comm/part_spec.lua spec/comm/ending_spec.lua
spec/exchange"

# Five minutes are more than they need: a rank that hangs is ended.
specs_under_mpirun() { # variant, ranks
    # shellcheck disable=SC2086
    CPLAB_VARIANT=$1 timeout -k 5 300 "$root/cplab" mpirun -n "$2" test $rank_specs
}

# The specs of exchanges with the rows of all ranks on emulated devices; what they have of large
# shards and of models is the CPU's.
device_specs="spec/exchange/adjoint_spec.lua spec/exchange/auto_spec.lua
spec/exchange/composed_spec.lua spec/exchange/memory_spec.lua spec/exchange/moving_spec.lua
spec/exchange/parts_spec.lua spec/exchange/refusing_spec.lua spec/exchange/shard_spec.lua
spec/exchange/sliced_spec.lua"

specs_on_devices() { # variant
    if [ ! -e "$builds/$1/bin/libcplab_cuda_emulated.so" ]; then
        printf 'skipped specs on emulated devices\n    CUDA (nvcc) is not here\n'
        printf '0 passed, 0 failed, 1 skipped\n'
        return 0
    fi
    # shellcheck disable=SC2086
    CPLAB_VARIANT=$1 CPLAB_TRANSPORT=cuda-emulated timeout -k 5 300 "$root/cplab" test $device_specs
}

# Where the kernel spreads addresses wider than the sanitizer knows, it runs without the spreading.
thread_driver() {
    local program=$builds/thread/bin/tsan_local
    "$program" && return 0
    if "$program" 2>&1 | grep -q 'unexpected memory mapping'; then
        setarch -R "$program"
    else
        return 1
    fi
}

# A minute of libFuzzer; what it finds worth keeping stays for the next time.
fuzz_layout() {
    local folder=$builds/fuzz
    mkdir -p "$folder/corpus" &&
        cmake -S . -B "$folder" -DCMAKE_C_COMPILER=clang -DCPLAB_FUZZ=ON -DCPLAB_WERROR=ON &&
        cmake --build "$folder" --target fuzz_layout -j "$(nproc)" &&
        "$folder/bin/fuzz_layout" -max_total_time=60 -max_len=600 -timeout=10 \
            -artifact_prefix="$folder/" "$folder/corpus"
}

# What the specs of the emulator and of CUDA miss on this machine, for the line of their stage.
without_cuda() { # variant
    if [ ! -e "$builds/$1/bin/emulation_trial" ]; then
        printf ' (no CUDA toolkit: spec/emulation and spec/cuda are skipped)'
    elif [ ! -e "$builds/$1/cuda/nvcc.txt" ]; then
        printf ' (no nvcc: spec/cuda/static_spec.lua and the CUDA plug-ins are skipped)'
    fi
}

test_all() {
    stage "build, warnings as errors" build_stage check
    stage "luacheck" lint_lua
    stage "clang-format" lint_format
    stage "cppcheck" lint_c
    stage "specs$(without_cuda check)" specs check
    stage "specs, emulated devices" specs_on_devices check
    local n
    for n in 1 2 3 4 8; do
        stage "specs, mpirun $n" specs_under_mpirun check $n
    done
    stage "build, address+undefined" build_stage address
    stage "specs, address+undefined" specs address
    stage "build, thread" build_stage thread
    stage "local transport, thread" thread_driver
    stage "layouts and routes, fuzzed" fuzz_layout
    printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
    [ $failed -eq 0 ]
}

# shellcheck disable=SC2086
need $run_packages $test_packages $lint_packages $fuzz_packages $mpi_packages
{ cd "$root" && mkdir -p "$builds/test"; } || cannot_write "$builds"
test_all
