#!/usr/bin/env bash
# Switches on each mutant of docs/TESTING.md and says which broad tests see it, one row a
# defect. It fails on nothing: a broad test need not see everything. No stage of CI; about an hour.
#
# A broad test runs first without a defect and records the mutants that it looks at. With a mutant that it does not look
# at it behaves as without: the cell is empty, and it is not run. "-": it looks at the mutant and passes. "seen:S": it
# fails after S seconds. "hangs": it does not end in time.
#
#   ci/mutants-broad.sh [MUTANT...]    those, or all; the table is target/mutants-broad.tsv as well
source "$(dirname "$0")/lib.sh"
source ci/lib/mutants.sh
TEST_SECONDS=300 # for one test program
OUT=$REPO_ROOT/target/mutants-broad.tsv
# Column, crate, target, environment. A prefix of the seeds is a column of its own: it is what a quick run does.
BROAD=(
    "sim-15 tidewater-tests sim TIDEWATER_SEEDS=15"
    "sim-200 tidewater-tests sim TIDEWATER_SEEDS=200"
    "ledger tidewater-tests exactly_once"
    "torn tidewater-tests torn_reads"
    "stress tidewater-tests stress"
    "conformance tidewater-lanes conformance"
)
build_tests
scratch_dir

# reached COLUMN MUTANT: whether the broad test looks at the mutant.
reached() {
    [[ $2 == none ]] || grep -qxF -- "$2" "$SCRATCH/reached.$1"
}

# outcome CRATE TARGET ASSIGNMENT...: "-" where every test passes, else what happened and the seconds.
outcome() {
    local crate=$1 target=$2 folder exe code=0 began=$SECONDS
    shift 2
    read -r folder exe < <(awk -F '\t' -v c="$crate" -v t="$target" \
        '$1 == c && $2 == t { print $3, $4 }' "$TEST_BINARIES") || true
    [[ -n ${exe:-} ]] || die "no test binary '$target' in $crate"
    cd "$folder"
    env "$@" timeout -k 5 "$TEST_SECONDS" "$exe" </dev/null >"$SCRATCH/log" 2>&1 || code=$?
    case $code in
    0) say - ;;
    124 | 137) say "hangs" ;;
    *) say "seen:$((SECONDS - began))" ;;
    esac
}

# Which mutants each of them looks at.
for row in "${BROAD[@]}"; do
    read -r -a words <<<"$row"
    : >"$SCRATCH/reached.${words[0]}"
    cell=$(outcome "${words[1]}" "${words[2]}" "${words[@]:3}" "TIDEWATER_MUTANTS_REACHED=$SCRATCH/reached.${words[0]}")
    [[ $cell == - ]] || die "${words[0]} fails without a defect"
    sort -u -o "$SCRATCH/reached.${words[0]}" "$SCRATCH/reached.${words[0]}"
    say "# ${words[0]} looks at $(wc -l <"$SCRATCH/reached.${words[0]}") mutants"
done

mutants=("$@")
((${#mutants[@]} > 0)) || mapfile -t mutants < <(mutant_rows | awk -F '\t' '$3 != "loom" { print $1 }')
{
    printf 'defect'
    for row in "${BROAD[@]}"; do printf '\t%s' "${row%% *}"; done
    printf '\n'
    for mutant in none "${mutants[@]}"; do
        printf '%s' "$mutant"
        for row in "${BROAD[@]}"; do
            read -r -a words <<<"$row"
            assignment=("${words[@]:3}")
            if ! reached "${words[0]}" "$mutant"; then cell= && printf '\t' && continue; fi
            [[ $mutant == none ]] || assignment+=("TIDEWATER_MUTANT=$mutant")
            # The seeds of sim-15 are the first of sim-200.
            if [[ ${words[0]} == sim-200 && $cell == seen* ]]; then printf '\t%s' "$cell" && continue; fi
            cell=$(outcome "${words[1]}" "${words[2]}" "${assignment[@]}")
            [[ $mutant != none || $cell == - ]] || die "${words[0]} fails without a defect"
            printf '\t%s' "$cell"
        done
        printf '\n'
    done
} | tee "$OUT"
note "$(awk -F '\t' 'NR > 2 { n++; if (/seen:|hangs/) seen++ } END { print seen + 0 " of " n + 0 " mutants are seen by a broad test" }' "$OUT")"
