#!/usr/bin/env bash
# Clauses of the lane contract over a libfabric RDM endpoint (docs/adr/0077): the prototype passes F01 to F05, and
# each of these checks fails when the prototype breaks its clause. With --full only: nothing that is shipped depends
# on it.
source "$(dirname "$0")/lib.sh"
[[ ${TIDEWATER_TEST_FULL:-0} == 1 ]] || nothing_to_run "no part of a run without --full"
pkg-config --exists libfabric 2>/dev/null ||
    nothing_to_run "no libfabric to link (Debian: libfabric-dev)"
scratch_dir
program=$SCRATCH/lane_clauses
log=$SCRATCH/log.txt
read -ra flags < <(pkg-config --cflags --libs libfabric)
cc -O2 -Wall -Wextra -Werror -o "$program" bench/baselines/libfabric/lane_clauses.c "${flags[@]}"
passed=0 failed=0
code=0
timeout 120 "$program" | tee "$log" || code=$?
((code != 77)) || nothing_to_run "libfabric has no provider tcp;ofi_rxm"
for clause in F01 F02 F03 F04 F05; do
    if grep -qx "$clause ok" "$log"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    # The check must fail by itself, and not because the program does.
    timeout 120 "$program" --defect "$clause" >"$log.defect" || true
    if grep -qx "$clause FAILED" "$log.defect"; then
        passed=$((passed + 1))
    else
        say "the check of $clause does not see its defect"
        failed=$((failed + 1))
    fi
done
report libfabric "$passed" "$failed" 0
((failed == 0 && code == 0))
