#!/usr/bin/env bash
# What steady targets are about, on each transport: counts (allocations, system calls, idle work,
# growth) that were met before must be met; times are reported, because this build has its checks on
# and the machine may be busy. `tidewater-bench compare` of a release build judges them.
source "$(dirname "$0")/lib.sh"
build_tests
scratch_dir
failed=0
for transport in shm tcp; do
    status=0
    target/ci/tidewater-bench compare --transport "$transport" --steady --gate --no-peers \
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
