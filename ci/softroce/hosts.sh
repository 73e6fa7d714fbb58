#!/usr/bin/env bash
# Runs in both of two guests: servers on `a`, workers on `b`, by RDMA between them.
#
#   ci/softroce/hosts.sh trains [T]     a training ends, with the model that one host makes of it; lost
#                                       packets are sent again after 4.096 us x 2^T (14)
#   ci/softroce/hosts.sh worker-dies    b dies amid a training: a gets rid of its session
#   ci/softroce/hosts.sh server-dies    a dies amid a training: b's worker fails, and names a server
#   ci/softroce/hosts.sh pull-dies      a dies amid pulls of 3 s at most: one fails in time, and names it
#
# For the last two the coordinator is on b, so that it is the servers alone that die. What each process said
# is under target/softroce/out/CASE, also of a host that died.
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/checks.sh
source "$REPO_ROOT/ci/softroce/checks.sh"
CASE=${1:?which case? See the beginning of this file}
[[ -z ${2:-} ]] || export TIDEWATER_RDMA_TIMEOUT=$2
declare -A ADDRESS=([a]=10.9.0.1 [b]=10.9.0.2)
PORT=7070
CAPACITY=$((64 << 20))
MEET_S=300     # for the other host to get there, however slow it is
TRAIN_S=240    # for a training
ENDLESS=1000000
# A connection that is silent is given up after 10 s and its session after 10 s more
# (CONTROL_SILENCE_MAX, SESSION_LINGER); the rest is for an emulator that stands still.
SESSION_S=40
# A worker's calls have 30 s (DATA_DEADLINE), and so has what it does in vain with the others.
FAIL_S=60
PULL_MS=3000   # far less than the coordinator takes to miss a server
PULL_LATE_MS=2000 # what the last attempt to reach it may take beyond that, and the emulator
LOGS=$SOFTROCE_OUT/$CASE
COUNTERS=/sys/class/infiniband/rxe0/ports/1/hw_counters
PATH=$PWD/target/ci:$PATH
export TIDEWATER_TOKEN_FILE=$SCRATCH/token RUST_LOG=${RUST_LOG:-info}
COORDINATOR=${ADDRESS[a]}:$PORT

# Both hosts have to have one; nobody else is on this wire.
(umask 077 && printf '5a%.0s' {1..32} >"$TIDEWATER_TOKEN_FILE")

# pairs: reliable connections of this host's device.
pairs() { rdma resource show qp link rxe0 | grep -c 'type RC' || true; }

# packets: what the device counted that a wire without a fault has none of, and all it sent.
packets() {
    local name words=()
    for name in sent_pkts duplicate_request out_of_seq_request completer_retry_err retry_exceeded_err; do
        words+=("$name $(cat "$COUNTERS/$name"),")
    done
    say "rxe0: ${words[*]} netem dropped $(dropped)"
}

# dropped: by netem on its way out of this host, if it is there.
dropped() { tc -s qdisc show dev eth0 | awk '/qdisc netem/ { on = 1 } on && /dropped/ { sub(/,/, "", $7); n = $7 } END { print n + 0 }'; }
packets_were_lost() { (($(dropped) > 0)) || die "netem dropped nothing"; }

# in_background LOG COMMAND...: sets LAST.
in_background() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 &
    LAST=$!
}

# serve: coordinator and servers in one process that stays, on a; sets SERVICE.
serve() {
    in_background "$LOGS/serve.log" tidewater serve --servers 2 --listen "$COORDINATOR" \
        --capacity "$CAPACITY" --hugepages off
    SERVICE=$LAST
    wait_for_port "$PORT" || { cat "$LOGS/serve.log"; return 1; }
}

stop_serving() {
    kill "$SERVICE"
    wait "$SERVICE" || true
}

# generate: what the trainings read.
generate() {
    tidewater-train generate --features 500 --rows 400 --out "$SCRATCH/train.libsvm"
    tidewater-train generate --features 500 --rows 100 --first 400 --out "$SCRATCH/test.libsvm"
}

# worker RANK WORKERS ARGUMENT...: becomes one of a job.
worker() {
    local rank=$1 workers=$2
    shift 2
    export TIDEWATER_COORDINATOR=$COORDINATOR TIDEWATER_SERVERS=2 TIDEWATER_TRANSPORT=verbs
    export TIDEWATER_RANK=$rank TIDEWATER_WORKERS=$workers
    exec timeout "$TRAIN_S" tidewater-train lr --train "$SCRATCH/train.libsvm" "$@"
}

