#!/usr/bin/env bash
# Fuzzes what comes from outside, on stable Rust (the test target `fuzz` of each crate): every
# decoder from the committed corpus, expressions, rings, frames, lanes and saved models of the
# server, lines, tables and replies of the client. Then, if its time is given, cargo fuzz, guided by coverage, where it
# is installed: fuzz/README.md. It keeps the inputs that reach new branches in target/fuzz/corpus.
#
# TIDEWATER_FUZZ_EXECS    executions of each target (default 200000, 1000000 with --full); targets that run whole calls
#                         take a fixed fraction of it. The seed is fixed: ci/nightly.sh takes new ones
# TIDEWATER_FUZZ_SECONDS  seconds of cargo fuzz, at most (without it, none: ci/nightly.sh gives them)
source "$(dirname "$0")/lib.sh"
default=200000
[[ ${TIDEWATER_TEST_FULL:-} != 1 ]] || default=1000000
export TIDEWATER_FUZZ_EXECS=${TIDEWATER_FUZZ_EXECS:-$default}
seconds=${TIDEWATER_FUZZ_SECONDS:-}
build_tests
grep -q $'\tfuzz\t' "$TEST_BINARIES" || nothing_to_run "no test target named fuzz"

scratch_dir
CORPUS=$SCRATCH/corpus
mkdir "$CORPUS"
TIDEWATER_FUZZ_EXPORT=$CORPUS xtask test --binaries "$TEST_BINARIES" --target fuzz --show

[[ -n $seconds ]] || exit 0
if ! cargo fuzz --version >/dev/null 2>&1; then
    note "without cargo fuzz: not installed (cargo install --locked cargo-fuzz)"
    exit
fi
mkdir -p target/fuzz/corpus
# Its flags of sanitizers belong to no stable interface; the pinned compiler accepts them by RUSTC_BOOTSTRAP.
RUSTC_BOOTSTRAP=1 cargo fuzz run --target-dir target/fuzz decoders target/fuzz/corpus "$CORPUS" -- \
    -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10 2>&1 | tee "$SCRATCH/log"
note "with cargo fuzz: $(awk '/^Done / { print $2 }' "$SCRATCH/log") executions in $seconds s"
