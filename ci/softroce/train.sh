#!/usr/bin/env bash
# Runs in a guest: real processes train on the public set a9a, by RDMA and by shared memory; with
# TIDEWATER_TEST_FULL=1 by tcp, too. Under BSP one seed is one model, whatever carries it: the figures
# must be good, and equal. (That those of shm and tcp are equal, ci/a9a.sh shows on the host.)
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/checks.sh
source "$REPO_ROOT/ci/softroce/checks.sh"
DATA=${TIDEWATER_TEST_DATA:-$REPO_ROOT/../shared/data}
OTHERS=(shm)
[[ ${TIDEWATER_TEST_FULL:-0} != 1 ]] || OTHERS+=(tcp)
for _name in "${!TIDEWATER_TEST_@}"; do unset "$_name"; done # the programs would report them
TRAIN=$DATA/a9a.train.libsvm
TEST=$DATA/a9a.test.dummy
AUC_MIN=0.900 LOG_LOSS_MAX=0.330 # as in ci/a9a.sh
LIMIT_S=240                      # of one run

[[ -d $DATA ]] || nothing_to_run "no folder ../shared/data with the public sets"
[[ -f $TRAIN && -f $TEST ]] || die "${DATA} holds no a9a.train.libsvm or a9a.test.dummy"
PATH=$PWD/target/ci:$PATH

# figure KEY: of the last report.
figure() { sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$SCRATCH/report.json"; }

# trains TRANSPORT: to the known figures, over that transport.
trains() {
    rm -f "$SCRATCH/report.json"
    timeout -k 10 "$LIMIT_S" tidewater run --servers 2 --workers 2 --transport "$1" -- \
        tidewater-train lr --sync bsp --train "$TRAIN" --test "$TEST" --json "$SCRATCH/report.json" || return 1
    [[ $(figure transport) == "$1" ]] || die "it went over $(figure transport)"
    awk -v auc="$(figure auc)" -v loss="$(figure log_loss)" -v auc_min="$AUC_MIN" -v loss_max="$LOG_LOSS_MAX" \
        'BEGIN { exit !(auc >= auc_min && loss <= loss_max) }' ||
        die "AUC $(figure auc), log-loss $(figure log_loss); due: $AUC_MIN, $LOG_LOSS_MAX"
    printf 'auc %s, log-loss %s, model %s' "$(figure auc)" "$(figure log_loss)" "$(figure fingerprint)" \
        >"$SCRATCH/$1.model"
}

# same_as_verbs TRANSPORT: the same figures and the same bits.
same_as_verbs() {
    [[ -s $SCRATCH/$1.model && $(cat "$SCRATCH/$1.model") == "$(cat "$SCRATCH/verbs.model")" ]] ||
        die "by verbs: $(cat "$SCRATCH/verbs.model"); by $1: $(cat "$SCRATCH/$1.model")"
}

for transport in verbs "${OTHERS[@]}"; do
    check "a9a_by_$transport" trains "$transport"
    say "$transport: $(cat "$SCRATCH/$transport.model" 2>/dev/null || say 'no model'), $(figure seconds) s"
done
for transport in "${OTHERS[@]}"; do check "${transport}_is_the_same_model" same_as_verbs "$transport"; done
verdict "$SOFTROCE_OUT/train.json"
