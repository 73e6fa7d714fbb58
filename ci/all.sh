#!/usr/bin/env bash
# Runs every check and test, in one build, and says what ran. The stages are in ci/budget.toml.
#
#   ci/all.sh                 all of them; ends within 45 minutes on 2 cores
#   ci/all.sh --full          with the larger counts (TIDEWATER_TEST_FULL=1); hours
#   ci/all.sh --only STAGE    that one, with what it prints (may be repeated)
#   ci/all.sh --verbose       with what all of them print
#   ci/all.sh --list          names and purposes
#
# Installs nothing, unless CI_INSTALL=1: then, as root on Debian, the packages of ci/packages.tsv that are missing.
# A stage's temporary files are removed, and settings of the host that it changed are put back, however it ends.
# Exit code 0: everything required ran and passed. What a stage prints is in target/ci-logs/STAGE.log;
# of one that failed the telling lines are shown at the end, above the table.
source "$(dirname "$0")/lib.sh"
# Scripts this one starts inherit it; anything still alive with it afterwards was left behind.
RUN_ID="$$.$(date +%s%N)"
LOGS=target/ci-logs
GRACE_S=10 # from TERM to KILL
SETTLE_S=2  # a process that was told to end may take this long
EXCERPT_LINES=30 # of a failed stage's log
FULL=0
VERBOSE=0
ONLY=()
declare -A CFG # "stage.fmt.script" -> ci/fmt.sh
declare -A RESULT SECONDS_OF
STAGES=()
CHILD= # the stage that runs now, under timeout
STAGE_TMP= # its temporary files
HOST_BEFORE= # its settings of the host
TEE=   # what copies its output to the log

usage() { sed -n '2,/^source/s/^# \{0,1\}//p' "$0" | sed '/^Exit code/q'; }

