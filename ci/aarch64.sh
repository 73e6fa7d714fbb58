#!/usr/bin/env bash
# The workspace for 64-bit Arm, where the toolchain has its standard library. With --full the tests of layouts, rings,
# parking and torn reads also run under user-mode emulation, where that and a linker are installed.
#
#   ci/aarch64.sh             by rustup's toolchain
#   ci/aarch64.sh --debian    all of it, by Debian's compiler, which is installed; needs a Debian that has one as new as
#                             the workspace asks for: ci/empty-root.sh --suite sid ci/aarch64.sh --debian
source "$(dirname "$0")/lib.sh"
TARGET=aarch64-unknown-linux-gnu
LINKER=aarch64-linux-gnu-gcc
EMULATOR=qemu-aarch64
# Crates that depend on the order of stores, on pages or on layouts.
CRATES=(tidewater-protocol tidewater-runtime tidewater-lanes tidewater-engine)
# The emulator has no robust lists, mbind, MADV_DONTFORK or locked pages, and has page faults of its own.
NOT_EMULATED=(liveness::tests::panic_and_leak_of_its_thread_mark_the_word liveness::tests::word_says_running_then_ended
    mem::pages::tests::a_node_that_there_is_can_be_preferred mem::region::tests::private_memory_is_excluded_from_children
    mem::region::tests::what_is_locked_is_locked_and_nothing_else store::index::tests::the_helper_makes_the_tables)

# use_debian: installs Debian's compiler and standard library for both architectures, linker and emulator.
use_debian() {
    may_install || die "--debian installs packages: run it in ci/empty-root.sh --suite sid"
    dpkg --add-architecture arm64
    apt-get update -qq
    apt_install cargo gcc libc6-dev cmake make libclang-dev libstd-rust-dev:arm64 gcc-aarch64-linux-gnu \
        g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    # Before rustup's programs, which may be the first on PATH.
    export PATH=/usr/bin:$PATH TIDEWATER_TEST_FULL=1
    say "$(rustc --version)"
}

[[ ${1:-} != --debian ]] || use_debian
[[ -d $(rustc --print sysroot)/lib/rustlib/$TARGET/lib ]] ||
    nothing_to_run "no standard library for $TARGET (rustup target add $TARGET)"

packages=()
for crate in "${CRATES[@]}"; do packages+=(-p "$crate"); done
# Libraries in C (of zstd and the like) need the cross compiler; their crates are checked with it only.
if command -v "$LINKER" >/dev/null; then
    export CC_aarch64_unknown_linux_gnu=$LINKER CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$LINKER
    cargo check --locked --profile ci --target "$TARGET" --workspace --features verbs-dlopen
    note "the workspace"
else
    cargo check --locked --profile ci --target "$TARGET" "${packages[@]}"
    note "${#CRATES[@]} crates; the others need $LINKER (Debian: gcc-aarch64-linux-gnu)"
fi
[[ ${TIDEWATER_TEST_FULL:-0} == 1 ]] || exit 0
command -v "$LINKER" "$EMULATOR" >/dev/null ||
    die "--full needs $LINKER and $EMULATOR (Debian: gcc-aarch64-linux-gnu qemu-user)"
scratch_dir
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$EMULATOR -L /usr/aarch64-linux-gnu"
unset TIDEWATER_TEST_FULL # the emulator is slow enough for the smaller counts
skipped=()
for test in "${NOT_EMULATED[@]}"; do skipped+=(--skip "$test"); done
failed=0
cargo test --locked --profile ci --target "$TARGET" "${packages[@]}" --lib --no-fail-fast -- "${skipped[@]}" 2>&1 |
    tee "$SCRATCH/log" || failed=1
cargo test --locked --profile ci --target "$TARGET" -p tidewater-tests --features mutants --test torn_reads 2>&1 |
    tee -a "$SCRATCH/log" || failed=1
read -r p f i < <(summarize "$SCRATCH/log")
report aarch64 "$p" "$f" "$i"
exit "$failed"
