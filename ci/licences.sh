#!/usr/bin/env bash
# Every crate of the lock files (all features, all platforms, build and tests too) has a licence of ci/licences.toml and
# comes from the registry; no requirement is a wildcard; the lock files are committed and up to date.
source "$(dirname "$0")/lib.sh"
scratch_dir
xtask licences | tee "$SCRATCH/out"
note "$(tail -n 1 "$SCRATCH/out")"
