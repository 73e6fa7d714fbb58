#!/usr/bin/env bash
# Counts the instructions of the parts that every pull and push passes through, with callgrind, and
# compares them with ci/instructions.tsv: a measure that no other load on the machine disturbs. The
# counts are those of the profile ci, checks included.
#
#   ci/instructions.sh             compares; fails on a part that takes more than its tolerance more
#   ci/instructions.sh --update    writes the counts into the file instead
source "$(dirname "$0")/lib.sh"
source ci/lib/packages.sh
BASELINE=${CI_INSTRUCTIONS:-ci/instructions.tsv} # part, instructions an operation, tolerance in %
TOLERANCE=5                                      # of a part that is new in the file

need_packages instructions
build_tests
read -r exe < <(awk -F '\t' '$1 == "tidewater-bench" && $2 == "bench:parts" { print $4 }' "$TEST_BINARIES")
[[ -n ${exe:-} ]] || die "no benchmark named parts"
scratch_dir

# The program calls the mark before and after each part's repetitions; callgrind writes a file at
# each call, with what was executed since the last one: file 2n + 2 is part n.
"$exe" --list-parts >"$SCRATCH/parts"
valgrind --tool=callgrind --dump-before='*tidewater_parts_mark*' \
    --callgrind-out-file="$SCRATCH/out" "$exe" --count-parts 2>"$SCRATCH/log" ||
    { cat "$SCRATCH/log" >&2; die "callgrind failed"; }
number=0
while IFS=$'\t' read -r part ops; do
    number=$((number + 2))
    total=$(awk '$1 == "totals:" { print $2 }' "$SCRATCH/out.$number" 2>/dev/null) || total=
    [[ -n $total ]] || die "callgrind counted nothing for $part"
    awk -v p="$part" -v t="$total" -v n="$ops" 'BEGIN { printf "%s\t%.1f\n", p, t / n }'
done <"$SCRATCH/parts" >"$SCRATCH/counts"

if [[ ${1:-} == --update ]]; then
    {
        say "# Instructions an operation of each part, counted by ci/instructions.sh (--update), and"
        say "# by how many percent it may take more."
        # A part keeps its tolerance.
        awk -F '\t' -v t="$TOLERANCE" '
            FNR == 1 { file++ }
            /^#/ { next }
            file == 1 { tolerance[$1] = $3; next }
            { print $1 "\t" $2 "\t" ($1 in tolerance ? tolerance[$1] : t) }
        ' "$BASELINE" "$SCRATCH/counts"
    } >"$SCRATCH/new"
    cp "$SCRATCH/new" "$BASELINE"
    say "wrote $(wc -l <"$SCRATCH/counts") counts to $BASELINE"
    exit 0
fi

# Every part of the list is in the file and the other way round.
status=0
awk -F '\t' '
    FNR == 1 { file++ }
    /^#/ { next }
    file == 1 { due[$1] = $2; tolerance[$1] = $3; next }
    !($1 in due) { print $1 ": " $2 ", not in the file"; bad = 1; next }
    {
        change = 100 * ($2 / due[$1] - 1)
        verdict = change > tolerance[$1] ? "MORE" : change < -tolerance[$1] ? "less" : "ok"
        printf "%-20s %10.1f %10.1f %+7.1f %%  %s\n", $1, due[$1], $2, change, verdict
        if (verdict == "MORE") bad = 1
        if (verdict == "less") less++
        seen[$1] = 1
    }
    END {
        for (part in due) if (!(part in seen)) { print part ": in the file, not in the list"; bad = 1 }
        if (less) print less " take less: ci/instructions.sh --update keeps that"
        exit bad
    }' "$BASELINE" "$SCRATCH/counts" | tee "$SCRATCH/verdicts" || status=1
parts=$(wc -l <"$SCRATCH/counts")
failed=$(grep -c 'MORE$\|in the file' "$SCRATCH/verdicts") || true
report instructions "$((parts - failed))" "$failed" 0
note "$parts parts, $failed beyond their tolerance"
exit "$status"
