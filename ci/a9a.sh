#!/usr/bin/env bash
# Training on the public set a9a, by real processes: two servers, four workers. BSP over each transport, which must give
# one model, and ASP; with --full each synchronisation over each transport, and FTRL. The optimum is about AUC 0.9016 and
# log-loss 0.3251.
source "$(dirname "$0")/lib.sh"
FULL=${TIDEWATER_TEST_FULL:-0}
DATA=${TIDEWATER_TEST_DATA:-$REPO_ROOT/../shared/data}
for _name in "${!TIDEWATER_TEST_@}"; do unset "$_name"; done # the programs would report them
TRAIN=$DATA/a9a.train.libsvm
TEST=$DATA/a9a.test.dummy
AUC_MIN=0.900 LOG_LOSS_MAX=0.330
FTRL_AUC_MIN=0.895 FTRL_ZEROS_MIN=0.30

# Without the folder there is no data; with the folder the files must be there.
[[ -d $DATA ]] || nothing_to_run "no folder ../shared/data with the public sets"
[[ -f $TRAIN && -f $TEST ]] || die "${DATA} holds no a9a.train.libsvm or a9a.test.dummy"

build_tests
PATH=$PWD/target/ci:$PATH
scratch_dir
passed=0 failed=0
fingerprints=()

# figure KEY: of the last report.
figure() {
    sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$SCRATCH/out.json" 2>/dev/null || true
}

# train NAME TRANSPORT CONDITION ARGUMENT...: a run, and what awk must find true of auc, loss and
# zeros.
train() {
    local name=$1 transport=$2 condition=$3 figures
    shift 3
    rm -f "$SCRATCH/out.json"
    if ! timeout -k 10 120 tidewater run --servers 2 --workers 4 --transport "$transport" -- \
        tidewater-train "$@" --train "$TRAIN" --test "$TEST" --json "$SCRATCH/out.json"; then
        failed=$((failed + 1))
        say "FAILED: $name: the run"
        return
    fi
    figures="auc $(figure auc), log-loss $(figure log_loss), zeros $(figure zeros)"
    if [[ $(figure transport) == "$transport" ]] &&
        awk -v auc="$(figure auc)" -v loss="$(figure log_loss)" -v zeros="$(figure zeros)" \
            "BEGIN { exit !($condition) }"; then
        passed=$((passed + 1))
        say "ok: $name: $figures, $(figure rows_per_second) rows/s"
    else
        failed=$((failed + 1))
        say "FAILED: $name: $figures; due: $condition"
    fi
}

for transport in shm tcp; do
    for sync in bsp ssp:2 asp; do
        [[ $FULL == 1 || $sync == bsp || $transport$sync == tcpasp ]] || continue
        train "lr $transport $sync" "$transport" "auc >= $AUC_MIN && loss <= $LOG_LOSS_MAX" \
            lr --sync "$sync"
        [[ $sync != bsp ]] || fingerprints+=("$(figure fingerprint)")
    done
done
((FULL == 0)) || train "ftrl shm bsp" shm "auc >= $FTRL_AUC_MIN && zeros >= $FTRL_ZEROS_MIN" ftrl --l1 1

# One seed under BSP is one model, whatever carries it.
if [[ ${fingerprints[0]} == "${fingerprints[1]}" && -n ${fingerprints[0]} ]]; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
    say "FAILED: bsp over shm and over tcp are different models: ${fingerprints[*]}"
fi
report a9a "$passed" "$failed" 0
((failed == 0)) || exit 1
