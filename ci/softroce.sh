#!/usr/bin/env bash
# The verbs stack without a card: boots Debian's kernel with Soft-RoCE (rdma_rxe) in an emulator, on
# the host's own files, and runs groups of tests in it. They are in ci/softroce/groups.toml.
#
#   ci/softroce.sh                       the groups of every run, and those of `when = "changed"` whose sources
#                                        have changed since they passed (ci/softroce-passed.tsv)
#   ci/softroce.sh --record              the same; those of `when = "changed"` that pass are recorded there. Commit it
#   ci/softroce.sh --all                 every group
#   ci/softroce.sh --full                every group, with the larger counts (TIDEWATER_TEST_FULL=1)
#   ci/softroce.sh --only GROUP          that one (may be repeated)
#   ci/softroce.sh --list                names and purposes
#   ci/softroce.sh --hosts               jobs over two hosts, of ci/softroce/hosts.toml: no part of CI;
#                                        first of all, before other options
#   ci/softroce.sh --run 'COMMAND'       a shell command in a guest: its output, its exit code
#   ci/softroce.sh --shell               a terminal in a guest
#       --timeout S                      for --run and --shell; boot included (600; 3600)
#
# A guest boots in some 5 s, sees the host's files, starts in the folder this was called from, and has
# rxe0 with 127.0.0.1 and ::1, rxe1 with 10.9.0.1. What it writes is lost, except under
# target/softroce/out of the checkout.
source "$(dirname "$0")/softroce/lib.sh"
BOOT=$REPO_ROOT/ci/softroce/boot.sh
TWO=$REPO_ROOT/ci/softroce-two.sh
GROUPS_FILE=groups
[[ ${1:-} != --hosts ]] || { GROUPS_FILE=hosts && shift; }
export CI_BUDGET=${SOFTROCE_GROUPS:-$REPO_ROOT/ci/softroce/$GROUPS_FILE.toml} # what `budget` reads
TIMEOUT_S=
GUEST_DIED=125 # what boot.sh and softroce-two.sh exit with then
FULL=${TIDEWATER_TEST_FULL:-0} # ci/all.sh --full says it so
MODE=groups
RUN=
ONLY=()
ALL=0
RECORD=0
PASSED=$REPO_ROOT/ci/softroce-passed.tsv # group, sources on which it passed
# What each group of `when = "changed"` depends on, besides its own `sources`: the guest and the verbs stack. What lies
# above runs in the groups of each run.
SOURCES=(ci/softroce ci/softroce.sh ci/softroce-two.sh)
STACK=(transport/verbs transport/lanes transport/runtime transport/protocol transport/topology transport/conformance)
declare -A CFG # "group.fabric.command" -> ...
GROUPS_=()
declare -A RESULT SECONDS_OF TESTS

usage() { sed -n '2,/^source/s/^# \{0,1\}//p' "$0" | sed '$d'; }

