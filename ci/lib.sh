# shellcheck shell=bash disable=SC2034
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
TEST_CLASSES=ci/test-classes.tsv  # what `cargo xtask test` runs at a time

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
    xtask build
}

# failed_tests LOG...: the names that libtest lists at the end of each program's run.
failed_tests() {
    awk '/^failures:$/ { list = 1; next } /^test result/ { list = 0 }
        list && /^    [^ ]+$/ { print $1 }' < <(cat "$@" 2>/dev/null) | sort -u
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

# is_serial CRATE TARGET: whether a test of this binary runs alone.
is_serial() {
    awk -F '\t' -v c="$1" -v t="$2" '$1 == c && $2 == t && $4 == "clock" { found = 1 } END { exit !found }' "$TEST_CLASSES"
}

# end_jobs: ends what the background jobs of this shell run, which ignore SIGINT as they do.
end_jobs() {
    local jobs
    jobs=$(jobs -p | paste -sd ,)
    [[ -z $jobs ]] || pkill -TERM -P "$jobs" || true
}

# crate_folder CRATE: the folder of a package of the workspace.
crate_folder() {
    # The first name of a manifest is its package's; a program may have that of another package.
    git ls-files '*Cargo.toml' | xargs awk -v name="name = \"$1\"" \
        '/^name = / && !seen[FILENAME]++ && $0 == name { path = FILENAME; sub("/Cargo.toml$", "", path); print path }'
}
