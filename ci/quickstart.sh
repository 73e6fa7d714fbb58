#!/usr/bin/env bash
# What a newcomer types, in a clean clone of HEAD, with nothing beside it and a build of its own: a release build without the
# mutants, which is what is shipped. The tests of processes run on that build, because all other stages
# test a build with checks and with the defects.
source "$(dirname "$0")/lib.sh"
git cat-file -e HEAD:scripts/quickstart.sh 2>/dev/null || nothing_to_run "no scripts/quickstart.sh in HEAD"
git diff --quiet HEAD || warn "uncommitted changes are not part of the clone"
scratch_dir
failed=0
git clone --quiet --no-hardlinks . "$SCRATCH/tidewater"
cd "$SCRATCH/tidewater"
CARGO_TARGET_DIR=$REPO_ROOT/target/quickstart ./scripts/quickstart.sh 2>&1 | tee "$SCRATCH/log"
# A newcomer has chosen no setting.
! grep -niE '\bwarn(ing)?\b' "$SCRATCH/log" || die "the first command prints a warning"
CARGO_TARGET_DIR=$REPO_ROOT/target/quickstart cargo test --locked --release -p tidewater-tests -p tidewater-train \
    --test system --test program --no-fail-fast 2>&1 | tee "$SCRATCH/tests" || failed=1
read -r p f i < <(summarize "$SCRATCH/tests")
report release "$p" "$f" "$i"
left=$(git status --porcelain)
[[ -z $left ]] || die "quickstart left files behind: $left"
note "clone of $(git rev-parse --short HEAD), release build"
exit "$failed"
