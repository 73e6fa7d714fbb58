#!/usr/bin/env bash
# What a newcomer types, in a clean clone of HEAD, with nothing beside it and a build of its own.
source "$(dirname "$0")/lib.sh"
git cat-file -e HEAD:scripts/quickstart.sh 2>/dev/null || nothing_to_run "no scripts/quickstart.sh in HEAD"
git diff --quiet HEAD || warn "uncommitted changes are not part of the clone"
scratch_dir
git clone --quiet --no-hardlinks . "$SCRATCH/tidewater"
cd "$SCRATCH/tidewater"
CARGO_TARGET_DIR=$REPO_ROOT/target/quickstart ./scripts/quickstart.sh 2>&1 | tee "$SCRATCH/log"
# A newcomer has chosen no setting.
! grep -niE '\bwarn(ing)?\b' "$SCRATCH/log" || die "the first command prints a warning"
left=$(git status --porcelain)
[[ -z $left ]] || die "quickstart left files behind: $left"
note "clone of $(git rev-parse --short HEAD)"
