#!/usr/bin/env bash
# Unit, integration and documentation tests, and each benchmark once. The test target `fuzz` has
# a stage of its own. As many test binaries run side by side as there are cores: the longest of them mostly wait.
source "$(dirname "$0")/lib.sh"
TEST_JOBS=$(nproc)
trap 'end_jobs && exit 130' INT
build_tests
failed=0
run_test_binaries exclude fuzz || failed=1

scratch_dir
log=$SCRATCH/log.txt
cargo test --locked --profile ci --workspace --features "$FEATURES" --doc 2>&1 | tee "$log" || failed=1
read -r p f i < <(summarize "$log")
report doc "$p" "$f" "$i"
exit "$failed"
