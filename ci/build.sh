#!/usr/bin/env bash
# Builds libraries, programs, tests and benches once; the stages after it only run them.
source "$(dirname "$0")/lib.sh"
build_tests
note "$(wc -l <"$TEST_BINARIES") test binaries"