# figure KEY FILE: of a report.
figure() { sed -n "s/^  \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$2"; }

# trains_here: the same training on this host alone, by shared memory.
trains_here() {
    timeout "$TRAIN_S" tidewater run --servers 2 --workers 2 --transport shm --capacity "$CAPACITY" -- \
        tidewater-train lr --sync bsp --train "$SCRATCH/train.libsvm" --test "$SCRATCH/test.libsvm" \
        --epochs 2 --json "$SCRATCH/here.json"
}

# trains_there: by two workers of this host and the servers of the other. Both are told the same: who
# tests makes a table with all the others.
trains_there() {
    local other code=0
    local words=(--sync bsp --epochs 2 --test "$SCRATCH/test.libsvm")
    (worker 1 2 "${words[@]}") >"$LOGS/worker.1.log" 2>&1 &
    other=$!
    (worker 0 2 "${words[@]}" --json "$SCRATCH/there.json") >"$LOGS/worker.0.log" 2>&1 || code=$?
    wait "$other" || code=$?
    ((code == 0)) || cat "$LOGS"/worker.?.log
    return "$code"
}

equal_models() {
    local key
    [[ $(figure transport "$SCRATCH/there.json") == verbs ]] || die "it went over something else"
    for key in auc log_loss fingerprint; do
        [[ -n $(figure "$key" "$SCRATCH/here.json") &&
            $(figure "$key" "$SCRATCH/here.json") == "$(figure "$key" "$SCRATCH/there.json")" ]] ||
            die "$key: $(figure "$key" "$SCRATCH/here.json") here, $(figure "$key" "$SCRATCH/there.json") there"
    done
}

# worker_says PATTERN: waits until WORKER's log has such a line.
worker_says() {
    local until=$((SECONDS + TRAIN_S))
    while ! grep -q "$1" "$LOGS/worker.log"; do
        if ! kill -0 "$WORKER" 2>/dev/null || ((SECONDS >= until)); then
            cat "$LOGS/worker.log"
            return 1
        fi
        sleep 0.1
    done
}

# start_endless: a training that does not end; returns in the midst of it. Sets WORKER.
start_endless() {
    (worker 0 1 --epochs "$ENDLESS") >"$LOGS/worker.log" 2>&1 &
    WORKER=$!
    worker_says 'epoch 2/'
}

# connections: of this host with the other one.
connections() { ss -Htn state established dst "${ADDRESS[b]}" | grep -c . || true; }

# session_is_freed: its queue pairs are gone, and its control connections.
session_is_freed() {
    local began=$SECONDS
    while (($(pairs) > 0 || $(connections) > 0)); do
        ((SECONDS - began <= SESSION_S)) ||
            die "after $SESSION_S s there are $(pairs) queue pairs, $(connections) connections: $(tail -n 5 "$LOGS/serve.log")"
        sleep 0.5
    done
    say "$((SECONDS - began))" >"$SCRATCH/seconds"
}

# worker_fails: with an error, in time, that names a server that was lost.
worker_fails() {
    local began=$SECONDS code=0
    while kill -0 "$WORKER" 2>/dev/null; do
        ((SECONDS - began <= FAIL_S)) || die "it goes on after $FAIL_S s: $(tail -n 3 "$LOGS/worker.log")"
        sleep 0.5
    done
    say "$((SECONDS - began))" >"$SCRATCH/seconds"
    wait "$WORKER" || code=$?
    ((code != 0 && code != 124)) || die "its exit code is $code"
    tail -n 1 "$LOGS/worker.log" | grep -qE 'failed: server [01] on a' ||
        die "it names no server: $(tail -n 5 "$LOGS/worker.log")"
}

# start_pulls: returns in the midst of them. Sets WORKER.
start_pulls() {
    (
        export TIDEWATER_COORDINATOR=$COORDINATOR TIDEWATER_SERVERS=2 TIDEWATER_TRANSPORT=verbs
        export TIDEWATER_RANK=0 TIDEWATER_WORKERS=1
        exec timeout "$TRAIN_S" "$REPO_ROOT/target/ci/examples/until_lost" "$PULL_MS"
    ) >"$LOGS/worker.log" 2>&1 &
    WORKER=$!
    worker_says '^pulling'
}

