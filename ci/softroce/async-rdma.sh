#!/usr/bin/env bash
# Measures a peer, the crate async-rdma, in a guest, with perftest beside it in the same boot.
#
#   ci/softroce/async-rdma.sh           builds it, boots, leaves target/softroce/out/async-rdma.json
#   ci/softroce/async-rdma.sh --here    measures where it runs: what the guest is told
#
# No part of CI: its licence is not ours, its build takes minutes and libclang 14. See
# bench/baselines/async-rdma/README.md.
source "$(dirname "$0")/lib.sh"
# shellcheck source=ci/softroce/rdma.sh
source "$REPO_ROOT/ci/softroce/rdma.sh"
FOLDER=bench/baselines/async-rdma
PROGRAM=$REPO_ROOT/target/async-rdma/release/async-rdma-baseline
LIBCLANG=/usr/lib/llvm-14/lib # newer ones break its binding generator
DEVICE=rxe0 ADDRESS=127.0.0.1 PORT=5555
MILLISECONDS=1500 # per operation and size
LIMIT_S=180

build() {
    compgen -G "$LIBCLANG/libclang*.so*" >/dev/null || apt_install libclang-14-dev clang-14 ||
        die "its build needs libclang 14"
    "$REPO_ROOT/ci/softroce/image.sh"
    (cd "$FOLDER" && LIBCLANG_PATH=$LIBCLANG CARGO_TARGET_DIR=$REPO_ROOT/target/async-rdma \
        cargo build --locked --release)
}

# peer GID_INDEX: both ends of it; prints what it measured.
peer() {
    local server code=0
    timeout "$LIMIT_S" "$PROGRAM" serve "$ADDRESS:$PORT" "$DEVICE" "$1" &
    server=$!
    wait_for_port "$PORT" &&
        timeout "$LIMIT_S" "$PROGRAM" measure "$ADDRESS:$PORT" "$DEVICE" "$1" "$MILLISECONDS" || code=$?
    ((code == 0)) || kill "$server" 2>/dev/null || true
    wait "$server" || code=$?
    return "$code"
}

# beside: perftest's figures, as the members of a JSON object.
beside() {
    local name program arguments figure comma=
    while read -r name program arguments; do
        # shellcheck disable=SC2086  # arguments are words
        figure=$(perftest "$DEVICE" "$ADDRESS" "$program" $arguments) || die "no figure of $program"
        printf '%s"%s": %s' "$comma" "$name" "$figure"
        comma=', '
    done <<'TABLE'
write_8_us ib_write_lat -s 8 -n 500
read_8_us ib_read_lat -s 8 -n 500
read_272_us ib_read_lat -s 272 -n 500
compare_swap_us ib_atomic_lat -A CMP_AND_SWAP -n 500
write_1mib_mib_s ib_write_bw -s 1048576 -n 50
read_1mib_mib_s ib_read_bw -s 1048576 -n 50
TABLE
}

measure_here() {
    local index measured figures
    index=$(gid_index "$DEVICE" "$ADDRESS")
    measured=$(peer "$index")
    figures=$(beside)
    printf '{"async_rdma": %s,\n"perftest": {%s}}\n' "$measured" "$figures" |
        tee "$SOFTROCE_OUT/async-rdma.json"
}

case ${1:-} in
--here) measure_here ;;
'')
    build
    exec "$REPO_ROOT/ci/softroce/boot.sh" --timeout $((3 * LIMIT_S)) ci/softroce/async-rdma.sh --here
    ;;
*) die "unknown argument $1" ;;
esac
