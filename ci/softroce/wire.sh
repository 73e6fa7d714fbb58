#!/usr/bin/env bash
# Runs in both of two guests: does the wire between them carry RDMA? `a` serves, `b` asks and judges.
# With loss, packets must have been lost, and nothing but time with them. Figures go to
# target/softroce/out/wire.json, or wire-loss.json.
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/checks.sh
source "$REPO_ROOT/ci/softroce/checks.sh"
ADDRESS_A=10.9.0.1
QP_TIMEOUT=14 # 4.096 us * 2^14, 67 ms: how long a lost packet is waited for
# A message of 1 MiB takes 50 ms on this wire, longer beside other work. A requester that sends it again before
# its answer can be there ends with "invalid request" (status 9): rxe takes the repeated middle for a new message.
QP_TIMEOUT_BULK=17

# A program's server ends with its client, and perftest's clients fail at times: so each attempt is
# agreed upon, and b says whether there is to be another.

# served NAME PROGRAM...: on a.
served() {
    local name=$1 i server
    shift
    for ((i = 0; i < PERFTEST_ATTEMPTS; i++)); do
        timeout "$PERFTEST_S" "$@" >/dev/null 2>&1 &
        server=$!
        wait_for_port 18515 && meet "$name.$i" || return 1
        wait "$server" || true # b judges
        meet "$name.$i.over" || return 1
        [[ ! -e $SOFTROCE_MEETING/$name.done ]] || return 0
    done
    return 1
}

# asked NAME PROGRAM...: on b; prints the figure, if it is a program that has one.
asked() {
    local name=$1 log=$SCRATCH/log i done=$SOFTROCE_MEETING/$1.done
    shift
    for ((i = 0; i < PERFTEST_ATTEMPTS; i++)); do
        meet "$name.$i" || return 1
        if timeout "$PERFTEST_S" "$@" "$ADDRESS_A" >"$log" 2>&1 &&
            { [[ $1 == ibv_* ]] || perftest_figure "$1" <"$log"; }; then
            : >"$done"
        fi
        meet "$name.$i.over" || return 1
        [[ ! -e $done ]] || return 0
    done
    cat "$log" >&2
    return 1
}

# both NAME PROGRAM...: on b a test, and a figure if there is one; on a the other end of it.
both() {
    if [[ $SOFTROCE_HOST == a ]]; then served "$@"; else measure "$1" asked "$@"; fi
}

# What netem dropped on its way out of this host.
dropped() { tc -s qdisc show dev eth0 | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'; }
packets_were_lost() { (($(dropped) > 0)) || die "netem dropped nothing"; }

declare -A own=([a]=10.9.0.1 [b]=10.9.0.2)
index=$(gid_index rxe0 "${own[$SOFTROCE_HOST]}")
on=(-d rxe0 -x "$index")
meet up
[[ $SOFTROCE_HOST == a ]] || check device_on_wire device_serves rxe0 "${own[b]}"
both pingpong ibv_rc_pingpong -d rxe0 -g "$index" -m 4096 -n 300 -c # looks at what came
both wire_read_8_us ib_read_lat "${on[@]}" -s 8 -n 300 -u "$QP_TIMEOUT"
both wire_write_8_us ib_write_lat "${on[@]}" -s 8 -n 300 -u "$QP_TIMEOUT"
both wire_fetch_add_us ib_atomic_lat "${on[@]}" -n 300 -u "$QP_TIMEOUT"
both wire_read_1mib_mib_s ib_read_bw "${on[@]}" -s 1048576 -n 20 -u "$QP_TIMEOUT_BULK"
both wire_write_1mib_mib_s ib_write_bw "${on[@]}" -s 1048576 -n 20 -u "$QP_TIMEOUT_BULK"
name=wire
if tc qdisc show dev eth0 | grep -q netem; then
    name=wire-loss
    [[ $SOFTROCE_HOST == a ]] || check packets_were_lost packets_were_lost
    grep -H . /sys/class/infiniband/rxe0/ports/1/hw_counters/{sent_pkts,*seq*,*retry*,duplicate_request} | sed 's,.*/,,'
fi
[[ $SOFTROCE_HOST == a ]] || verdict "$SOFTROCE_OUT/$name.json"
