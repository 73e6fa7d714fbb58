#!/usr/bin/env bash
# RDMA is an option. Without its features no binding is built; with verbs-dlopen nothing links
# libibverbs, and a host that has none is told so; with verbs, which links it, everything builds too.
source "$(dirname "$0")/lib.sh"
BINDINGS='^rdma-(mummy-)?sys v'
TARGET=verbs_objects
build_tests

! cargo tree --locked --workspace -e normal,build --prefix none | grep -E "$BINDINGS" ||
    die "the default build has a binding of libibverbs"
[[ $(cargo tree --locked -p tidewater-verbs --features verbs-dlopen -e normal --prefix none) =~ rdma-mummy-sys ]] ||
    die "feature verbs-dlopen brings no binding: this check looks for the wrong name"

checked=0
while IFS= read -r exe; do
    ! ldd "$exe" | grep -E 'libibverbs|librdmacm' || die "$exe links libibverbs"
    checked=$((checked + 1))
done < <(cut -f4 "$TEST_BINARIES" && ls target/ci/tidewater)

# A file that is no library, found first, hides the one that may be installed.
scratch_dir
: >"$SCRATCH/libibverbs.so.1"
exe=$(awk -F '\t' -v t="$TARGET" '$2 == t { print $4 }' "$TEST_BINARIES")
LD_LIBRARY_PATH=$SCRATCH "$exe" alone --nocapture | tee "$SCRATCH/log"
if ! [[ -d /sys/class/infiniband ]]; then
    grep -q 'libibverbs.so.1 could not be loaded' "$SCRATCH/log" || die "a missing library is not told"
fi

if can_link_verbs; then
    cargo clippy --locked --profile ci -p tidewater-verbs -p tidewater-lanes --all-targets --features mutants,verbs \
        -- -D warnings
    note "$checked programs do not link libibverbs; feature verbs builds"
else
    note "$checked programs do not link libibverbs; feature verbs not built: no rdma-core, or no libclang 14"
fi
