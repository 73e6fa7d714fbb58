#!/usr/bin/env bash
# From a clone to a trained model: builds Tidewater, makes a data set, and trains on it with two
# servers and four workers, each a process of its own. Needs rustup and a C compiler, which it installs
# only if CI_INSTALL=1 asks for it (Debian, as root). Leaves nothing behind but target/.
#
# QUICKSTART_PROGRAMS=DIR: uses the programs in DIR and builds nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO_ROOT"
no_color_unless_terminal
# A job's environment would make the trainer join that job.
for _name in "${!TIDEWATER_@}"; do unset "$_name"; done

SERVERS=2
WORKERS=4
TRAIN_ROWS=60000
TEST_ROWS=15000
AUC_MIN=0.90 # the generated set gives 0.92

# figure FILE KEY: a number or text at the top level of a report.
figure() {
    sed -n "s/^  \"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$1"
}

# row WHAT FORMAT KEY: a line of the table, from the report.
row() {
    local value
    value=$(figure "$SCRATCH/out.json" "$3")
    [[ -n $value && $value != null ]] || die "the report has no $3"
    # shellcheck disable=SC2059  # the format is the argument
    printf "  %-34s $2\n" "$1" "$value"
}

say "1. Toolchain and build (the first build takes some minutes)"
need_cc
need_rust
BIN=${QUICKSTART_PROGRAMS:-}
if [[ -z $BIN ]]; then
    cargo build --locked --release -p tidewater-cli -p tidewater-train --bins
    BIN=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
fi
export PATH=$BIN:$PATH

say "2. A data set: $TRAIN_ROWS rows to train on, $TEST_ROWS to test"
scratch_dir
tidewater-train generate --rows $TRAIN_ROWS --out "$SCRATCH/train.libsvm"
tidewater-train generate --rows $TEST_ROWS --first $TRAIN_ROWS --out "$SCRATCH/test.libsvm"

say "3. Logistic regression, $SERVERS servers, $WORKERS workers, bulk synchronous:"
say "   tidewater run --servers $SERVERS --workers $WORKERS -- tidewater-train lr --train train.libsvm \\"
say "       --test test.libsvm --sync bsp --json out.json"
tidewater run --servers $SERVERS --workers $WORKERS -- \
    tidewater-train lr --train "$SCRATCH/train.libsvm" --test "$SCRATCH/test.libsvm" \
    --sync bsp --json "$SCRATCH/out.json"

say "4. The figures"
row "AUC on the test set" "%.4f" auc
row "log-loss" "%.4f" log_loss
row "accuracy" "%.4f" accuracy
row "weights" "%d" weights
row "rows a second, all workers" "%.0f" rows_per_second
row "pulls" "%d" pulls
row "  median, 99th percentile (us)" "%.0f" pull_p50_us
row "" "%.0f" pull_p99_us
row "pushes: median, 99th (us)" "%.0f" push_p50_us
row "" "%.0f" push_p99_us
row "bytes pulled" "%d" bytes_pulled
row "bytes pushed" "%d" bytes_pushed
row "transport" "%s" transport
awk -v auc="$(figure "$SCRATCH/out.json" auc)" -v least=$AUC_MIN 'BEGIN { exit !(auc >= least) }' ||
    die "the model is worse than it should be: AUC below $AUC_MIN"
say "Done. Next: tidewater-train --help, README.md; programs are in ${BIN#"$REPO_ROOT"/}"
