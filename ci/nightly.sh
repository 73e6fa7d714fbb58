#!/usr/bin/env bash
# What takes too long for each commit. The parts run one after the other and do not depend on each other.
#
#   ci/nightly.sh                       all of them, with 2 hours for the seeds
#   ci/nightly.sh --hours N             new seeds of the simulator for N hours, fuzzing for N/4 (0.01 is 36 s)
#   ci/nightly.sh --only PART           that one (may be repeated)
#   ci/nightly.sh --only PART -- ARG... with these arguments for its script, such as: --only full -- --only fmt
#   ci/nightly.sh --list                names and purposes
#
# A part without its tools is shown as "nothing", with the reason. CI_INSTALL=1 installs what can be installed. What a
# part prints is in target/nightly/PART.log. Seeds that fail are kept in target/failed-seeds.tsv, inputs of the fuzzer
# that crash in fuzz/artifacts. Exit code 0: no part failed.
source "$(dirname "$0")/lib.sh"
source ci/lib/packages.sh
LOGS=target/nightly
HOURS=2
PARTS=(full seeds coverage asan fuzz mutants guest)
declare -A DOES=(
    [full]="ci/all.sh --full: every stage with the larger counts, but those that are parts here"
    [seeds]="new seeds of the simulator, and those that failed before"
    [coverage]="line coverage by module, next to the table of docs/TESTING.md"
    [asan]="AddressSanitizer over the test binaries"
    [fuzz]="decoders, guided by coverage; the other fuzz targets with 10^6 executions"
    [mutants]="which broad tests see each mutant"
    [guest]="every group of the RDMA guest with the larger counts; records those that pass"
)
declare -A HOURS_ALLOWED=([full]=12 [seeds]=1 [coverage]=3 [asan]=4 [fuzz]=2 [mutants]=8 [guest]=6) # beside --hours
PART_OF_STAGE=(fresh fuzz softroce) # stages that parts here run at length
declare -A RESULT SECONDS_OF
ONLY=()
ARGUMENTS=()
CHILD=

usage() { sed -n '2,/^source/s/^# \{0,1\}//p' "$0"; }

