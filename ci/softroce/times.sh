#!/usr/bin/env bash
# Times over verbs beside perftest's, in turn, in one boot of a guest: tidewater-bench's `compare
# --transport verbs`, whose targets are in bench/targets.toml.
#
#   ci/softroce/times.sh [OPTION...]    builds it for release, boots, leaves target/softroce/out/times.json
#   ci/softroce/times.sh --here [...]   measures where it runs: what the guest is told
#     OPTION: of `tidewater-bench compare`, such as --rounds 3 --only verbs.pull
#
# No part of CI: an emulator's times on a host that others use jump. Its counts are in
# transport/verbs/tests/verbs.
source "$(dirname "$0")/lib.sh"
PROGRAM=$REPO_ROOT/target/release/tidewater-bench
LIMIT_S=900
# Said unless the caller says otherwise.
DEFAULTS=(--only "verbs.pull,verbs.rows,verbs.dense,verbs.push,verbs.lane" --rounds 7 --slice 700ms)

# measure_here [OPTION...]: what is missed is shown, and fails nothing.
measure_here() {
    local i options=("$@")
    for ((i = 0; i < ${#DEFAULTS[@]}; i += 2)); do
        [[ " $* " == *" ${DEFAULTS[i]} "* ]] || options+=("${DEFAULTS[@]:i:2}")
    done
    "$PROGRAM" compare --transport verbs --no-peers "${options[@]}" --json "$SOFTROCE_OUT/times.json"
}

case ${1:-} in
--here)
    shift
    measure_here "$@"
    ;;
*)
    cargo build --release --locked -p tidewater-bench --features verbs-dlopen
    exec "$REPO_ROOT/ci/softroce/boot.sh" --name times --timeout "$LIMIT_S" \
        ci/softroce/times.sh --here "$@"
    ;;
esac
