# shellcheck shell=bash
# What the stages share. A stage is a bash script that sources this file, does one thing, exits
# 0 (passed), 77 (nothing to run here; say why with `note`) or anything else (failed), and may
# tell ci/all.sh what it ran with `report` and `note`. Each also runs alone.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"
cd "$REPO_ROOT"
export LC_ALL=C
find_cargo
no_color_unless_terminal

# One build serves every stage: flags from outside would make a second one.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS RUSTDOCFLAGS CARGO_BUILD_TARGET
unset CARGO_TARGET_DIR
# Nor may a job's environment, or a mutant, leak in; a seed to repeat may.
for _name in "${!TIDEWATER_@}"; do
    [[ $_name =~ ^TIDEWATER_(SEED$|TEST_|FUZZ_) ]] || unset "$_name"
done

NOTHING_TO_RUN=77
FEATURES=mutants,verbs-dlopen,wasm # of the one build
FLAKES=$REPO_ROOT/ci/flakes.tsv   # tests that may be repeated once
TEST_BINARIES=target/ci-tests.tsv # crate, target, package folder, executable
TEST_JOBS=1                       # test binaries that run at a time, see run_test_binaries
# Crate and target of the test binaries that run alone: they measure times, change the pools of hugepages, or need a
# writer and a reader that run at the same time, to see torn rows.
SERIAL=("tidewater-tests stress" "tidewater-tests table_growth" "tidewater-tests hugepages" "tidewater-bench binary"
    "tidewater-tests torn_reads" "tidewater-lanes conformance")

# note TEXT: shown in the stage's line of the final table.
note() {
    say "$*"
    [[ -z ${CI_REPORT:-} ]] || printf 'note\t%s\n' "$*" >>"$CI_REPORT"
}

# report GROUP PASSED FAILED IGNORED: tests that this stage ran.
report() {
    [[ -z ${CI_REPORT:-} ]] || printf 'tests\t%s\t%s\t%s\t%s\n' "$@" >>"$CI_REPORT"
}

# nothing_to_run WHY: ends the stage without a verdict.
nothing_to_run() {
    note "$*"
    exit "$NOTHING_TO_RUN"
}

# git_files PATTERN...: files of the project, committed or not, as NUL-terminated names.
git_files() {
    git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" |
        while IFS= read -r -d '' _file; do
            [[ ! -f $_file ]] || printf '%s\0' "$_file"
        done
}

