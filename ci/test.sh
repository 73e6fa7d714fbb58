#!/usr/bin/env bash
# Unit, integration and documentation tests, and each benchmark once. The test target `fuzz` has a stage of its own.
# Each test is a process (ci/test-classes.tsv has the exceptions); its output is in target/ci-logs/tests.txt.
source "$(dirname "$0")/lib.sh"
failed=0
xtask test --except fuzz || failed=$?
((failed < 128)) || exit "$failed" # interrupted

scratch_dir
log=$SCRATCH/log.txt
cargo test --locked --profile ci --workspace --features "$FEATURES" --doc 2>&1 | tee "$log" || failed=1
read -r p f i < <(summarize "$log")
report doc "$p" "$f" "$i"
exit "$failed"
