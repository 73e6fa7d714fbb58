#!/usr/bin/env bash
# AddressSanitizer over the test binaries and the processes that they start: accesses outside of allocations, use after
# free, double free. No stage of CI: ci/nightly.sh runs it. It fails if the sanitizer reports anything.
#
#   ci/asan.sh [TARGET...]   those test targets ("lib", "conformance"), or all but the longest
#
# -Zsanitizer belongs to no stable interface. The pinned compiler has the runtime and accepts the flag by RUSTC_BOOTSTRAP,
# for the crates of the workspace alone. The standard library and other crates are not instrumented; what they allocate
# is still checked where a crate of the workspace accesses it. Memory of mmap (regions, rings, mailboxes) has no red
# zones. Leaks are not looked for. What is instrumented runs slower and reserves much address space, so a test that fails
# without a report is a note.
source "$(dirname "$0")/lib.sh"
source ci/lib/instrumented.sh
OUT=$REPO_ROOT/target/asan
LEFT_OUT=("tidewater-tests stress" "tidewater-tests torn_reads" "tidewater-tests table_growth" "* speed" "* tcp_alloc")
RUNTIME=$(rustc --print target-libdir)/librustc-stable_rt.asan.a

# only TARGET...: the list of test binaries without the other targets.
only() {
    awk -F '\t' -v names=" $* " 'index(names, " " $2 " ")' "$TEST_BINARIES" >"$TEST_BINARIES.new"
    mv "$TEST_BINARIES.new" "$TEST_BINARIES"
    [[ -s $TEST_BINARIES ]] || die "no test target named $*"
}

[[ -e $RUNTIME ]] || nothing_to_run "the toolchain has no runtime of AddressSanitizer for this host"
build_instrumented asan -Zsanitizer=address
leave_out "${LEFT_OUT[@]}"
(($# == 0)) || only "$@"
rm -rf "$OUT/reports"
mkdir -p "$OUT/reports"
# A report in a file of its own is found even if a test swallows what its processes print.
export ASAN_OPTIONS=detect_leaks=0:log_path=$OUT/reports/asan
export TIDEWATER_SEEDS=15 TIDEWATER_FUZZ_EXECS=2000
CI_REPORT='' xtask test --binaries "$TEST_BINARIES" --show >"$OUT/tests.log" 2>&1 || say "some tests failed: $OUT/tests.log"
failed=$(failed_tests "$OUT/tests.log" | paste -sd ' ')
read -r p f i < <(summarize "$OUT/tests.log")
((p > 0)) || die "no test passed: $OUT/tests.log"
[[ -z $failed ]] || say "failed without a report, or with one below: $failed"
reports=$(find "$OUT/reports" -type f -size +0 | wc -l)
find "$OUT/reports" -type f -size +0 -exec grep -hE -A12 'ERROR: AddressSanitizer' {} + | head -n 60 || true
report asan "$p" "$((reports > 0))" "$i"
note "$reports reports; $p tests passed, $f failed under AddressSanitizer${failed:+: $failed}"
((reports == 0))