# pull_fails: by its own deadline, before the coordinator misses the server, with the server's name.
pull_fails() {
    local took began=$SECONDS
    while kill -0 "$WORKER" 2>/dev/null; do
        ((SECONDS - began <= FAIL_S)) || die "it goes on after $FAIL_S s: $(tail -n 3 "$LOGS/worker.log")"
        sleep 0.5
    done
    took=$(sed -n 's/^after \([0-9]*\) ms: .*/\1/p' "$LOGS/worker.log")
    if [[ -z $took ]] || ((took > PULL_MS + PULL_LATE_MS)); then die "$(tail -n 3 "$LOGS/worker.log")"; fi
    tail -n 1 "$LOGS/worker.log" | grep -qE 'server [01]' ||
        die "it names no server: $(tail -n 1 "$LOGS/worker.log")"
}

# serve_alone: servers without the coordinator, on a.
serve_alone() {
    local number
    for number in 0 1; do
        in_background "$LOGS/server.$number.log" tidewater server --number "$number" \
            --coordinator "${ADDRESS[b]}:$PORT" --listen "${ADDRESS[a]}:0" --capacity "$CAPACITY" --hugepages off
    done
}

# coordinate: on b; sets COORDINATOR.
coordinate() {
    COORDINATOR=${ADDRESS[b]}:$PORT
    in_background "$LOGS/coordinator.log" tidewater coordinator --listen "$COORDINATOR" --servers 2 --workers 1
    wait_for_port "$PORT"
}

stop_coordinating() {
    kill "$LAST" 2>/dev/null || true
    wait "$LAST" || true
}

die_now() { echo b >/proc/sysrq-trigger; }

mkdir -p "$LOGS"
case $CASE.$SOFTROCE_HOST in
trains.a)
    serve
    meet serving "$MEET_S"
    meet trained "$((3 * TRAIN_S))"
    packets
    stop_serving
    ;;
trains.b)
    generate
    check trains_on_one_host trains_here
    meet serving "$MEET_S"
    check workers_train_with_servers_of_another_host trains_there
    check both_are_one_model equal_models
    ! tc qdisc show dev eth0 | grep -q netem || check packets_were_lost packets_were_lost
    packets
    say "$(figure seconds "$SCRATCH/there.json") s there, $(figure seconds "$SCRATCH/here.json") s on one host"
    meet trained "$MEET_S"
    verdict "$SOFTROCE_OUT/hosts.json"
    ;;
worker-dies.a)
    serve
    meet serving "$MEET_S"
    meet training "$((MEET_S + TRAIN_S))"
    check worker_had_queue_pairs test "$(pairs)" -gt 0
    check session_of_a_dead_host_is_freed session_is_freed
    say "freed $(cat "$SCRATCH/seconds") s after its host had died"
    # What it left behind is in nobody's way.
    generate
    check next_job_trains trains_there
    stop_serving
    verdict "$SOFTROCE_OUT/worker-dies.json"
    ;;
worker-dies.b)
    generate
    meet serving "$MEET_S"
    start_endless
    meet training "$MEET_S"
    die_now
    ;;
server-dies.a | pull-dies.a)
    meet coordinating "$MEET_S"
    serve_alone
    meet training "$((MEET_S + TRAIN_S))" || { cat "$LOGS"/server.*.log && exit 1; }
    die_now
    ;;
server-dies.b)
    coordinate
    generate
    meet coordinating "$MEET_S"
    start_endless
    meet training "$MEET_S"
    check worker_of_a_dead_server_fails_and_names_it worker_fails
    say "after $(cat "$SCRATCH/seconds") s: $(tail -n 1 "$LOGS/worker.log")"
    stop_coordinating
    verdict "$SOFTROCE_OUT/server-dies.json"
    ;;
pull-dies.b)
    coordinate
    meet coordinating "$MEET_S"
    start_pulls
    meet training "$MEET_S"
    check pull_from_a_dead_server_fails_by_its_deadline_and_names_it pull_fails
    tail -n 1 "$LOGS/worker.log"
    stop_coordinating
    verdict "$SOFTROCE_OUT/pull-dies.json"
    ;;
*) die "no case $CASE" ;;
esac
