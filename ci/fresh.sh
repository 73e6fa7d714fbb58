#!/usr/bin/env bash
# Simulates seeds that no run has tried, numbered by the clock.
#
#   ci/fresh.sh              20 of them; a seed that fails does not fail the run: the fixed seeds in `test` do
#   ci/fresh.sh --hours N    as many as N hours allow (0.5 is half an hour), after those of target/failed-seeds.tsv;
#                            a seed that fails fails the run
#
# A test that fails with a seed is appended to target/failed-seeds.tsv (commit, crate and target, test, seed), and the
# note of the stage names both. The line that repeats it is printed.
source "$(dirname "$0")/lib.sh"
KEPT=$REPO_ROOT/target/failed-seeds.tsv
# Crate and target of the sweeps.
SWEEPS=("tidewater-tests sim" "tidewater-lanes sim_recovery")
SEED_SECONDS=120 # for one seed of one target
COMMIT=$(git rev-parse --short HEAD)$(git diff --quiet HEAD || say +)
FAILED=()        # "test seed" of this run
held=0 lost=0 kept=0

# keep CRATE TARGET TEST SEED: appends it once.
keep() {
    local row="$COMMIT"$'\t'"$1 $2"$'\t'"$3"$'\t'"$4"
    FAILED+=("$3 $4")
    [[ -s $KEPT ]] || printf '# commit\tcrate target\ttest\tseed\n' >"$KEPT"
    grep -qxF -- "$row" "$KEPT" || say "$row" >>"$KEPT"
}

# sweep SEED CRATE TARGET: fails if one of the target's tests does.
sweep() {
    local seed=$1 crate=$2 target=$3 folder exe log=$SCRATCH/log.txt test
    IFS=$'\t' read -r folder exe < <(awk -F '\t' -v c="$crate" -v t="$target" \
        '$1 == c && $2 == t { print $3 "\t" $4 }' "$TEST_BINARIES") || true
    [[ -n ${exe:-} ]] || return 0
    ! (cd "$folder" && TIDEWATER_SEED=$seed exec timeout -k 5 "$SEED_SECONDS" "$exe" --nocapture </dev/null >"$log" 2>&1) || return 0
    say "seed $seed fails in $target:"
    grep -E '^(seed |repeat: )' "$log" || tail -n 5 "$log"
    # A process that dies or hangs names no test.
    for test in $(failed_tests "$log" | grep . || say "-"); do keep "$crate" "$target" "$test" "$seed"; done
    return 1
}

# try_seed SEED: in each of the sweeps.
try_seed() {
    local sweep failed=0
    for sweep in "${SWEEPS[@]}"; do
        sweep "$1" "${sweep% *}" "${sweep#* }" || failed=1
    done
    if ((failed == 0)); then held=$((held + 1)); else lost=$((lost + 1)); fi
}

# kept_seeds: those that have failed before, each once.
kept_seeds() {
    awk -F '\t' '!/^#/ && NF == 4 { print $4 }' "$KEPT" 2>/dev/null | sort -nu
}

hours=
while (($# > 0)); do
    case $1 in
    --hours)
        [[ ${2:-} =~ ^[0-9]*\.?[0-9]+$ ]] || die "--hours needs a number of hours"
        hours=$2
        shift
        ;;
    -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) die "unknown argument $1 (see --help)" ;;
    esac
    shift
done
build_tests
awk -F '\t' '$1 == "tidewater-tests" && $2 == "sim" { found = 1 } END { exit !found }' "$TEST_BINARIES" ||
    nothing_to_run "no test target named sim"
scratch_dir
first=$(date +%s)
seed=$first
if [[ -z $hours ]]; then
    for ((; seed < first + 20; seed++)); do try_seed "$seed"; done
else
    end=$((SECONDS + $(awk -v h="$hours" 'BEGIN { printf "%d", h * 3600 }')))
    for again in $(kept_seeds); do
        try_seed "$again"
        kept=$((kept + 1))
    done
    for ((; SECONDS < end; seed++)); do try_seed "$seed"; done
fi
text="seeds $first to $((seed - 1))"
((seed > first)) || text="no new seed"
text+="$( ((kept == 0)) || say " and $kept kept ones"): $held held, $lost did not"
((${#FAILED[@]} == 0)) || text+=", at $COMMIT: $(printf '%s, ' "${FAILED[@]:0:5}" | sed 's/, $//') (target/failed-seeds.tsv)"
note "$text"
((held > 0)) || die "no seed ran through: the simulator itself is broken"
[[ -z $hours ]] || ((lost == 0))
