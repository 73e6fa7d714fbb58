#!/usr/bin/env bash
# Torn rows, at length: 10^6 reads on each transport of rows that are being rewritten all the time, 10^7 with --full.
# None that is torn may be accepted, and some must have been seen and rejected.
source "$(dirname "$0")/lib.sh"
export TIDEWATER_READS=1000000 # of which 10^4 to 10^6 are rejected
[[ ${TIDEWATER_TEST_FULL:-} != 1 ]] || TIDEWATER_READS=10000000
build_tests
scratch_dir
log=$SCRATCH/log.txt
xtask test --binaries "$TEST_BINARIES" --target conformance --limit 600 --show -- torn_rows --nocapture --test-threads 2 2>&1 | tee "$log"
reads=$(grep -oE '(shm|tcp|sim): accepted [0-9]+, of them torn 0, rejected [1-9][0-9]*' "$log" | wc -l)
[[ $reads -eq 3 ]] || die "not all of shm, tcp and sim said what they read"
