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

build_stage() { # variant, target, in a shell of its own, since a failure exits
    (build_variant "$1" "$2")
}

specs() { # variant, files and folders; all without any
    local variant=$1
    shift
    # LuaJIT's heap hides pointers from the leak detector; the specs count leaks by cpl_memory.
    CPLAB_VARIANT=$variant ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
        bash spec/share.sh "$(host "$variant")" "$@"
}

# What compares ranks that are processes with threads, and without mpirun threads with threads: the
# stages of mpirun run it on every number of ranks.
of_mpirun="spec/mpi/lab_spec"

# What the sanitizers have nothing to see in: CUDA and its emulator, which are not built for them;
# the launcher and the text of the repository; Lua that computes with layouts, streams and routes,
# all of whose C the specs of spec/layout reach with every edge; and benches of kernels and layers
# that the specs of these reach with every edge.
unsanitized="spec/cuda spec/emulation spec/repo_spec spec/experiments
spec/cli/bench_compute_spec spec/cli/launcher_spec spec/cli/plan_spec spec/cli/project_spec spec/cli/readme_spec
spec/lua/assignment_spec spec/lua/claims_spec spec/lua/cluster_spec spec/lua/corpus_spec
spec/lua/cost_parts_spec spec/lua/cost_rates_spec spec/lua/cost_spec spec/lua/experiment_spec
spec/lua/explain_spec spec/lua/model_spec spec/lua/outline_spec spec/lua/packs_spec
spec/lua/pipeline_spec spec/lua/planner_spec spec/lua/policy_spec spec/lua/project
spec/lua/report_spec spec/lua/results_spec spec/lua/rules_spec spec/lua/schedule_spec
spec/lua/sweep_spec"

specs_without() { # variant, what files are left out, by how their names begin
    local variant=$1 files each
    shift
    files=$(find spec -name '*_spec.lua')
    for each in "$@"; do
        files=$(grep -v "^$each" <<<"$files")
    done
    # shellcheck disable=SC2086
    specs "$variant" $files
}

# The specs that hold for any number of ranks, whatever these are.
rank_specs="spec/mpi spec/comm/comm_spec.lua spec/comm/part_spec.lua spec/comm/ending_spec.lua
spec/exchange"

# Five minutes are more than they need: a rank that hangs is ended. Groups of fewer than all ranks
# are those of the largest number's stage.
specs_under_mpirun() { # variant, ranks
    local sizes=whole
    [ "$2" -lt 8 ] || sizes=8
    # shellcheck disable=SC2086
    CPLAB_VARIANT=$1 CPLAB_SIZES=$sizes timeout -k 5 300 "$root/cplab" mpirun -n "$2" \
        test $rank_specs
}

# The specs that spec/devices.txt names for a stage, with the rows of all ranks on emulated devices.
specs_on_devices() { # variant, stage of that file, settings ...
    local variant=$1 files
    if [ ! -e "$builds/$1/bin/libcplab_cuda_emulated.so" ]; then
        printf 'skipped specs on emulated devices\n    CUDA (nvcc) is not here\n'
        printf '0 passed, 0 failed, 1 skipped\n'
        return 0
    fi
    files=$(awk -F': ' -v stage="$2" '!/^#/ && " " $2 " " ~ " " stage " " { print $1 }' \
        spec/devices.txt)
    shift 2
    # shellcheck disable=SC2086
    env CPLAB_VARIANT="$variant" "$@" timeout -k 5 300 \
        bash spec/share.sh "$(host "$variant")" $files
}

# Every access of the kernels and of the host's code is judged, which takes fifty times as long: small
# groups only. A report ends the program with its sentence and status 1.
specs_checked() { # variant, stage of spec/devices.txt, order of threads, most ranks
    specs_on_devices "$1" "$2" CPLAB_TRANSPORT=cuda-emulated CPLAB_CUDA_CHECK=1 \
        CPLAB_CUDA_ORDER="$3" CPLAB_SIZES="$4"
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

# A minute of libFuzzer, on two cores; what it finds worth keeping stays for the next time.
fuzz_layout() {
    local folder=$builds/fuzz all='' each status=0
    mkdir -p "$folder/corpus" &&
        cmake -S . -B "$folder" -DCMAKE_C_COMPILER=clang -DCPLAB_FUZZ=ON -DCPLAB_WERROR=ON &&
        cmake --build "$folder" --target fuzz_layout -j "$(nproc)" || return
    for each in 1 2; do # seeds are drawn, and they read what the other one finds
        "$folder/bin/fuzz_layout" -max_total_time=30 -max_len=600 -timeout=10 -reload=1 \
            -artifact_prefix="$folder/" "$folder/corpus" &
        all+=" $!"
    done
    for each in $all; do wait "$each" || status=1; done
    return $status
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
    stage "build, warnings as errors" build_stage check specs
    stage "luacheck" lint_lua
    stage "clang-format" lint_format
    stage "cppcheck" lint_c
    stage "specs$(without_cuda check)" specs_without check $of_mpirun
    stage "specs, devices, direct" specs_on_devices check direct CPLAB_TRANSPORT=cuda-emulated
    stage "specs, devices, nccl" specs_on_devices check nccl CPLAB_TRANSPORT=cuda-emulated+nccl \
        CPLAB_SIZES=4
    local n
    stage "specs, checked, reverse" specs_checked check checked reverse 4
    stage "specs, checked, random:1" specs_checked check shuffled random:1 2
    for n in 1 2 3 4 8; do
        stage "specs, mpirun $n" specs_under_mpirun check $n
    done
    stage "build, address+undefined" build_stage address specs
    # shellcheck disable=SC2086
    stage "specs, address+undefined" specs_without address $of_mpirun $unsanitized
    stage "build, thread" build_stage thread tsan_local
    stage "local transport, thread" thread_driver
    stage "layouts and routes, fuzzed" fuzz_layout
    printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
    [ $failed -eq 0 ]
}

# shellcheck disable=SC2086
need $run_packages $test_packages $lint_packages $fuzz_packages $mpi_packages
{ cd "$root" && mkdir -p "$builds/test"; } || cannot_write "$builds"
test_all
