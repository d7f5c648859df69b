#!/usr/bin/env bash
# Runs specs side by side: three hosts for two cores, since specs wait for a quarter of their time
# (for ranks, for mpirun, for deadlines), each with a file of spec/long.txt or with a few others; who
# is done first takes the next ones. A host's output appears when it ends. The last line counts all;
# a host that ends without counting, or that fails although all that it counted passed, is a failure.
# Long files go first, then large ones, so that none is left at the end that all others wait for.
# Before the counts stand the files that took longest.
#
#     bash spec/share.sh HOST [FILES OR FOLDERS...]      in the root of the repository; all without
set -u
export host=$1 logs=''
shift
logs=$(mktemp -d) || exit 3
trap 'rm -rf "$logs"' EXIT

hosts=$((($(nproc) * 3 + 1) / 2))
mapfile -t files < <(find "${@:-spec}" -name '*_spec.lua' -printf '%s %p\n' |
    LC_ALL=C sort -k 1,1nr -k 2 | cut -d ' ' -f 2)
mapfile -t long < <(grep -xF -f <(printf '%s\n' "${files[@]}") spec/long.txt)
each=$((${#files[@]} / (8 * hosts) + 1))

deal() { # a line of files for each turn of a host
    printf '%s\n' "${long[@]}"
    printf '%s\n' "${files[@]}" | grep -vxF -f spec/long.txt | xargs -n $((each < 3 ? each : 3))
}

# shellcheck disable=SC2016 # the inner shell expands
deal | xargs -L 1 -P $hosts bash -c '
        log=$(mktemp "$logs/XXXXXX")
        "$host" spec/run.lua "$@" >"$log" 2>&1 </dev/null
        status=$?
        counts=$(grep -cE "^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log")
        says_failed=$(grep -cE "^[0-9]+ passed, [1-9][0-9]* failed, [0-9]+ skipped$" "$log")
        if [ "$counts" -ne 1 ]; then
            printf "failed %s: ended with status %d and no count\n" "$*" $status >>"$log"
        elif [ $status -ne 0 ] && [ "$says_failed" -eq 0 ]; then
            printf "failed %s: ended with status %d after what passed\n" "$*" $status >>"$log"
        else
            counts=right
        fi
        [ "$counts" = right ] || printf "0 passed, 1 failed, 0 skipped\n" >>"$log"
        grep -vE "^$|^took |^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log"
        exit 0' share

cat "$logs"/* | grep -E '^took [0-9.]+ s: ' | LC_ALL=C sort -k 2,2nr | head -n 10
cat "$logs"/* | awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
    END { printf "\n%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
