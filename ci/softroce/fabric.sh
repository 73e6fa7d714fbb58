#!/usr/bin/env bash
# Runs in a guest: is the fabric what the other groups take it for? Devices, addresses, limits, and
# each verb we use, by programs that are not ours. Figures go to target/softroce/out/fabric.json, and
# are those of an emulator: good beside others of the same boot, asserted nowhere.
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/checks.sh
source "$REPO_ROOT/ci/softroce/checks.sh"
ITERATIONS=200

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
    command=(timeout "$PERFTEST_S" ibv_rc_pingpong -d rxe0 -m 4096 -n "$ITERATIONS" -c # checks what came
        -g "$(gid_index rxe0 127.0.0.1)")
    "${command[@]}" >/dev/null &
    wait_for_port 18515 && "${command[@]}" 127.0.0.1 || code=$?
    wait $! || code=$?
    return "$code"
}

check device_on_loopback device_serves rxe0 127.0.0.1
check device_on_card device_serves rxe1 10.9.0.1
check memory_can_be_pinned memory_can_be_pinned
check output_is_shared output_is_shared
check counters_count counters_count
check pingpong pingpong
lo=(rxe0 127.0.0.1) card=(rxe1 10.9.0.1)
measure read_8_us perftest "${lo[@]}" ib_read_lat -s 8 -n "$ITERATIONS"
measure read_272_us perftest "${lo[@]}" ib_read_lat -s 272 -n "$ITERATIONS"
measure write_8_us perftest "${lo[@]}" ib_write_lat -s 8 -n "$ITERATIONS"
measure send_8_us perftest "${lo[@]}" ib_send_lat -s 8 -n "$ITERATIONS"
measure fetch_add_us perftest "${lo[@]}" ib_atomic_lat -A FETCH_AND_ADD -n "$ITERATIONS"
measure compare_swap_us perftest "${lo[@]}" ib_atomic_lat -A CMP_AND_SWAP -n "$ITERATIONS"
measure read_1mib_mib_s perftest "${lo[@]}" ib_read_bw -s 1048576 -n 100
measure write_1mib_mib_s perftest "${lo[@]}" ib_write_bw -s 1048576 -n 100
measure card_read_8_us perftest "${card[@]}" ib_read_lat -s 8 -n "$ITERATIONS"
measure card_write_1mib_mib_s perftest "${card[@]}" ib_write_bw -s 1048576 -n 100
verdict "$SOFTROCE_OUT/fabric.json"
