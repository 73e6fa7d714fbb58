#!/usr/bin/env bash
# Runs in a guest: is the fabric what the other groups take it for? Devices, addresses, limits, and
# each verb we use, by programs that are not ours. Figures go to target/softroce/out/fabric.json, and
# are those of an emulator: good beside others of the same boot, asserted nowhere.
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/rdma.sh
source "$REPO_ROOT/ci/softroce/rdma.sh"
ITERATIONS=200
passed=0 failed=0
FIGURES=()

# check NAME COMMAND...: one test, said in libtest's words.
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        passed=$((passed + 1))
        say "test $name ... ok"
    else
        failed=$((failed + 1))
        say "test $name ... FAILED" "$output"
    fi
}

# device_serves DEVICE ADDRESS: active, with packets of 4096 bytes, and the address is a RoCE v2 GID.
device_serves() {
    local port=/sys/class/infiniband/$1/ports/1 info index
    info=$(ibv_devinfo -d "$1")
    grep -q 'state:.*PORT_ACTIVE' <<<"$info" || die "$1 is not active: $info"
    grep -q 'active_mtu:.*4096' <<<"$info" || die "$1 has small packets: $info"
    index=$(gid_index "$1" "$2")
    [[ $(cat "$port/gid_attrs/types/$index") == "RoCE v2" ]] || die "GID $index of $1 is not RoCE v2"
}

memory_can_be_pinned() {
    [[ $(ulimit -l) == unlimited ]] || die "memlock is $(ulimit -l)"
    (($(cat /proc/sys/vm/nr_hugepages) > 0)) || die "no hugepages"
}

# A file written here must be the host's: the figures leave by that way.
output_is_shared() {
    awk -v dir="$SOFTROCE_OUT" '$2 == dir && $3 == "9p" { found = 1 } END { exit !found }' /proc/mounts
}

# A lone READ of one packet is one packet out and one back. (On one device both are counted; under
# load rxe sends some again.)
counters_count() {
    local before after file=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
    before=$(cat "$file")
    perftest rxe0 127.0.0.1 ib_read_lat -s 8 -n "$ITERATIONS" >/dev/null || return 1
    after=$(cat "$file")
    ((after - before >= 2 * ITERATIONS && after - before <= 4 * ITERATIONS)) ||
        die "$ITERATIONS READs sent $((after - before)) packets"
}

pingpong() {
    local command code=0
    command=(timeout "$PERFTEST_S" ibv_rc_pingpong -d rxe0 -m 4096 -n "$ITERATIONS"
        -g "$(gid_index rxe0 127.0.0.1)")
    "${command[@]}" >/dev/null &
    wait_for_port 18515 && "${command[@]}" 127.0.0.1 || code=$?
    wait $! || code=$?
    return "$code"
}

# measure NAME DEVICE ADDRESS PROGRAM [ARGUMENT...]: a test that leaves a figure.
measure() {
    local name=$1 figure=$SCRATCH/figure
    shift
    rm -f "$figure"
    check "$name" measure_into "$figure" "$@"
    [[ ! -s $figure ]] || FIGURES+=("\"$name\": $(cat "$figure")")
}

measure_into() { perftest "${@:2}" >"$1"; }

scratch_dir
check device_on_loopback device_serves rxe0 127.0.0.1
check device_on_card device_serves rxe1 10.9.0.1
check memory_can_be_pinned memory_can_be_pinned
check output_is_shared output_is_shared
check counters_count counters_count
check pingpong pingpong
lo=(rxe0 127.0.0.1) card=(rxe1 10.9.0.1)
measure read_8_us "${lo[@]}" ib_read_lat -s 8 -n "$ITERATIONS"
measure read_272_us "${lo[@]}" ib_read_lat -s 272 -n "$ITERATIONS"
measure write_8_us "${lo[@]}" ib_write_lat -s 8 -n "$ITERATIONS"
measure send_8_us "${lo[@]}" ib_send_lat -s 8 -n "$ITERATIONS"
measure fetch_add_us "${lo[@]}" ib_atomic_lat -A FETCH_AND_ADD -n "$ITERATIONS"
measure compare_swap_us "${lo[@]}" ib_atomic_lat -A CMP_AND_SWAP -n "$ITERATIONS"
measure read_1mib_mib_s "${lo[@]}" ib_read_bw -s 1048576 -n 100
measure write_1mib_mib_s "${lo[@]}" ib_write_bw -s 1048576 -n 100
measure card_read_8_us "${card[@]}" ib_read_lat -s 8 -n "$ITERATIONS"
measure card_write_1mib_mib_s "${card[@]}" ib_write_bw -s 1048576 -n 100
printf '{%s}\n' "$(IFS=, && say "${FIGURES[*]}")" | tee "$SOFTROCE_OUT/fabric.json"
verdict=ok
((failed == 0)) || verdict=FAILED
say "test result: $verdict. $passed passed; $failed failed; 0 ignored"
((failed == 0))
