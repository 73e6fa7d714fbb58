#!/usr/bin/env bash
# What a newcomer types, in a clean clone of HEAD, with nothing beside it: scripts/quickstart.sh.
#
# With --full (TIDEWATER_TEST_FULL=1) it is the user's command to the letter, with a build of its own: a release build
# without the mutants, which is what is shipped. The tests of processes run on that build.
#
# Otherwise the compiler only checks what that command builds (the same packages and features, from the clone; the profile
# is that of the one build, whose checks of dependencies serve it), and the programs that then make a data set and train
# on it are those of the one build. So a file that was not
# committed, a lock file that is not up to date, code that needs the feature `mutants`, a broken script, a wrong figure
# and a warning are found each time. Not found is what only the machine code of a release build does: linking,
# overflows that wrap, assertions that are compiled out.
source "$(dirname "$0")/lib.sh"
git cat-file -e HEAD:scripts/quickstart.sh 2>/dev/null || nothing_to_run "no scripts/quickstart.sh in HEAD"
git diff --quiet HEAD || warn "uncommitted changes are not part of the clone"
build_tests
scratch_dir
failed=0
git clone --quiet --no-hardlinks . "$SCRATCH/tidewater"
cd "$SCRATCH/tidewater"
export CARGO_TARGET_DIR=$REPO_ROOT/target/quickstart
if [[ ${TIDEWATER_TEST_FULL:-} == 1 ]]; then
    built="release build"
    ./scripts/quickstart.sh 2>&1 | tee "$SCRATCH/log"
else
    built="programs of the one build"
    # Packages and flags of the script's own build.
    read -ra arguments < <(sed -n 's/^ *cargo build //p' scripts/quickstart.sh)
    [[ " ${arguments[*]} " == *" --release "* ]] || die "scripts/quickstart.sh has no line: cargo build ... --release"
    {
        CARGO_TARGET_DIR=$REPO_ROOT/target cargo check "${arguments[@]/#--release/--profile=ci}"
        QUICKSTART_PROGRAMS=$REPO_ROOT/target/ci ./scripts/quickstart.sh
    } 2>&1 | tee "$SCRATCH/log"
fi
# A newcomer has chosen no setting.
! grep -niE '\bwarn(ing)?\b' "$SCRATCH/log" || die "the first command prints a warning"
report quickstart 1 0 0
if [[ ${TIDEWATER_TEST_FULL:-} == 1 ]]; then
    cargo test --locked --release -p tidewater-tests -p tidewater-train --test system --test program --no-fail-fast 2>&1 |
        tee "$SCRATCH/tests" || failed=1
    read -r p f i < <(summarize "$SCRATCH/tests")
    ((p > 0)) || failed=1
    report release "$p" "$f" "$i"
fi
left=$(git status --porcelain)
[[ -z $left ]] || die "quickstart left files behind: $left"
note "clone of $(git rev-parse --short HEAD), $built"
exit "$failed"
