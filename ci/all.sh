#!/usr/bin/env bash
# Runs every check and test, in one build, and says what ran. The stages are in ci/budget.toml.
#
#   ci/all.sh                 all of them; takes 25 minutes on 2 cores from nothing, less after that
#   ci/all.sh --full          with the larger counts (TIDEWATER_TEST_FULL=1); hours
#   ci/all.sh --only STAGE    that one, with what it prints (may be repeated)
#   ci/all.sh --verbose       with what all of them print
#   ci/all.sh --list          names and purposes
#
# Installs nothing, unless CI_INSTALL=1: then, as root on Debian, the packages of ci/packages.tsv that are missing.
# A stage's temporary files are removed, and settings of the host that it changed are put back, however it ends.
# Exit code 0: everything required ran and passed. What a stage prints is in target/ci-logs/STAGE.log;
# of one that failed the relevant lines follow the table.
#
# This script does what must be done before cargo runs: stage `setup`. `cargo xtask ci` does the rest.
source "$(dirname "$0")/lib.sh"
LOG=target/ci-logs/setup.log
REPORT=$PWD/target/ci-logs/setup.report

# setup_value KEY: of stage `setup` in the budget file.
setup_value() {
    budget | awk -F '\t' -v key="$1" '$1 == "stage.setup" && $2 == key { print $3 }'
}

# runs_setup [ARGUMENT...]: whether these arguments ask for stage `setup`.
runs_setup() {
    [[ -n $(setup_value script) && " $* " != *" --list "* && " $* " != *" --help "* && " $* " != *" -h "* ]] &&
        [[ " $* " != *" --only"[\ =]* || " $* " == *" --only"[\ =]"setup "* ]]
}

# set_up: runs stage `setup`, up to `tries` times; exports its exit code and its seconds.
set_up() {
    local code try tries
    tries=$(setup_value tries)
    rm -f "${LOG%.log}.first.log"
    for ((try = 1; try <= ${tries:-1}; try++)); do
        if ((try > 1)); then
            say "=== setup: FAILED; once more"
            mv "$LOG" "${LOG%.log}.first.log"
        fi
        code=0
        : >"$REPORT"
        CI_REPORT=$REPORT timeout --foreground -k 10 "$(setup_value timeout_s)" "$(setup_value script)" \
            </dev/null >"$LOG" 2>&1 || code=$?
        ((code != 0)) || break
    done
    SETUP="$code $SECONDS"
}

if runs_setup "$@"; then
    mkdir -p "${LOG%/*}"
    set_up
fi
if ! cargo build --quiet --locked --profile ci --package xtask; then
    [[ ! -s $LOG ]] || tail -n 30 "$LOG"
    say "FAILED: setup; log: $LOG; again: ci/setup.sh"
    say "0 passed, 1 failed"
    exit 1
fi
[[ -z ${SETUP:-} ]] || export CI_SETUP="$SETUP $SECONDS"
exec target/ci/xtask ci "$@"
