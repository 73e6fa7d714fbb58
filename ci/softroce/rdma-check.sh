#!/usr/bin/env bash
# Runs in both of two guests: `tidewater rdma-check --short` between them, a listens, b calls. Then again with
# faults of b that the verdict must name: a network device with another MTU and a limit of locked memory; and
# with a network that drops long packets on the way from a. The pages go to target/softroce/out/rdma-check.
#
#   ci/softroce/rdma-check.sh [PROFILE]    folder of target/ with the program (ci)
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/checks.sh
source "$REPO_ROOT/ci/softroce/checks.sh"
PATH=$PWD/target/${1:-ci}:$PATH
ADDRESS_A=10.9.0.1
PORT=7177
MEET_S=300
CHECK_S=600 # of the guest: its clock runs ahead while it is idle
OUT=$SOFTROCE_OUT/rdma-check
export RUST_LOG=${RUST_LOG:-warn}
export TIDEWATER_RDMA_TIMEOUT=15 # answers of an emulated host take longer than 67 ms

# listen NAME: on a.
listen() {
    local code=0
    mkdir -p "$OUT/$1.a"
    meet "$1" "$MEET_S"
    timeout "$CHECK_S" tidewater rdma-check --listen "$ADDRESS_A:$PORT" --out "$OUT/$1.a" >"$OUT/$1.a/log" 2>&1 || code=$?
    meet "$1.over" "$CHECK_S"
    return "$code"
}

# call NAME EXIT COMMAND...: on b; COMMAND runs the check, which must end with EXIT.
call() {
    local name=$1 due=$2 code=0 i
    shift 2
    mkdir -p "$OUT/$name.b"
    meet "$name" "$MEET_S"
    for ((i = 0; i < 40; i++)); do # until a listens
        code=0
        "$@" timeout "$CHECK_S" tidewater rdma-check "$ADDRESS_A:$PORT" --short --register-gib 0.125 --clients 8 \
            --out "$OUT/$name.b" >"$OUT/$name.b/log" 2>&1 || code=$?
        ((code == 4)) || break
        sleep 0.5
    done
    meet "$name.over" "$CHECK_S"
    ((code == due)) || { tail -n 60 "$OUT/$name.b/log" && die "exit code $code, due $due"; }
}

# page NAME WORDS...: the page of b has all of these words.
page() {
    local name=$1 words
    shift
    for words in "$@"; do
        grep -qF -- "$words" "$OUT/$name.b/rdma-check.md" ||
            { cat "$OUT/$name.b/rdma-check.md" && die "it does not say: $words"; }
    done
}

# locked_memory_limited COMMAND...: with a limit of 64 KiB, and without the right to exceed it.
locked_memory_limited() {
    ulimit -l 64
    exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@"
}
limited() { (locked_memory_limited "$@"); }

rm -f "$OUT"/*."$SOFTROCE_HOST"/rdma-check.*
if [[ $SOFTROCE_HOST == a ]]; then
    listen sound || true # b judges
    listen memlock || true
    ip route change 10.9.0.0/24 dev eth0 src "$ADDRESS_A" mtu lock 1500
    listen blackhole || true
    exit 0
fi
check sound_pair_passes call sound 0 env
check page_has_each_check page sound '# RDMA check: PASS' 'path' 'order of data' 'pull of 8 bytes' 'torn reads' \
    'attach' 'ledger with broken queue pairs' 'lane contract' 'registration' 'hardware counters' 'Both ends'
ip link set eth0 mtu 1500
check broken_host_fails call memlock 1 limited
check verdict_names_locked_memory page memlock 'memlock of the caller' 'ulimit -l unlimited'
check verdict_names_the_mtu_mismatch page memlock 'MTU mismatch'
ip link set eth0 mtu 4200
check long_packets_dropped_fails call blackhole 1 env
check verdict_names_the_black_hole page blackhole 'MTU: READs of 8 bytes complete' 'drops large packets'
sed -n '/^|.*|/p' "$OUT/sound.b/rdma-check.md" | head -n 40
verdict "$OUT/verdict.json"
