#!/usr/bin/env bash
# Two guests as two hosts on one wire: `a` is 10.9.0.1, `b` is 10.9.0.2, each with rxe0 on its card.
# Runs one shell command in each; their lines come out as `a| ...` and `b| ...`.
#
#   ci/softroce-two.sh [OPTION...] COMMAND_A COMMAND_B
#     --loss PERCENT    of the packets that each of them sends, such as 1
#     --dies a|b        that host is to die under its command (echo b >/proc/sysrq-trigger), and must
#     --timeout S       of the whole, boot included (600)
#
# Each guest is as ci/softroce.sh has it. They find each other by address, or wait for each other with
# `meet NAME` of ci/softroce/rdma.sh. Exit code 0: both succeeded, or one died as it was told to.
source "$(dirname "$0")/softroce/lib.sh"
BOOT=$REPO_ROOT/ci/softroce/boot.sh
MEMORY_MIB=2048
LOSS=0
DIES=
TIMEOUT_S=600
GUEST_DIED=125
WIRE_S=60 # for QEMU to start
declare -A ADDRESS=([a]=10.9.0.1 [b]=10.9.0.2) COMMAND PID
SEDS=()

usage() { sed -n '2,/^source/s/^# \{0,1\}//p' "$0" | sed '$d'; }

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --loss) LOSS=${2:?--loss needs a percentage} ;;
        --dies) DIES=${2-} ;;
        --timeout) TIMEOUT_S=${2:?--timeout needs seconds} ;;
        -h | --help) usage && exit 0 ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) break ;;
        esac
        shift 2
    done
    (($# == 2)) || die "which two commands? (see --help)"
    [[ $LOSS =~ ^[0-9.]+$ ]] || die "--loss $LOSS: a percentage"
    [[ $DIES =~ ^[ab]?$ ]] || die "--dies $DIES: a or b"
    COMMAND=([a]=$1 [b]=$2)
}

# wire HOST: a's end of the stream between them listens, b's calls. (Not datagrams: a socket holds ten of
# them, and QEMU looks without a pause whether the next one fits, on a core that the guests need.)
wire() {
    local server=off
    [[ $1 != a ]] || server=on
    say "stream,server=$server,addr.type=unix,addr.path=$SCRATCH/wire"
}

# await_wire: until a listens.
await_wire() {
    local until=$((SECONDS + WIRE_S))
    while [[ ! -S $SCRATCH/wire ]]; do
        kill -0 "${PID[a]}" 2>/dev/null || return 0 # finish says why
        ((SECONDS < until)) || die "host a makes no wire in $WIRE_S s"
        sleep 0.05
    done
}

# start HOST: boots it.
start() {
    local host=$1 lossy='' out err
    [[ $LOSS == 0 ]] || lossy="tc qdisc add dev eth0 root netem loss $LOSS% && "
    exec {out}> >(exec sed -u "s/^/$host| /") && SEDS+=($!)
    exec {err}> >(exec sed -u "s/^/$host| /" >&2) && SEDS+=($!)
    "$BOOT" --name "$host" --timeout "$TIMEOUT_S" --memory "$MEMORY_MIB" --address "${ADDRESS[$host]}/24" \
        --net "$(wire "$host")" \
        bash -c "export SOFTROCE_MEETING=$MEETING SOFTROCE_HOST=$host; $lossy${COMMAND[$host]}" \
        >&"$out" 2>&"$err" {out}>&- {err}>&- &
    PID[$host]=$!
    exec {out}>&- {err}>&-
}

# finish HOST: waits for it; fails unless it ended as it should.
finish() {
    local host=$1 code=0 due=0
    wait "${PID[$host]}" || code=$?
    unset "PID[$host]"
    [[ $DIES != "$host" ]] || due=$GUEST_DIED
    ((code == due)) || warn "host $host: exit code $code, due: $due"
    ((code == due))
}

# shellcheck disable=SC2317  # the trap calls it
ended() {
    if ((${#PID[@]} > 0)); then
        kill -TERM "${PID[@]}" 2>/dev/null || true
        wait "${PID[@]}" 2>/dev/null || true
    fi
    wait "${SEDS[@]}" 2>/dev/null || true
    rm -rf -- "$SCRATCH" "$MEETING"
}

parse_arguments "$@"
"$REPO_ROOT/ci/softroce/image.sh"
scratch_dir
mkdir -p "$SOFTROCE_OUT"
MEETING=$(mktemp -d "$SOFTROCE_OUT/meeting.XXXXXXXX")
trap ended EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$CALLED_FROM"
start a
await_wire
start b
failed=0
for host in a b; do finish "$host" || failed=1; done
exit "$failed"