list() {
    local part
    for part in "${PARTS[@]}"; do printf '%-9s %s\n' "$part" "${DOES[$part]}"; done
}

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --hours)
            [[ ${2:-} =~ ^[0-9]*\.?[0-9]+$ ]] || die "--hours needs a number of hours"
            HOURS=$2
            shift
            ;;
        --only)
            [[ -n ${2:-} && -n ${DOES[$2]:-} ]] || die "--only needs a part: ${PARTS[*]}"
            ONLY+=("$2")
            shift
            ;;
        --list) list && exit 0 ;;
        -h | --help) usage && exit 0 ;;
        --) ARGUMENTS=("${@:2}") && break ;;
        *) die "unknown argument $1 (see --help)" ;;
        esac
        shift
    done
    ((${#ARGUMENTS[@]} == 0 || ${#ONLY[@]} == 1)) || die "arguments after -- are for one part: name it with --only"
    ((${#ONLY[@]} == 0)) || PARTS=("${ONLY[@]}")
}

# seconds HOURS [FACTOR]
seconds() { awk -v h="$1" -v f="${2:-1}" 'BEGIN { printf "%d", h * 3600 * f }'; }

# full_stages: --only STAGE for each stage of CI but those of PART_OF_STAGE.
full_stages() {
    local stage
    while IFS= read -r stage; do
        [[ " ${PART_OF_STAGE[*]} " == *" $stage "* ]] || printf '%s\n' --only "$stage"
    done < <(ci/all.sh --list | awk '{ print $1 }')
}

# find_fuzzer: cargo-fuzz, which CI_INSTALL=1 installs under target/tools.
find_fuzzer() {
    export PATH=$REPO_ROOT/target/tools/bin:$PATH
    command -v cargo-fuzz >/dev/null || [[ ${CI_INSTALL:-} != 1 ]] ||
        cargo install --quiet --locked --root target/tools cargo-fuzz || warn "cargo-fuzz could not be installed"
}

# command_of PART: sets COMMAND; WHY_NOT where it cannot run here.
command_of() {
    local fuzz_seconds
    COMMAND=() WHY_NOT=
    case $1 in
    full)
        COMMAND=(ci/all.sh --full)
        ((${#ARGUMENTS[@]} > 0)) || mapfile -t -O 2 COMMAND < <(full_stages)
        ;;
    seeds) COMMAND=(ci/fresh.sh --hours "$HOURS") ;;
    fuzz)
        find_fuzzer
        fuzz_seconds=$(seconds "$HOURS" 0.25)
        ((fuzz_seconds > 0)) || fuzz_seconds=1 # 0 is without end
        COMMAND=(env TIDEWATER_FUZZ_EXECS=1000000 "TIDEWATER_FUZZ_SECONDS=$fuzz_seconds" "TIDEWATER_SEED=$(date +%s)" ci/fuzz.sh)
        ;;
    mutants) COMMAND=(ci/mutants-broad.sh) ;;
    guest)
        COMMAND=(ci/softroce.sh)
        ((${#ARGUMENTS[@]} > 0)) || COMMAND+=(--all --full --record)
        WHY_NOT=$(may_install || missing_packages required softroce | cut -f1 | xargs)
        [[ -z $WHY_NOT ]] || WHY_NOT="missing packages: $WHY_NOT"
        ;;
    *) COMMAND=("ci/$1.sh") ;;
    esac
    COMMAND+=("${ARGUMENTS[@]}")
}

# run_part PART: sets its result.
run_part() {
    local part=$1 code=0 began=$SECONDS limit
    limit=$(($(seconds "${HOURS_ALLOWED[$part]}") + $(seconds "$HOURS")))
    : >"$LOGS/$part.report"
    : >"$LOGS/$part.log"
    command_of "$part"
    say "=== $part: ${DOES[$part]}"
    if [[ -n $WHY_NOT ]]; then
        CI_REPORT=$LOGS/$part.report note "$WHY_NOT"
        code=$NOTHING_TO_RUN
    else
        CI_REPORT=$PWD/$LOGS/$part.report timeout -k 30 "$limit" "${COMMAND[@]}" </dev/null >"$LOGS/$part.log" 2>&1 &
        CHILD=$!
        wait "$CHILD" || code=$?
        CHILD=
    fi
    SECONDS_OF[$part]=$((SECONDS - began))
    case $code in
    0) RESULT[$part]=ok ;;
    "$NOTHING_TO_RUN") RESULT[$part]=nothing ;;
    124 | 137) RESULT[$part]="TIMED OUT" ;;
    *) RESULT[$part]=FAILED ;;
    esac
    [[ ${RESULT[$part]} == ok || ${RESULT[$part]} == nothing ]] || tail -n 30 "$LOGS/$part.log"
    say "=== $part: ${RESULT[$part]}, ${SECONDS_OF[$part]} s"
}

# what_ran PART: its last note, else the sum of ci/all.sh.
what_ran() {
    awk -F '\t' '$1 == "note" { note = $2 } END { print note }' "$LOGS/$1.report" | grep . ||
        grep -E '^[0-9]+ passed, [0-9]+ failed$' "$LOGS/$1.log" | tail -n 1 || true
}

print_table() {
    local part rows
    printf '\n%-9s %-10s %8s  %s\n' part result seconds ran
    for part in "${PARTS[@]}"; do
        printf '%-9s %-10s %8s  %s\n' "$part" "${RESULT[$part]:-not run}" "${SECONDS_OF[$part]:-0}" \
            "$([[ -z ${RESULT[$part]:-} ]] || what_ran "$part")"
    done
    printf '%-9s %-10s %8s  %s\n' all "" "$SECONDS" "$(git rev-parse --short HEAD)$(git diff --quiet HEAD || say ' with uncommitted changes')"
    rows=$(grep -cv '^#' target/failed-seeds.tsv 2>/dev/null || true)
    ((${rows:-0} == 0)) || say "target/failed-seeds.tsv: $rows rows"
    rows=$(find fuzz -path 'fuzz/artifacts/*' -type f | wc -l)
    ((rows == 0)) || say "fuzz/artifacts: $rows inputs"
    for part in "${PARTS[@]}"; do
        [[ ${RESULT[$part]:-ok} == @(ok|nothing) ]] || say "${RESULT[$part]}: $part; log: $LOGS/$part.log; again: ci/nightly.sh --only $part"
    done
}

# interrupted SIGNAL: ends the part that runs, and shows what ran before it.
interrupted() {
    trap '' INT TERM HUP
    [[ -z $CHILD ]] || { kill -TERM "$CHILD" && wait "$CHILD"; } 2>/dev/null || true
    print_table
    warn "interrupted"
    exit $((128 + $1))
}

parse_arguments "$@"
mkdir -p "$LOGS"
trap 'interrupted 1' HUP
trap 'interrupted 2' INT
trap 'interrupted 15' TERM
for part in "${PARTS[@]}"; do run_part "$part"; done
print_table
[[ " ${RESULT[*]} " != *@(FAILED|TIMED)* ]]
