#!/usr/bin/env bash
# loom: every interleaving of the tests named loom_*, up to LOOM_MAX_PREEMPTIONS preemptions.
# The only stage with RUSTFLAGS, hence with a target folder of its own.
source "$(dirname "$0")/lib.sh"
if ! git_files 'transport/runtime/src/*.rs' | xargs -0 grep -Eqs 'fn loom_[a-z0-9_]+'; then
    nothing_to_run "no test named loom_*"
fi
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
scratch_dir
log=$SCRATCH/log.txt
failed=0
loom() { cargo test --locked --profile ci -p tidewater-runtime --features mutants --lib "$@" 2>&1; }
loom loom_ | tee "$log" || failed=1
read -r p f i < <(summarize "$log")
report tidewater-runtime "$p" "$f" "$i"

# The rows of docs/TESTING.md with the target `loom`: fences that a machine with total store order does not miss.
source ci/lib/mutants.sh
caught=0 missed=0
while IFS=$'\t' read -r mutant crate target test; do
    [[ $target == loom ]] || continue
    if TIDEWATER_MUTANT=$mutant loom -- --exact "$test" </dev/null >"$log"; then
        outcome="NOT NOTICED"
    elif grep -q '^test result: FAILED. 0 passed; 1 failed' "$log"; then
        outcome=caught
    else
        outcome="dies or does not run instead of failing"
    fi
    printf '%-30s %s  %s %s\n' "$mutant" "$outcome" "$crate" "$test"
    if [[ $outcome == caught ]]; then caught=$((caught + 1)); else
        missed=$((missed + 1)) failed=1
        tail -n 20 "$log"
    fi
done < <(mutant_rows)
((caught > 0)) || failed=1
rm -f "$log"
report mutants "$caught" "$missed" 0
note "mutants: $caught/$((caught + missed)) caught"
exit "$failed"
