# shellcheck shell=bash
# Sourced in a guest by the groups that look at the fabric itself: tests in libtest's words, and the
# figures that some of them leave.
# shellcheck source=ci/softroce/rdma.sh
source "$(dirname "${BASH_SOURCE[0]}")/rdma.sh"
passed=0 failed=0
FIGURES=()
scratch_dir

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

# measure NAME COMMAND...: a test whose command prints a figure.
measure() {
    local name=$1 figure=$SCRATCH/figure
    shift
    rm -f "$figure"
    check "$name" into "$figure" "$@"
    [[ ! -s $figure ]] || FIGURES+=("\"$name\": $(cat "$figure")")
}

into() { "${@:2}" >"$1"; }

# device_serves DEVICE ADDRESS: active, with packets of 4096 bytes, and the address is a RoCE v2 GID.
device_serves() {
    local port=/sys/class/infiniband/$1/ports/1 info index
    info=$(ibv_devinfo -d "$1")
    grep -q 'state:.*PORT_ACTIVE' <<<"$info" || die "$1 is not active: $info"
    grep -q 'active_mtu:.*4096' <<<"$info" || die "$1 has small packets: $info"
    index=$(gid_index "$1" "$2")
    [[ $(cat "$port/gid_attrs/types/$index") == "RoCE v2" ]] || die "GID $index of $1 is not RoCE v2"
}

# verdict FILE: the last word; the figures go there as JSON.
verdict() {
    local word=ok
    ((failed == 0)) || word=FAILED
    printf '{%s}\n' "$(IFS=, && say "${FIGURES[*]}")" | tee "$1"
    say "test result: $word. $passed passed; $failed failed; 0 ignored"
    ((failed == 0))
}
