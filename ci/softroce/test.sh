#!/usr/bin/env bash
# Runs one built test target, in a guest or not, the way cargo would.
#
#   ci/softroce/test.sh CRATE TARGET [ARGUMENT...]    such as: tidewater-lanes conformance shm
source "$(dirname "$0")/../lib.sh"
(($# >= 2)) || die "which crate, which target? See docs/TESTING.md"
crate=$1 target=$2
shift 2
[[ -f $TEST_BINARIES ]] || die "no $TEST_BINARIES: ci/build.sh makes it"
IFS=$'\t' read -r folder exe < <(awk -F '\t' -v c="$crate" -v t="$target" \
    '$1 == c && $2 == t { print $3 "\t" $4 }' "$TEST_BINARIES") || die "no test target $target in $crate"
cd "$folder"
CARGO_MANIFEST_DIR=$folder exec "$exe" "$@"
