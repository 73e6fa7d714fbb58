#!/usr/bin/env bash
# Switches on each mutant of docs/TESTING.md and requires that its test fails; and that
# the same test passes without it. A suite that cannot find these would not find a real one.
source "$(dirname "$0")/lib.sh"
source ci/lib/mutants.sh
TEST_SECONDS=120 # a test that hangs has not caught the defect
[[ -n $(mutant_rows) ]] || nothing_to_run "no rows in docs/TESTING.md"
build_tests
scratch_dir
log=$SCRATCH/log.txt
caught=0 missed=0

# run_one EXECUTABLE TEST [VARIABLE]: the exit code of one test, its output in $log.
run_one() {
    env ${3:+"$3"} timeout -k 5 "$TEST_SECONDS" "$1" --exact "$2" --include-ignored --nocapture \
        </dev/null >"$log" 2>&1
}

# verdict MUTANT CRATE TARGET TEST: says "caught" or why not.
verdict() {
    local exe folder code=0
    read -r folder exe < <(awk -F '\t' -v c="$2" -v t="$3" \
        '$1 == c && $2 == t { print $3, $4 }' "$TEST_BINARIES") || true
    [[ -n ${exe:-} ]] || { say "no test binary '$3' in $2"; return; }
    cd "$folder"
    run_one "$exe" "$4" || code=$?
    grep -q '^running 1 test$' "$log" || { say "no test of that name"; return; }
    [[ $code -eq 0 ]] || { say "fails even without it (exit code $code)"; return; }
    run_one "$exe" "$4" "TIDEWATER_MUTANT=$1" || code=$?
    case $code in
    0) say "NOT NOTICED" ;;
    124 | 137) say "hangs for $TEST_SECONDS s instead of failing" ;;
    *)
        if grep -q '^test result: FAILED. 0 passed; 1 failed' "$log"; then say caught; else
            say "dies (exit code $code) instead of failing"
        fi
        ;;
    esac
}

while IFS=$'\t' read -r mutant crate target test <&3; do
    [[ $target != loom ]] || continue # ci/loom.sh runs those
    outcome=$(verdict "$mutant" "$crate" "$target" "$test")
    printf '%-30s %s  %s %s %s\n' "$mutant" "$outcome" "$crate" "$target" "$test"
    if [[ $outcome == caught ]]; then caught=$((caught + 1)); else
        missed=$((missed + 1))
        sed 's/^/    /' "$log" | tail -n 20
    fi
done 3< <(mutant_rows)
report mutants "$caught" "$missed" 0
note "mutants: $caught/$((caught + missed)) caught"
((missed == 0))
