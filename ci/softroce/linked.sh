#!/usr/bin/env bash
# The contract of a lane and the ledger by the build that links libibverbs (feature verbs, binding rdma-sys).
#
#   ci/softroce/linked.sh --build    on the host: builds it; exits with 77 where it cannot be built
#   ci/softroce/linked.sh            in a guest: runs it
source "$(dirname "$0")/../lib.sh"
CONFORMANCE=target/ci-linked-conformance LEDGER=target/ci-linked-exactly_once # the executables
PROFILE=${CI_LINKED_PROFILE:-ci}

build() {
    local name messages=target/ci-linked.json
    can_link_verbs || nothing_to_run "no rdma-core, or no libclang 14"
    cargo build --locked --profile "$PROFILE" -p tidewater-lanes -p tidewater-tests --no-default-features \
        --features mutants,verbs,tidewater-tests/embedded --test conformance --test exactly_once \
        --message-format json-render-diagnostics >"$messages"
    for name in "$CONFORMANCE" "$LEDGER"; do
        ln -sf "$(awk -F '\t' -v t="${name##*/ci-linked-}" '$2 == t { print $4 }' <(awk -f ci/lib/test_binaries.awk "$messages"))" "$name"
    done
    rm -f "$messages"
}

run() {
    local name
    [[ -e $CONFORMANCE && -e $LEDGER ]] || nothing_to_run "not built: no rdma-core, or no libclang 14"
    for name in "$CONFORMANCE" "$LEDGER"; do
        [[ $(ldd "$name") == *libibverbs* ]] || die "$name does not link libibverbs"
    done
    "$CONFORMANCE" verbs --ignored --test-threads 1
    "$LEDGER" --ignored --nocapture --test-threads 1
}

case ${1:-} in
--build) build ;;
*) run ;;
esac
