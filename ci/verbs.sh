#!/usr/bin/env bash
# RDMA is in each default build, by the binding that loads libibverbs (verbs-dlopen). Nothing links libibverbs. On a
# host without it a job runs without a warning, and one that asks for RDMA gets the reason. Without default features no
# binding is built; with verbs, which links libibverbs, everything builds too.
source "$(dirname "$0")/lib.sh"
BINDINGS='^rdma-(mummy-)?sys v'
TARGET=verbs_objects
build_tests

# bindings PACKAGE [ARGUMENT...]: the bindings of libibverbs that its build has.
bindings() {
    cargo tree --locked -p "$@" -e normal,build --prefix none | grep -oE "$BINDINGS" | sort -u || true
}
for package in tidewater tidewater-cli tidewater-train tidewater-bench tidewater-capi; do
    [[ $(bindings "$package") == "rdma-mummy-sys v" ]] || die "the default build of $package does not load libibverbs"
    [[ -z $(bindings "$package" --no-default-features) ]] || die "$package has RDMA without default features"
done
[[ $(cargo tree --locked --manifest-path client/python/Cargo.toml -e normal --prefix none) =~ rdma-mummy-sys ]] ||
    die "the wheel has no RDMA"

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

TRAIN=$SCRATCH/train.txt
for ((i = 0; i < 40; i++)); do say "$((i % 2 * 2 - 1)) 1:$((i % 5)) 2:1"; done >"$TRAIN"
LD_LIBRARY_PATH=$SCRATCH timeout 60 target/ci/tidewater run --workers 2 -- target/ci/tidewater-train lr --train "$TRAIN" \
    --epochs 1 >"$SCRATCH/out" 2>"$SCRATCH/log" || { cat "$SCRATCH/log" && die "no job without libibverbs"; }
! grep -iE 'warn|error|ibverbs|rdma' "$SCRATCH/log" || die "a host without libibverbs gets a warning"

if can_link_verbs; then
    cargo clippy --locked --profile ci -p tidewater-verbs -p tidewater-lanes --all-targets --features mutants,verbs \
        -- -D warnings
    note "$checked programs do not link libibverbs; feature verbs builds"
else
    note "$checked programs do not link libibverbs; feature verbs not built: no rdma-core, or no libclang 14"
fi
