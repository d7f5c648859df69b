#!/usr/bin/env bash
# Runs all specs side by side: as many hosts as there are cores, each with a few files; who is done
# first takes the next ones. A host's output appears when it ends. The last line counts all, and a
# host that ends without counting is a failure. Large files go first, so that none is left at the
# end that all others wait for.
#
#     bash spec/share.sh HOST        in the root of the repository
set -u
export host=$1 logs=''
logs=$(mktemp -d) || exit 3
trap 'rm -rf "$logs"' EXIT

# shellcheck disable=SC2016 # the inner shell expands
find spec -name '*_spec.lua' -printf '%s %p\n' | LC_ALL=C sort -k 1,1nr -k 2 | cut -d ' ' -f 2 |
    xargs -n 3 -P "$(nproc)" bash -c '
        log=$(mktemp "$logs/XXXXXX")
        "$host" spec/run.lua "$@" >"$log" 2>&1 </dev/null
        status=$?
        counts=$(grep -cE "^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log")
        if [ "$counts" -ne 1 ]; then
            printf "failed %s: ended with status %d and no count\n" "$*" $status >>"$log"
            printf "0 passed, 1 failed, 0 skipped\n" >>"$log"
        fi
        grep -vE "^$|^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$" "$log"
        exit 0' share

cat "$logs"/* | awk '/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
    END { printf "\n%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