# budget: ci/budget.toml as lines "section<TAB>key<TAB>value".
budget() {
    awk '
        { sub(/[ \t]*#.*$/, "") }
        /^\[.*\]$/ { section = substr($0, 2, length($0) - 2); next }
        /=/ {
            key = $0; sub(/[ \t]*=.*/, "", key)
            value = $0; sub(/^[^=]*=[ \t]*/, "", value); gsub(/^"|"$/, "", value)
            print section "\t" key "\t" value
        }' "${CI_BUDGET:-ci/budget.toml}"
}

# xtask ARGUMENT...: cargo xtask, in the profile of the one build. A copy of the project uses the XTASK of its origin.
xtask() {
    [[ -n ${XTASK:-} ]] || cargo build --quiet --locked --profile ci --package xtask
    "${XTASK:-target/ci/xtask}" "$@"
}

# libclang: the library that bindgen loads: of the folder it is told, else of the highest version.
libclang() {
    local pattern
    for pattern in "${LIBCLANG_PATH:-/nowhere}/libclang" '/usr/lib/llvm-*/lib/libclang' /usr/lib64/libclang; do
        compgen -G "${pattern}[-.][0-9s]*" | sort -V | tail -n 1 | grep . && return 0
    done
    return 1
}

# can_link_verbs: whether feature verbs can be built. Its crate's bindgen fails with libclang 15
# and later.
can_link_verbs() {
    pkg-config --exists libibverbs librdmacm 2>/dev/null && [[ $(libclang) == */llvm-14/* ]]
}

# build_tests: everything the later stages run, built once; writes $TEST_BINARIES.
build_tests() {
    local messages=target/ci-build.json
    mkdir -p target
    cargo build --locked --profile ci --workspace --all-targets --features "$FEATURES" \
        --message-format json-render-diagnostics >"$messages"
    awk -f ci/lib/test_binaries.awk "$messages" | sort >"$TEST_BINARIES"
    rm -f "$messages"
}

# summarize LOG: sums libtest's "test result" lines: passed failed ignored.
summarize() {
    awk '/^test result: / {
            for (i = 1; i < NF; i++) {
                if ($(i + 1) == "passed;") p += $i
                if ($(i + 1) == "failed;") f += $i
                if ($(i + 1) == "ignored;") n += $i
            }
        }
        END { print p + 0, f + 0, n + 0 }' "$1"
}

# failed_tests LOG...: the names that libtest lists at the end of each program's run.
failed_tests() {
    awk '/^failures:$/ { list = 1; next } /^test result/ { list = 0 }
        list && /^    [^ ]+$/ { print $1 }' < <(cat "$@" 2>/dev/null) | sort -u
}

# repeat_flakes CRATE TARGET EXECUTABLE LOG: whether every test that failed is named in ci/flakes.tsv and passes once
# it is repeated alone. Each repetition is reported; a test that the list does not name is never repeated.
repeat_flakes() {
    local crate=$1 target=$2 exe=$3 name names
    names=$(failed_tests "$4")
    [[ -n $names ]] || return 1
    for name in $names; do
        awk -F '\t' -v t="$crate $target $name" '$1 == t { found = 1 } END { exit !found }' "$FLAKES" || return 1
    done
    for name in $names; do
        say "--- $crate $target $name is in ci/flakes.tsv; once more"
        [[ -z ${CI_REPORT:-} ]] || printf 'flake\t%s %s %s\n' "$crate" "$target" "$name" >>"$CI_REPORT"
        "$exe" --exact "$name" --include-ignored </dev/null 2>&1 | tee "$4.again" || return 1
        grep -q '^running 1 test$' "$4.again" || return 1
    done
}

# is_serial CRATE TARGET: whether no other test may run beside this binary.
is_serial() {
    [[ " ${SERIAL[*]/%/,}" == *" $1 $2,"* ]]
}

# end_jobs: ends what the background jobs of this shell run, which ignore SIGINT as they do.
end_jobs() {
    local jobs
    jobs=$(jobs -p | paste -sd ,)
    [[ -z $jobs ]] || pkill -TERM -P "$jobs" || true
}

# run_test_binary LOG CRATE TARGET FOLDER EXECUTABLE [ARGUMENT...]: the way cargo would. What it prints goes to LOG, and
# to the screen where one runs at a time; exit code and seconds go to LOG.end.
run_test_binary() {
    local log=$1 folder=$4 exe=$5 status=0 began=$SECONDS
    say "--- $2 $3"
    shift 5
    if ((TEST_JOBS == 1)); then
        (cd "$folder" && CARGO_MANIFEST_DIR=$folder exec "$exe" "$@" </dev/null) 2>&1 | tee "$log" || status=$?
    else
        (cd "$folder" && CARGO_MANIFEST_DIR=$folder exec "$exe" "$@" </dev/null) >"$log" 2>&1 || status=$?
    fi
    say "$status $((SECONDS - began))" >"$log.new"
    mv "$log.new" "$log.end"
}

# judge_test_binary LOG CRATE TARGET FOLDER EXECUTABLE: reports its counts per crate; fails if the binary has failed.
judge_test_binary() {
    local log=$1 crate=$2 target=$3 folder=$4 exe=$5 p f i status seconds failed=0
    read -r status seconds <"$log.end"
    read -r p f i < <(summarize "$log")
    if ((status != 0)) && (cd "$folder" && CARGO_MANIFEST_DIR=$folder repeat_flakes "$crate" "$target" "$exe" "$log"); then
        p=$((p + f)) f=0
    elif ((status != 0)); then
        failed=1
        ((f > 0)) || f=1 # it died before it could tell
        say "--- $crate $target FAILED; to repeat: $(repeat_command "$crate" "$target")"
    fi
    report "$crate" "$p" "$f" "$i"
    say "--- $crate $target: $p passed, $f failed, $i ignored, $seconds s"
    return "$failed"
}

# run_test_binaries include|exclude TARGET [ARGUMENT...]: runs those test binaries, TEST_JOBS at a time, and those of
# SERIAL alone; reports their counts per crate. Fails if any binary fails. A binary that failed is judged at the end,
# when nothing runs beside the tests that are repeated.
run_test_binaries() {
    local how=$1 named=$2 failed=0 n binary
    local -a binaries active=() late=()
    shift 2
    [[ -n ${SCRATCH:-} ]] || scratch_dir
    rm -f "$SCRATCH"/test.*
    mapfile -t binaries < <(awk -F '\t' -v how="$how" -v t="$named" '($2 == t) == (how == "include")' "$TEST_BINARIES")
    for n in "${!binaries[@]}"; do
        IFS=$'\t' read -ra binary <<<"${binaries[n]}"
        if ((TEST_JOBS == 1)) || is_serial "${binary[@]:0:2}"; then late+=("$n") && continue; fi
        while ((${#active[@]} == TEST_JOBS)); do
            wait -n || (($? != 127)) || break 2 # 127: none is left to wait for
            judge_ended
        done
        run_test_binary "$SCRATCH/test.$n" "${binary[@]}" "$@" &
        active+=("$n")
    done
    wait
    judge_ended
    ((${#active[@]} == 0)) || die "${#active[@]} test binaries ended without an exit code"
    for n in "${late[@]}"; do
        IFS=$'\t' read -ra binary <<<"${binaries[n]}"
        [[ -e $SCRATCH/test.$n.end ]] || TEST_JOBS=1 run_test_binary "$SCRATCH/test.$n" "${binary[@]}" "$@"
        judge_test_binary "$SCRATCH/test.$n" "${binary[@]}" || failed=1
    done
    return "$failed"
}

# judge_ended: of the binaries in `active` (of run_test_binaries) shows what those printed that have ended.
judge_ended() {
    local n binary
    local -a still=()
    for n in "${active[@]}"; do
        if [[ ! -e $SCRATCH/test.$n.end ]]; then still+=("$n") && continue; fi
        IFS=$'\t' read -ra binary <<<"${binaries[n]}"
        say "--- ${binary[0]} ${binary[1]} printed:"
        cat "$SCRATCH/test.$n"
        if grep -q '^0 ' "$SCRATCH/test.$n.end"; then judge_test_binary "$SCRATCH/test.$n" "${binary[@]}"; else late+=("$n"); fi
    done
    active=("${still[@]}")
}

# crate_folder CRATE: the folder of a package of the workspace.
crate_folder() {
    # The first name of a manifest is its package's; a program may have that of another package.
    git ls-files '*Cargo.toml' | xargs awk -v name="name = \"$1\"" \
        '/^name = / && !seen[FILENAME]++ && $0 == name { path = FILENAME; sub("/Cargo.toml$", "", path); print path }'
}

# repeat_command CRATE TARGET: what a person types to run one test binary again.
repeat_command() {
    local which=(--test "$2")
    case $2 in
    lib) which=(--lib) ;;
    bin:*) which=(--bin "${2#bin:}") ;;
    bench:*) which=(--bench "${2#bench:}") ;;
    esac
    local features=() feature
    # A crate without a feature refuses it.
    for feature in ${FEATURES//,/ }; do
        ! grep -qs "^$feature *=" "$(crate_folder "$1")/Cargo.toml" || features+=(--features "$feature")
    done
    say cargo test --profile ci -p "$1" "${features[@]}" "${which[@]}"
}
