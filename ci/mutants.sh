#!/usr/bin/env bash
# Switches on each mutant of docs/TESTING.md and requires that its test fails; and that
# the same test passes without it. A suite that cannot find these would not find a real one.
#
# A test runs alone in its process: once without a mutant, then once with each of its own. JOBS tests run side by side,
# except those of class clock (ci/test-classes.tsv). With its mutant a test mostly waits, for what does not come: hence six
# for each core. Those of class clock come last: another stage may run next to the first ones.
source "$(dirname "$0")/lib.sh"
source ci/lib/mutants.sh
JOBS=$((6 * $(nproc)))
TEST_SECONDS=120 # a test that hangs has not caught the defect
TESTS=()           # crate, target and test, each once, in the order of the table
declare -A ROWS_OF # a test's rows of the table
ROWS=()            # the table's rows
PRINTED=0          # rows printed so far
caught=0 missed=0

# load_rows: the rows of the table, but for those that ci/loom.sh runs.
load_rows() {
    local mutant crate target test key
    while IFS=$'\t' read -r mutant crate target test; do
        [[ $target != loom ]] || continue
        key="$crate $target $test"
        [[ -n ${ROWS_OF[$key]:-} ]] || TESTS+=("$key")
        ROWS_OF[$key]+="${#ROWS[@]} "
        ROWS+=("$mutant $key")
    done < <(mutant_rows)
}

# run_one LOG EXECUTABLE TEST [ASSIGNMENT]: runs one test; sets `code`. No subshell: `interrupted` looks for its process.
run_one() {
    code=0
    env ${4:+"$4"} timeout -k 5 "$TEST_SECONDS" "$2" --exact "$3" --include-ignored --nocapture \
        </dev/null >"$1" 2>&1 || code=$?
}

# without_mutant LOG CRATE TARGET TEST: runs the test, which must pass; sets `exe`, and `outcome` to why not.
without_mutant() {
    local folder code
    outcome=
    read -r folder exe < <(awk -F '\t' -v c="$2" -v t="$3" \
        '$1 == c && $2 == t { print $3, $4 }' "$TEST_BINARIES") || true
    [[ -n ${exe:-} ]] || { outcome="no test binary '$3' in $2" && return; }
    cd "$folder"
    run_one "$1" "$exe" "$4"
    if ! grep -q '^running 1 test$' "$1"; then
        outcome="no test of that name"
    elif ((code != 0)); then
        outcome="fails even without it (exit code $code)"
    fi
}

# with_mutant LOG EXECUTABLE TEST MUTANT: runs the test, which must fail; sets `outcome`.
with_mutant() {
    local code
    run_one "$1" "$2" "$3" "TIDEWATER_MUTANT=$4"
    case $code in
    0) outcome="NOT NOTICED" ;;
    124 | 137) outcome="hangs for $TEST_SECONDS s instead of failing" ;;
    *)
        if grep -q '^test result: FAILED. 0 passed; 1 failed' "$1"; then outcome=caught; else
            outcome="dies (exit code $code) instead of failing"
        fi
        ;;
    esac
}

# check_test KEY: writes outcome and seconds of each row of one test to $SCRATCH/ROW, and what it printed to
# $SCRATCH/ROW.log.
check_test() {
    local crate target test row exe outcome why began=$SECONDS
    read -r crate target test <<<"$1"
    without_mutant "$SCRATCH/${ROWS_OF[$1]%% *}.log" "$crate" "$target" "$test"
    why=$outcome
    for row in ${ROWS_OF[$1]}; do
        [[ -n $why ]] || with_mutant "$SCRATCH/$row.log" "$exe" "$test" "${ROWS[row]%% *}"
        say "$outcome;$((SECONDS - began))" >"$SCRATCH/$row.new"
        began=$SECONDS
        mv "$SCRATCH/$row.new" "$SCRATCH/$row"
    done
}

# print_rows [all]: the next rows of the table that have an outcome; with `all` those that have none, too.
print_rows() {
    local mutant rest outcome seconds
    for (( ; PRINTED < ${#ROWS[@]}; PRINTED++)); do
        outcome="has no outcome" seconds=0
        if [[ -e $SCRATCH/$PRINTED ]]; then
            IFS=';' read -r outcome seconds <"$SCRATCH/$PRINTED"
        elif [[ ${1:-} != all ]]; then
            return 0
        fi
        read -r mutant rest <<<"${ROWS[PRINTED]}"
        printf '%-30s %s  %s, %d s\n' "$mutant" "$outcome" "$rest" "$seconds"
        if [[ $outcome == caught ]]; then caught=$((caught + 1)); else
            missed=$((missed + 1))
            sed 's/^/    /' "$SCRATCH/$PRINTED.log" 2>/dev/null | tail -n 20 || true
        fi
    done
}

# runs_alone KEY: whether the test runs with no other beside it.
runs_alone() {
    local crate target _
    read -r crate target _ <<<"$1"
    is_serial "$crate" "$target"
}

# interrupted SIGNAL: ends the tests, and prints the rows.
interrupted() {
    end_jobs
    print_rows all
    exit $((128 + $1))
}

[[ -n $(mutant_rows) ]] || nothing_to_run "no rows in docs/TESTING.md"
load_rows
build_tests
scratch_dir
trap 'interrupted 2' INT
trap 'interrupted 15' TERM
# Unit tests come last: the long waits are in the others.
others=() units=()
for test in "${TESTS[@]}"; do
    if runs_alone "$test"; then continue; fi
    if [[ $test == *" lib "* ]]; then units+=("$test"); else others+=("$test"); fi
done
running=0
for test in "${others[@]}" "${units[@]}"; do
    if ((running == JOBS)); then
        wait -n || true
        running=$((running - 1))
        print_rows
    fi
    check_test "$test" &
    running=$((running + 1))
done
wait
for test in "${TESTS[@]}"; do
    if runs_alone "$test"; then (check_test "$test"); fi
done
print_rows all
report mutants "$caught" "$missed" 0
note "mutants: $caught/$((caught + missed)) caught"
((caught > 0 && missed == 0))
