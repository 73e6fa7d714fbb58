#!/usr/bin/env bash
# Simulates seeds that nobody has tried: 40 of them, from the clock. What fails is reported with the
# line that repeats it and does not fail the run; the fixed seeds in `test` do that.
source "$(dirname "$0")/lib.sh"
build_tests
read -r folder exe < <(awk -F '\t' '$1 == "tidewater-tests" && $2 == "sim" { print $3, $4 }' "$TEST_BINARIES")
[[ -n ${exe:-} ]] || nothing_to_run "no test target named sim"
first=$(date +%s)
scratch_dir
log=$SCRATCH/log.txt
passed=0 failed=0
cd "$folder"
for ((seed = first; seed < first + 40; seed++)); do
    if TIDEWATER_SEED=$seed timeout -k 5 120 "$exe" --nocapture </dev/null >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        say "fresh seed $seed fails:"
        grep -E '^(seed |repeat: )' "$log" || tail -n 5 "$log"
    fi
done
cd "$REPO_ROOT"
note "seeds $first to $((first + 39)): $passed held, $failed did not"
[[ $passed -gt 0 ]] || die "no seed ran through: the simulator itself is broken"