load_budget() {
    local section key value
    while IFS=$'\t' read -r section key value; do
        CFG[$section.$key]=$value
        [[ $section == stage.* && $key == script ]] && STAGES+=("${section#stage.}")
    done < <(budget)
    ((${#STAGES[@]} > 0)) || die "no stages in the budget file"
    # A second try of a check hides races.
    for section in "${STAGES[@]}"; do
        ((${CFG[stage.$section.tries]:-1} == 1)) || [[ ${CFG[stage.$section.sets_up]:-} == true ]] ||
            die "stage $section: tries is for stages that set up (sets_up = true)"
    done
}

# host_settings: what stages may change of the host, one setting a line.
host_settings() {
    local file
    for file in /proc/sys/vm/nr_hugepages /proc/sys/vm/nr_overcommit_hugepages; do
        [[ ! -r $file ]] || say "$file $(<"$file")"
    done
    find /run/netns -mindepth 1 -maxdepth 1 -name 'tw-*' 2>/dev/null | sort || true
}

# put_back: the host is as before the stage; says what was not.
put_back() {
    local file value
    [[ -n $STAGE_TMP ]] || return 0
    rm -rf -- "$STAGE_TMP"
    STAGE_TMP=
    while read -r file value; do
        if [[ $file == /run/netns/* ]]; then ip netns del "${file##*/}"; else
            value=$(awk -v f="$file" '$1 == f { print $2 }' <<<"$HOST_BEFORE")
            say "$value" >"$file"
        fi && say "put back: $file $value"
    done < <(comm -13 <(sort <<<"$HOST_BEFORE") <(host_settings | sort))
}

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --full) FULL=1 ;;
        --verbose) VERBOSE=1 ;;
        --only)
            [[ -n ${2:-} && -n ${CFG[stage.$2.script]:-} ]] || die "--only needs a stage: ${STAGES[*]}"
            ONLY+=("$2") VERBOSE=1
            shift
            ;;
        --list)
            for stage in "${STAGES[@]}"; do
                printf '%-11s %-33s %s\n' "$stage" "${CFG[stage.$stage.does]}" "${CFG[stage.$stage.script]}"
            done
            exit 0
            ;;
        -h | --help) usage && exit 0 ;;
        *) die "unknown argument $1 (see --help)" ;;
        esac
        shift
    done
    ((${#ONLY[@]} == 0)) || STAGES=("${ONLY[@]}")
}

# left_behind: processes that a stage started and did not end: "pid command", one a line.
left_behind() {
    local file pid
    grep -lsxzF "CI_RUN_ID=$RUN_ID" /proc/[0-9]*/environ | while IFS= read -r file; do
        pid=${file#/proc/} pid=${pid%/environ}
        # A zombie has ended; its parent will collect it.
        [[ $(awk '/^State:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) =~ ^[RSDT] ]] || continue
        printf '%s %s\n' "$pid" "$(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c1-100)"
    done || true
}

# end_left_behind: TERM, a grace, then KILL, to exactly those processes.
end_left_behind() {
    local pids i
    pids=$(left_behind | cut -d' ' -f1)
    [[ -n $pids ]] || return 0
    # shellcheck disable=SC2086  # one word per process
    kill -TERM $pids 2>/dev/null || true
    for ((i = 0; i < GRACE_S * 10; i++)); do
        pids=$(left_behind | cut -d' ' -f1)
        [[ -n $pids ]] || return 0
        sleep 0.1
    done
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
}

interrupted() {
    trap '' INT TERM HUP
    [[ -z $CHILD ]] || kill -TERM "$CHILD" 2>/dev/null || true
    end_left_behind
    put_back
    say
    warn "interrupted"
    exit $((128 + $1))
}

# blocked_by STAGE: a stage it needs that was tried and did not pass.
blocked_by() {
    local needed
    for needed in ${CFG[stage.$1.needs]:-}; do
        [[ ${RESULT[$needed]:-ok} == ok ]] || { say "$needed"; return; }
    done
}

# seconds_allowed STAGE: its timeout, or what is left of the whole run if that is less.
seconds_allowed() {
    local factor=1 own left
    ((FULL == 0)) || factor=${CFG[run.full_factor]}
    own=$((${CFG[stage.$1.timeout_s]} * factor))
    left=$((${CFG[run.hard_s]} * factor - SECONDS))
    say $((own < left ? own : left))
}

# groups_missing STAGE: required groups of tests of which none passed.
groups_missing() {
    local group
    for group in ${CFG[stage.$1.groups]:-}; do
        awk -F '\t' -v g="$group" '$1 == "tests" && $2 == g { n += $3 } END { exit n > 0 }' \
            "$LOGS/$1.report" && printf '%s ' "$group"
    done
    return 0
}

# log_complete: waits a moment for the rest of the stage's output to be written.
log_complete() {
    local i
    for ((i = 0; i < 20; i++)); do
        [[ -n $TEE ]] && kill -0 "$TEE" 2>/dev/null || return 0
        sleep 0.1
    done
}

# verdict STAGE EXIT_CODE: what its exit code, its leftovers and its counts amount to.
verdict() {
    local left missing i
    left=$(left_behind)
    for ((i = 0; i < SETTLE_S * 10; i++)); do
        [[ -n $left ]] || break
        sleep 0.1
        left=$(left_behind)
    done
    end_left_behind
    log_complete
    put_back | tee -a "$LOGS/$1.log" >&2
    [[ -z $left ]] || say "left these processes behind:"$'\n'"$left" | tee -a "$LOGS/$1.log" >&2
    missing=$(groups_missing "$1")
    case $2 in
    0)
        if [[ -n $left ]]; then
            RESULT[$1]="LEFT PROCESSES"
        elif [[ -n $missing ]]; then
            printf 'note\tno test of %s\n' "$missing" >>"$LOGS/$1.report"
            RESULT[$1]="RAN NOTHING"
        else
            RESULT[$1]=ok
        fi
        ;;
    "$NOTHING_TO_RUN")
        RESULT[$1]=nothing
        [[ ${CFG[stage.$1.required]} != true ]] || RESULT[$1]="RAN NOTHING"
        ;;
    124 | 137) RESULT[$1]="TIMED OUT" ;;
    *) RESULT[$1]=FAILED ;;
    esac
}

# try_stage STAGE SECONDS: runs it once; sets its result.
try_stage() {
    local stage=$1 code=0
    local script=${CFG[stage.$stage.script]}
    : >"$LOGS/$stage.log"
    : >"$LOGS/$stage.report"
    ((VERBOSE == 0)) || printf '\n=== %s: %s\n' "$stage" "${CFG[stage.$stage.does]}"
    if [[ ! -x $script ]]; then
        printf 'note\tno %s\n' "$script" >"$LOGS/$stage.report"
        code=$NOTHING_TO_RUN
    else
        if ((VERBOSE == 1)); then
            exec {out}> >(exec tee "$LOGS/$stage.log")
            TEE=$!
        else
            exec {out}>"$LOGS/$stage.log"
        fi
        STAGE_TMP=$(mktemp -d "${TMPDIR:-/tmp}/tw-ci.XXXXXX")
        HOST_BEFORE=$(host_settings)
        CI_RUN_ID=$RUN_ID CI_REPORT=$PWD/$LOGS/$stage.report TMPDIR=$STAGE_TMP \
            timeout -k "$GRACE_S" "$2" "$script" </dev/null >&"$out" 2>&1 {out}>&- &
        CHILD=$!
        exec {out}>&-
        wait "$CHILD" || code=$?
        CHILD=
    fi
    verdict "$stage" "$code"
}

# run_stage STAGE: once, and what fails of a stage with tries = 2 once more: that is for stages that set up,
# which depend on the network. The table shows it, and the first log is kept.
run_stage() {
    local stage=$1 blocker allowed began=$SECONDS try
    SECONDS_OF[$stage]=0
    rm -f "$LOGS/$stage.first.log"
    blocker=$(blocked_by "$stage")
    if [[ -n $blocker ]]; then
        : >"$LOGS/$stage.log"
        RESULT[$stage]=BLOCKED
        printf 'note\tneeds %s\n' "$blocker" >"$LOGS/$stage.report"
        return
    fi
    for ((try = 1; try <= ${CFG[stage.$stage.tries]:-1}; try++)); do
        allowed=$(seconds_allowed "$stage")
        if ((allowed <= 0)); then
            : >>"$LOGS/$stage.report"
            RESULT[$stage]=${RESULT[$stage]:-NO TIME LEFT}
            return
        fi
        if ((try > 1)); then
            say "=== $stage: ${RESULT[$stage]}; once more"
            mv "$LOGS/$stage.log" "$LOGS/$stage.first.log"
        fi
        try_stage "$stage" "$allowed"
        SECONDS_OF[$stage]=$((SECONDS - began))
        [[ ${RESULT[$stage]} != ok && ${RESULT[$stage]} != nothing ]] || break
    done
    say "=== $stage: ${RESULT[$stage]}, ${SECONDS_OF[$stage]} s of ${CFG[stage.$stage.budget_s]} s"
}

# what_ran STAGE: the last column: tests per group, then the stage's own last word.
what_ran() {
    awk -F '\t' '
        $1 == "tests" {
            if (!($2 in pass)) order[++n] = $2
            pass[$2] += $3; fail[$2] += $4; ignored[$2] += $5; p += $3; f += $4; i += $5
        }
        $1 == "flake" { flakes++ }
        $1 == "note" { note = $2 }
        END {
            if (n) {
                line = (p + f) (p + f == 1 ? " test" : " tests")
                if (f) line = line ", " f " FAILED"
                if (i) line = line ", " i " ignored"
                if (flakes) line = line ", " flakes " REPEATED"
                if (n > 1) for (k = 1; k <= n; k++) {
                    name = order[k]; sub(/^tidewater-/, "", name)
                    line = line (k == 1 ? " (" : ", ") name " " (pass[order[k]] + fail[order[k]])
                }
                if (n > 1) line = line ")"
            }
            if (note != "") line = line (line == "" ? "" : "; ") note
            print line
        }' "$LOGS/$1.report"
}

print_table() {
    local stage late result
    printf '\n%-11s %-14s %8s %8s  %s\n' stage result seconds budget ran
    printf '%-11s %-14s %8s %8s  %s\n' ----------- -------------- -------- -------- ---
    for stage in "${STAGES[@]}"; do
        late=
        ((FULL == 1 || ${SECONDS_OF[$stage]} <= ${CFG[stage.$stage.budget_s]})) || late='!'
        result=${RESULT[$stage]}
        [[ $result != ok || ! -e $LOGS/$stage.first.log ]] || result="ok, 2nd try"
        printf '%-11s %-14s %8s %8s  %s\n' "$stage" "$result" \
            "${SECONDS_OF[$stage]}$late" "${CFG[stage.$stage.budget_s]}" "$(what_ran "$stage")"
    done
    late=
    ((FULL == 1 || SECONDS <= ${CFG[run.budget_s]})) || late='!'
    printf '%-11s %-14s %8s %8s  %s\n' all "" "$SECONDS$late" "${CFG[run.budget_s]}" \
        "$(git rev-parse --short HEAD)$(git diff --quiet HEAD || say ' with uncommitted changes')"
}

# failed_stages: those that did not pass, one a line.
failed_stages() {
    local stage
    for stage in "${STAGES[@]}"; do
        [[ ${RESULT[$stage]} == ok || ${RESULT[$stage]} == nothing ]] || say "$stage"
    done
}

# print_excerpts: of the log of each stage that failed, at least once, the lines that look like the reason, else the last.
# They follow the table: where only the end of the output is kept, it has the reasons.
print_excerpts() {
    local stage log lines
    for stage in "${STAGES[@]}"; do
        log=$LOGS/$stage.first.log
        [[ -e $log ]] || log=$LOGS/$stage.log
        [[ -s $log && (-e $LOGS/$stage.first.log || " $(failed_stages | xargs) " == *" $stage "*) ]] || continue
        printf '\n--- %s, from %s:\n' "$stage" "$log"
        # A test that is meant to panic is not a reason: only where tests failed are panics looked at.
        lines=$(grep -nE '^test .* FAILED$|^--- .* FAILED|^FAILED|^error(\[|:)|^differs|^(fatal|[a-z0-9./-]+): .*(rror|ail)' "$log" || true)
        [[ ! $lines =~ test\ .*FAILED ]] || lines+=$'\n'$(grep -nE -A2 'panicked at' "$log" || true)
        [[ -n $lines ]] || lines=$(tail -n "$EXCERPT_LINES" "$log")
        say "$lines" | cut -c1-300 | tail -n "$EXCERPT_LINES"
    done
}

# print_failures: where to look, one line per stage that did not pass, and what failed at either try:
# whoever sees only the end of the output sees the names.
print_failures() {
    local stage names reports=("${STAGES[@]/#/$LOGS/}")
    reports=("${reports[@]/%/.report}")
    for stage in "${STAGES[@]}"; do
        names=$(failed_tests "$LOGS/$stage.first.log" "$LOGS/$stage.log" | paste -sd ' ')
        [[ -z $names ]] || say "$stage: tests that failed: $names"
    done
    awk -F '\t' '$1 == "flake" { print "repeated, as ci/flakes.tsv allows: " $2 }' \
        "${reports[@]}"
    for stage in $(failed_stages); do
        say "${RESULT[$stage]}: $stage; log: $LOGS/$stage.log; again: ci/all.sh --only $stage"
    done
}

# The last line counts tests; a stage that failed without a failed test counts as one.
print_summary() {
    local passed=0 failed=0 p f stage
    for stage in "${STAGES[@]}"; do
        read -r p f < <(awk -F '\t' '$1 == "tests" { p += $3; f += $4 } END { print p + 0, f + 0 }' \
            "$LOGS/$stage.report")
        [[ ${RESULT[$stage]} == ok || ${RESULT[$stage]} == nothing ]] || ((f > 0)) || f=1
        passed=$((passed + p)) failed=$((failed + f))
    done
    say "$passed passed, $failed failed"
}

load_budget
parse_arguments "$@"
((FULL == 0)) || export TIDEWATER_TEST_FULL=1
mkdir -p "$LOGS"
trap 'interrupted 1' HUP
trap 'interrupted 2' INT
trap 'interrupted 15' TERM
for stage in "${STAGES[@]}"; do run_stage "$stage"; done
print_table
print_excerpts
say
print_failures
print_summary
[[ -z $(failed_stages) ]]
