#!/usr/bin/env bash
# Fuzzes every decoder: 10^6 executions each on stable Rust from the committed corpus, then 60 s of
# cargo fuzz where a nightly toolchain and cargo-fuzz are present.
#
# TIDEWATER_FUZZ_EXECS    executions per decoder (default 1000000)
# TIDEWATER_FUZZ_SECONDS  seconds of cargo fuzz (default 60)
set -euo pipefail
cd "$(dirname "$0")/.."

export TIDEWATER_FUZZ_EXECS="${TIDEWATER_FUZZ_EXECS:-1000000}"
seconds="${TIDEWATER_FUZZ_SECONDS:-60}"

corpus="$(mktemp -d)"
trap 'rm -rf "$corpus"' EXIT

echo "fuzz: $TIDEWATER_FUZZ_EXECS executions of each decoder"
TIDEWATER_FUZZ_EXPORT="$corpus" \
    cargo test --profile ci -p tidewater-transport --test fuzz -- --nocapture

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "fuzz: skipped cargo fuzz: no nightly toolchain (rustup toolchain install nightly)"
elif ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: skipped cargo fuzz: not installed (cargo install cargo-fuzz)"
else
    echo "fuzz: cargo fuzz for $seconds s"
    cargo +nightly fuzz run decoders "$corpus" -- \
        -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=10
fi