load_groups() {
    local section key value
    while IFS=$'\t' read -r section key value; do
        CFG[$section.$key]=$value
        [[ $section != group.* || $key != command ]] || GROUPS_+=("${section#group.}")
    done < <(budget)
}

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --full) FULL=1 ;;
        --all) ALL=1 ;;
        --record) RECORD=1 ;;
        --list) MODE=list ;;
        --shell) MODE=shell ;;
        --run) MODE=run RUN=${2:?--run needs a command} && shift ;;
        --timeout) TIMEOUT_S=${2:?--timeout needs seconds} && shift ;;
        --only)
            [[ -n ${2:-} && -n ${CFG[group.$2.command]:-} ]] || die "--only needs a group: ${GROUPS_[*]}"
            ONLY+=("$2") && shift
            ;;
        -h | --help) usage && exit 0 ;;
        *) die "unknown argument $1 (see --help)" ;;
        esac
        shift
    done
    ((ALL + RECORD == 0 || ${#ONLY[@]} == 0)) || die "--only excludes --all and --record"
    ((${#ONLY[@]} == 0)) || GROUPS_=("${ONLY[@]}")
}

list() {
    local group
    for group in "${GROUPS_[@]}"; do
        printf '%-14s %-52s %s\n' "$group" "${CFG[group.$group.does]}" "${CFG[group.$group.command]}"
    done
}

# build_if_needed: the tests and programs, once, if any of the groups runs one.
build_if_needed() {
    local group
    for group in "${GROUPS_[@]}"; do
        [[ ${CFG[group.$group.command]} != *ci/softroce/linked.sh* ]] || ! is_due "$group" || ci/softroce/linked.sh --build ||
            (($? == NOTHING_TO_RUN)) || die "the build that links libibverbs"
    done
    for group in "${GROUPS_[@]}"; do
        case ${CFG[group.$group.command]} in
        *ci/softroce/test.sh* | *ci/softroce/hosts.sh*) build_tests && return ;;
        esac
    done
}

# boot_group GROUP: in a guest of its own, or two: whatever it does to the device or the kernel, the
# next one does not see.
boot_group() {
    local group=$1 factor=1 seconds
    ((FULL == 0)) || factor=${CFG[run.full_factor]}
    seconds=$((${CFG[group.$group.timeout_s]} * factor))
    if [[ -z ${CFG[group.$group.command_b]:-} ]]; then
        "$BOOT" --name "$group" --timeout "$seconds" bash -c "${CFG[group.$group.command]}"
    else
        "$TWO" --timeout "$seconds" --loss "${CFG[group.$group.loss]:-0}" --dies "${CFG[group.$group.dies]:-}" \
            "${CFG[group.$group.command]}" "${CFG[group.$group.command_b]}"
    fi
}

# sources GROUP: a name for the contents of what it depends on; `changed` if they differ from the commit.
sources() {
    local of=("${SOURCES[@]}") own
    read -ra own <<<"${CFG[group.$1.sources]-${STACK[*]}}"
    of+=("${own[@]}")
    [[ -z $(git -C "$REPO_ROOT" status --porcelain -- "${of[@]}") ]] || { say changed; return; }
    git -C "$REPO_ROOT" ls-tree HEAD -- "${of[@]}" | sha256sum | cut -c1-16
}

# is_due GROUP: whether it runs now. A group of `when = "changed"` does only if its sources have changed, one of
# `when = "full"` only with --full, --all or --only.
is_due() {
    ((ALL == 0 && FULL == 0 && ${#ONLY[@]} == 0)) || return 0
    [[ ${CFG[group.$1.when]:-} != full ]] || return 1
    [[ ${CFG[group.$1.when]:-} == changed ]] || return 0
    ! grep -qsxF -- "$1"$'\t'"$(sources "$1")" "$PASSED"
}

# record: writes which groups have passed on the sources of now, in this run or before.
record() {
    local group now
    for group in "${GROUPS_[@]}"; do
        [[ ${CFG[group.$group.when]:-} == changed && ${RESULT[$group]} =~ ^(ok|unchanged)$ ]] || continue
        now=$(sources "$group")
        if [[ $now == changed ]]; then
            warn "$group is not recorded: its sources differ from the commit"
        else
            printf '%s\t%s\n' "$group" "$now"
        fi
    done >"$PASSED"
}

run_group() {
    local group=$1 began=$SECONDS code=0 p f i log
    log=$LOGS/$group.log
    say "--- $group: ${CFG[group.$group.does]}"
    boot_group "$group" 2>&1 | tee "$log" || code=$?
    read -r p f i < <(summarize <(sed 's/^[ab]| //' "$log"))
    if ((code == GUEST_DIED && p + f == 0)); then
        # Now and then an emulated kernel dies while it boots, before anything of ours has run.
        say "--- $group: the guest died before it ran a test; once more"
        code=0
        boot_group "$group" 2>&1 | tee "$log" || code=$?
        read -r p f i < <(summarize <(sed 's/^[ab]| //' "$log"))
    fi
    SECONDS_OF[$group]=$((SECONDS - began))
    TESTS[$group]=$p
    if ((code == NOTHING_TO_RUN && p + f == 0)) && [[ ${CFG[group.$group.optional]:-} == true ]]; then
        RESULT[$group]=nothing
        SECONDS_OF[$group]=$((SECONDS - began))
        return
    elif ((code == 124)); then
        RESULT[$group]="TIMED OUT"
    elif ((code != 0 || f > 0)); then
        RESULT[$group]=FAILED
    elif ((p < ${CFG[group.$group.tests]})); then
        RESULT[$group]="RAN $p OF ${CFG[group.$group.tests]}"
    else
        RESULT[$group]=ok
    fi
    [[ ${RESULT[$group]} == ok || $f -gt 0 ]] || f=1 # it died before it could tell
    report "$group" "$p" "$f" "$i"
    [[ ${RESULT[$group]} == ok ]] || say "--- $group to repeat: ci/softroce.sh --only $group"
}

print_table() {
    local group late
    printf '\n%-14s %-14s %8s %8s %6s\n' group result seconds budget passed
    for group in "${GROUPS_[@]}"; do
        late=
        ((FULL == 1 || ${SECONDS_OF[$group]} <= ${CFG[group.$group.budget_s]})) || late='!'
        printf '%-14s %-14s %8s %8s %6s\n' "$group" "${RESULT[$group]}" \
            "${SECONDS_OF[$group]}$late" "${CFG[group.$group.budget_s]}" "${TESTS[$group]}"
    done
}

run_groups() {
    local group failed=0 passed=0
    LOGS=target/softroce/logs
    mkdir -p "$LOGS"
    ((FULL == 0)) || export TIDEWATER_TEST_FULL=1
    build_if_needed
    cd "$REPO_ROOT"
    for group in "${GROUPS_[@]}"; do
        if is_due "$group"; then
            run_group "$group"
        else
            RESULT[$group]=unchanged SECONDS_OF[$group]=0 TESTS[$group]=0
        fi
        [[ ${RESULT[$group]} == @(ok|nothing|unchanged) ]] || failed=$((failed + 1))
        passed=$((passed + TESTS[$group]))
    done
    print_table
    ((RECORD == 0)) || record
    note "$passed tests in ${#GROUPS_[@]} groups, kernel $(cut -d' ' -f1 "$SOFTROCE_DIR/version")"
    ((failed == 0)) || die "$failed of ${#GROUPS_[@]} groups"
}

load_groups
parse_arguments "$@"
case $MODE in
list) list ;;
run) cd "$CALLED_FROM" && exec "$BOOT" --timeout "${TIMEOUT_S:-600}" bash -c "$RUN" ;;
shell) cd "$CALLED_FROM" && exec "$BOOT" --terminal --timeout "${TIMEOUT_S:-3600}" bash -i ;;
groups) run_groups ;;
esac
