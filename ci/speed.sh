#!/usr/bin/env bash
# What steady targets are about, on each transport: counts (allocations, system calls, idle work,
# growth) that were met before must be met. Times, with --full, are only reported, because this build has its checks on
# and the machine may be busy. `tidewater-bench compare` of a release build judges them.
source "$(dirname "$0")/lib.sh"
build_tests
scratch_dir
failed=0
for transport in shm tcp; do
    status=0
    only=()
    if [[ ${TIDEWATER_TEST_FULL:-} != 1 ]]; then
        counts=$(awk -F '"' -v t="^${transport}[.]" '/^id *=/ { id = $2 } /^counted = true/ && id ~ t { print id }' \
            bench/targets.toml | paste -sd ,)
        only=(--only "${counts:?no counts of $transport in bench/targets.toml}")
    fi
    target/ci/tidewater-bench compare --transport "$transport" --steady --gate --no-peers "${only[@]}" \
        --slice 40ms --json "$SCRATCH/$transport.json" --html "target/speed-$transport.html" || status=$?
    [[ $status -le 1 && -s $SCRATCH/$transport.json ]] || die "compare over $transport did not end"
    # serde's layout: a key a line.
    met=$(grep -c '"met": true' "$SCRATCH/$transport.json") || true
    missed=$(grep -c '"met": false' "$SCRATCH/$transport.json") || true
    report "speed" "$met" "$status" 0
    note "$transport: $met targets met, $missed missed; target/speed-$transport.html"
    failed=$((failed + status))
done
((failed == 0))
